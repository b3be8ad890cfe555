"""DRF: the examples of the paper, progressive filling, and that lying about demand does not help."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import pytest

from scheduler.policies import create_policy
from scheduler.policies.drf import Drf
from tests.conformance.test_policies import MOST_LEFT
from tests.theory.shares import Desk, kept_after_crowd


@dataclass(frozen=True)
class Demand:
    """What each call of a flow holds: sequences and tokens of each."""

    places: int
    tokens_each: int
    weight: float = 1.0

    @property
    def tokens(self) -> int:
        return self.places * self.tokens_each


def filled(pool: Demand, demands: dict[str, Demand], calls: int = 300) -> str:
    """The flows of the grants into an empty pool, until the next does not fit: a letter each."""
    policy = Drf()
    desk = Desk(policy)
    policy.pool_changed(pool.tokens, pool.places)
    for _ in range(calls):
        for flow, demand in demands.items():
            prompt = demand.tokens_each - 1
            desk.add(flow, prompt + 2 * demand.places, weight=demand.weight, sequences=demand.places)
    order, places, tokens = "", 0, 0
    while True:
        demand = demands[desk.head().flow]
        places, tokens = places + demand.places, tokens + demand.tokens
        if places > pool.places or tokens > pool.tokens:
            return order
        order += desk.grant().flow


def dominant(demand: Demand, pool: Demand) -> Fraction:
    return max(Fraction(demand.places, pool.places), Fraction(demand.tokens, pool.tokens))


def level(pool: Demand, demands: dict[str, Demand]) -> Fraction:
    """Progressive filling with divisible calls: the dominant share per weight at which a resource is exhausted."""
    needed_places = needed_tokens = Fraction(0)
    for demand in demands.values():
        calls = Fraction(demand.weight) / dominant(demand, pool)  # at a level of 1
        needed_places += calls * Fraction(demand.places, pool.places)
        needed_tokens += calls * Fraction(demand.tokens, pool.tokens)
    return 1 / max(needed_places, needed_tokens)


def random_demands(rng: random.Random, *, weighted: bool) -> dict[str, Demand]:
    return {
        flow: Demand(rng.randint(1, 4), rng.randint(1, 60), rng.choice([0.5, 1.0, 2.0]) if weighted else 1.0)
        for flow in "abcd"[: rng.randint(2, 4)]
    }


POOL = Demand(200, 20)


def test_the_example_of_the_paper() -> None:
    """Section 4.1: 9 CPUs, 18 GB; A asks for <1, 4>, B for <3, 1>. A gets three, B two, in the order of table 1."""
    pool = Demand(9, 6)  # a GB is three tokens
    assert filled(pool, {"B": Demand(3, 1), "A": Demand(1, 12)}) == "BAABA"


def test_places_bind_those_who_need_places_and_tokens_those_who_need_tokens() -> None:
    """Long prompts in few places beside many short ones: both get two thirds of what they need most."""
    pool = Demand(90, 100)
    order = Counter(filled(pool, {"l": Demand(1, 400), "s": Demand(4, 25)}))
    assert order["l"] * 400 == pytest.approx(0.8 * 9000, rel=0.06)
    assert order["s"] * 4 == pytest.approx(0.8 * 90, rel=0.06)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_dominant_shares_are_those_of_progressive_filling_within_a_call(seed: int, weighted: bool) -> None:
    demands = random_demands(random.Random(seed), weighted=weighted)
    granted = Counter(filled(POOL, demands))
    fair = level(POOL, demands)
    quantum = max(dominant(demand, POOL) / Fraction(demand.weight) for demand in demands.values())
    for flow, demand in demands.items():
        share = granted[flow] * dominant(demand, POOL) / Fraction(demand.weight)
        assert fair - 2 * quantum <= share <= fair + quantum


@pytest.mark.parametrize("seed", range(20))
def test_asking_for_more_than_one_needs_does_not_run_more(seed: int) -> None:
    """Strategy-proofness: whoever inflates either demand, or both, runs no more calls than by telling the truth."""
    rng = random.Random(100 + seed)
    demands = random_demands(rng, weighted=False)
    honest = Counter(filled(POOL, demands))["a"]
    truth = demands["a"]
    for lie in (
        Demand(truth.places, 2 * truth.tokens_each),
        Demand(2 * truth.places, -(-truth.tokens_each // 2)),
        Demand(2 * truth.places, truth.tokens_each),
    ):
        assert Counter(filled(POOL, {**demands, "a": lie}))["a"] <= honest + 1


def test_one_resource_is_max_min_by_weight() -> None:
    pool = Demand(70, 1)
    order = filled(pool, {"a": Demand(1, 1), "b": Demand(1, 1, 2.0), "c": Demand(1, 1, 4.0)})
    assert Counter(order) == {"a": 10, "b": 20, "c": 40}


def desk_of(places: int = 100, tokens: int = 1000) -> tuple[Desk, Drf]:
    policy = Drf()
    policy.pool_changed(tokens, places)
    return Desk(policy), policy


def test_what_a_call_held_is_released_at_its_end_and_nothing_of_it_remains() -> None:
    """a has been served ten calls alone; once they have ended, it is nobody's debtor and nobody's creditor."""
    desk, policy = desk_of()
    calls = [desk.add("a", 102) for _ in range(4)]
    for call in calls[:3]:
        desk.grant(call)
    assert policy.dominant_share("a") == pytest.approx(0.303)
    desk.add("b", 102)
    assert desk.head().flow == "b"
    for call in calls[:3]:
        desk.end(call, 50)
    assert policy.dominant_share("a") == 0.0
    assert desk.head() is calls[3]
    policy.ended(calls[0], (50,), True)
    policy.ended(calls[3], (50,), True)
    assert policy.dominant_share("a") == 0.0


def test_a_call_that_was_lost_holds_nothing_and_is_first_again_in_its_flow() -> None:
    desk, policy = desk_of()
    call = desk.add("a", 102)
    desk.add("a", 12)
    desk.grant(call)
    desk.lose(call, 1)
    assert policy.dominant_share("a") == 0.0
    assert desk.grant() is call


def test_a_cancelled_call_was_never_held() -> None:
    desk, policy = desk_of()
    first, second = desk.add("a", 102), desk.add("a", 12)
    desk.cancel(first)
    assert policy.dominant_share("a") == 0.0
    assert desk.grant() is second
    assert policy.head() is None


def test_a_change_of_the_pool_changes_which_resource_is_dominant() -> None:
    """a holds a quarter of the places, b a fifth of the memory; with half of the memory b holds more."""
    desk, policy = desk_of(places=100, tokens=1000)
    desk.grant(desk.add("a", 50, sequences=25))
    desk.grant(desk.add("b", 201))
    for flow in "ab":
        desk.add(flow, 12)
    assert desk.head().flow == "b"
    policy.pool_changed(500, 100)
    assert desk.head().flow == "a"


def test_of_an_unknown_pool_nothing_is_held() -> None:
    desk = Desk(policy := Drf())
    desk.grant(desk.add("a", 102))
    assert policy.dominant_share("a") == 0.0


def test_calls_that_were_adopted_are_held() -> None:
    """The policy was chosen while they ran."""
    desk, policy = desk_of()
    running = Desk(create_policy("fcfs")).add("a", 102)
    policy.granted(running, "r")
    desk.add("a", 12)
    desk.add("b", 12)
    assert desk.head().flow == "b"
    policy.ended(running, (1,), True)
    assert desk.head().flow == "a"


def test_thousands_of_flows_leave_nothing() -> None:
    assert kept_after_crowd(Drf()) <= MOST_LEFT
