"""VTC and its relatives: the order of their definitions, and the bound of the VTC paper (theorem 4.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.cost import CostModel, linear_cost, memory_cost, profile_cost
from scheduler.policies.contract import CallFacts, Policy
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.service_counters import ServiceCounters
from scheduler.policies.vtc import Vtc
from scheduler.policies.vtc_oracle import VtcOracle
from scheduler.policies.vtc_predict import VtcPredict
from tests.queueing import Request, Station
from tests.theory.llm_loads import backlog, longest_prompt, random_load, tokens_at_once, widest_gap
from tests.theory.llm_naive import Charge, NaiveCounters

LENGTHS = {"long": (40, 30), "short": (5, 4), "prompts": (60, 2)}


def as_made(cost: CostModel) -> Charge:
    return lambda call, made, ended: cost(call.prompt_tokens, made)


def in_advance(cost: CostModel, length: Callable[[CallFacts], int]) -> Charge:
    def charge(call: CallFacts, made: tuple[int, ...], ended: bool) -> float:
        return cost(call.prompt_tokens, made if ended else tuple(max(length(call), tokens) for tokens in made))

    return charge


def predicted(call: CallFacts) -> int:
    return call.predicted_output_tokens


def true(call: CallFacts) -> int:
    assert call.true_output_tokens is not None
    return call.true_output_tokens


PAIRS: dict[str, Callable[[], tuple[Policy, Policy]]] = {
    "vtc": lambda: (Vtc(), NaiveCounters(as_made(linear_cost))),
    "vtc by profile": lambda: (Vtc(cost=profile_cost), NaiveCounters(as_made(profile_cost))),
    "vtc by memory": lambda: (Vtc(cost=memory_cost), NaiveCounters(as_made(memory_cost))),
    "predict": lambda: (VtcPredict(), NaiveCounters(in_advance(linear_cost, predicted))),
    "predict by memory": lambda: (VtcPredict(cost=memory_cost), NaiveCounters(in_advance(memory_cost, predicted))),
    "oracle": lambda: (VtcOracle(), NaiveCounters(in_advance(linear_cost, true))),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_the_definition(pair: str, seed: int) -> None:
    """Bursts and pauses, chains, weights, several sequences, flows that leave and return, token by token."""
    policy, naive = PAIRS[pair]()
    load, servers = random_load(seed), 1 + seed % 3
    station = Station(policy, load, servers=servers, tokens=True).run()
    assert station.order() == Station(naive, load, servers=servers, tokens=True).run().order()
    assert len(station.ends) == len(load)


def bound(load: list[Request], servers: int) -> int:
    """2·max(w_p·L_input, w_q·M)."""
    return 2 * max(longest_prompt(load), 2 * tokens_at_once(load, servers))


@pytest.mark.parametrize("make", [Vtc, VtcPredict, VtcOracle])
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_two_backlogged_flows_stay_within_the_bound_of_the_theorem(
    make: Callable[[], Policy], servers: int, seed: int
) -> None:
    load = backlog(seed, LENGTHS)
    station = Station(make(), load, servers=servers, tokens=True).run()
    for one, other in [("long", "short"), ("long", "prompts"), ("short", "prompts")]:
        assert widest_gap(station, one, other) <= bound(load, servers)


@pytest.mark.parametrize("seed", range(3))
def test_first_come_first_served_breaks_that_bound(seed: int) -> None:
    load = backlog(seed, LENGTHS)
    assert widest_gap(Station(Fcfs(), load, servers=3).run(), "long", "short") > bound(load, 3)


class PromptsOnly(Vtc):
    """A likely mistake: answers are not charged."""

    def charge_while_running(self, call: CallFacts, made: tuple[int, ...]) -> float:
        return float(call.prompt_tokens)


def test_counting_prompts_only_breaks_that_bound() -> None:
    load = backlog(0, {"talkative": (4, 40), "quiet": (40, 4)}, calls=100)
    assert widest_gap(Station(Vtc(), load, tokens=True).run(), "talkative", "quiet") <= bound(load, 1)
    assert widest_gap(Station(PromptsOnly(), load, tokens=True).run(), "talkative", "quiet") > bound(load, 1)


@pytest.mark.parametrize("make", [Vtc, VtcPredict, VtcOracle])
@pytest.mark.parametrize("seed", range(3))
def test_wrong_predictions_cost_no_more_than_the_bound_with_the_longer_of_the_two_lengths(
    make: Callable[[], Policy], seed: int
) -> None:
    load = backlog(seed, LENGTHS, predicted=50)
    station = Station(make(), load, servers=3, tokens=True).run()
    assert widest_gap(station, "long", "short") <= bound(load, 3)


@pytest.mark.parametrize("make", [Vtc, VtcPredict, VtcOracle])
def test_service_is_shared_by_weight(make: Callable[[], Policy]) -> None:
    heavy = backlog(1, {"heavy": (20, 20)}, calls=90, weight=3.0)
    light = backlog(2, {"light": (20, 20)}, calls=30)
    load = [request for batch in zip(heavy[::3], heavy[1::3], heavy[2::3], light, strict=True) for request in batch]
    station = Station(make(), load, servers=2, tokens=True).run()
    assert widest_gap(station, "heavy", "light", {"heavy": 3, "light": 1}) <= bound(load, 2)
    assert widest_gap(station, "heavy", "light") > 3 * bound(load, 2), "unweighted shares must drift apart"


def mean_gap(make: Callable[[], Policy], **fields: object) -> float:
    """Four servers; long answers behind short prompts, so that a call's admission says little of what it will cost."""
    gaps = []
    for seed in range(3):
        load = backlog(seed, {"long": (2, 60), "short": (2, 6)}, calls=80, **fields)
        gaps.append(widest_gap(Station(make(), load, servers=4, tokens=True).run(), "long", "short"))
    return float(sum(gaps) / len(gaps))


def test_perfect_predictions_narrow_the_gap() -> None:
    assert mean_gap(VtcPredict) < 0.5 * mean_gap(Vtc)


def test_false_predictions_lose_the_gap_and_the_oracle_keeps_it() -> None:
    """Every answer is predicted to be one token."""
    kept = mean_gap(VtcOracle, predicted=1)
    assert kept == mean_gap(VtcOracle) == mean_gap(VtcPredict)
    assert kept < 0.5 * mean_gap(VtcPredict, predicted=1)


def newcomer_after_idling(policy: Policy) -> int:
    """Calls that a flow gets in a row when it comes after the other was served alone for long."""
    old = [Request(app=f"old{n}", p=10, d=5, flow="old") for n in range(100)]
    new = [Request(app=f"new{n}", p=10, d=5, at=1000, flow="new") for n in range(40)]
    order = [key.application_id for key in Station(policy, old + new, tokens=True).run().order()]
    first = order.index("new0")
    return next(n for n, name in enumerate(order[first:]) if name.startswith("old"))


class NoLift(ServiceCounters):
    """Flows begin with an empty counter whatever the others have had."""

    floor = 0.0


@pytest.mark.parametrize("make", [Vtc, VtcPredict, VtcOracle])
def test_without_the_lift_an_idle_flow_monopolizes(make: Callable[[], Vtc | VtcPredict | VtcOracle]) -> None:
    unlifted = make()
    unlifted._counters = NoLift()
    assert newcomer_after_idling(unlifted) == 40
    assert newcomer_after_idling(make()) <= 2
