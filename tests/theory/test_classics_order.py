"""app_fcfs and rr, and what all policies share whose order has nothing to do with attained service."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies import create_policy
from scheduler.policies.app_fcfs import AppFcfs
from scheduler.policies.contract import MAX_PRIORITY
from scheduler.policies.rr import RoundRobin
from tests.queueing import Request, Start, Station, of_length
from tests.theory.classics import a_call, an_application, emptied, grant, kept

SIMPLE = ("app_fcfs", "rr", "sjf", "srtf", "hrrn", "edf", "rm")


def staged_crowd(seed: int, apps: int = 8) -> list[Request]:
    rng = random.Random(seed)
    crowd = []
    for app in range(apps):
        at = rng.randint(0, 60)
        for number in range(rng.randint(1, 5)):
            after = tuple({str(rng.randrange(number)) for _ in range(rng.randint(0, 2))}) if number else ()
            crowd.append(of_length(f"a{app}", rng.randint(3, 12), call=str(number), at=at, after=after))
    return crowd


# ---- app_fcfs


@pytest.mark.parametrize("seed", range(20))
def test_app_fcfs_no_later_application_starts_while_an_earlier_one_waits(seed: int) -> None:
    def earliest_goes(station: Station, start: Start) -> None:
        sequence = {call.application.sequence for call in station.waiting.values()}
        assert start.call.application.sequence <= min(sequence, default=start.call.application.sequence)
        siblings = [c for c in station.waiting.values() if c.key.application_id == start.call.key.application_id]
        assert all((-start.call.stage, start.call.ready_sequence) < (-c.stage, c.ready_sequence) for c in siblings)

    crowd = staged_crowd(seed)
    station = Station(AppFcfs(), crowd, servers=1 + seed % 3, watch=earliest_goes).run()
    assert len(station.ends) == len(crowd)


def test_app_fcfs_is_not_fcfs_of_calls() -> None:
    """The second call of the first application passes a call that was ready long before it."""
    crowd = [
        of_length("a", 5, call="0"),
        of_length("a", 5, call="1", after=("0",)),
        of_length("b", 5, at=1),
    ]
    assert [key.application_id for key in Station(AppFcfs(), crowd).run().order()] == ["a", "a", "b"]


def test_app_fcfs_may_go_by_readiness_alone() -> None:
    """c waits for a's end and is deeper than b, which became ready before it."""
    crowd = [
        of_length("x", 5, call="a"),
        of_length("x", 5, call="b"),
        of_length("x", 5, call="c", after=("a",)),
    ]
    assert [key.call_id for key in Station(AppFcfs(), crowd).run().order()] == ["a", "c", "b"]
    assert [key.call_id for key in Station(AppFcfs(depth_first=0), crowd).run().order()] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="depth_first must be 0 or 1, got 2"):
        AppFcfs(depth_first=2)


# ---- rr


@pytest.mark.parametrize("seed", range(30))
def test_rr_counts_of_flows_backlogged_together_differ_by_at_most_one(seed: int) -> None:
    """Over every interval of every pair of flows, found by trying all of them."""
    rng = random.Random(seed)
    policy = RoundRobin()
    waiting: dict[str, list[str]] = {f"f{number}": [] for number in range(4)}
    served: list[str] = []
    backlogged: list[set[str]] = []
    empty_since_last: list[set[str]] = []
    calls = {}
    empty = set(waiting)
    for ready in range(120):
        flow = rng.choice(sorted(waiting))
        call = a_call(an_application(ready, flow=flow), ready)
        calls[call.key] = call
        waiting[flow].append(call.key.application_id)
        policy.add(call)
        if rng.random() < 0.1 and waiting[flow]:
            victim = waiting[flow].pop()
            policy.remove(next(key for key in calls if key.application_id == victim))
        empty |= {name for name, queue in waiting.items() if not queue}
        if rng.random() < 0.8 and (key := policy.head()) is not None:
            flow = calls[key].flow
            assert key.application_id == waiting[flow].pop(0)
            backlogged.append({name for name, queue in waiting.items() if queue} | {flow})
            empty_since_last.append(empty)
            empty = {name for name, queue in waiting.items() if not queue}
            served.append(flow)
            grant(policy, calls[key])
    for one, other in combinations(waiting, 2):
        assert_even({one, other}, served, backlogged, empty_since_last)


def assert_even(
    pair: set[str], served: Sequence[str], backlogged: Sequence[set[str]], empty: Sequence[set[str]]
) -> None:
    one = min(pair)
    for begin in range(len(served)):
        difference = 0
        for at in range(begin, len(served)):
            if not pair <= backlogged[at] or (at > begin and pair & empty[at]):
                break
            if served[at] in pair:
                difference += 1 if served[at] == one else -1
            assert abs(difference) <= 1


def test_rr_a_flow_that_empties_and_returns_takes_turns() -> None:
    """One that asks again after each answer, against one with a queue: they alternate."""
    policy = RoundRobin()
    lone, queue = an_application(1), an_application(2)
    for ready in range(10, 20):
        policy.add(a_call(queue, ready))
    order = []
    for ready in range(20, 26):
        policy.add(a_call(lone, ready))
        for _ in range(2):
            key = policy.head()
            assert key is not None
            order.append(key.application_id)
            grant(policy, a_call(lone if key.application_id == "a1" else queue, int(key.call_id[1:])))
    assert order == ["a1", "a2"] * 6


def test_rr_new_flows_do_not_hold_up_one_that_had_its_turn() -> None:
    policy = RoundRobin()
    old = an_application(0)
    policy.add(a_call(old, 0))
    policy.add(a_call(old, 1))
    grant(policy, a_call(old, 0))
    served = []
    for number in range(1, 20):
        new = an_application(number)
        policy.add(a_call(new, 10 + number))
        key = policy.head()
        assert key is not None
        served.append(key.application_id)
        grant(policy, a_call(old, 1) if key.application_id == "a0" else a_call(new, 10 + number))
    assert served[0] == "a0"


def test_rr_gives_turns_by_weight() -> None:
    policy = RoundRobin()
    flows = [an_application(number, flow_weight=weight) for number, weight in ((1, 3.0), (2, 1.0))]
    calls = {}
    for flow in flows:
        for ready in range(8):
            call = a_call(flow, 10 * flow.sequence + ready)
            calls[call.key] = call
            policy.add(call)
    order = []
    for _ in range(8):
        key = policy.head()
        assert key is not None
        order.append(key.application_id)
        grant(policy, calls[key])
    assert [order[begin : begin + 4].count("a1") for begin in (0, 4)] == [3, 3]


@given(weights=st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 5.0]), min_size=2, max_size=4), grants=st.integers(1, 60))
@settings(deadline=None, max_examples=60)
def test_rr_counts_by_weight_differ_by_less_than_a_turn_of_each(weights: list[float], grants: int) -> None:
    """|n_i/w_i − n_j/w_j| <= 1/w_i + 1/w_j over every interval, for flows that are always backlogged."""
    policy = RoundRobin()
    flows = [an_application(number, flow_weight=weight) for number, weight in enumerate(weights)]
    for flow in flows:
        policy.add(a_call(flow, flow.sequence))
    counts = [[0] * len(flows)]
    for ready in range(len(flows), len(flows) + grants):
        key = policy.head()
        assert key is not None
        chosen = int(key.application_id[1:])
        policy.add(a_call(flows[chosen], ready))
        grant(policy, a_call(flows[chosen], int(key.call_id[1:])))
        counts.append([count + (index == chosen) for index, count in enumerate(counts[-1])])
    for begin, end in combinations(counts, 2):
        turns = [(later - sooner) / weight for sooner, later, weight in zip(begin, end, weights, strict=True)]
        for i, j in combinations(range(len(weights)), 2):
            assert abs(turns[i] - turns[j]) <= 1 / weights[i] + 1 / weights[j] + 1e-9


def test_rr_counts_a_grant_of_a_call_that_never_waited_and_ignores_strangers() -> None:
    policy = RoundRobin()
    policy.granted(a_call(an_application(1), 0), "r")
    one, other = an_application(1), an_application(2)
    policy.add(a_call(one, 1))
    policy.granted(a_call(an_application(9), 9), "r")
    policy.add(a_call(other, 2))
    policy.granted(a_call(one, 8), "r")
    assert emptied(policy) == ["a2/c2", "a1/c1"]


# ---- all of them


@pytest.mark.parametrize("name", SIMPLE)
@given(order=st.permutations(range(8)))
@settings(deadline=None, max_examples=15)
def test_equals_leave_in_order(name: str, order: list[int]) -> None:
    one, many = create_policy(name), create_policy(name)
    for number in order:
        one.add(a_call(an_application(1), number))
        many.add(a_call(an_application(number), 100 - number if name == "rr" else number))
    assert emptied(one) == [f"a1/c{number}" for number in range(8)]
    assert [name.partition("/")[0] for name in emptied(many)] == [f"a{number}" for number in range(8)]


@pytest.mark.parametrize("name", SIMPLE)
def test_a_lost_call_returns_to_its_place_and_a_cancelled_one_is_gone(name: str) -> None:
    policy = create_policy(name)
    application = an_application(1)
    calls = [a_call(application, ready) for ready in range(1, 5)]
    for call in calls:
        policy.add(call)
    grant(policy, calls[0])
    policy.ended(calls[0], (), False)
    policy.remove(calls[2].key)
    policy.remove(a_call(an_application(7), 1).key)
    policy.remove(a_call(application, 77).key)
    policy.add(calls[0])
    assert emptied(policy) == ["a1/c1", "a1/c2", "a1/c4"]
    assert policy.head() is None


@pytest.mark.parametrize("name", SIMPLE)
def test_nothing_is_kept_of_thousands_that_came_and_went(name: str) -> None:
    policy = create_policy(name)
    empty = kept(policy)
    for number in range(3000):
        application = an_application(number, deadline_s=number + 1.0, period_s=5.0, remaining_cost=3.0)
        policy.application_arrived(application)
        policy.advance(float(number))
        served, cancelled = a_call(application, 2 * number), a_call(application, 2 * number + 1)
        policy.add(served)
        policy.add(cancelled)
        grant(policy, served)
        policy.application_changed(application)
        policy.ended(served, (1,), True)
        policy.remove(cancelled.key)
        policy.application_changed(application)
        policy.application_left(application)
        assert kept(policy) <= empty + 200
    assert policy.head() is None


@pytest.mark.parametrize("name", ["app_fcfs", "edf", "rm"])
def test_priority_is_the_order_as_a_bounded_integer(name: str) -> None:
    policy = create_policy(name)
    values = [policy.priority(a_call(an_application(n, deadline_s=n / 4, period_s=n / 4), n)) for n in range(1, 9)]
    values.append(policy.priority(a_call(an_application(9), 9)))
    assert len(set(values)) == 9
    assert values == sorted(values, key=int)  # type: ignore[arg-type]
    assert all(isinstance(value, int) and 0 <= value <= MAX_PRIORITY for value in values)
