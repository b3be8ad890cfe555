"""What `justitia bench policies` is made of: traffic, clients, calibration, forecasts, results and comparison."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from scheduler.settings import Admission
from scheduler.sim.calibration import Fit, Iteration
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.metrics import completions
from scheduler.sim.prediction import Oracle
from scheduler.sim.simulation import engine_admission
from scheduler.sim.workload import TraceApplication, TraceCall, write_application
from serve_app.cli.bench_policies_tables import documents
from serve_app.documents import ApplicationDocument
from serve_app.policy_bench import bench
from serve_app.policy_bench import replay as replay_module
from serve_app.policy_bench.bench import Bench, Question
from serve_app.policy_bench.calibration import Calibration, calibrate, slowed
from serve_app.policy_bench.comparison import Twin, compare, mean_s, policy_run
from serve_app.policy_bench.deployment import bench_config, engine_settings, engine_sizes, live_core
from serve_app.policy_bench.forecast import TwinSettings, as_the_twin_has_it, forecast, predictor_of
from serve_app.policy_bench.live import LiveRun
from serve_app.policy_bench.pace import Paces, paces_of
from serve_app.policy_bench.replay import Outcome, replay
from serve_app.policy_bench.results import PolicyRun, Results, ResultsError, digest_of
from serve_app.policy_bench.traffic import (
    LengthRule,
    TrafficError,
    as_the_service_sees,
    check_replayable,
    document_of,
    prompt_texts,
    stretched,
)

RULE = LengthRule(model="tiny", max_model_len=4096, end_token_id=257)
FIT = Fit(
    base_s=0.01,
    per_sequence_s=0.001,
    per_prefill_token_s=0.0001,
    iterations=100,
    r_squared=1.0,
    mean_absolute_error_s=0.0,
    mean_duration_s=0.02,
)


def call(name: str, prompt_tokens: int = 40, output_tokens: int = 8, after: tuple[str, ...] = ()) -> TraceCall:
    return TraceCall(name=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens, after=after)


def application(name: str = "a", arrival_s: float = 0.0, *calls: TraceCall, prompt: str = "") -> TraceApplication:
    return TraceApplication(
        application_id=name, application_type="report", arrival_s=arrival_s, prompt=prompt, calls=calls or (call("x"),)
    )


# ---- traffic


def test_prompts_have_the_traces_tokens_and_begin_with_what_was_asked() -> None:
    asked = "Describe {{the}} café, please: " + "word " * 20
    calls = (call("one", 30), call("two", 50), call("then", 60, after=("one", "two")))
    texts = prompt_texts(application("a", 0.0, *calls, prompt=asked), 1)
    assert {name: len(text.encode()) for name, text in texts.items()} == {"one": 30, "two": 50, "then": 60}
    assert texts["one"] + texts["two"] == "Describe {(the}} caf?, please: " + ("word " * 20)[:49]
    assert set(texts["then"]) == {"."}
    assert {name: len(text) for name, text in prompt_texts(application(), 4).items()} == {"x": 160}


def test_the_service_takes_the_documents_and_sees_what_was_asked() -> None:
    traced = application("a", 0.0, call("one", 200), call("then", 60, after=("one",)), prompt="Name three uses.")
    document = ApplicationDocument.model_validate(document_of(traced, RULE))
    assert document.application_type == "report"
    assert [asked.after for asked in document.calls] == [[], ["one"]]
    assert as_the_service_sees(traced, RULE).prompt == "Name three uses." + "." * 184


def test_only_vllms_own_fields_tell_the_length_of_an_answer() -> None:
    short, long = RULE.sampling(call("x", 100, 3)), RULE.sampling(call("x", 100, 900))
    assert short["max_tokens"] == long["max_tokens"] == 3996
    assert (short["min_tokens"], long["min_tokens"]) == (2, 899)
    assert short["logit_bias"] == long["logit_bias"] == {"257": 100}
    told = LengthRule(model="simulated", max_model_len=4096).sampling(call("x", 100, 3))
    assert told == {"max_tokens": 3, "ignore_eos": True}


def test_arrivals_begin_at_zero_and_keep_their_proportions() -> None:
    moved = stretched([application("a", 4.0), application("b", 6.0), application("c", 10.0)], 0.5)
    assert [one.arrival_s for one in moved] == [0.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("faulty", "what"),
    [
        (call("x", 0), "it has no prompt"),
        (call("x", 4000, 97), "4097 tokens are more than the 4096"),
        (replace(call("x"), delay_s=1.0), "think"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(faulty: TraceCall, what: str) -> None:
    with pytest.raises(TrafficError, match=f"application a, call x: .*{what}"):
        check_replayable([application("a", 0.0, faulty)], RULE, 8160)


# ---- clients


class Service:
    """Answers as the service does, and can be made to fail."""

    def __init__(
        self, *, refuse: str = "", lengthen: str = "", hang: str = "", event: str = "", status: Any = None
    ) -> None:
        self.refuse, self.lengthen, self.hang, self.odd_event, self.odd_status = refuse, lengthen, hang, event, status
        self.documents: dict[str, dict[str, Any]] = {}
        self.app = Starlette(
            routes=[
                Route("/v1/applications", self.submit, methods=["POST"]),
                Route("/v1/applications/{name}/events", self.events),
                Route("/v1/applications/{name}", self.status),
            ]
        )

    async def submit(self, request: Request) -> Response:
        document = await request.json()
        name = document["application_id"]
        if name == self.refuse:
            return JSONResponse({"error": {"message": "busy"}}, 429)
        self.documents[name] = document
        return JSONResponse({"application_id": name}, 201)

    async def events(self, request: Request) -> Response:
        name = request.path_params["name"]

        async def lines() -> AsyncIterator[str]:
            if name == self.hang:
                await asyncio.sleep(3600)
            if name == "b" and self.odd_event:
                yield f"data: {self.odd_event}\n\n"
            yield 'event: tag_set\ndata: {"event": "tag_set"}\n\n'
            yield 'event: application_ended\ndata: {"event": "application_ended"}\n\n'

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def status(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "b" and self.odd_status is not None:
            return JSONResponse(self.odd_status)
        document = self.documents[name]
        more = 1 if name == self.lengthen else 0
        calls = [
            {
                "name": asked["name"],
                "prompt_tokens": len(asked["prompt"]),
                "output_tokens": asked["min_tokens"] + 1 + more,
            }
            for asked in document["calls"]
        ]
        known = {"state": "finished", "gps_completion_s": 2.5, "bound_s": 3.5, "predicted_cost": 70.0}
        return JSONResponse({"application_id": name, "calls": calls, **known})


async def outcomes_of(service: Service, limit_s: float = 30.0) -> tuple[dict[str, Outcome], list[str]]:
    ended: list[str] = []
    traces = [application("a"), application("b", 0.05)]
    transport = httpx.ASGITransport(service.app)
    outcomes = await replay("http://service", traces, RULE, limit_s, ended.append, transport)
    return {one.application_id: one for one in outcomes}, ended


async def test_clients_send_at_their_moments_and_keep_what_the_service_says() -> None:
    outcomes, ended = await outcomes_of(Service())
    assert sorted(ended) == ["a", "b"]
    late = outcomes["b"]
    assert late.error is None
    assert late.sent_s is not None
    assert late.finish_s is not None
    assert 0.05 <= late.sent_s <= late.finish_s
    assert late.gps_finish_s == pytest.approx(late.sent_s + 2.5)
    assert late.bound_s == pytest.approx(late.sent_s + 3.5)
    assert late.predicted_cost == 70.0


@pytest.mark.parametrize(
    ("service", "error"),
    [
        (Service(refuse="b"), "refused (429): busy"),
        (Service(lengthen="b"), "call x has (40, 9) prompt and output tokens instead of (40, 8)"),
        (Service(event="<html>"), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (Service(event="[]"), "AttributeError: 'list' object has no attribute 'get'"),
        (Service(status={"state": "finished", "gps_completion_s": 1}), "its status cannot be read: KeyError('calls')"),
        (Service(status=5), "its status is unknown: TypeError"),
    ],
)
async def test_what_went_wrong_with_one_is_kept_and_stops_no_other(
    service: Service, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "AUDIT_WAIT_S", 0.1)
    outcomes, ended = await outcomes_of(service)
    assert outcomes["b"].error == error
    assert outcomes["a"].error is None
    assert outcomes["a"].finish_s is not None
    assert sorted(ended) == ["a", "b"]


async def test_nothing_is_waited_for_longer_than_the_limit() -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(3600)
            raise AssertionError

    async with asyncio.timeout(20):
        (outcome,) = await replay("http://service", [application("a")], RULE, 0.3, lambda _: None, Silent())
    assert outcome.finish_s is None
    assert outcome.error == "it had not ended when the time was over"


# ---- calibration and forecast


def burst() -> list[TraceApplication]:
    """Sixteen applications at once, more than the engine of `SIZES` can hold."""
    calls = [(call("m", 150 + 10 * n, 20 + 3 * n), call("r", 90, 12, after=("m",))) for n in range(16)]
    return [application(f"b{number}", 0.0, *pair) for number, pair in enumerate(calls)]


SIZES = EngineProfile(block_tokens=32, usable_blocks=40, max_sequences=64, chunked_prefill=True, max_model_len=1024)
LIVE = live_core({"applications": [{"args": {}, "deployments": [{"user_config": {}}]}]}, "fcfs")


LOG = [
    Iteration(FIT.duration_s(Iteration(0.0, sequences, tokens)), sequences, tokens)
    for sequences in range(1, 12)
    for tokens in (0, 100, 700, 2000)
]


def twin_settings(policy: str = "justitia", profile: EngineProfile | None = None) -> TwinSettings:
    engine = profile or FIT.applied_to(SIZES)
    return TwinSettings(policy=policy, profile=engine, core=LIVE, create_predictor=Oracle)


def burst_with(round_trip_s: float) -> list[TraceApplication]:
    return [as_the_twin_has_it(one, RULE, round_trip_s) for one in burst()]


@pytest.mark.parametrize(("factor", "round_trip_s"), [(1.0, 0.0), (1.3, 0.0), (1.3, 0.1), (1.0, 0.05)])
def test_a_calibration_finds_the_slowdown_and_the_round_trip(factor: float, round_trip_s: float) -> None:
    slow = twin_settings(profile=slowed(FIT.applied_to(SIZES), factor))
    real = forecast(burst_with(round_trip_s), slow)
    outcomes = [
        Outcome(application_id=one.application_id, arrival_s=0.0, finish_s=one.finish_s) for one in real.applications
    ]
    found = calibrate(LOG, [], outcomes, burst_with, burst(), twin_settings())
    assert found.round_trip_s == pytest.approx(round_trip_s, abs=0.026), "the nearest step, or the one beside it"
    assert found.slowdown == pytest.approx(factor, rel=0.02)
    assert found.profile.base_s == pytest.approx(0.01 * found.slowdown)


def test_the_reference_engine_stretches_nothing() -> None:
    """With its own speed and admission the ratio of the two times is 1."""
    core = engine_admission()
    reference = TwinSettings(policy="justitia", profile=REFERENCE, core=core, create_predictor=Oracle)
    log = [replace(one, duration_s=REFERENCE.duration_s(one.sequences, one.prefilled_tokens)) for one in LOG]
    outcomes = [
        Outcome(application_id=one.application_id, arrival_s=0.0, finish_s=one.finish_s)
        for one in forecast(burst(), reference).applications
    ]
    found = calibrate(log, [], outcomes, lambda _: burst(), burst(), reference)
    assert found.stretch == pytest.approx(1.0, rel=1e-6)


def test_running_means_learn_from_ends() -> None:
    means = predictor_of(None, 1024)()
    before = means.predict(application()).outputs["x"]
    for _ in range(20):
        means.learn(application("a", 0.0, call("x", 40, 900)))
    after = means.predict(application()).outputs["x"]
    assert before < after <= 900


def test_the_twin_is_told_what_the_service_says_at_arrival() -> None:
    traced = application("a", 0.0, call("one", 200), call("then", 61, after=("one",)))
    told = as_the_twin_has_it(traced, RULE, 0.1).spec({"one": 5, "then": 6}, 70.0)
    assert [(asked.prompt_tokens, asked.predicted_output_tokens) for asked in told.calls] == [(200, 5), (16, 6)]
    assert (told.open, told.predicted_cost) == (False, 70.0)
    simulated = as_the_twin_has_it(traced, replace(RULE, chars_per_token=4), 0.0).spec({"one": 5, "then": 6}, None)
    assert [asked.prompt_tokens for asked in simulated.calls] == [200, 61]


def test_work_and_clock_are_inverses_of_each_other() -> None:
    paces = Paces((2.0, 1.0, 4.0))
    assert [paces.work_s(clock_s) for clock_s in (0.0, 4.0, 5.0, 9.0, 10.0, 14.0, 30.0)] == [
        0.0,
        2.0,
        2.5,
        6.5,
        7.5,
        8.5,
        12.5,
    ]
    for clock_s in (0.0, 1.0, 5.0, 7.0, 10.0, 12.0, 100.0):
        assert paces.clock_s(paces.work_s(clock_s)) == pytest.approx(clock_s)


def test_a_machine_that_is_slow_throughout_is_a_slower_engine() -> None:
    """With the round trips as slow as the rest, the simulation at pace 1 on its clock is that of the slow engine."""
    traffic = [replace(one, arrival_s=0.4 * place) for place, one in enumerate(burst())]
    slow = forecast(traffic, twin_settings(profile=slowed(FIT.applied_to(SIZES), 1.5)))
    paces = Paces((1.5, 1.5))
    warped = paces.on_clock(forecast(paces.of_work(traffic), twin_settings()))
    assert [one.arrival_s for one in warped.applications] == pytest.approx([one.arrival_s for one in traffic])
    assert completions(warped.applications) == pytest.approx(completions(slow.applications), rel=1e-3)
    assert warped.makespan_s == pytest.approx(slow.makespan_s, rel=1e-3)


def test_a_window_without_iterations_has_the_pace_of_all() -> None:
    log = [replace(one, duration_s=2 * one.duration_s) for one in LOG]
    assert paces_of(log, [10, 10, 10_000], FIT).windows == pytest.approx((2.0, 2.0, 2.0))
    assert paces_of([], [], FIT).windows == (1.0,)


# ---- deployment


def test_the_configuration_has_the_engine_the_policy_and_the_live_admission() -> None:
    config: dict[str, Any] = {
        "applications": [
            {"args": {"state_dir": None}, "deployments": [{"name": "Scheduler", "user_config": {"clock_rate": 2.0}}]},
            {"args": {"engine": {}}, "import_path": "a:b", "deployments": [{"name": "EngineReplica"}]},
        ]
    }
    changed = bench_config(config, {"kind": "simulated"}, "vtc", 1234, Path("/models/m"))
    scheduler, serving = changed["applications"]
    assert scheduler["deployments"][0]["user_config"] == {"clock_rate": 2.0, "policy": "vtc"}
    assert serving["args"] == {"engine": {"kind": "simulated"}, "ingress": {"predictor_dir": "/models/m"}}
    assert config["applications"][1]["args"] == {"engine": {}}
    core = live_core(config, "vtc")
    assert (core.clock_rate, core.admission) == (2.0, Admission.PROJECTED_PEAK)


def test_the_engines_pool_is_what_the_docstring_says() -> None:
    assert engine_sizes(engine_settings(simulated=False)).pool_tokens == 8160


# ---- results


def run(policy: str, *finishes_s: float, error: str | None = None) -> PolicyRun:
    outcomes = [
        Outcome(application_id=f"a{number}", arrival_s=0.0, sent_s=0.0, finish_s=finish_s, gps_finish_s=2.0)
        for number, finish_s in enumerate(finishes_s)
    ]
    outcomes[-1] = replace(outcomes[-1], error=error)
    return PolicyRun(
        policy=policy,
        outcomes=tuple(outcomes),
        iterations=10,
        preemptions=3,
        kv_used=0.5,
        pace=1.1,
        paces=(1.2, 1.0),
    )


def test_what_was_kept_is_found_again_and_not_under_other_settings(tmp_path: Path) -> None:
    settings = {"apps": 3, "workload": "abc"}
    results = Results.open(tmp_path / "out", settings)
    calibration = Calibration(profile=SIZES, fit=FIT, slowdown=1.1, round_trip_s=0.05, stretch=0.2)
    assert results.calibration() is None
    assert results.run_of("vtc") is None
    results.keep_calibration(calibration)
    results.keep_run(run("vtc", 1.0, 2.0))
    again = Results.open(tmp_path / "out", settings)
    assert again.calibration() == calibration
    assert again.run_of("vtc") == run("vtc", 1.0, 2.0)
    with pytest.raises(ResultsError, match=r"other settings \(apps differ\)"):
        Results.open(tmp_path / "out", {**settings, "apps": 4})


def question(workload: Path, seconds: float = 60.0, ingress: dict[str, Any] | None = None) -> Question:
    serving = {"args": {"engine": {}, "ingress": ingress or {}}, "deployments": [{"name": "EngineReplica"}]}
    return Question(
        workload=workload,
        policies=["fcfs"],
        intensity=1.0,
        apps=2,
        predictor_dir=None,
        stretch=1.0,
        seconds=seconds,
        simulated=True,
        config={"applications": [{"args": {}, "deployments": [{"user_config": {}}]}, serving]},
    )


def test_results_of_another_limit_or_other_ingresses_are_not_taken(tmp_path: Path) -> None:
    workload = tmp_path / "trace.jsonl"
    workload.write_text("".join(write_application(application(name)) + "\n" for name in "abc"))
    for _ in range(2):
        Results.open(tmp_path / "out", question(workload).settings({}))
    for other, name in ((question(workload, 600.0), "seconds"), (question(workload, ingress={"a": 1}), "ingress")):
        with pytest.raises(ResultsError, match=rf"\({name} differ\)"):
            Results.open(tmp_path / "out", other.settings({}))


@pytest.mark.parametrize("error", [KeyError("iterations"), json.JSONDecodeError("odd", "<html>", 0)])
def test_a_service_that_answers_oddly_ends_a_run_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    workload = tmp_path / "trace.jsonl"
    workload.write_text("".join(write_application(application(name)) + "\n" for name in "abc"))
    monkeypatch.setattr(bench, "run_live", fail)
    whole = Bench(question(workload), tmp_path / "out", Console(quiet=True))
    with pytest.raises(ResultsError, match="calibration: the service does not answer as it should"):
        whole.compared()


@pytest.mark.parametrize("text", ["{", "[]", '{"policy": "vtc"}', '{"outcomes": [{}]}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    results = Results.open(tmp_path, {})
    (tmp_path / "policy-vtc.json").write_text(text)
    with pytest.raises(ResultsError, match=r"policy-vtc\.json"):
        results.run_of("vtc")


def test_a_digest_follows_contents_and_names(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    before = digest_of(tmp_path)
    (tmp_path / "two").write_text("2")
    with_another = digest_of(tmp_path)
    (tmp_path / "two").rename(tmp_path / "three")
    assert len({before, with_another, digest_of(tmp_path)}) == 3


# ---- comparison


def twin_of(count: int) -> Twin:
    slow = twin_settings("vtc", slowed(FIT.applied_to(SIZES), 1.1))
    return Twin(forecast=forecast(traces(count), slow), blind=forecast(traces(count), twin_settings("vtc")))


def traces(count: int) -> list[TraceApplication]:
    return [application(f"a{number}") for number in range(count)]


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
    assert justitia.blind_error == pytest.approx(blind_s / 7.775 - 1)
    assert justitia.forecast_error == pytest.approx(1.1 * blind_s / 7.775 - 1)


def test_an_application_that_failed_is_listed_and_not_compared() -> None:
    twin = twin_of(2)
    (compared,) = compare([run("vtc", 1.0, 9.0, error="refused")], traces(2), {"vtc": twin}, None)
    assert compared.errors == {"a1": "refused"}
    assert [one.application_id for one in compared.run.result.applications] == ["a0"]


def test_the_json_has_what_simulate_has_and_the_forecast() -> None:
    twin = twin_of(2)
    (document,) = documents(compare([run("vtc", 1.0, 3.0)], traces(2), {"vtc": twin}, "vtc"))
    assert document["policy"] == "vtc"
    assert document["mean_completion_s"] == 2.0
    assert document["p90_completion_s"] == pytest.approx(2.8)
    assert (document["preemptions"], document["makespan_s"]) == (3, 3.0)
    assert {"application_id", "application_type", "completion_s"} <= document["applications"][0].keys()
    assert document["forecast_mean_completion_s"] == pytest.approx(
        sum(one.completion_s for one in twin.forecast.applications) / 2
    )
    json.dumps(document)


def test_pace_is_the_logs_time_over_the_fits() -> None:
    log = [Iteration(1.2 * FIT.duration_s(Iteration(0.0, 4, tokens)), 4, tokens) for tokens in (0, 50)]
    live = LiveRun(outcomes=[], iterations=2, preemptions=0, log=log, kv_used_tokens=[100, 100], marks=[1, 2])
    made: Sequence[PolicyRun] = [policy_run("vtc", live, FIT, 200)]
    assert made[0].pace == pytest.approx(1.2)
    assert made[0].paces == pytest.approx((1.2, 1.2))
    assert made[0].kv_used == pytest.approx(0.5)
