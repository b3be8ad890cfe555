"""The simulator's jumps against a stepper, and what it says of a run."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies import POLICIES, create_policy
from scheduler.settings import Admission, ClockMode, CoreSettings
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.prediction import Nothing, Oracle, Predictor, TypeMean
from scheduler.sim.simulation import ApplicationResult, Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall, WorkloadError
from tests.sim.stepper import Stepper

SMALL = EngineProfile(
    block_tokens=4,
    usable_blocks=40,
    max_sequences=6,
    prefill_tokens_per_iteration=40,
    base_s=0.02,
    per_sequence_s=0.001,
    per_prefill_token_s=0.0005,
    max_model_len=160,
)
CHUNKED = dataclasses.replace(SMALL, chunked_prefill=True, prefill_tokens_per_iteration=12, prefix_cache_blocks=20)
SLOW = dataclasses.replace(SMALL, base_s=0.0231)
FAST = dataclasses.replace(CHUNKED, base_s=0.007, usable_blocks=30)


def crowd(seed: int, count: int = 25, spread_s: float = 8.0) -> list[TraceApplication]:
    """Applications in ticks of half a second, chains and fans, many at once."""
    rng = random.Random(seed)
    arrivals = sorted(round(rng.uniform(0, spread_s) * 2) / 2 for _ in range(count))
    return [
        TraceApplication(
            application_id=f"a{number}",
            application_type=rng.choice(["chain", "fan"]),
            arrival_s=arrival_s,
            calls=tuple(calls(rng)),
            tenant=rng.choice(["x", "y"]),
            weight=rng.choice([1.0, 2.0]),
        )
        for number, arrival_s in enumerate(arrivals)
    ]


def calls(rng: random.Random) -> list[TraceCall]:
    names = [f"c{number}" for number in range(rng.randint(1, 5))]
    made: list[TraceCall] = []
    for number, name in enumerate(names):
        after = tuple(rng.sample(names[:number], min(number, rng.randint(0, 2))))
        prefix = tuple(range(rng.randint(0, 3)))
        sequences = rng.choice([1, 1, 1, 2])
        made.append(
            TraceCall(
                name=name,
                prompt_tokens=rng.randint(1, 50),
                output_tokens=rng.randint(1, 28),
                after=after,
                sequences=sequences,
                prefix=prefix,
            )
        )
    return made


def finishes(result: SimulationResult) -> dict[str, float]:
    return {one.application_id: one.finish_s for one in result.applications}


def run(
    kind: type[Simulation],
    workload: Sequence[TraceApplication],
    policy: str = "justitia",
    engines: Sequence[EngineProfile] = (SMALL,),
    predictor: Predictor | None = None,
    **core: Any,
) -> SimulationResult:
    fields = {"admission": Admission.ENGINE, "watermark": 0.0, **core}
    chosen = SimulationSettings(
        policy=policy, core=CoreSettings(**fields), engines=tuple(engines), check_invariants=kind is Simulation
    )
    return kind(workload, chosen, predictor).run()


# ---- jumps


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("profile", [SMALL, CHUNKED], ids=["whole", "chunked"])
def test_jumps_give_what_single_steps_give(policy: str, profile: EngineProfile) -> None:
    for seed in range(3):
        jumped, stepped = (run(kind, crowd(seed), policy, [profile]) for kind in (Simulation, Stepper))
        assert finishes(jumped) == finishes(stepped)
        assert len(jumped.applications) == 25
        for field in ("iterations", "preemptions", "prefilled_tokens", "recomputed_tokens", "makespan_s"):
            assert getattr(jumped, field) == getattr(stepped, field), field
        gps = {one.application_id: one.gps_finish_s for one in stepped.applications}
        own_cost = create_policy(policy).cost is not None  # service by it is seen when calls are, at the ends of jumps
        seen_s = 0.5 if own_cost else 0.06
        for one in jumped.applications:
            assert one.gps_finish_s == pytest.approx(gps[one.application_id], abs=seen_s)


@pytest.mark.parametrize("policy", ["justitia", "fcfs", "vtc", "srtf", "sjf", "las", "gps"])
@pytest.mark.parametrize("engines", [(SMALL, SMALL), (SMALL, SLOW, FAST)], ids=["alike", "different"])
def test_jumps_of_several_engines_give_what_their_steps_give(policy: str, engines: Sequence[EngineProfile]) -> None:
    """A crowd whose engines often end an iteration at the same moment, and see arrivals in the middle of a jump."""
    jumped, stepped = (run(kind, crowd(1, 30, 3.0), policy, engines) for kind in (Simulation, Stepper))
    assert finishes(jumped) == finishes(stepped)
    assert (jumped.iterations, jumped.preemptions) == (stepped.iterations, stepped.preemptions)
    assert jumped.busy_s == pytest.approx(stepped.busy_s)


@given(st.integers(0, 10**6), st.sampled_from(["vtc", "srtf", "las", "equinox", "fairserve"]), st.floats(0.1, 9.0))
@settings(deadline=None, max_examples=25)
def test_what_is_told_late_orders_as_what_is_told_at_once(seed: int, policy: str, weight: float) -> None:
    """Weights that no float holds exactly: counters are the same in however many reports they grow."""
    workload = [dataclasses.replace(one, weight=one.weight * weight) for one in crowd(seed, 15, 3.0)]
    jumped, stepped = (run(kind, workload, policy) for kind in (Simulation, Stepper))
    assert finishes(jumped) == finishes(stepped)


@given(st.integers(0, 10**6), st.sampled_from([TypeMean, Nothing]))
@settings(deadline=None, max_examples=25)
def test_jumps_stop_where_calls_outgrow_their_predictions(seed: int, predictor: type[Predictor]) -> None:
    jumped, stepped = (run(kind, crowd(seed, 15), predictor=predictor()) for kind in (Simulation, Stepper))
    assert finishes(jumped) == finishes(stepped)


@given(st.integers(0, 10**6), st.integers(2, 60))
@settings(deadline=None, max_examples=25)
def test_jumps_are_exact_for_other_sizes(seed: int, blocks: int) -> None:
    profile = dataclasses.replace(SMALL, usable_blocks=40 + blocks, block_tokens=4 + seed % 13)
    jumped, stepped = (run(kind, crowd(seed, 15), engines=[profile]) for kind in (Simulation, Stepper))
    assert finishes(jumped) == finishes(stepped)


def test_preemptions_happen_and_are_the_same() -> None:
    preemptions = [run(Simulation, crowd(seed, spread_s=1.0), "fcfs").preemptions for seed in range(5)]
    assert sum(preemptions) > 10
    assert preemptions == [run(Stepper, crowd(seed, spread_s=1.0), "fcfs").preemptions for seed in range(5)]


# ---- several engines


@pytest.mark.parametrize("policy", ["justitia", "fcfs", "vtc", "d2lpm"])
def test_several_engines_of_different_speeds_serve_everybody(policy: str) -> None:
    one, three = run(Simulation, crowd(4), policy), run(Simulation, crowd(4), policy, [SMALL, CHUNKED, FAST])
    assert len(three.applications) == 25
    assert three.makespan_s < one.makespan_s
    assert sum(finishes(three).values()) < sum(finishes(one).values())


def test_a_sleeping_engine_takes_what_another_made_ready() -> None:
    """Two branches of one application run at once where there are two engines for one sequence each."""
    one_at_a_time = dataclasses.replace(SMALL, max_sequences=1)
    first = TraceCall(name="first", prompt_tokens=4, output_tokens=4)
    branches = [TraceCall(name=f"b{n}", prompt_tokens=4, output_tokens=20, after=("first",)) for n in range(2)]
    workload = [TraceApplication(application_id="a", arrival_s=0.0, calls=(first, *branches))]
    single, double = (run(Simulation, workload, engines=[one_at_a_time] * count).makespan_s for count in (1, 2))
    assert double == pytest.approx((single - 4 * 0.021) / 2 + 4 * 0.021, rel=0.05)


# ---- admission


def test_projected_peaks_preempt_less_than_the_engine_alone() -> None:
    spread = {"spread_s": 1.0, "count": 40}
    by_engine = [run(Simulation, crowd(seed, **spread), "fcfs") for seed in range(6)]  # type: ignore[arg-type]
    projected = [
        run(Simulation, crowd(seed, **spread), "fcfs", admission=Admission.PROJECTED_PEAK)  # type: ignore[arg-type]
        for seed in range(6)
    ]
    assert sum(r.preemptions for r in projected) * 2 <= sum(r.preemptions for r in by_engine)
    assert all(len(r.applications) == 40 for r in projected)


# ---- results


def test_a_run_twice_is_the_same_run() -> None:
    first, second = (run(Simulation, crowd(7), "lottery", [SMALL, FAST]) for _ in range(2))
    assert first == second


def test_a_single_call_lasts_as_long_as_the_profile_says() -> None:
    call = TraceCall(name="c", prompt_tokens=10, output_tokens=5)
    result = run(Simulation, [TraceApplication(application_id="a", arrival_s=2.5, calls=(call,))])
    (one,) = result.applications
    expected_s = 5 * (0.02 + 0.001) + 10 * 0.0005
    assert one.completion_s == pytest.approx(expected_s, abs=1e-9)
    assert (result.calls, result.output_tokens, result.iterations, result.prefilled_tokens) == (1, 5, 5, 10)
    assert one.cost == 10 * 5 + 15
    assert one.gps_finish_s == pytest.approx(one.finish_s)
    assert result.makespan_s == one.finish_s


def test_results_flow_to_a_sink_and_nothing_is_kept() -> None:
    seen: list[ApplicationResult] = []
    chosen = SimulationSettings(
        engines=(SMALL,), core=CoreSettings(admission=Admission.ENGINE, watermark=0.0, clock=ClockMode.ITERATION)
    )
    simulation = Simulation(iter(crowd(1)), chosen, Oracle(), sink=seen.append)
    result = simulation.run()
    assert result.applications == []
    assert {one.application_id for one in seen} == {f"a{n}" for n in range(25)}
    assert not simulation._running
    assert not simulation._ended
    assert len(simulation._waiting_tokens) <= 64
    assert simulation.core.applications == {}


def test_watch_sees_every_moment_in_order_of_time() -> None:
    moments: list[float] = []
    chosen = SimulationSettings(engines=(SMALL,))
    Simulation(crowd(2), chosen, watch=lambda simulation: moments.append(simulation.now_s)).run()
    assert moments == sorted(moments)
    assert len(moments) > 50


def test_what_no_engine_can_hold_is_refused_by_name() -> None:
    call = TraceCall(name="huge", prompt_tokens=100, output_tokens=70)
    with pytest.raises(WorkloadError, match=r"application a: 1 × \(100 \+ 70\) tokens of call huge fit no engine"):
        run(Simulation, [TraceApplication(application_id="a", arrival_s=0.0, calls=(call,))])


def test_an_id_that_is_taken_is_refused() -> None:
    call = TraceCall(name="c", prompt_tokens=10, output_tokens=30)
    twice = [TraceApplication(application_id="a", arrival_s=0.0, calls=(call,))] * 2
    with pytest.raises(WorkloadError, match="application a"):
        run(Simulation, twice)


def test_the_kv_pool_is_nearly_full_under_load() -> None:
    result = run(Simulation, crowd(3, count=60, spread_s=1.0))
    assert 0.6 < result.kv_used <= 1.0
    assert result.busy_s == pytest.approx(result.makespan_s, rel=0.05)


def test_the_reference_engine_is_the_default() -> None:
    assert SimulationSettings().engines == (REFERENCE,)
