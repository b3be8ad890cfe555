"""The delay bound and its audit, in a closed loop with an engine that takes one step at a time."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.actions import PublishAudit
from scheduler.settings import ClockMode
from scheduler.types import ApplicationRecord, ApplicationSpec, CallSpec
from tests.property.closed_loop import ClosedLoop
from tests.property.fluid_gps import Job, Stretch, fluid_finishes
from tests.scheduling import Bench, application, call, clean_state

POOL_TOKENS = 64 * 16
LONGEST = 12

fewer = settings(max_examples=settings().max_examples // 3)  # a whole simulation each


@st.composite
def workloads(draw: st.DrawFn, *, staged: bool = False) -> list[tuple[int, ApplicationSpec]]:
    arrivals = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=14)))
    return [
        (
            second,
            application(
                f"a{number}",
                *[
                    call(
                        str(index),
                        draw(st.integers(1, 40)),
                        draw(st.integers(1, LONGEST)),
                        n=draw(st.sampled_from([1, 1, 2])),
                        after=draw(st.sets(st.integers(0, index - 1).map(str), max_size=2)) if staged and index else (),
                    )
                    for index in range(draw(st.sampled_from([1, 2, 4, 25])))
                ],
                weight=draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])),
            ),
        )
        for number, second in enumerate(arrivals)
    ]


def run(workload: list[tuple[int, ApplicationSpec]], **core: object) -> tuple[ClosedLoop, list[ApplicationRecord]]:
    bench = Bench(check_each=False, **core)
    bench.join(blocks=POOL_TOKENS // 16)
    loop = ClosedLoop(bench, workload)
    loop.run()
    clean_state(bench.core)
    records = {action.record.application_id: action.record for action in bench.all(PublishAudit)}
    assert len(records) == len(bench.all(PublishAudit)) == len(workload)
    return loop, [records[spec.application_id] for _, spec in workload]


@fewer
@given(workloads())
def test_nobody_whose_calls_are_ready_finishes_later_than_the_bound(
    workload: list[tuple[int, ApplicationSpec]],
) -> None:
    loop, records = run(workload)
    for record in records:
        assert record.bound_s is not None
        assert not record.bound_violated, record
        assert record.gps_finish_s is not None
        assert record.finish_s <= record.gps_finish_s + 2 * LONGEST + 1e-6
    assert loop.bench.core.audit.violations == 0
    assert loop.bench.core.audit.audited == len(workload)
    assert loop.overcommitted == 0


@fewer
@given(workloads(staged=True))
def test_nobody_in_stages_finishes_later_than_the_bound(workload: list[tuple[int, ApplicationSpec]]) -> None:
    _, records = run(workload)
    assert [record for record in records if record.bound_s is None or record.bound_violated] == []


@fewer
@given(workloads(), st.sampled_from([1.0, 1.0, 1.5]))
def test_the_published_reference_is_the_fluid_system(
    workload: list[tuple[int, ApplicationSpec]], clock_rate: float
) -> None:
    """Fed with what the engine delivered, second by second, fair sharing ends when the audit says it does."""
    loop, records = run(workload, clock_rate=clock_rate)
    jobs = [Job(second, sum(memory(c) for c in spec.calls), spec.weight) for second, spec in workload]
    rates = [Stretch(s.until, s.rate * clock_rate) for s in loop.served]
    expected = fluid_finishes(jobs, rates)
    busy_ends = busy_period_ends(records)
    for record, finish in zip(records, expected, strict=True):
        assert record.true_cost == record.predicted_cost
        end = next(end for end in busy_ends if end >= record.finish_s)
        assert record.gps_finish_s == pytest.approx(end if finish is None else min(float(finish), end), abs=1e-6)


def memory(spec: CallSpec, tokens: int | None = None) -> float:
    """KV token-time, by addition."""
    made = spec.predicted_output_tokens if tokens is None else tokens
    return float(spec.sequences * sum(spec.prompt_tokens + step for step in range(1, made + 1)))


def busy_period_ends(records: list[ApplicationRecord]) -> list[float]:
    """Moments at which nobody was left."""
    finishes = sorted(record.finish_s for record in records)
    return [end for end in finishes if not any(r.arrival_s < end < r.finish_s for r in records)]


def uneven(count: int = 90) -> list[tuple[int, ApplicationSpec]]:
    """Three mice a second beside an elephant every seven, more than the engine can do at once."""
    rng = random.Random(1)
    return [
        (
            number // 3,
            application(
                f"a{number}",
                *[
                    call(str(i), rng.randint(5, 40), rng.randint(2, LONGEST))
                    for i in range(40 if number % 20 == 0 else rng.randint(1, 5))
                ],
            ),
        )
        for number in range(count)
    ]


def test_most_finish_long_before_fair_sharing_would_have_let_them() -> None:
    _, records = run(uneven())
    lags = [record.lag_s for record in records if record.lag_s is not None]
    assert len(lags) == len(records)
    assert mean(lags) < -2.0
    assert max(lags) <= 2 * LONGEST
    assert sum(lag <= 1.0 for lag in lags) > 0.6 * len(lags)


def test_calls_wait_in_the_crowd() -> None:
    """The bound is tested where it binds: most applications cannot start at once."""
    loop, _ = run(uneven())
    arrived = {spec.application_id: second for second, spec in uneven()}
    assert sum(second > arrived[name] for second, name, _ in loop.starts) > 0.5 * len(loop.starts)


@fewer
@given(workloads(), st.sampled_from([ClockMode.ITERATION, ClockMode.CAPACITY]))
def test_every_clock_settles_every_account(workload: list[tuple[int, ApplicationSpec]], clock: ClockMode) -> None:
    _, by_service = run(workload)
    _, by_pool = run(workload, clock=clock, nominal_iterations_per_s=1.0)
    for pool, service in zip(by_pool, by_service, strict=True):
        assert pool.gps_finish_s is not None
        assert pool.arrival_s <= pool.gps_finish_s
        assert pool.true_cost == service.true_cost


@fewer
@given(workloads(), st.randoms(use_true_random=False))
def test_calls_that_outlive_or_undershoot_their_predictions_end_with_true_costs(
    workload: list[tuple[int, ApplicationSpec]], rng: random.Random
) -> None:
    truth = {
        (spec.application_id, c.call_id): rng.randint(1, 3 * c.predicted_output_tokens)
        for _, spec in workload
        for c in spec.calls
    }
    bench = Bench(check_each=False)
    bench.join(blocks=POOL_TOKENS // 16)
    ClosedLoop(bench, workload, truth).run()
    clean_state(bench.core)
    for action in bench.all(PublishAudit):
        record = action.record
        spec = next(spec for _, spec in workload if spec.application_id == record.application_id)
        expected = sum(memory(c, truth[spec.application_id, c.call_id]) for c in spec.calls)
        assert record.true_cost == pytest.approx(expected)
    assert len(bench.all(PublishAudit)) == len(workload)
