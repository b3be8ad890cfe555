"""Lottery scheduling: chances by tickets, one draw a grant, and the tree that holds the tickets."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from math import sqrt

import pytest

from scheduler.policies import create_policy
from scheduler.policies.flow_weights import FlowWeights, exact_weight
from scheduler.policies.lottery import Lottery, splitmix64
from scheduler.policies.ticket_tree import TicketTree
from tests.conformance.test_policies import MOST_LEFT
from tests.theory.shares import Desk, kept_after_crowd

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 6.5}
DRAWS = 3000


def drawn(seed: int, weights: dict[str, float], draws: int = DRAWS) -> Counter[str]:
    """Grants by flow, each of which has calls waiting at all times."""
    desk = Desk(Lottery(seed=seed))
    for flow, weight in weights.items():
        desk.add(flow, weight=weight)
        desk.add(flow, weight=weight)
    grants: Counter[str] = Counter()
    for _ in range(draws):
        call = desk.head()
        desk.add(call.flow, weight=call.flow_weight)
        desk.end(desk.grant(call))
        grants[call.flow] += 1
    return grants


@pytest.mark.parametrize("seed", [0, 1, 2, 2**64 - 1])
def test_shares_lie_within_four_standard_deviations(seed: int) -> None:
    grants = drawn(seed, WEIGHTS)
    for flow, weight in WEIGHTS.items():
        p = weight / sum(WEIGHTS.values())
        assert abs(grants[flow] - DRAWS * p) <= 4 * sqrt(DRAWS * p * (1 - p))


def test_draws_are_independent() -> None:
    """Of two equal flows the number of changes from one draw to the next is binomial too: it does not alternate."""
    desk = Desk(Lottery(seed=5))
    for _ in range(DRAWS):
        desk.add("a")
        desk.add("b")
    order = desk.flows(DRAWS // 2)
    changes = sum(x != y for x, y in pairwise(order))
    assert abs(changes - len(order) / 2) <= 4 * sqrt(len(order) / 4)


def test_seeds_differ_and_one_seed_repeats() -> None:
    first, again, other = (drawn(seed, WEIGHTS, 200) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_those_who_come_and_go_between_draws_change_no_later_draw() -> None:
    quiet, busy = Desk(Lottery(seed=3)), Desk(Lottery(seed=3))
    for desk in (quiet, busy):
        for _ in range(300):
            desk.add("a")
            desk.add("b", weight=2.0)
    order = []
    for _ in range(200):
        guests = [busy.add(f"guest{n}", weight=5.0) for n in range(3)]
        busy.policy.head()
        for guest in guests:
            busy.cancel(guest)
        order.append(busy.flows(1))
    assert "".join(order) == quiet.flows(200)


def test_a_grant_of_another_call_is_a_draw_too() -> None:
    """After the system had adopted a call the next draw is the next number."""
    desk = Desk(Lottery(seed=11))
    for _ in range(50):
        desk.add("a")
        desk.add("b")
    heads = []
    adopted = Desk(create_policy("fcfs")).add("x")
    for _ in range(50):
        heads.append(desk.head().flow)
        desk.policy.granted(adopted, "r")
    expected = ["ab"[splitmix64(11, k) >> 63] for k in range(50)]
    assert heads == expected


def test_inside_a_flow_calls_go_by_readiness_lost_ones_too() -> None:
    desk = Desk(Lottery())
    calls = [desk.add("a") for _ in range(5)]
    desk.grant(calls[0])
    desk.lose(calls[0], 1)
    assert [desk.grant() for _ in range(5)] == calls
    assert desk.policy.head() is None


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, float("inf"), float("nan")])
def test_seeds_that_are_none_are_refused(seed: float) -> None:
    with pytest.raises(ValueError, match="seed must be a whole number"):
        create_policy("lottery", {"seed": seed})


def test_splitmix64_is_the_published_generator() -> None:
    assert [splitmix64(1234567, k) for k in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_thousands_of_flows_leave_nothing() -> None:
    assert kept_after_crowd(Lottery()) <= MOST_LEFT


# ---- the tree


@pytest.mark.parametrize("seed", range(5))
def test_each_ticket_has_one_owner_and_each_flow_as_many_as_it_holds(seed: int) -> None:
    rng = random.Random(seed)
    tree, held = TicketTree(), dict[str, int]()
    for step in range(300):
        grow = rng.random() < (0.7 if step < 150 else 0.3)
        if grow or not held:
            flow, tickets = f"f{step}", rng.randint(1, 6)
            held[flow] = tickets
            tree.add(flow, tickets)
        else:
            flow = rng.choice(sorted(held))
            del held[flow]
            tree.remove(flow)
        assert (len(tree), tree.total) == (len(held), sum(held.values()))
        if step % 10 == 0:
            assert Counter(tree.owner(ticket) for ticket in range(tree.total)) == held


def test_the_tree_is_no_larger_than_its_flows_need() -> None:
    tree = TicketTree()
    for number in range(1000):
        tree.add(f"f{number}", 1)
    assert tree.places == 1024
    for number in range(999):
        tree.remove(f"f{number}")
    assert tree.places == 16
    assert tree.owner(0) == "f999"
    with pytest.raises(KeyError):
        tree.remove("f0")


# ---- weights


def test_sums_of_weights_are_exact() -> None:
    weights = FlowWeights()
    weights.set("tiny", 1e-6)
    for number in range(1000):
        weights.set(f"x{number}", 1e6 / 3 + number)
    weights.set("x0", 2.0)
    for number in range(1000):
        weights.discard(f"x{number}")
        weights.discard(f"x{number}")
    assert weights.total == 1e-6
    assert ("tiny" in weights, "x1" in weights, weights["tiny"]) == (True, False, 1e-6)
    assert exact_weight(0.1) == 0.1 * 2**80
