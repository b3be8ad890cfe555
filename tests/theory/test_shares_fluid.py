"""GPS tracking against the exact fluid, and the fluid itself."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from scheduler.cost import memory_cost
from scheduler.policies import create_policy
from scheduler.policies.contract import CallFacts
from scheduler.policies.fluid_flows import FluidFlows
from scheduler.policies.gps import Gps
from scheduler.types import CallKey
from tests.conformance.test_policies import MOST_LEFT
from tests.theory.shares import Desk, Fluid, Work, kept_after_crowd

LONGEST = 30


def harmonic(k: int) -> float:
    return sum(1 / i for i in range(1, k + 1))


class Tracked:
    """A policy whose grants are the fluid's clock, and what it knew at each decision."""

    def __init__(self, name: str = "gps") -> None:
        self.desk = Desk(create_policy(name))
        self.granted = 0
        self.by_flow: dict[str, int] = {}
        self.works: list[Work] = []
        self.moments: list[tuple[int, dict[str, int], dict[str, float]]] = []

    def add(self, flow: str, length: int, weight: float) -> None:
        self.desk.add(flow, length, weight=weight)
        self.works.append(Work(self.granted, flow, length, Fraction(weight)))
        self.by_flow.setdefault(flow, 0)

    def decide(self) -> CallFacts:
        policy = self.desk.policy
        told = {flow: policy.lag(flow) for flow in self.by_flow} if isinstance(policy, Gps) else {}
        self.moments.append((self.granted, dict(self.by_flow), told))
        call = self.desk.grant()
        self.desk.end(call)
        self.granted += call.prompt_tokens + 2
        self.by_flow[call.flow] += call.prompt_tokens + 2
        return call

    def lags(self) -> list[dict[str, float]]:
        """Of each flow at each decision, by the exact fluid."""
        fluid = Fluid(self.works, [moment for moment, _, _ in self.moments])
        return [
            {flow: float(fair[flow] - got) for flow, got in before.items()}
            for (_, before, _), fair in zip(self.moments, fluid.served, strict=True)
        ]


def crowd(name: str, seed: int, weights: dict[str, float], steps: int = 300) -> Tracked:
    """Flows that come and go; nothing runs dry before the end, since a busy period is what the bound is about."""
    rng = random.Random(seed)
    tracked = Tracked(name)
    for flow, weight in weights.items():
        tracked.add(flow, rng.randint(3, LONGEST), weight)
    for _ in range(steps):
        while rng.random() < 0.5 or len(tracked.desk.calls) < 2:
            flow = rng.choice(sorted(weights))
            tracked.add(flow, rng.choice([3, 5, LONGEST]), weights[flow])
        tracked.decide()
    return tracked


@pytest.mark.parametrize("seed", range(6))
def test_no_flow_is_further_behind_the_fluid_than_the_cup_game_allows(seed: int) -> None:
    weights = {f"f{n}": w for n, w in enumerate([0.5, 1.0, 1.0, 2.0, 5.0, 9.0])}
    tracked = crowd("gps", seed, weights)
    lags = tracked.lags()
    assert max(max(lag.values()) for lag in lags) <= LONGEST * harmonic(len(weights) - 1)
    for (_, _, told), lag in zip(tracked.moments, lags, strict=True):
        assert told == pytest.approx(lag, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_among_equal_weights_no_flow_is_a_call_behind(seed: int) -> None:
    weights = {f"f{n}": 1.0 for n in range(8)}
    lags = crowd("gps", seed, weights).lags()
    assert max(max(lag.values()) for lag in lags) <= LONGEST * 7 / 8 + 1e-9


def test_smallest_normalized_service_does_not_keep_that_bound() -> None:
    """Eighteen light flows that begin beside a heavy one each go before it: it falls behind by almost all of them."""
    worst = {}
    for name in ("gps", "sfq"):
        tracked = Tracked(name)
        for n in range(18):
            tracked.add(f"light{n}", LONGEST, 1.0)
        for _ in range(60):
            tracked.add("heavy", LONGEST, 1000.0)
        for _ in range(70):
            tracked.decide()
        worst[name] = max(lag["heavy"] for lag in tracked.lags())
    assert worst["sfq"] > 15 * LONGEST
    assert worst["gps"] <= LONGEST * harmonic(18)


def test_shares_follow_weights_over_time() -> None:
    desk = Desk(Gps())
    for _ in range(100):
        for flow, weight in (("a", 1.0), ("b", 2.0), ("c", 5.0)):
            desk.add(flow, 6, weight=weight)
    order = desk.flows(80)
    assert [order.count(flow) for flow in "abc"] == [10, 20, 50]


def test_idleness_earns_nothing_and_a_debt_stays() -> None:
    desk = Desk(Gps())
    desk.add("b", 100)
    for _ in range(40):
        desk.add("a", 10)
    assert desk.flows(1) == "b"
    desk.add("b", 10)
    assert desk.flows(9) == "a" * 9
    desk.flows(20)
    for _ in range(10):
        desk.add("b", 10)
    assert "bbb" not in desk.flows(8)


def test_what_a_call_makes_beyond_its_prediction_is_counted() -> None:
    """a's calls make ten times what it says; in the end both have been served the same."""
    desk = Desk(Gps())
    for _ in range(300):
        desk.add("a", 3)
        desk.add("b", 9, predicted=3)
    got = {"a": 0, "b": 0}
    for _ in range(150):
        call = desk.grant()
        tokens = 10 if call.flow == "a" else 1  # b says 3 and makes 1
        desk.policy.progressed(call, (tokens - 1,))
        desk.end(call, tokens)
        got[call.flow] += call.prompt_tokens + 2 * tokens
    assert abs(got["a"] - got["b"]) <= 2 * 21


def test_a_cancelled_call_takes_its_work_back() -> None:
    policy = Gps()
    desk = Desk(policy)
    many = [desk.add("a", 10) for _ in range(6)]
    desk.add("b", 50)
    for call in many[1:]:
        desk.cancel(call)
    desk.cancel(many[0])
    assert policy.lag("a") == 0.0
    assert desk.flows(1) == "b"
    assert policy.head() is None


def test_a_call_that_was_lost_is_first_again_in_its_flow() -> None:
    policy = Gps()
    desk = Desk(policy)
    call = desk.add("a", 10)
    desk.add("a", 10)
    desk.add("b", 12)
    desk.grant(call)
    desk.lose(call)
    assert policy.lag("a") == policy.lag("b") == 5.0  # the fluid has delivered ten that nobody made
    assert desk.grant() is call


def test_a_policy_chosen_while_calls_run_counts_them() -> None:
    desk, before = Desk(Gps()), Desk(create_policy("fcfs"))
    desk.policy.granted(before.add("z", 50), "r")
    desk.add("a", 10)
    desk.add("b", 10)
    running = before.add("a", 50)
    desk.policy.granted(running, "r")
    assert desk.flows(1) == "b"
    desk.policy.ended(running, (1,), True)
    assert desk.flows(1) == "a"
    assert desk.policy.lag("a") == 0.0  # type: ignore[attr-defined]


def test_strangers_change_no_lag() -> None:
    policy = Gps()
    desk = Desk(policy)
    desk.add("a")
    policy.remove(CallKey("nobody", "c"))
    assert policy.lag("a") == 0.0
    assert desk.flows(1) == "a"
    assert policy.head() is None


def test_a_cost_function_of_ones_own() -> None:
    policy = Gps(cost=memory_cost)
    desk = Desk(policy)
    for _ in range(2):
        desk.add("a", 9)
        desk.add("b", 9)
    desk.grant()
    assert policy.lag("b") == 4.0


def test_thousands_of_flows_leave_nothing() -> None:
    assert kept_after_crowd(Gps()) <= MOST_LEFT


# ---- the fluid


@pytest.mark.parametrize("seed", range(5))
def test_the_fluid_empties_flows_when_the_oracle_does(seed: int) -> None:
    rng = random.Random(seed)
    works = [Work(rng.randint(0, 60), f"f{rng.randint(0, 5)}", rng.randint(1, 20), Fraction(1, 2)) for _ in range(30)]
    works.sort(key=lambda work: work.at)
    moments = list(range(400))
    oracle = Fluid(works, moments)
    fluid, come, waiting = FluidFlows(), dict.fromkeys((work.flow for work in works), 0), list(works)
    for moment, served in zip(moments, oracle.served, strict=True):
        while waiting and waiting[0].at <= moment:
            work = waiting.pop(0)
            fluid.add(work.flow, 0.5, float(work.work))
            come[work.flow] += int(work.work)
        for flow, amount in come.items():
            assert fluid.remaining(flow) == pytest.approx(amount - float(served.get(flow, 0)), abs=1e-9)
        fluid.serve(1.0)
    assert all(fluid.remaining(flow) == 0 for flow in come)


def test_the_fluid_says_whom_it_empties_and_drops_what_nobody_takes() -> None:
    fluid = FluidFlows()
    fluid.add("a", 1.0, 10.0)
    fluid.add("b", 2.0, 10.0)
    assert fluid.serve(12.0) == []
    assert fluid.serve(4.0) == ["b"]
    assert "b" not in fluid
    assert fluid.serve(100.0) == ["a"]
    assert fluid.virtual_time == 10.0
    assert fluid.serve(5.0) == []
    assert fluid.virtual_time == 10.0


def test_the_fluid_withholds_what_is_taken_back() -> None:
    fluid = FluidFlows()
    fluid.add("a", 1.0, 10.0)
    fluid.serve(4.0)
    fluid.serve(-3.0)
    assert fluid.virtual_time == 4.0
    fluid.serve(2.0)
    assert fluid.virtual_time == 4.0
    fluid.serve(2.0)
    assert fluid.virtual_time == 5.0


def test_a_flow_whose_weight_changes_keeps_its_work() -> None:
    fluid = FluidFlows()
    fluid.add("a", 1.0, 10.0)
    fluid.add("a", 4.0, 2.0)
    assert (fluid.remaining("a"), fluid.end("a"), fluid.weight("a")) == (12.0, 3.0, 4.0)
    fluid.add("a", 4.0, -20.0)
    assert "a" not in fluid
    assert fluid.end("a") == 0.0


def test_nothing_of_a_large_weight_stays_in_the_sum() -> None:
    fluid = FluidFlows()
    fluid.add("small", 1e-6, 1.0)
    for _ in range(100):
        fluid.add("large", 999_999.3, 1.0)
        fluid.add("large", 999_999.3, -1.0)
    fluid.serve(0.5)
    assert fluid.virtual_time == 0.5 / 1e-6
