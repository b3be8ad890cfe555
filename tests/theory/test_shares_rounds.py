"""DRR: it decides as the rounds that it never makes one by one, and shares within its bound."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from scheduler.cost import memory_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies import create_policy
from scheduler.policies.contract import CallFacts
from scheduler.policies.drr import Drr
from tests.conformance.test_policies import MOST_LEFT
from tests.theory.shares import Desk, kept_after_crowd

WEIGHTS = {"a": 0.5, "b": 1.0, "c": 1.0, "d": 2.0, "e": 4.0}
LONGEST = 30
quanta = pytest.mark.parametrize("quantum", [1.0, 8.0, 64.0, 1000.0])


def length(call: CallFacts) -> int:
    return call.prompt_tokens + 2


@dataclass
class Naive:
    """The published loop: a list of flows for each round, a quantum at each visit, the rest of a visit kept."""

    quantum: float
    queues: dict[str, list[CallFacts]] = field(default_factory=dict)
    deficits: dict[str, float] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    this_round: list[str] = field(default_factory=list)
    next_round: list[str] = field(default_factory=list)
    visited: str | None = None

    def add(self, call: CallFacts) -> None:
        if call.flow not in self.queues:
            self.began[call.flow] = call.application.sequence
            self.deficits[call.flow] = 0.0
            self.next_round.append(call.flow)
        self.queues.setdefault(call.flow, []).append(call)

    def next(self) -> CallFacts:
        """Walk on to the next call that may run, and let it run."""
        while True:
            if not self.this_round:
                self.this_round = sorted(self.next_round, key=lambda flow: self.began[flow])
                self.next_round = []
            flow = self.this_round[0]
            if self.visited != flow:
                self.visited = flow
                self.deficits[flow] += self.quantum * WEIGHTS[flow]
            call = self.queues[flow][0]
            if length(call) <= self.deficits[flow]:
                return self._run(flow, call)
            self.this_round.pop(0)
            self.next_round.append(flow)
            self.visited = None

    def _run(self, flow: str, call: CallFacts) -> CallFacts:
        self.deficits[flow] -= length(call)
        self.queues[flow].pop(0)
        if not self.queues[flow]:
            del self.queues[flow], self.deficits[flow]
            self.this_round.pop(0)
            self.visited = None
        return call


@quanta
@pytest.mark.parametrize("seed", range(4))
def test_it_decides_as_the_published_loop(seed: int, quantum: float) -> None:
    """Flows come between two rounds and leave when they are served; both run dry at times."""
    rng = random.Random(seed)
    desk, naive = Desk(Drr(quantum=quantum)), Naive(quantum)
    for _ in range(40):
        for _ in range(rng.randint(1, 12)):
            flow = rng.choice(sorted(WEIGHTS))
            naive.add(desk.add(flow, rng.randint(3, LONGEST), weight=WEIGHTS[flow]))
        for _ in range(rng.randint(0, 10) if rng.random() < 0.9 else 1000):
            if not naive.queues:
                break
            call = naive.next()
            assert desk.head() == call
            desk.end(desk.grant())


@quanta
@pytest.mark.parametrize("seed", range(3))
def test_shares_differ_by_a_quantum_and_one_call_each(seed: int, quantum: float) -> None:
    rng = random.Random(seed)
    desk = Desk(Drr(quantum=quantum))
    for flow in [*WEIGHTS, *WEIGHTS]:
        desk.add(flow, rng.randint(3, LONGEST), weight=WEIGHTS[flow])
    got = dict.fromkeys(WEIGHTS, 0.0)
    course = [dict(got)]
    grants = 600
    for _ in range(grants):
        call = desk.head()
        desk.add(call.flow, rng.randint(3, LONGEST), weight=WEIGHTS[call.flow])
        desk.end(desk.grant(call))
        got[call.flow] += length(call) / call.flow_weight
        course.append(dict(got))
    for i, j in combinations(WEIGHTS, 2):
        differences = [now[i] - now[j] for now in course]
        bound = quantum + LONGEST / WEIGHTS[i] + LONGEST / WEIGHTS[j]
        assert max(differences) - min(differences) <= bound
    assert max(got.values()) > 3 * quantum / 2


def test_each_visit_grants_at_least_one_call_when_the_quantum_covers_the_largest() -> None:
    """No flow is granted twice, apart from the calls of one visit, before each other was granted once."""
    rng = random.Random(4)
    desk = Desk(Drr(quantum=LONGEST))
    for _ in range(100):
        for flow in "bcxyz":
            desk.add(flow, rng.randint(3, LONGEST))
    order = desk.flows(200)
    visits = [flow for i, flow in enumerate(order) if i == 0 or flow != order[i - 1]]
    assert visits == (["b", "c", "x", "y", "z"] * 100)[: len(visits)]


@pytest.mark.parametrize("quantum", [1.0, 1000.0])
def test_a_grant_takes_a_few_steps_whatever_the_quantum(quantum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred flows, calls of ten thousand quanta of the smallest: counted are entries into heaps."""
    desk = Desk(Drr(quantum=quantum))
    for _ in range(3):
        for number in range(100):
            desk.add(f"f{number}", 10_000)
    steps = 0
    entered = FinishHeap.set

    def counted(heap: FinishHeap[str], key: str, rank: float, sequence: int) -> None:
        nonlocal steps
        steps += 1
        entered(heap, key, rank, sequence)

    monkeypatch.setattr(FinishHeap, "set", counted)
    desk.flows(200)
    assert steps <= 2 * 200


def test_a_visit_spends_the_quantum_by_weight() -> None:
    desk = Desk(Drr(quantum=30))
    for _ in range(20):
        desk.add("a", 10)
        desk.add("b", 10, weight=2.0)
    assert desk.flows(18) == "aaabbbbbbaaabbbbbb"


def test_a_flow_that_waits_no_more_loses_its_deficit() -> None:
    """b leaves with 20 unspent and returns: its next visit is worth a quantum, not more."""
    desk = Desk(Drr(quantum=30))
    for _ in range(20):
        desk.add("a", 10)
    desk.add("b", 10)
    assert desk.flows(4) == "aaab"
    for _ in range(10):
        desk.add("b", 10)
    assert desk.flows(9) == "aaabbbaaa"


def test_returning_at_once_is_no_second_visit_in_a_round() -> None:
    desk = Desk(Drr(quantum=30))
    for _ in range(20):
        desk.add("a", 10)
        desk.add("c", 10)
    desk.add("b", 10)
    order = ""
    for _ in range(28):
        call = desk.grant()
        if call.flow == "b":
            desk.add("b", 10)
        order += call.flow
    assert order.count("b") <= 5


def test_a_cancelled_call_makes_way_for_the_next_of_its_flow() -> None:
    """The large one had to save for rounds; without it the flow runs in this round or the next."""
    desk = Desk(Drr(quantum=10))
    large = desk.add("a", 1000)
    desk.add("a", 10)
    for _ in range(30):
        desk.add("b", 10)
    assert desk.flows(5) == "bbbbb"
    desk.cancel(large)
    assert desk.head().flow == "a"
    assert desk.flows(20).count("a") == 1
    desk.policy.remove(large.key)


def test_a_call_that_was_lost_is_first_again_in_its_flow() -> None:
    desk = Desk(Drr(quantum=10))
    call = desk.add("a", 10)
    desk.add("a", 10)
    desk.add("b", 10)
    desk.grant(call)
    desk.lose(call)
    assert desk.grant().flow == "b"
    assert desk.grant() is call


def test_a_call_that_was_adopted_is_paid_by_its_flow() -> None:
    """A grant that was not the head's: of one whose turn it is not, and of one that has nothing waiting."""
    desk, other = Desk(Drr(quantum=10)), Desk(create_policy("fcfs"))
    for _ in range(10):
        desk.add("a", 10)
        desk.add("b", 10)
    desk.policy.granted(other.add("b", 30), "r")
    desk.policy.granted(other.add("x", 30), "r")
    assert desk.flows(6) == "aaaaba"


def test_a_cost_function_of_ones_own() -> None:
    """Under KV token-time a call of a thousand prompt tokens and one of output costs 1001."""
    desk = Desk(Drr(quantum=1001, cost=memory_cost))
    for _ in range(3):
        desk.add("a", 1002)
        desk.add("b", 1002)
    assert desk.flows(6) == "ababab"


@pytest.mark.parametrize("quantum", [0, 0.5, -1.0, float("inf"), float("nan")])
def test_quanta_that_are_none_are_refused(quantum: float) -> None:
    with pytest.raises(ValueError, match="quantum must be finite and at least 1"):
        create_policy("drr", {"quantum": quantum})


def test_thousands_of_flows_leave_nothing() -> None:
    assert kept_after_crowd(Drr()) <= MOST_LEFT
