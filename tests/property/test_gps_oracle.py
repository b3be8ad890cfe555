"""The reference clock against fair sharing as it is defined."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.gps import ReferenceClock
from tests.property.fluid_gps import Job, Stretch, fluid_finishes

quarters = st.integers(0, 80).map(lambda n: n / 4)
jobs = st.builds(Job, quarters, st.integers(1, 400).map(float), st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 7.0]))
job_lists = st.lists(jobs, min_size=1, max_size=8)
HORIZON = 1 << 20


def drive(
    submitted: Sequence[Job], stretches: Sequence[Stretch], cuts: Sequence[float] = ()
) -> tuple[dict[int, float], ReferenceClock]:
    """Feed the clock with the stretches, cut at arrivals and wherever else is asked."""
    clock = ReferenceClock()
    finishes: dict[int, float] = {}
    at = {float(job.arrival) for job in submitted} | {float(s.until) for s in stretches} | set(cuts)
    now = 0.0
    order = sorted(range(len(submitted)), key=lambda i: submitted[i].arrival)
    for then in sorted(at | {0.0}):
        if then > now:
            rate = next(float(s.rate) for s in stretches if then <= s.until)
            before = clock.virtual_time
            for finish in clock.advance(then, rate * (then - now)):
                assert finish.application not in finishes
                finishes[finish.application] = finish.at_s
            assert clock.virtual_time >= before
            now = then
        for i in order:
            if submitted[i].arrival == then:
                job = submitted[i]
                clock.place(i, clock.virtual_time + float(job.cost) / float(job.weight), float(job.weight))
    return finishes, clock


def test_the_oracle_knows_what_can_be_done_by_hand() -> None:
    two_equal = [Job(0, 10), Job(0, 10)]
    assert fluid_finishes(two_equal, [Stretch(100, 2)]) == [10, 10]
    late_mouse = [Job(0, 10), Job(4, 2)]  # alone for 4, then shares until the mouse ends at 8, alone again
    assert fluid_finishes(late_mouse, [Stretch(100, 1)]) == [12, 8]
    heavy = [Job(0, 9, weight=3), Job(0, 9, weight=1)]
    assert fluid_finishes(heavy, [Stretch(100, 1)]) == [12, 18]
    assert fluid_finishes([Job(0, 10)], [Stretch(5, 1), Stretch(9, 0), Stretch(100, 5)]) == [10]
    assert fluid_finishes([Job(0, 10)], [Stretch(5, 1)]) == [None]


@given(job_lists, st.lists(st.integers(1, 120), max_size=6, unique=True), st.lists(st.integers(0, 9), min_size=7))
def test_finishes_are_those_of_the_fluid_system(submitted: list[Job], ends: list[int], rates: list[int]) -> None:
    stretches = [Stretch(end, rate) for end, rate in zip(sorted(ends), rates, strict=False)]
    stretches.append(Stretch(HORIZON, 3))
    finishes, clock = drive(submitted, stretches)
    expected = fluid_finishes(submitted, stretches)
    assert [finishes[i] for i in range(len(submitted))] == pytest.approx([float(f) for f in expected if f is not None])
    assert len(clock) == 0
    assert clock.active_weight == 0.0


@given(job_lists, st.lists(st.floats(0, 500), max_size=40))
def test_cutting_service_into_pieces_changes_nothing(submitted: list[Job], cuts: list[float]) -> None:
    stretches = [Stretch(HORIZON, 2)]
    whole, _ = drive(submitted, stretches)
    pieces, _ = drive(submitted, stretches, cuts)
    assert pieces == pytest.approx(whole)


@given(job_lists, st.floats(0, 2000))
def test_what_is_left_is_what_the_reference_says(submitted: list[Job], service: float) -> None:
    """`service_until` predicts, to the last unit, when a tag is reached."""
    clock = ReferenceClock()
    for i, job in enumerate(submitted):
        clock.place(i, float(job.cost) / float(job.weight), float(job.weight))
    clock.advance(1.0, service)
    tag = max(float(job.cost) / float(job.weight) for job in submitted[:2])
    left = clock.service_until(tag)
    assume(left > 1e-3)
    clock.advance(2.0, left * 0.999)
    assert clock.virtual_time < tag
    clock.advance(3.0, left * 0.001 + 1e-6)
    assert clock.virtual_time == pytest.approx(tag)
    assert clock.service_until(tag) == pytest.approx(0.0, abs=1e-2)


@given(job_lists, st.floats(0, 2000))
def test_service_is_conserved(submitted: list[Job], service: float) -> None:
    """While anyone is active, what V grew by, times the weights that stood in it, is the service."""
    clock = ReferenceClock()
    weights = {i: float(job.weight) for i, job in enumerate(submitted)}
    tags = {i: float(job.cost) / float(job.weight) for i, job in enumerate(submitted)}
    for i, tag in tags.items():
        clock.place(i, tag, weights[i])
    clock.advance(1.0, service)
    received = sum(weights[i] * min(tags[i], clock.virtual_time) for i in tags)
    assert received == pytest.approx(min(service, sum(float(job.cost) for job in submitted)))


@given(job_lists)
def test_draining_serves_everyone_at_once(submitted: list[Job]) -> None:
    clock = ReferenceClock(5.0)
    tags = [5.0 + float(job.cost) / float(job.weight) for job in submitted]
    for i, job in enumerate(submitted):
        assert clock.place(i, tags[i], float(job.weight))
    finishes = clock.drain(9.0)
    assert sorted(f.application for f in finishes) == list(range(len(submitted)))
    assert [tags[f.application] for f in finishes] == sorted(tags)
    assert {f.at_s for f in finishes} == {9.0}
    assert clock.virtual_time == max(tags)
    assert (len(clock), clock.active_weight) == (0, 0.0)
    assert clock.advance(10.0, 100.0) == []
    assert clock.virtual_time == max(tags)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.floats(0.1, 1e9), st.sampled_from([1e-3, 0.1, 1.0, 3.0]), st.floats(0, 1e9)),
        max_size=40,
    )
)
def test_whoever_is_in_the_reference_has_its_tag_ahead(steps: list[tuple[int, float, float, float]]) -> None:
    clock = ReferenceClock()
    tags: dict[int, float] = {}
    for now, (application, cost, weight, service) in enumerate(steps):
        tags[application] = clock.virtual_time + cost / weight
        clock.place(application, tags[application], weight)
        before = clock.virtual_time
        clock.advance(float(now), service)
        assert clock.virtual_time >= before
        for other, tag in tags.items():
            assert (other in clock) == (tag > clock.virtual_time)


def test_equal_tags_leave_together_when_service_ends_exactly_there() -> None:
    clock = ReferenceClock()
    for i in range(3):
        clock.place(i, 100.0, 1.0)
    assert [(f.application, f.at_s) for f in clock.advance(6.0, 300.0)] == [(0, 6.0), (1, 6.0), (2, 6.0)]
    assert len(clock) == 0


def test_a_tag_reached_by_rounding_is_reached() -> None:
    clock = ReferenceClock(2.0**52)
    clock.place(1, 2.0**52 + 1, 1.0)
    assert [f.application for f in clock.advance(1.0, 0.75)] == [1]
    assert 1 not in clock


def test_time_that_steps_back_dates_nothing_in_the_future() -> None:
    clock = ReferenceClock()
    clock.place(1, 10.0, 1.0)
    clock.advance(100.0, 1.0)
    (finish,) = clock.advance(40.0, 18.0)
    assert finish.at_s == 40.0
    assert clock.virtual_time == 10.0
