"""mlfq: nobody escapes a demotion, and a boost bounds waiting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies.contract import Policy
from scheduler.policies.mlfq import MultilevelFeedback
from tests.queueing import Station, of_length
from tests.theory.classics import a_call, an_application, emptied, grant, serve


def small_mlfq(**options: float) -> MultilevelFeedback:
    """Quanta 10, 20, 40, then without end."""
    return MultilevelFeedback(**{"quantum": 10.0, "factor": 2.0, "levels": 4, "boost_s": 1000.0, **options})  # type: ignore[arg-type]


def level(policy: Policy, number: int) -> int:
    """Read from the engine's priority, whose upper part it is."""
    priority = policy.priority(a_call(an_application(number), 10**6))
    assert priority is not None
    return priority >> 46


@given(pieces=st.lists(st.integers(1, 30), min_size=1, max_size=12), heard=st.booleans())
@settings(deadline=None, max_examples=150)
def test_mlfq_no_way_of_cutting_the_work_escapes_a_demotion(pieces: list[int], heard: bool) -> None:
    """Pieces of 1 + 2·d units with a pause after each: the level is that of the sum, by the quanta summed up."""
    policy = small_mlfq()
    application = an_application(1)
    for ready, d in enumerate(pieces):
        call = a_call(application, ready)
        policy.add(call)
        grant(policy, call)
        for token in range(1, d if heard else 0):
            policy.progressed(call, (token,))
        policy.ended(call, (d,), ready % 2 == 0)
        policy.advance(float(ready))
    total = sum(1 + 2 * d for d in pieces)
    assert level(policy, 1) == (total >= 10) + (total >= 10 + 20) + (total >= 10 + 20 + 40)


def test_mlfq_a_gamer_that_yields_just_before_the_quantum_sinks_like_others() -> None:
    policy = small_mlfq()
    gamer, honest = an_application(1), an_application(2)
    for ready in range(2):
        call = a_call(gamer, ready)
        policy.add(call)
        serve(policy, call, 4)
    policy.add(a_call(gamer, 5))
    policy.add(a_call(honest, 6))
    assert emptied(policy) == ["a2/c6", "a1/c5"]


@pytest.mark.parametrize(
    ("prompt_tokens", "sequences", "entry"), [(8, 1, 0), (9, 1, 1), (8, 2, 1), (30, 1, 2), (39, 1, 3)]
)
def test_mlfq_a_long_prompt_skips_the_levels_that_it_would_use_up(
    prompt_tokens: int, sequences: int, entry: int
) -> None:
    """The first iteration costs p + 2·n: 10, 11, 12, 32, 41."""
    policy = small_mlfq()
    long = a_call(an_application(1), 1, prompt_tokens=prompt_tokens, sequences=sequences)
    assert policy.priority(long) == entry * 2**46 + 1
    policy.add(long)
    assert level(policy, 1) == entry
    serve(policy, long, 1)
    policy.add(a_call(an_application(1), 2))
    policy.add(a_call(an_application(2), 3))
    assert policy.head() == (("a1", "c2") if level(policy, 1) == 0 else ("a2", "c3"))


def test_mlfq_smaller_levels_first_and_arrival_inside_a_level() -> None:
    policy = small_mlfq()
    applications = [an_application(number) for number in range(4)]
    for number, tokens in ((0, 20), (1, 5), (2, 5)):
        serve(policy, a_call(applications[number], number), tokens)
    for ready, number in enumerate((0, 2, 1, 3), start=10):
        policy.add(a_call(applications[number], ready))
    assert emptied(policy) == ["a3/c13", "a1/c12", "a2/c11", "a0/c10"]


def test_mlfq_a_boost_lifts_all_and_empties_the_accounts() -> None:
    policy = small_mlfq(boost_s=5.0)
    old, young = an_application(1), an_application(2)
    serve(policy, a_call(old, 1), 90)
    policy.add(a_call(old, 2))
    policy.add(a_call(young, 3))
    policy.advance(4.9)
    assert (policy.head(), level(policy, 1)) == (("a2", "c3"), 3)
    policy.advance(5.0)
    assert (policy.head(), level(policy, 1)) == (("a1", "c2"), 0)
    serve(policy, a_call(old, 2), 4)
    policy.advance(9.9)
    policy.add(a_call(old, 4))
    assert (policy.head(), level(policy, 1)) == (("a1", "c4"), 0)
    serve(policy, a_call(old, 4), 1)
    assert level(policy, 1) == 1
    policy.advance(27.0)
    serve(policy, a_call(old, 5), 5)
    policy.advance(29.9)
    assert level(policy, 1) == 1
    policy.advance(30.0)
    assert level(policy, 1) == 0


@pytest.mark.parametrize("seed", range(12))
def test_mlfq_a_boost_bounds_waiting(seed: int) -> None:
    """An endless stream of newcomers that saturates the server, and k older applications that have sunk before it."""
    rng = random.Random(seed)
    longest, quantum, older, boost_s = 9, 10, rng.randint(0, 4), 200
    backlog = [of_length(f"old{n}", rng.randint(3, longest), call=str(i)) for n in range(older + 1) for i in range(60)]
    stream = [of_length(f"new{n}", rng.randint(3, longest), at=40 + 3 * n) for n in range(200)]
    policy = small_mlfq(quantum=float(quantum), boost_s=float(boost_s))
    station = Station(policy, [*backlog, *stream]).run(until=2 * boost_s)
    starts = [start.at for start in station.starts if start.call.key.application_id == f"old{older}"]
    after = min(at for at in starts if at >= boost_s)
    assert after <= boost_s + older * (quantum + longest) + longest
    assert not [at for at in starts if 150 < at < boost_s]
    unboosted = Station(small_mlfq(boost_s=1e6), [*backlog, *stream]).run(until=2 * boost_s)
    assert not [s for s in unboosted.starts if s.at > 150 and s.call.key.application_id == f"old{older}"]


def test_of_one_level_all_is_in_order_of_arrival() -> None:
    policy = small_mlfq(levels=1)
    serve(policy, a_call(an_application(1), 1), 500)
    policy.add(a_call(an_application(2), 2))
    policy.add(a_call(an_application(1), 3))
    assert emptied(policy) == ["a1/c3", "a2/c2"]
