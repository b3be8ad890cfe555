"""EEVDF: only those that are owed service run, nobody is owed more than a request, and it decides as it is defined."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from scheduler.cost import memory_cost
from scheduler.policies import create_policy
from scheduler.policies.contract import CallFacts
from scheduler.policies.eevdf import Eevdf
from scheduler.types import CallKey
from tests.conformance.test_policies import MOST_LEFT
from tests.theory.shares import Desk, kept_after_crowd

WEIGHTS = {"a": 0.5, "b": 1.0, "c": 1.0, "d": 2.0, "e": 4.0}
LONGEST = 30


def length(call: CallFacts) -> int:
    return call.prompt_tokens + 2


@pytest.mark.parametrize("seed", range(6))
def test_only_lag_of_at_least_0_is_picked_and_lags_stay_within_a_request(seed: int) -> None:
    """Flows that stay backlogged; V and lags are reckoned anew from the services, in fractions."""
    rng = random.Random(seed)
    desk = Desk(policy := Eevdf())
    for flow in [*WEIGHTS, *WEIGHTS]:
        desk.add(flow, rng.randint(3, LONGEST), weight=WEIGHTS[flow])
    got = dict.fromkeys(WEIGHTS, 0)
    for _ in range(400):
        mean = Fraction(sum(got.values())) / Fraction(sum(WEIGHTS.values()))
        lags = {flow: Fraction(weight) * mean - got[flow] for flow, weight in WEIGHTS.items()}
        assert all(-LONGEST <= lag <= LONGEST for lag in lags.values())
        assert all(policy.lag(flow) == pytest.approx(float(lag), abs=1e-6) for flow, lag in lags.items())
        call = desk.head()
        assert lags[call.flow] >= 0
        desk.add(call.flow, rng.randint(3, LONGEST), weight=WEIGHTS[call.flow])
        desk.end(desk.grant(call))
        got[call.flow] += length(call)
    assert min(got.values()) > 100


@dataclass
class Naive:
    """EEVDF from its definition: V is the weighted mean of eligible times, taken anew each time, exact."""

    eligible_at: dict[str, Fraction] = field(default_factory=dict)
    debts: dict[str, Fraction] = field(default_factory=dict)
    queues: dict[str, list[CallFacts]] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    virtual_time: Fraction = Fraction(0)

    def add(self, call: CallFacts) -> None:
        if call.flow not in self.queues:
            self.eligible_at[call.flow] = self.debts.pop(call.flow, self.virtual_time)
            self.began[call.flow] = call.application.sequence
        self.queues.setdefault(call.flow, []).append(call)
        self.queues[call.flow].sort(key=lambda one: one.ready_sequence)
        self._settle()

    def take(self, call: CallFacts) -> None:
        self.queues[call.flow].remove(call)
        if not self.queues[call.flow]:
            del self.queues[call.flow]
            self._owe(call.flow, self.eligible_at.pop(call.flow))
        self._settle()

    def charge(self, call: CallFacts, cost: int) -> None:
        more = cost / Fraction(call.flow_weight)
        if call.flow in self.queues:
            self.eligible_at[call.flow] += more
        elif self.queues:
            self._owe(call.flow, self.debts.get(call.flow, self.virtual_time) + more)
        self._settle()

    def head(self) -> CallFacts:
        eligible = [flow for flow in self.queues if self.eligible_at[flow] <= self.virtual_time]
        return self.queues[min(eligible, key=lambda flow: (self._deadline(flow), self.began[flow]))][0]

    def _deadline(self, flow: str) -> Fraction:
        call = self.queues[flow][0]
        return self.eligible_at[flow] + length(call) / Fraction(call.flow_weight)

    def _owe(self, flow: str, until: Fraction) -> None:
        self.debts[flow] = until
        if until <= self.virtual_time:
            del self.debts[flow]

    def _settle(self) -> None:
        if not self.queues:
            self.debts, self.virtual_time = {}, Fraction(0)
            return
        weights = {flow: Fraction(queue[0].flow_weight) for flow, queue in self.queues.items()}
        total = sum((weights[flow] * self.eligible_at[flow] for flow in weights), Fraction(0))
        self.virtual_time = total / sum(weights.values(), Fraction(0))
        self.debts = {flow: until for flow, until in self.debts.items() if until > self.virtual_time}


@pytest.mark.parametrize("seed", range(12))
def test_it_decides_as_its_definition(seed: int) -> None:
    """On and off flows, cancels, wrong predictions, lost calls, and calls that end later."""
    rng = random.Random(seed)
    desk, naive = Desk(Eevdf()), Naive()
    running: list[CallFacts] = []
    decisions = 0
    for _ in range(500):
        chance = rng.random()
        if chance < 0.45 or not naive.queues:
            flow = rng.choice(sorted(WEIGHTS))
            naive.add(desk.add(flow, rng.randint(3, LONGEST), weight=WEIGHTS[flow]))
        elif chance < 0.5:
            call = rng.choice(sorted(naive.queues.items()))[1][0]
            desk.cancel(call)
            naive.take(call)
        elif chance < 0.8:
            call = naive.head()
            assert desk.head() == call
            decisions += 1
            desk.grant(call)
            naive.charge(call, length(call))
            naive.take(call)
            running.append(call)
        elif running:
            call = running.pop(rng.randrange(len(running)))
            tokens = rng.randint(1, 3)
            desk.policy.progressed(call, (tokens,))
            naive.charge(call, 2 * (tokens - 1))
            if chance < 0.9:
                desk.end(call, tokens)
            else:
                desk.lose(call, tokens)
                naive.add(call)
    assert decisions > 100


def test_the_earliest_deadline_of_the_eligible_runs() -> None:
    """Stoica and Abdel-Wahab's example (figure 1): equal weights, requests of two and one units (here times ten)."""
    desk = Desk(Eevdf())
    for _ in range(6):
        desk.add("a", 20)
        desk.add("b", 10)
    assert desk.flows(9) == "babbabbab"


def test_a_flow_that_is_ahead_waits_though_its_deadline_is_earliest() -> None:
    """b's calls are short, so that its deadlines are always earlier; without eligibility it would run five times."""
    desk = Desk(Eevdf())
    for _ in range(10):
        desk.add("a", 60)
        desk.add("b", 10)
    assert desk.flows(4) == "babb"


def test_idleness_earns_nothing_and_a_debt_stays() -> None:
    desk = Desk(Eevdf())
    desk.add("b", 100)
    for _ in range(40):
        desk.add("a", 10)
    assert desk.flows(2) == "ab"  # a is ahead after its first
    for _ in range(10):
        desk.add("b", 10)
    assert desk.flows(9) == "a" * 9  # until it has had as much as b
    while any(call.flow == "b" for call in desk.calls.values()):
        desk.flows(1)
    desk.flows(9)
    for _ in range(5):
        desk.add("b", 10)
    assert desk.flows(8).count("b") == 4


def test_when_nothing_waits_all_begin_anew() -> None:
    desk = Desk(policy := Eevdf())
    desk.add("b", 1000)
    desk.flows(1)
    desk.add("b")
    assert policy.lag("b") == 0.0


def test_a_call_that_was_lost_pays_for_what_it_made_and_is_first_again_in_its_flow() -> None:
    desk = Desk(policy := Eevdf())
    call = desk.add("a", 10)
    desk.add("a", 10)
    desk.add("b", 12)
    desk.grant(call)
    desk.lose(call)
    assert policy.lag("a") == policy.lag("b") == 0.0
    assert desk.grant() is call
    desk.lose(call, 1)
    assert (policy.lag("a"), policy.lag("b")) == (-5.0, 5.0)
    assert desk.grant().flow == "b"
    assert desk.grant() is call


def test_a_cost_function_of_ones_own() -> None:
    policy = Eevdf(cost=memory_cost)
    desk = Desk(policy)
    for flow in "aabb":
        desk.add(flow, 9)
    desk.grant()
    assert (policy.lag("a"), policy.lag("b")) == (-4.0, 4.0)


def test_if_rounding_leaves_nobody_eligible_the_earliest_eligible_time_runs() -> None:
    policy = Eevdf()
    desk = Desk(policy)
    for flow in "ab":
        desk.add(flow)
    policy._move(-1.0)
    assert desk.flows(1) == "a"


def test_strangers_change_no_lag() -> None:
    desk = Desk(policy := Eevdf())
    desk.add("a")
    policy.remove(CallKey("nobody", "c"))
    assert policy.lag("a") == 0.0
    assert desk.flows(1) == "a"
    assert policy.head() is None


def test_thousands_of_flows_leave_nothing() -> None:
    assert kept_after_crowd(Eevdf()) <= MOST_LEFT


def test_calls_that_ran_before_leave_nothing() -> None:
    """The policy was chosen while they ran, and nobody waits."""
    policy = Eevdf()
    other = Desk(create_policy("fcfs"))
    for number in range(1000):
        call = other.add(f"x{number}")
        policy.granted(call, "r")
        policy.ended(call, (5,), True)
        policy.application_left(call.application)
    assert kept_after_crowd(policy, 3) <= MOST_LEFT
