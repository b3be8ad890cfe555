"""Names of sub-agents lead to their root, whatever is said about them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.peers import Peers
from serve_app.sub_agents import MAX_DEPTH, Families, SubAgents

NAMES = st.sampled_from("abcdef")


def test_parents_are_followed_to_the_root() -> None:
    known = SubAgents()
    assert known.learn("c", "b")
    assert known.root("c") == "b"
    assert known.learn("b", "a")
    assert [known.root(name) for name in "abc"] == ["a", "a", "a"]
    assert known.root("nobody") == "nobody"


def test_the_first_parent_stays() -> None:
    known = SubAgents()
    assert known.learn("b", "a")
    assert not known.learn("b", "a")
    assert not known.learn("b", "z")
    assert known.root("b") == "a"


@given(st.lists(st.tuples(NAMES, NAMES), max_size=30))
def test_nobody_becomes_an_ancestor_of_itself(said: list[tuple[str, str]]) -> None:
    known = SubAgents()
    for name, parent in said:
        known.learn(name, parent)
    roots = {known.root(name) for name in "abcdef"}
    assert all(known.root(root) == root for root in roots)


def test_what_was_unused_for_longest_is_forgotten() -> None:
    known = SubAgents(max_names=2)
    known.learn("b", "a")
    known.learn("c", "a")
    assert known.root("b") == "a"
    known.learn("d", "a")
    assert [known.root(name) for name in "bcd"] == ["a", "c", "a"]


def test_depth_is_bounded() -> None:
    known = SubAgents()
    taken = [known.learn(f"n{number + 1}", f"n{number}") for number in range(200)]
    below = MAX_DEPTH + 1
    assert [number + 1 for number, is_taken in enumerate(taken) if not is_taken] == [below, 2 * below, 3 * below]
    assert all(known.root(f"n{number}") == f"n{number - number % below}" for number in range(201))


@given(st.integers(0, 200), st.integers(1, 200))
def test_no_ring_is_taken_however_long(first: int, length: int) -> None:
    """Parents get parents, so that the first name's line is longer than is followed."""
    known = SubAgents()
    for number in range(length):
        assert known.learn(f"n{number}", f"n{number + 1}")
    assert not known.learn(f"n{length}", f"n{first % length}")
    parents = known._parents("n0")
    name, passed = "n0", 0
    while name in parents:
        name, passed = parents[name], passed + 1
        assert passed <= length, "it goes round"


def test_one_tenant_never_makes_another_forget() -> None:
    known = SubAgents(max_names=2)
    known.learn("acme/b", "acme/a")
    for number in range(5):
        known.learn(f"other/n{number}", "other/a")
        known.learn(f"n{number}", "a")
    assert known.root("acme/b") == "acme/a"
    assert [known.root(f"n{number}") for number in range(5)] == ["n0", "n1", "n2", "a", "a"]


# ---- what the other ingresses hear


class SlowPeers(Peers):
    """Hear of a name when `heard` is set."""

    def __init__(self) -> None:
        super().__init__("Ingress", "test", "own")
        self.asked, self.heard = asyncio.Event(), asyncio.Event()
        self.told: list[tuple[str, str, str]] = []

    async def learn_sub_agent(self, application_id: str, parent_id: str, tenant: str) -> None:
        self.asked.set()
        await self.heard.wait()
        self.told.append((application_id, parent_id, tenant))


async def test_peers_hear_of_a_name_though_its_first_call_is_cancelled() -> None:
    peers = SlowPeers()
    families = Families(peers, lambda _: None)
    first = asyncio.create_task(families.root_of("b", "a", "acme"))
    await peers.asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    later = [asyncio.create_task(families.root_of("b", parent, "acme")) for parent in ("a", None)]
    later.append(asyncio.create_task(families.root_of("c", "b", "acme")))
    await asyncio.sleep(0.01)
    assert not any(call.done() for call in later), "a call went on before its ingress's peers knew whose it is"
    assert await families.root_of("b", None, "other") == "b"
    peers.heard.set()
    assert await asyncio.gather(*later) == ["a", "a", "a"]
    assert sorted(peers.told) == [("b", "a", "acme"), ("c", "b", "acme")]
    assert families._telling == {}


async def test_a_name_is_told_once() -> None:
    peers = SlowPeers()
    peers.heard.set()
    families = Families(peers, lambda _: None)
    roots = [await families.root_of("b", "a", "default") for _ in range(3)]
    assert (roots, peers.told) == (["a"] * 3, [("b", "a", "default")])
