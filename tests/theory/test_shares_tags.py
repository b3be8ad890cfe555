"""WFQ and WF²Q against the exact fluid: nobody is late by more than a call, under WF²Q nobody early by more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from scheduler.cost import memory_cost
from scheduler.policies import create_policy
from scheduler.policies.contract import CallFacts
from scheduler.policies.fair_tags import TaggedPolicy
from scheduler.policies.sfq import Sfq
from scheduler.policies.wf2q import Wf2q
from scheduler.policies.wfq import Wfq
from scheduler.types import CallKey
from tests.conformance.test_policies import MOST_LEFT
from tests.property.fluid_gps import Job, Stretch, fluid_finishes
from tests.queueing import Request, Station, of_length
from tests.theory.shares import Desk, Fluid, Work, kept_after_crowd, random_requests

TAGGED = {"wf2q": Wf2q, "wfq": Wfq}
tagged = pytest.mark.parametrize("name", sorted(TAGGED))


@dataclass
class Outcome:
    """One server's run and GPS beside it, the arrivals of GPS moved back to the last report of a busy server."""

    station: Station
    came: list[tuple[CallKey, Fraction]] = field(default_factory=list)
    heard: Fraction = Fraction(0)

    def fluid(self, moments: Sequence[Fraction] = ()) -> Fluid:
        requests = [self.station.request(key) for key, _ in self.came]
        works = [
            Work(at, request.flow or request.app, request.length, Fraction(request.weight))
            for request, (_, at) in zip(requests, self.came, strict=True)
        ]
        return Fluid(works, moments)

    @property
    def lateness(self) -> list[Fraction]:
        """How much later than in GPS each call ended."""
        ends = [self.station.ends[key] for key, _ in self.came]
        return [end - fair for end, fair in zip(ends, self.fluid().finishes, strict=True)]

    def ahead(self, flow: str) -> Fraction:
        """The most by which a flow's service exceeded what GPS had given it, at an end of one of its calls."""
        ends = sorted((end, key) for key, end in self.station.ends.items())
        mine = [(end, self.station.request(key)) for end, key in ends]
        own = [(end, request.length) for end, request in mine if (request.flow or request.app) == flow]
        fluid = self.fluid([end for end, _ in own])
        got, most = 0, Fraction(-(10**9))
        for (_, length), fair in zip(own, fluid.served, strict=True):
            got += length
            most = max(most, got - fair[flow])
        return most


def serve(policy_class: type[TaggedPolicy] | type[Sfq], requests: Sequence[Request]) -> Outcome:
    """On one server that reports each token."""

    class Heard(policy_class):  # type: ignore[misc, valid-type]
        def add(self, call: CallFacts) -> None:
            super().add(call)
            outcome.came.append((call.key, outcome.heard if station.running else station.now))

        def granted(self, call: CallFacts, replica_id: str) -> None:
            super().granted(call, replica_id)
            outcome.heard = station.now

        def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
            super().progressed(call, output_tokens)
            outcome.heard = station.now

        def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
            super().ended(call, output_tokens, finished)
            outcome.heard = station.now

    station = Station(Heard(), requests, tokens=True)
    outcome = Outcome(station)
    station.run()
    return outcome


def test_the_oracle_among_flows_is_the_oracle_of_jobs_for_flows_of_one_call() -> None:
    rng = random.Random(1)
    jobs = [Job(rng.randint(0, 50), rng.randint(1, 20), rng.randint(1, 3)) for _ in range(12)]
    works = [Work(job.arrival, str(n), job.cost, job.weight) for n, job in enumerate(jobs)]
    assert Fluid(works).finishes == fluid_finishes(jobs, [Stretch(1000, 1)])


@tagged
@pytest.mark.parametrize("seed", range(12))
def test_each_call_ends_at_most_one_call_after_gps(name: str, seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, within=rng.choice([50, 300, 700]))
    outcome = serve(TAGGED[name], requests)
    assert len(outcome.lateness) == len(requests)
    assert max(outcome.lateness) <= max(request.length for request in requests) + Fraction(1, 10**6)


def burst() -> list[Request]:
    """Bennett and Zhang's example: one flow with half of the weight and eleven calls, ten with a twentieth and one."""
    large = [of_length("big", 10, call=f"{n:02}", flow="big", weight=10.0) for n in range(11)]
    return large + [of_length(f"s{n}", 10, weight=1.0) for n in range(10)]


def test_start_tags_do_not_keep_that_bound() -> None:
    """SFQ lets each of the ten small flows go before the large one's second call, which GPS finishes early."""
    assert max(serve(Sfq, burst()).lateness) > 3 * 10


def test_wfq_runs_far_ahead_of_gps_and_wf2q_does_not() -> None:
    """Bennett and Zhang, section 2: under WFQ ten of the eleven go first; under WF²Q every second call is theirs."""
    orders, ahead = {}, {}
    for name, policy in TAGGED.items():
        outcome = serve(policy, burst())
        orders[name] = ["b" if key.application_id == "big" else "s" for key in outcome.station.order()]
        ahead[name] = outcome.ahead("big")
    assert orders["wfq"] == ["b"] * 10 + ["s"] * 10 + ["b"]
    assert orders["wf2q"] == ["b", "s"] * 10 + ["b"]
    assert ahead["wfq"] == 50
    assert ahead["wf2q"] == 5


@pytest.mark.parametrize("seed", range(10))
def test_wf2q_is_never_further_ahead_than_one_call_less_its_share(seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, within=rng.choice([20, 300]))
    outcome = serve(Wf2q, requests)
    weights = {request.flow: request.weight for request in requests}
    for flow, weight in weights.items():
        assert flow is not None
        longest = max(request.length for request in requests if request.flow == flow)
        assert outcome.ahead(flow) <= (1 - weight / sum(weights.values())) * longest + 1e-6


def test_wf2q_leaves_no_server_idle() -> None:
    """One flow, two servers: its second call has not begun in GPS, and runs all the same, the earliest start first."""
    desk = Desk(Wf2q())
    for _ in range(4):
        desk.add("a", 10)
    desk.add("b", 10, weight=0.5)
    assert desk.flows(5, end=False) == "abaaa"


# ---- tags


@tagged
def test_tags_are_those_of_the_definition(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    first = desk.add("a", 10, weight=2.0)
    desk.add("a", 20, weight=2.0)
    desk.add("b", 10)
    assert (policy.tags("a"), policy.tags("b")) == ((0.0, 5.0), (0.0, 10.0))
    desk.grant(first)
    assert policy.tags("a") == (5.0, 15.0)
    desk.end(first)
    assert policy.virtual_time == pytest.approx(10 / 3)
    desk.add("c", 3)
    assert policy.tags("c") == pytest.approx((10 / 3, 10 / 3 + 3))


@tagged
def test_v_is_moved_by_service_that_is_seen_and_by_nothing_else(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    call = desk.add("a", 20, predicted=5)
    desk.add("b", 10)
    desk.grant(call)
    policy.served(1000.0)
    policy.progressed(call, (0,))
    assert policy.virtual_time == 0.0
    policy.progressed(call, (1,))
    assert policy.virtual_time == (10 + 2) / 2
    policy.progressed(call, (1,))
    assert policy.virtual_time == (10 + 2) / 2
    desk.end(call, 5)
    assert policy.virtual_time == 10.0


@tagged
def test_an_overrun_and_an_early_end_move_the_flows_next_tag(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    first = desk.add("a", 10)
    desk.add("a", 10)
    desk.add("b", 30)
    desk.grant(first)
    assert policy.tags("a") == (10.0, 20.0)
    policy.progressed(first, (11,))  # 30 units instead of 10
    assert policy.tags("a") == (30.0, 40.0)
    desk.end(first, 6)  # and in truth 20
    assert policy.tags("a") == (20.0, 30.0)


@tagged
def test_who_predicts_too_little_is_charged_even_where_v_has_passed_its_tag(name: str) -> None:
    """The fluid has emptied a after 3 units; what it makes beyond them is work that came for it."""
    desk = Desk(policy := TAGGED[name]())
    desk.add("b", 300)
    call = desk.add("a", 3)
    desk.grant(call)
    other = desk.grant()
    policy.progressed(other, (1,))
    before = policy.virtual_time
    policy.progressed(call, (51,))
    desk.add("a", 3)
    assert policy.tags("a")[0] >= before + 90


@tagged
def test_a_cancelled_call_leaves_no_hole(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    cancelled = [desk.add("a", 100) for _ in range(5)]
    desk.add("a", 10)
    desk.add("b", 20)
    for call in cancelled:
        desk.cancel(call)
    assert policy.tags("a") == (0.0, 10.0)
    assert desk.flows(1) == "a"
    assert policy.virtual_time == 5.0


@tagged
def test_a_call_that_was_lost_is_first_again_in_its_flow(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    call = desk.add("a", 10)
    desk.add("a", 10)
    desk.add("b", 12)
    desk.grant(call)
    desk.lose(call)
    assert policy.tags("a") == (0.0, 10.0)
    assert desk.grant() is call


@tagged
def test_idleness_earns_nothing(name: str) -> None:
    desk = Desk(TAGGED[name]())
    for _ in range(30):
        desk.add("a")
    desk.flows(10)
    for _ in range(10):
        desk.add("b")
    order = desk.flows(10)
    assert order.count("a") == 5
    assert "bbb" not in order


@tagged
def test_a_policy_chosen_while_calls_run_counts_them(name: str) -> None:
    desk, before = Desk(TAGGED[name]()), Desk(create_policy("fcfs"))
    running = before.add("a", 100, predicted=40)
    desk.policy.granted(running, "r")
    desk.policy.progressed(running, (20,))
    desk.add("a", 10)
    desk.add("b", 10)
    assert desk.flows(1) == "b"
    desk.policy.ended(running, (40,), True)
    desk.policy.ended(running, (40,), True)
    assert desk.flows(1) == "a"


@tagged
def test_a_cost_function_of_ones_own(name: str) -> None:
    desk = Desk(policy := TAGGED[name](cost=memory_cost))
    desk.add("a", 9)
    assert policy.tags("a") == (0.0, 8.0)


@tagged
def test_strangers_change_no_tag(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    desk.add("a", 10)
    policy.remove(CallKey("nobody", "c"))
    assert policy.tags("a") == (0.0, 10.0)
    assert desk.flows(1) == "a"
    assert policy.head() is None


@tagged
def test_thousands_of_flows_leave_nothing(name: str) -> None:
    assert kept_after_crowd(create_policy(name)) <= MOST_LEFT


@tagged
def test_when_nothing_is_left_v_begins_anew(name: str) -> None:
    desk = Desk(policy := TAGGED[name]())
    for _ in range(10):
        desk.add("a", 10, weight=0.3)
        desk.add("b", 7, weight=0.7)
    desk.flows(20)
    assert (policy.virtual_time, policy._last_finish, policy._came, policy._made) == (0.0, {}, {}, {})
