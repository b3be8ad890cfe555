"""Stride, SFQ and CFS: a meter a flow. What they promise, and that forgetting idle flows changes no decision."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import combinations

import pytest

from scheduler.policies import create_policy
from scheduler.policies.contract import CallFacts, Policy
from scheduler.policies.flow_meters import FlowMeters
from scheduler.policies.sfq import Sfq
from scheduler.policies.stride import Stride
from tests.conformance.test_policies import MOST_LEFT
from tests.theory.shares import Desk, kept_after_crowd

METERED = ["cfs", "sfq", "stride"]
metered = pytest.mark.parametrize("name", METERED)
WEIGHTS = {"a": 0.5, "b": 1.0, "c": 1.0, "d": 2.0, "e": 4.0}


def always_backlogged(policy: Policy, rng: random.Random, grants: int) -> list[dict[str, float]]:
    """W_i/w_i of flows of calls of 3 to 30 units after each grant; each flow has two calls waiting at all times."""
    desk = Desk(policy)
    for flow in [*WEIGHTS, *WEIGHTS]:
        desk.add(flow, rng.randint(3, 30), weight=WEIGHTS[flow])
    got = dict.fromkeys(WEIGHTS, 0.0)
    course = [dict(got)]
    for _ in range(grants):
        call = desk.head()
        desk.add(call.flow, rng.randint(3, 30), weight=WEIGHTS[call.flow])
        desk.end(desk.grant(call))
        got[call.flow] += (call.prompt_tokens + 2) / call.flow_weight
        course.append(dict(got))
    return course


@metered
@pytest.mark.parametrize("seed", range(5))
def test_normalized_service_differs_by_less_than_one_quantum(name: str, seed: int) -> None:
    course = always_backlogged(create_policy(name), random.Random(seed), 400)
    for i, j in combinations(WEIGHTS, 2):
        quantum = max(30 / WEIGHTS[i], 30 / WEIGHTS[j])
        assert max(abs(got[i] - got[j]) for got in course) <= quantum
    assert min(course[-1].values()) > 10 * 30 / min(WEIGHTS.values())


@metered
def test_weights_in_the_pattern_of_the_paper(name: str) -> None:
    """Tickets 3 : 2 : 1 of equal quanta: of six grants in a row, three, two and one (stride scheduling, section 2)."""
    desk = Desk(create_policy(name))
    for flow, weight in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
        for _ in range(60):
            desk.add(flow, 6, weight=weight)
    order = desk.flows(60)
    assert all(sorted(order[i : i + 6]) == list("aaabbc") for i in range(0, 60, 6))


class NaiveSfq:
    """SFQ as it is defined, with meters that are never forgotten and never moved back."""

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self.meters: dict[str, float] = defaultdict(float)
        self.queues: dict[str, list[CallFacts]] = {}

    def add(self, call: CallFacts) -> None:
        if call.flow not in self.queues:
            self.meters[call.flow] = max(self.meters[call.flow], self.virtual_time)
        self.queues.setdefault(call.flow, []).append(call)
        self.queues[call.flow].sort(key=lambda one: one.ready_sequence)

    def take(self, call: CallFacts) -> None:
        self.queues[call.flow].remove(call)
        if not self.queues[call.flow]:
            del self.queues[call.flow]
        if not self.queues:
            self.virtual_time = max(self.virtual_time, *self.meters.values())

    def head(self) -> CallFacts:
        """The flow whose queue began with the older application goes first: here the oldest call tells."""
        flow = min(self.queues, key=lambda f: (self.meters[f], self.began[f]))
        return self.queues[flow][0]

    @property
    def began(self) -> dict[str, int]:
        return {flow: self.first_of[flow] for flow in self.queues}

    first_of: dict[str, int]

    def dispatch(self, call: CallFacts) -> None:
        self.virtual_time = self.meters[call.flow]
        self.meters[call.flow] += (call.prompt_tokens + 2) / call.flow_weight
        self.take(call)


@pytest.mark.parametrize("seed", range(12))
def test_sfq_decides_as_its_definition_and_keeps_its_laws(seed: int) -> None:
    """On and off flows, cancels and lost calls; V <= M_i <= V + q at each decision, 2·q over each common interval."""
    rng = random.Random(seed)
    desk, naive = Desk(Sfq()), NaiveSfq()
    naive.first_of = {}
    quantum = max(30 / weight for weight in WEIGHTS.values())
    got = dict.fromkeys(WEIGHTS, 0.0)
    course: list[tuple[frozenset[str], dict[str, float]]] = []

    def ready(call: CallFacts) -> None:
        if call.flow not in naive.queues:
            naive.first_of[call.flow] = call.application.sequence
        naive.add(call)

    for _ in range(400):
        chance = rng.random()
        if chance < 0.5 or not naive.queues:
            flow = rng.choice(sorted(WEIGHTS))
            ready(desk.add(flow, rng.randint(3, 30), weight=WEIGHTS[flow]))
        elif chance < 0.55:
            call = rng.choice(sorted(naive.queues.items()))[1][-1]
            desk.cancel(call)
            naive.take(call)
        else:
            head = naive.head()
            assert desk.head() == head
            low, high = naive.meters[head.flow], naive.meters[head.flow] + quantum
            assert all(low <= naive.meters[flow] <= high for flow in naive.queues)
            naive.dispatch(head)
            desk.grant(head)
            got[head.flow] += (head.prompt_tokens + 2) / head.flow_weight
            if chance > 0.95:
                desk.lose(head, 1)
                ready(head)
            else:
                desk.end(head)
        course.append((frozenset(naive.queues), dict(got)))
    assert_fair_on_every_interval(course, 2 * quantum)


def assert_fair_on_every_interval(course: list[tuple[frozenset[str], dict[str, float]]], bound: float) -> None:
    """Within each run of events during which both flows are backlogged, the difference moves by at most the bound."""
    compared = 0
    for i, j in combinations(WEIGHTS, 2):
        differences: list[float] = []
        for backlogged, got in [*course, (frozenset[str](), course[-1][1])]:
            if {i, j} <= backlogged:
                differences.append(got[i] - got[j])
                continue
            if differences:
                assert max(differences) - min(differences) <= bound
                compared += len(differences)
            differences = []
    assert compared > 100


@metered
def test_idleness_earns_nothing(name: str) -> None:
    """While b was away a was served ten calls; b then gets its share, not ten in a row."""
    desk = Desk(create_policy(name))
    for _ in range(30):
        desk.add("a")
    desk.flows(10)
    for _ in range(10):
        desk.add("b")
    assert desk.flows(10) in ("abababababa"[:10], "bababababab"[:10])


@metered
def test_a_debt_is_not_lost_by_leaving(name: str) -> None:
    """b has had one large call; away for a moment, it still waits until a has caught up."""
    desk = Desk(create_policy(name))
    desk.add("b", 100)
    for _ in range(20):
        desk.add("a", 10)
    assert desk.flows(1) == "b"
    desk.add("b", 10)
    assert desk.flows(10, end=False).count("a") >= (5 if name == "stride" else 9)


@metered
def test_when_nothing_waits_all_begin_anew(name: str) -> None:
    desk = Desk(create_policy(name))
    desk.add("b", 1000)
    desk.flows(1)
    first, second = desk.add("b"), desk.add("a")
    assert desk.grant() is first
    assert desk.grant() is second


def test_stride_charges_at_the_grant_and_never_corrects() -> None:
    desk = Desk(Stride())
    call = desk.add("a", 10)
    for _ in range(3):
        desk.add("a", 10)
        desk.add("b", 10)
    assert desk.grant() is call
    desk.end(call, 1000)
    assert desk.flows(4) == "baba"


def test_stride_returns_at_the_global_pass() -> None:
    """G is the mean by weight: b, who joins, stands between a, who is ahead, and c, who is behind."""
    desk = Desk(Stride())
    desk.add("a", 100)
    for flow in "ac":
        for _ in range(20):
            desk.add(flow, 10)
    assert desk.flows(1) == "a"  # passes: a 100, c 0, G 50
    for _ in range(20):
        desk.add("b", 10)
    assert desk.flows(7) == "ccccccb"  # b stands at 50, and of equals the older goes first
    assert desk.flows(8).count("b") == 4


def test_stride_lifts_the_global_pass_to_the_smallest() -> None:
    """Whoever leaves takes a distance along: a, behind G no more, pulls it up to itself."""
    desk = Desk(Stride())
    desk.add("a", 10, weight=1.0)
    for _ in range(50):
        desk.add("a", 10, weight=1.0)
    desk.add("h", 10, weight=1000.0)
    assert desk.flows(2) == "ah"
    desk.flows(10)
    for _ in range(4):
        desk.add("n", 10)
    assert desk.flows(6).count("n") <= 3


@metered
def test_a_call_that_was_lost_is_first_again_in_its_flow(name: str) -> None:
    desk = Desk(create_policy(name))
    call = desk.add("a", 10)
    desk.add("a", 10)
    desk.add("b", 10)
    desk.grant(call)
    desk.lose(call, 1)
    assert desk.grant().flow == "b"
    assert desk.grant() is call


@metered
def test_a_cost_function_of_ones_own(name: str) -> None:
    """Under KV token-time a call of twice the prompt counts twice."""
    policy = create_policy(name, {"cost": "kv_time"})
    desk = Desk(policy)
    for _ in range(40):
        desk.add("a", 1 + 2)
        desk.add("b", 3 + 2)
    order = desk.flows(30)
    assert order.count("a") == 20


@metered
def test_thousands_of_flows_leave_nothing(name: str) -> None:
    assert kept_after_crowd(create_policy(name)) <= MOST_LEFT


@metered
def test_calls_that_ran_before_leave_nothing(name: str) -> None:
    """The policy was chosen while they ran, and nobody waits."""
    policy = create_policy(name)
    desk, other = Desk(policy), Desk(create_policy("fcfs"))
    for number in range(1000):
        call = other.add(f"x{number}")
        policy.granted(call, "r")
        policy.ended(call, (5,), True)
        policy.ended(call, (5,), True)
        policy.progressed(call, (6,))
        policy.application_left(call.application)
    assert kept_after_crowd(policy, 3) <= MOST_LEFT
    assert desk.policy.head() is not None


def test_meters_are_lifted_remembered_and_forgotten() -> None:
    meters = FlowMeters()
    meters.raise_floor_to_least()
    assert meters.least() is None
    meters.join("a", 1)
    meters.join("b", 2)
    meters.charge("a", 5.0)
    meters.charge("b", 7.0)
    meters.raise_floor_to_least()
    assert meters.floor == 5.0
    meters.leave("b")
    assert ("a" in meters, "b" in meters) == (True, False)
    meters.charge("b", 1.0)
    assert meters.meter("b") == 8.0
    meters.charge("b", -1.0)
    meters.join("c", 3)
    assert [meters.meter(flow) for flow in "abc"] == [5.0, 7.0, 5.0]
    meters.raise_floor(7.0)
    assert meters.meter("b") == 7.0
    meters.raise_floor(6.0)
    assert meters.floor == 7.0
    meters.charge("x", -3.0)
    assert meters.meter("x") == 7.0
    meters.leave("a")
    meters.leave("c")
    assert (meters.floor, meters.meter("b")) == (0.0, 0.0)


def test_equal_meters_leave_by_number() -> None:
    meters = FlowMeters()
    for flow, number in (("c", 3), ("a", 1), ("b", 2)):
        meters.join(flow, number)
    for expected in "abc":
        assert meters.least() == expected
        meters.leave(expected)
    assert meters.least() is None
