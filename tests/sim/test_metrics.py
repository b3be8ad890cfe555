"""Measures against definitions worked by hand, other libraries, and the engines' own books."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cost import memory_cost
from scheduler.settings import Admission, CoreSettings, Flows
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.metrics import MAX_CDF_POINTS, cdf, completion_of, lag_of, measure, percentile, ratios
from scheduler.sim.service import Sample, ServiceMeter, ServiceRecord, jain_index
from scheduler.sim.simulation import ApplicationResult, Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall

SECONDS = st.floats(0.001, 1e6)


def ended(name: str, arrival_s: float, finish_s: float, **fields: object) -> ApplicationResult:
    usual: dict[str, object] = {
        "application_type": "t",
        "tenant": "default",
        "weight": 1.0,
        "cost": 10.0,
        "predicted_cost": 10.0,
        "calls": 1,
    }
    return ApplicationResult(application_id=name, arrival_s=arrival_s, finish_s=finish_s, **{**usual, **fields})  # type: ignore[arg-type]


# ---- completion, ratios, lag


def test_a_percentile_is_interpolated_between_the_nearest_ranks() -> None:
    assert percentile([10.0, 20.0, 30.0, 40.0], 0.5) == 25.0
    assert percentile([10.0, 20.0, 30.0, 40.0], 0.9) == pytest.approx(37.0)
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_a_percentile_of_nothing_or_elsewhere_is_refused(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="need values"):
        percentile(values, q)


@given(st.lists(SECONDS, min_size=2, max_size=60))
def test_percentiles_are_those_of_numpy_and_statistics(values: list[float]) -> None:
    ordered = sorted(values)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    for percent in (1, 50, 90, 99):
        ours = percentile(ordered, percent / 100)
        assert ours == pytest.approx(float(np.percentile(ordered, percent)))
        assert ours == pytest.approx(cuts[percent - 1])


def test_completion_counts_from_the_arrival() -> None:
    completion = completion_of([ended("a", 10.0, 12.0), ended("b", 20.0, 26.0)])
    assert completion is not None
    assert (completion.count, completion.mean_s, completion.p50_s, completion.worst_s) == (2, 4.0, 4.0, 6.0)
    assert completion.p90_s == pytest.approx(5.6)


def test_nothing_has_no_measures() -> None:
    measures = measure(SimulationResult("fcfs"), SimulationResult("vtc"))
    assert measures.completion is None
    assert measures.ratio_to_yardstick is None
    assert measures.ratio_to_gps is None
    assert measures.lag is None
    assert measures.output_tokens_per_s is None
    assert measures.by_type == {}


def test_ratios_compare_each_application_with_itself() -> None:
    found = ratios([ended("a", 0, 2), ended("b", 0, 3), ended("c", 0, 4)], {"a": 4.0, "b": 3.0, "c": 2.0, "x": 9.0})
    assert found is not None
    assert (found.count, found.worst, found.worst_application) == (3, 2.0, "c")
    assert found.share_within_1 == pytest.approx(2 / 3)
    assert found.mean == pytest.approx((0.5 + 1 + 2) / 3)
    assert found.cdf == ((0.5, 1 / 3), (1.0, 2 / 3), (2.0, 1.0))


def test_applications_without_the_other_number_are_left_out() -> None:
    found = ratios([ended("a", 0, 2), ended("b", 0, 3), ended("c", 0, 4)], {"a": 1.0, "b": 0.0})
    assert found is not None
    assert found.count == 1
    assert ratios([ended("a", 0, 2)], {}) is None


@given(st.lists(SECONDS, min_size=1, max_size=3 * MAX_CDF_POINTS))
def test_a_cdf_rises_to_one_and_says_the_share_at_most(values: list[float]) -> None:
    ordered = sorted(values)
    points = cdf(ordered)
    assert len(points) <= MAX_CDF_POINTS
    assert points[-1] == (ordered[-1], 1.0)
    assert [value for value, _ in points] == sorted({value for value, _ in points})
    assert all(before[1] < after[1] for before, after in pairwise(points))
    for value, share in points:
        assert share == sum(one <= value for one in ordered) / len(ordered)


def test_a_small_cdf_counts_equal_values_together() -> None:
    assert cdf([1.0, 1.0, 2.0, 5.0]) == ((1.0, 0.5), (2.0, 0.75), (5.0, 1.0))


def test_lag_is_against_the_reference_and_the_bound() -> None:
    lag = lag_of(
        [
            ended("won", 0, 4, gps_finish_s=10.0, bound_s=12.0),
            ended("late", 0, 13, gps_finish_s=10.0, bound_s=12.0),
            ended("unbounded", 0, 30, gps_finish_s=10.0),
            ended("unknown", 0, 99),
        ]
    )
    assert lag is not None
    assert (lag.count, lag.worst_s, lag.bounded, lag.violations) == (3, 20.0, 2, 1)
    assert lag.mean_s == pytest.approx((-6 + 3 + 20) / 3)
    assert lag.share_late == pytest.approx(2 / 3)


def test_rates_and_groups() -> None:
    result = SimulationResult("justitia", makespan_s=30.0, output_tokens=600, prefilled_tokens=90)
    result.applications = [
        ended("a", 0, 2, application_type="x", tenant="one", cost=30.0),
        ended("b", 0, 6, application_type="y", tenant="one", cost=60.0),
        ended("c", 0, 4, application_type="x", tenant="two", cost=10.0),
    ]
    other = SimulationResult("vtc")
    other.applications = [ended("a", 0, 4), ended("b", 0, 3), ended("c", 0, 4)]
    measures = measure(result, other)
    assert measures.output_tokens_per_s == 20.0
    assert measures.prefilled_tokens_per_s == 3.0
    assert measures.applications_per_minute == 6.0
    assert list(measures.by_type) == ["x", "y"]
    assert measures.by_type["x"].completion.mean_s == 3.0
    assert measures.by_tenant["one"].cost_share == pytest.approx(0.9)
    within = measures.by_tenant["two"].ratio_to_yardstick
    assert within is not None
    assert within.share_within_1 == 1.0
    assert measures.ratio_to_yardstick is not None
    assert measures.ratio_to_yardstick.worst_application == "b"


# ---- Jain's index


def test_jains_index_by_hand() -> None:
    assert jain_index([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([1.0, 3.0]) == pytest.approx(16 / 20)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0]])
def test_jains_index_is_not_defined_where_nobody_had_anything(values: list[float]) -> None:
    assert jain_index(values) is None


@given(st.lists(st.floats(0, 1e18), min_size=1, max_size=20).filter(any), st.floats(1e-6, 1e6))
def test_jains_index_lies_between_one_nth_and_one_in_any_unit(values: list[float], unit: float) -> None:
    index = jain_index(values)
    assert index is not None
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    if min(value for value in values if value) > 1e-100:
        assert jain_index([unit * value for value in values]) == pytest.approx(index)


def sample(at_s: float, service: dict[str, float], since_s: dict[str, float]) -> Sample:
    return Sample(at_s, service, since_s, None)


def test_jain_is_over_the_interval_in_which_tenants_were_backlogged_together() -> None:
    record = ServiceRecord(
        samples=(
            sample(0.0, {"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 0.0}),
            sample(10.0, {"a": 50.0, "b": 0.0, "c": 0.0}, {"a": 0.0, "b": 9.0}),
            sample(20.0, {"a": 60.0, "b": 30.0, "c": 0.0}, {"a": 0.0, "b": 9.0, "c": 20.0}),
            sample(23.0, {"a": 63.0, "b": 33.0, "c": 1.0}, {"a": 0.0, "c": 20.0}),
        ),
        worst_gap=None,
    )
    jain = record.jain()
    assert jain is not None
    assert (jain.begin_s, jain.end_s, jain.tenants) == (10.0, 20.0, ("a", "b"))
    assert jain.index == pytest.approx(40**2 / (2 * (10**2 + 30**2)))


def test_a_shorter_interval_of_more_tenants_may_be_worth_more() -> None:
    since_s = {"a": 0.0, "b": 0.0, "c": 20.0}
    samples = (
        sample(0.0, {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}),
        sample(20.0, {"a": 50.0, "b": 10.0, "c": 0.0}, since_s),
        sample(50.0, {"a": 60.0, "b": 20.0, "c": 10.0}, since_s),
    )
    jain = ServiceRecord(samples=samples, worst_gap=None).jain()
    assert jain is not None
    assert (jain.begin_s, jain.end_s, jain.tenants) == (20.0, 50.0, ("a", "b", "c"))
    assert jain.index == pytest.approx(1.0)


def test_without_two_backlogged_tenants_there_is_no_index() -> None:
    record = ServiceRecord(samples=(sample(0, {"a": 0}, {"a": 0}), sample(9, {"a": 5}, {"a": 0})), worst_gap=None)
    assert record.jain() is None
    assert ServiceRecord(samples=(), worst_gap=None).jain() is None


# ---- the meter


def flood(tenant: str, count: int, arrival_s: float = 0.0, spacing_s: float = 0.0) -> list[TraceApplication]:
    calls = (TraceCall(name="one", prompt_tokens=400, output_tokens=150),)
    return [
        TraceApplication(
            application_id=f"{tenant}-{number}", arrival_s=arrival_s + number * spacing_s, calls=calls, tenant=tenant
        )
        for number in range(count)
    ]


def run(
    workload: Sequence[TraceApplication],
    policy: str,
    engines: tuple[EngineProfile, ...] = (REFERENCE,),
    max_samples: int = 512,
    **core: object,
) -> tuple[SimulationResult, ServiceRecord]:
    settings = CoreSettings(admission=Admission.ENGINE, watermark=0.0, **core)  # type: ignore[arg-type]
    meter = ServiceMeter(dict(settings.tenant_weights), max_samples)
    ordered = sorted(workload, key=lambda one: one.arrival_s)
    simulation = Simulation(
        ordered,
        SimulationSettings(policy=policy, core=settings, engines=engines),
        watch=meter.watch,
        hear=meter.hear,
    )
    return simulation.run(), meter.record


def test_fair_sharing_keeps_the_gap_small_where_first_come_first_served_lets_it_grow() -> None:
    workload = [*flood("early", 60), *flood("later", 60, arrival_s=0.5)]
    _, fair = run(workload, "vtc", flows=Flows.TENANTS)
    _, unfair = run(workload, "fcfs", tenant_level=False)
    assert fair.worst_gap is not None
    assert unfair.worst_gap is not None
    assert unfair.worst_gap > 3 * fair.worst_gap
    fair_jain, unfair_jain = fair.jain(), unfair.jain()
    assert fair_jain is not None
    assert unfair_jain is not None
    assert fair_jain.tenants == unfair_jain.tenants == ("early", "later")
    assert fair_jain.index is not None
    assert unfair_jain.index is not None
    assert fair_jain.index > 0.98 > unfair_jain.index


def test_service_is_counted_by_weight() -> None:
    workload = [*flood("gold", 120), *flood("plain", 120)]
    _, record = run(workload, "justitia", tenant_weights=(("gold", 3.0),))
    jain = record.jain()
    assert jain is not None
    assert jain.index is not None
    assert jain.index > 0.98
    end = next(one for one in record.samples if one.at_s == jain.end_s)
    assert 3 * end.service["gold"] > 2 * end.service["plain"]


@pytest.mark.parametrize("policy", ["fcfs", "srtf", "vtc"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_service_never_falls_and_ends_at_the_true_cost(policy: str, replicas: int) -> None:
    draw = random.Random(5)
    workload = [
        TraceApplication(
            application_id=f"a{number}",
            arrival_s=number / 4,
            tenant=f"t{number % 3}",
            calls=(
                TraceCall(name="m", prompt_tokens=draw.randint(0, 2000), output_tokens=draw.randint(1, 400)),
                TraceCall(name="r", after=("m",), prompt_tokens=200, output_tokens=draw.randint(1, 300), sequences=2),
            ),
        )
        for number in range(60)
    ]
    straggler = TraceApplication(
        application_id="last",
        arrival_s=2000.0,
        tenant="t9",
        calls=(TraceCall(name="x", prompt_tokens=1, output_tokens=1),),
    )
    small = EngineProfile(usable_blocks=300)
    result, record = run([*workload, straggler], policy, (small,) * replicas)
    assert result.preemptions > 0
    for before, after in pairwise(record.samples):
        assert all(after.service[name] >= given for name, given in before.service.items())
    for tenant in ("t0", "t1", "t2"):
        truth = sum(one.cost for one in workload if one.tenant == tenant)
        assert isclose(record.samples[-1].service[tenant], truth)
    assert record.samples[-1].at_s >= 2000.0


def test_service_of_a_running_call_is_what_it_has_made() -> None:
    call = TraceCall(name="x", prompt_tokens=100, output_tokens=400)
    lonely = TraceApplication(application_id="a", arrival_s=0.0, calls=(call,))
    steps = tuple(
        TraceCall(name=f"{number}", after=(f"{number - 1}",) if number else (), prompt_tokens=1, output_tokens=50)
        for number in range(8)
    )
    chain = TraceApplication(application_id="b", arrival_s=0.0, tenant="chain", calls=steps)
    slow = EngineProfile(max_sequences=1, base_s=0.03, per_sequence_s=0.0, per_prefill_token_s=0.0)
    fast = EngineProfile(base_s=0.02, per_sequence_s=0.0, per_prefill_token_s=0.0)
    _, record = run([lonely, chain], "fcfs", (slow, fast), tenant_level=False)
    seen = {one.at_s: one.service["default"] for one in record.samples if 1 <= one.at_s <= 8}
    assert seen == {float(at_s): memory_cost(100, (int(at_s / 0.03),)) for at_s in range(1, 9)}


def test_a_tenant_is_backlogged_only_while_a_call_of_it_could_run() -> None:
    chain = TraceApplication(
        application_id="chain",
        arrival_s=0.0,
        tenant="chain",
        calls=(
            TraceCall(name="x", prompt_tokens=10, output_tokens=300),
            TraceCall(name="y", after=("x",), prompt_tokens=10, output_tokens=300),
        ),
    )
    _, record = run([chain, *flood("crowd", 40, arrival_s=0.01)], "fcfs", tenant_level=False)
    assert any("crowd" in one.backlogged_since_s for one in record.samples)
    assert all("chain" not in one.backlogged_since_s for one in record.samples if one.at_s < 5.0)


def test_who_comes_late_has_no_claim_to_what_others_had_before() -> None:
    workload = [*flood("early", 150), *flood("later", 60, arrival_s=40.0)]
    _, record = run(workload, "vtc", flows=Flows.TENANTS)
    first = next(one for one in record.samples if one.gap is not None)
    assert first.at_s >= 40.0
    assert first.gap is not None
    assert first.service["early"] - first.service["later"] > 20 * first.gap
    assert record.worst_gap is not None
    assert record.worst_gap < 0.2 * first.service["early"]


def test_samples_are_bounded_and_span_the_run() -> None:
    workload = [*flood("a", 100, spacing_s=2.0), *flood("b", 100, spacing_s=2.0)]
    result, record = run(workload, "fcfs", max_samples=20)
    _, finer = run(workload, "fcfs")
    assert 10 <= len(record.samples) <= 20
    assert record.samples[0].at_s == 0.0
    assert record.samples[-1].at_s > 0.8 * result.makespan_s
    assert len(finer.samples) > 100
    spaces_s = [after.at_s - before.at_s for before, after in pairwise(record.samples)]
    assert max(spaces_s) < 3 * min(spaces_s)
    assert record.gaps == tuple((one.at_s, one.gap) for one in record.samples)


def test_measuring_changes_nothing() -> None:
    workload = [*flood("a", 30), *flood("b", 30, arrival_s=1.0)]
    plain = Simulation(workload, SimulationSettings(policy="justitia")).run()
    measured, _ = run(workload, "justitia")
    assert measured.applications == plain.applications
    assert measured.iterations == plain.iterations
