"""The delay bound and its audit, in a closed loop with an engine that takes one step at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.actions import PublishAudit
from scheduler.types import ApplicationRecord, ApplicationSpec
from tests.property.closed_loop import ClosedLoop
from tests.property.fluid_gps import Job, Stretch, fluid_finishes
from tests.scheduling import Bench, application, call, clean_state

POOL_TOKENS = 64 * 16
LONGEST = 12


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


def run(workload: list[tuple[int, ApplicationSpec]], **settings: object) -> tuple[ClosedLoop, list[ApplicationRecord]]:
    bench = Bench(**settings)
    bench.join(blocks=POOL_TOKENS // 16)
    loop = ClosedLoop(bench, workload)
    loop.run()
    clean_state(bench.core)
    records = {action.record.application_id: action.record for action in bench.all(PublishAudit)}
    assert len(records) == len(bench.all(PublishAudit)) == len(workload)
    return loop, [records[spec.application_id] for _, spec in workload]


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


@given(workloads(staged=True))
def test_nobody_in_stages_finishes_later_than_the_bound(workload: list[tuple[int, ApplicationSpec]]) -> None:
    _, records = run(workload)
    assert [record for record in records if record.bound_s is None or record.bound_violated] == []


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


def memory(spec: object) -> float:
    """KV token-time, by addition."""
    p, d, n = spec.prompt_tokens, spec.predicted_output_tokens, spec.sequences  # type: ignore[attr-defined]
    return float(n * sum(p + step for step in range(1, d + 1)))


def busy_period_ends(records: list[ApplicationRecord]) -> list[float]:
    """Moments at which nobody was left."""
    finishes = sorted(record.finish_s for record in records)
    return [end for end in finishes if not any(r.arrival_s < end < r.finish_s for r in records)]
