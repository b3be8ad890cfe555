"""The twin of `justitia bench policies`: calibration, forecast, and the pace of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.metrics import completions
from scheduler.sim.prediction import Oracle
from scheduler.sim.simulation import engine_admission
from serve_app.policy_bench.calibration import calibrate, slowed, stretch_for
from serve_app.policy_bench.forecast import TwinSettings, as_the_twin_has_it, forecast, predictor_of
from serve_app.policy_bench.pace import Paces, paces_of
from serve_app.policy_bench.replay import Outcome
from tests.bench_traffic import FIT, LOG, RULE, SIZES, application, burst, burst_with, call, twin_settings


def no_stretch(_: EngineProfile) -> float:
    return 1.0


@pytest.mark.parametrize(("factor", "round_trip_s"), [(1.0, 0.0), (1.3, 0.0), (1.3, 0.1), (1.0, 0.05)])
def test_a_calibration_finds_the_slowdown_and_the_round_trip(factor: float, round_trip_s: float) -> None:
    slow = twin_settings(profile=slowed(FIT.applied_to(SIZES), factor))
    real = forecast(burst_with(round_trip_s), slow)
    outcomes = [
        Outcome(application_id=one.application_id, arrival_s=0.0, finish_s=one.finish_s) for one in real.applications
    ]
    found = calibrate(LOG, [], outcomes, burst_with, no_stretch, twin_settings())
    assert found.round_trip_s == pytest.approx(round_trip_s, abs=0.026), "the nearest step, or the one beside it"
    assert found.slowdown == pytest.approx(factor, rel=0.02)
    assert found.profile.base_s == pytest.approx(0.01 * found.slowdown)


def test_the_reference_engine_stretches_nothing() -> None:
    """With its own speed and admission the ratio of the two times is 1."""
    core = engine_admission()

    def stretch(profile: EngineProfile) -> float:
        return stretch_for(burst(), profile, core)

    reference = TwinSettings(policy="justitia", profile=REFERENCE, core=core, create_predictor=Oracle)
    log = [replace(one, duration_s=REFERENCE.duration_s(one.sequences, one.prefilled_tokens)) for one in LOG]
    outcomes = [
        Outcome(application_id=one.application_id, arrival_s=0.0, finish_s=one.finish_s)
        for one in forecast(burst(), reference).applications
    ]
    found = calibrate(log, [], outcomes, lambda _: burst(), stretch, reference)
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
    two = as_the_twin_has_it(traced, replace(RULE, chars_per_token=2), 0.1).spec({"one": 5, "then": 6}, None)
    assert [asked.prompt_tokens for asked in two.calls] == [200, 31]


@pytest.mark.parametrize("round_trip_s", [0.0, 0.1])
def test_the_twin_of_the_simulated_engine_is_not_open(round_trip_s: float) -> None:
    """Four characters are a token there: what the service says of prompts is right; a round trip is no thinking."""
    traced = application("a", 0.0, call("one", 200), call("then", 61, after=("one",)))
    twin = as_the_twin_has_it(traced, replace(RULE, chars_per_token=4), round_trip_s)
    spec = twin.spec({"one": 5, "then": 6}, None)
    assert [asked.prompt_tokens for asked in spec.calls] == [200, 61]
    assert not spec.open
    assert not replace(twin, arrival_s=3.0).spec({"one": 5, "then": 6}, None).open


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


@pytest.mark.parametrize("windows", [(), (0.0,), (1.0, -1.0), (float("nan"),), (1.0, float("inf"))])
def test_paces_that_no_machine_has_are_refused(windows: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="paces must be finite and above 0"):
        Paces(windows)


def test_a_window_without_iterations_has_the_pace_of_all() -> None:
    log = [replace(one, duration_s=2 * one.duration_s) for one in LOG]
    assert paces_of(log, [10, 10, 10_000], FIT).windows == pytest.approx((2.0, 2.0, 2.0))
    assert paces_of([], [], FIT).windows == (1.0,)
