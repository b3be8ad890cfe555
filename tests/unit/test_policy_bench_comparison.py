"""What `justitia bench policies` makes of its runs: comparisons, JSON, and what the command prints."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from scheduler.sim.calibration import Iteration
from serve_app.cli.bench_policies_tables import documents, left_out_line
from serve_app.policy_bench.calibration import Calibration, slowed
from serve_app.policy_bench.comparison import Twin, compare, mean_s, policy_run
from serve_app.policy_bench.forecast import forecast
from serve_app.policy_bench.live import LiveRun
from serve_app.policy_bench.results import PolicyRun
from tests.bench_traffic import FIT, SIZES, run, traces, twin_settings

CALIBRATION = Calibration(profile=SIZES, fit=FIT, slowdown=1.1, round_trip_s=0.05, stretch=0.2, on_measured=False)


def twin_of(count: int) -> Twin:
    slow = twin_settings("vtc", slowed(FIT.applied_to(SIZES), 1.1))
    return Twin(forecast=forecast(traces(count), slow), blind=forecast(traces(count), twin_settings("vtc")))


def test_runs_are_compared_application_by_application_and_with_the_twin() -> None:
    runs = [run("vtc", 10.0, 10.0, 10.0, 10.0), run("justitia", 2.0, 5.0, 10.1, 14.0)]
    twin = twin_of(4)
    vtc, justitia = compare(runs, traces(4), {"vtc": twin, "justitia": twin}, "vtc")
    assert vtc.run.measures.completion is not None
    assert vtc.run.measures.completion.mean_s == 10.0
    assert justitia.share_nearly_within == 0.75
    assert justitia.p99_ratio == pytest.approx(1.3883)
    assert justitia.run.measures.lag is not None
    assert justitia.run.measures.lag.worst_s == 12.0
    blind_s = mean_s(justitia.twin.blind)
    assert blind_s is not None
    assert justitia.blind_error == pytest.approx(blind_s / 7.775 - 1)
    assert justitia.forecast_error == pytest.approx(1.1 * blind_s / 7.775 - 1)


def test_an_application_that_failed_under_one_policy_is_compared_under_none() -> None:
    """Its 90 s, or its forecast, would otherwise stand on one side only."""
    runs = [run("vtc", 1.0, 9.0, error="refused"), run("justitia", 3.0, 90.0)]
    twin = twin_of(2)
    forecasts = {one.application_id: one.completion_s for one in twin.forecast.applications}
    compared = compare(runs, traces(2), {"vtc": twin, "justitia": twin}, "vtc")
    vtc, justitia = compared
    assert (vtc.errors, justitia.errors) == ({"a1": "refused"}, {})
    assert (vtc.left_out, justitia.left_out) == (1, 1)
    assert left_out_line(compared).startswith("1 of 2 applications are left out")
    for one, mean in ((vtc, 1.0), (justitia, 3.0)):
        assert one.run.measures.completion is not None
        assert one.run.measures.completion.mean_s == mean
        assert one.run.result.makespan_s == mean
        assert [own.application_id for own in one.twin.forecast.applications] == ["a0"]
        assert one.forecast_error == pytest.approx(forecasts["a0"] / mean - 1)
    assert justitia.run.yardstick_mean_s == 1.0
    assert justitia.p99_ratio == pytest.approx(3.0)


def test_an_application_that_the_twin_has_not_is_left_out() -> None:
    whole, part = twin_of(2), twin_of(1)
    twin = Twin(forecast=whole.forecast, blind=part.blind)
    (compared,) = compare([run("vtc", 1.0, 9.0)], traces(2), {"vtc": twin}, None)
    assert [one.application_id for one in compared.run.result.applications] == ["a0"]
    assert compared.left_out == 1


def test_runs_without_a_common_application_have_errors_and_no_figures() -> None:
    runs = [run("vtc", 1.0, error="refused"), run("justitia", 3.0)]
    twin = twin_of(1)
    compared = compare(runs, traces(1), {"vtc": twin, "justitia": twin}, "vtc")
    vtc, justitia = documents(compared, CALIBRATION)
    assert (vtc["errors"], justitia["errors"]) == ({"a0": "refused"}, {})
    assert justitia["forecast_error"] is None
    assert justitia["forecast_mean_completion_s"] is None
    assert justitia["applications"] == []
    json.dumps([vtc, justitia])


def test_the_json_has_what_simulate_has_and_the_forecast() -> None:
    twin = twin_of(2)
    (document,) = documents(compare([run("vtc", 1.0, 3.0)], traces(2), {"vtc": twin}, "vtc"), CALIBRATION)
    assert document["policy"] == "vtc"
    assert document["mean_completion_s"] == 2.0
    assert document["p90_completion_s"] == pytest.approx(2.8)
    assert (document["preemptions"], document["makespan_s"]) == (3, 3.0)
    assert {"application_id", "application_type", "completion_s"} <= document["applications"][0].keys()
    assert document["forecast_mean_completion_s"] == pytest.approx(
        sum(one.completion_s for one in twin.forecast.applications) / 2
    )
    assert (document["left_out"], document["calibrated_on_measured"]) == (0, False)
    json.dumps(document)


def test_pace_is_the_logs_time_over_the_fits() -> None:
    log = [Iteration(1.2 * FIT.duration_s(Iteration(0.0, 4, tokens)), 4, tokens) for tokens in (0, 50)]
    live = LiveRun(outcomes=[], iterations=2, preemptions=0, log=log, kv_used_tokens=[100, 100], marks=[1, 2])
    made: Sequence[PolicyRun] = [policy_run("vtc", live, FIT, 200)]
    assert made[0].pace == pytest.approx(1.2)
    assert made[0].paces == pytest.approx((1.2, 1.2))
    assert made[0].kv_used == pytest.approx(0.5)
