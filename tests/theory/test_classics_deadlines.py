"""EDF and rate monotonic on one server, against feasibility found without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from math import inf, lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies.contract import Policy
from scheduler.policies.edf import EarliestDeadlineFirst
from scheduler.policies.rm import RateMonotonic
from tests.queueing import Request, Station, of_length
from tests.theory.classics import a_call, an_application, emptied

UNIT = 3  # the shortest call of the station, served in one second
Job = tuple[int, int, int]
"""Release, length, deadline."""


def unit_calls(app: str, count: int, at: int, **fields: float) -> list[Request]:
    """An application cut into calls of one second at the station's rate of 3."""
    return [of_length(app, UNIT, call=str(number), at=at, **fields) for number in range(count)]


def serve_jobs(policy: Policy, jobs: Sequence[Job], **fields: float) -> Station:
    crowd = [
        request
        for number, (at, length, deadline) in enumerate(jobs)
        for request in unit_calls(f"j{number}", length, at, deadline_s=float(deadline), **fields)
    ]
    return Station(policy, crowd, rate=UNIT).run()


def all_in_time(station: Station, jobs: Sequence[Job]) -> bool:
    return all(station.completion(f"j{number}") <= deadline for number, (_, _, deadline) in enumerate(jobs))


def demand_fits(jobs: Sequence[Job]) -> bool:
    """Processor demand (Baruah et al. 1990): what must run inside each interval is no longer than it is.

    Necessary and sufficient for preemptive service of jobs on one server.
    """
    intervals = [(release, deadline) for release, _, _ in jobs for _, _, deadline in jobs]
    return all(
        sum(length for at, length, due in jobs if begin <= at and due <= end) <= max(end - begin, 0)
        for begin, end in intervals
    )


def assignable(jobs: Sequence[Job]) -> bool:
    """Whether unit jobs can each have a second of their own between release and deadline (augmenting paths)."""
    taken: dict[int, int] = {}

    def place(job: int, tried: set[int]) -> bool:
        for second in range(jobs[job][0], jobs[job][2]):
            if second not in tried:
                tried.add(second)
                if second not in taken or place(taken[second], tried):
                    taken[second] = job
                    return True
        return False

    return all(place(job, set()) for job in range(len(jobs)))


unit_jobs = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=8)


@given(unit_jobs)
@settings(deadline=None, max_examples=150)
def test_edf_meets_every_feasible_set_of_unit_jobs(spans: list[tuple[int, int]]) -> None:
    jobs = [(at, 1, at + span) for at, span in spans]
    assert all_in_time(serve_jobs(EarliestDeadlineFirst(), jobs), jobs) == assignable(jobs)


@given(st.lists(st.tuples(st.integers(3, 12), st.integers(3, 40)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=80)
def test_edf_has_the_smallest_largest_lateness_when_all_are_present(jobs: list[tuple[int, int]]) -> None:
    """Jackson (1955), any lengths, against every order."""

    def largest_lateness(order: Sequence[tuple[int, int]]) -> int:
        ends = [sum(length for length, _ in order[: place + 1]) for place in range(len(order))]
        return max(end - due for end, (_, due) in zip(ends, order, strict=True))

    crowd = [of_length(f"j{n}", length, deadline_s=float(due)) for n, (length, due) in enumerate(jobs)]
    station = Station(EarliestDeadlineFirst(), crowd).run()
    lateness = max(station.completion(f"j{n}") - due for n, (_, due) in enumerate(jobs))
    assert lateness == min(map(largest_lateness, permutations(jobs)))


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 4), st.integers(0, 8)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=150)
def test_edf_cut_into_unit_calls_meets_every_set_that_preemption_could(spans: list[tuple[int, int, int]]) -> None:
    jobs = [(at, length, at + length + slack) for at, length, slack in spans]
    assert all_in_time(serve_jobs(EarliestDeadlineFirst(), jobs), jobs) == demand_fits(jobs)


def test_edf_serves_those_without_a_deadline_last_in_order_of_arrival() -> None:
    policy = EarliestDeadlineFirst()
    for number, deadline_s in ((4, inf), (3, inf), (2, 9.0), (1, 9.0), (5, 2.0)):
        policy.add(a_call(an_application(number, deadline_s=deadline_s), number))
    assert emptied(policy) == ["a5/c5", "a1/c1", "a2/c2", "a3/c3", "a4/c4"]


def test_edf_looks_at_the_deadline_and_not_at_the_slack() -> None:
    """Least slack first would start the long one, and miss the short one's deadline."""
    jobs = [(0, 8, 12), (0, 2, 5)]
    station = serve_jobs(EarliestDeadlineFirst(), jobs)
    assert all_in_time(station, jobs)
    assert station.order()[0].application_id == "j1"


# ---- rate monotonic


Task = tuple[int, int]
"""Computation and period, in whole seconds."""


def releases(tasks: Sequence[Task]) -> list[tuple[int, int, int]]:
    """Jobs over one hyperperiod from the critical instant: release, task, number; shuffled among equal releases."""
    horizon = lcm(*(period for _, period in tasks))
    jobs = [(at, task) for task, (_, period) in enumerate(tasks) for at in range(0, horizon, period)]
    return [(at, task, number) for number, (at, task) in enumerate(sorted(jobs, key=lambda job: (job[0], -job[1])))]


def misses(policy: Policy, tasks: Sequence[Task]) -> list[str]:
    """Jobs that ended after their period."""
    crowd: list[Request] = []
    due: dict[str, int] = {}
    for at, task, number in releases(tasks):
        length, period = tasks[task]
        app = f"j{number}t{task}"
        due[app] = at + period
        crowd += unit_calls(app, length, at, period_s=float(period), deadline_s=float(at + period))
    station = Station(policy, crowd, rate=UNIT).run()
    return [app for app, deadline in due.items() if station.completion(app) > deadline]


def utilization(tasks: Sequence[Task]) -> Fraction:
    return sum((Fraction(length, period) for length, period in tasks), Fraction(0))


def under_the_bound(tasks: Sequence[Task]) -> bool:
    return float(utilization(tasks)) <= len(tasks) * (2 ** (1 / len(tasks)) - 1)


def random_tasks(seed: int) -> list[Task]:
    """A set near the bound, from below."""
    rng = random.Random(seed)
    while True:
        periods = [rng.choice([4, 5, 6, 8, 10, 12, 15, 20]) for _ in range(rng.randint(1, 4))]
        tasks = [(rng.randint(1, max(period // 2, 1)), period) for period in periods]
        if under_the_bound(tasks) and utilization(tasks) > Fraction(55, 100):
            return tasks


@pytest.mark.parametrize("seed", range(25))
def test_rm_meets_all_deadlines_up_to_the_bound(seed: int) -> None:
    assert misses(RateMonotonic(), random_tasks(seed)) == []


def test_rm_misses_above_the_bound_where_edf_does_not() -> None:
    tasks = [(2, 5), (4, 7)]
    assert not under_the_bound(tasks)
    assert utilization(tasks) < 1
    assert "j0t1" in misses(RateMonotonic(), tasks)
    assert misses(EarliestDeadlineFirst(), tasks) == []


def test_another_fixed_order_misses_below_the_bound() -> None:
    """The longest period first: what the bound says holds for the rate monotonic order alone."""

    class Backwards(RateMonotonic):
        def add(self, call):  # type: ignore[no-untyped-def]
            self._queues.add(call, -call.application.period_s)

    tasks = [(1, 4), (6, 12)]
    assert under_the_bound(tasks)
    assert misses(RateMonotonic(), tasks) == []
    assert misses(Backwards(), tasks) != []


def test_rm_is_fixed_by_the_period_and_none_comes_last() -> None:
    policy = RateMonotonic()
    for number, period_s, deadline_s in ((1, inf, 1.0), (2, 8.0, 2.0), (4, 5.0, 99.0), (3, 5.0, 99.0)):
        policy.add(a_call(an_application(number, period_s=period_s, deadline_s=deadline_s), number))
    assert emptied(policy) == ["a3/c3", "a4/c4", "a2/c2", "a1/c1"]
