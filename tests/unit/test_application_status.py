"""One shape for every application's status, wherever what is known of it comes from."""

from __future__ import annotations

from scheduler.explain import explain
from scheduler.types import ApplicationRecord
from serve_app.application_status import status_from_explanation, status_from_record
from serve_app.documents import ApplicationStatus
from tests.scheduling import Bench, call


def record(outcome: str, gps_finish_s: float | None) -> ApplicationRecord:
    return ApplicationRecord(
        application_id="x",
        application_type="chat",
        tenant="default",
        weight=2.0,
        outcome=outcome,
        arrival_s=100.0,
        finish_s=107.0,
        predicted_cost=50.0,
        true_cost=60.0,
        finish_tag=30.0,
        calls=3,
        gps_finish_s=gps_finish_s,
        bound_s=None if gps_finish_s is None else 112.0,
    )


def test_an_ended_application_has_times_after_its_arrival() -> None:
    status = status_from_record(record("finished", 109.0))
    assert (status.completion_s, status.gps_completion_s, status.lag_s, status.bound_s) == (7.0, 9.0, -2.0, 12.0)
    assert (status.state, status.weight, status.true_cost) == ("finished", 2.0, 60.0)
    assert (status.calls_total, status.calls_done, status.calls, status.created_s) == (3, 3, None, None)


def test_what_is_not_known_yet_is_none() -> None:
    status = status_from_record(record("cancelled", None))
    assert (status.gps_completion_s, status.lag_s, status.bound_s) == (None, None, None)
    assert (status.calls_total, status.calls_done) == (3, None)


def test_an_application_in_the_system_has_the_same_shape() -> None:
    bench = Bench()
    bench.arrive_ready("x", call("a"))
    explanation = explain(bench.core, "x")
    assert explanation is not None
    status = status_from_explanation({**explanation, "waited_s": 4.0}, now_s=1_000.0)
    assert set(status.model_dump()) == set(ApplicationStatus.model_fields)
    assert (status.application_id, status.state, status.created_s) == ("x", explanation["state"], 996.0)
    assert (status.finish_tag, status.predicted_cost) == (explanation["finish_tag"], explanation["predicted_cost"])
    assert (status.calls_total, status.calls_done, status.calls) == (None, None, None)
