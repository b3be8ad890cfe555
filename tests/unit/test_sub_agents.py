"""Names of sub-agents lead to their root, whatever is said about them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.sub_agents import MAX_DEPTH, SubAgents

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
    for number in range(1_000):
        known.learn(f"n{number + 1}", f"n{number}")
    assert known.root(f"n{MAX_DEPTH}") == "n0"
    assert known.root("n1000") == f"n{1000 - MAX_DEPTH}"


def test_one_tenant_never_makes_another_forget() -> None:
    known = SubAgents(max_names=2)
    known.learn("acme/b", "acme/a")
    for number in range(5):
        known.learn(f"other/n{number}", "other/a")
        known.learn(f"n{number}", "a")
    assert known.root("acme/b") == "acme/a"
    assert [known.root(f"n{number}") for number in range(5)] == ["n0", "n1", "n2", "a", "a"]
