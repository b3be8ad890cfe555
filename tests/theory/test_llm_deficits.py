"""Deficits, caches and replicas of DLPM and D²LPM at the edges: returns, evictions, options, what is kept in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.policies import create_policy
from scheduler.policies.contract import ApplicationFacts, CallFacts
from scheduler.policies.d2lpm import MAX_REPLICAS, D2lpm
from scheduler.policies.dlpm import Dlpm
from scheduler.policies.prefix_cache import PrefixCache
from scheduler.types import CallKey
from tests.theory.llm_loads import application, call, run

Located = Dlpm | D2lpm

LOCATED: list[Callable[[], Located]] = [Dlpm, D2lpm]
located = pytest.mark.parametrize("make", LOCATED)


@located
def test_deficits_keep_nothing_of_flows_that_came_and_went(make: Callable[[], Located]) -> None:
    policy = make()
    stays = application("stays", 0, flow="stays")
    policy.application_arrived(stays)
    most = 0
    for number in range(1, 3000):
        of = application(f"a{number}", number, flow=f"f{number}")
        policy.application_arrived(of)
        run(policy, call(of, number, prefix=(number, -number)), made=3000)
        policy.application_left(of)
        run(policy, call(stays, 10_000 + number), made=3000)
        most = max(most, len(policy._rounds._debts))
    assert 1 <= most < 5, "debts are forgotten as the rounds pay for them"
    policy.application_left(stays)
    rounds, queues = policy._rounds, policy._queues
    kept = (rounds._accounts, rounds._flow_of, rounds._debts, rounds._files, queues._calls, queues._queues)
    assert [len(table) for table in kept] == [0] * 6
    assert (len(rounds._paid_in), len(rounds._rounds), queues._with_block, policy._running) == (0, 0, {}, {})


@located
def test_a_newcomer_waits_for_the_next_round_and_a_debt_is_not_shed(make: Callable[[], Located]) -> None:
    policy = make()
    old, other = application("old", 1, flow="old"), application("other", 2, flow="other")
    for of in (old, other):
        policy.application_arrived(of)
    run(policy, call(old, 1), made=10)
    assert policy._rounds.deficit("old") == policy.quantum - 30
    policy.application_arrived(application("new", 3, flow="new"))
    assert policy._rounds.deficit("new") == 0
    policy.add(call(old, 9))
    policy.add(call(application("new", 3, flow="new"), 4))
    assert policy.head() == ("old", "c9"), "the round is not over"
    policy.remove(CallKey("old", "c9"))
    run(policy, call(old, 10), made=10_000)
    policy.application_left(old)
    policy.application_arrived(application("old2", 5, flow="old"))
    assert policy._rounds.deficit("old") < -policy.quantum
    policy.add(call(application("old2", 5, flow="old"), 3))
    assert policy.head() == ("new", "c4")


@located
def test_nobody_saves_up_while_idle(make: Callable[[], Located]) -> None:
    policy = make()
    busy, idle = application("busy", 1, flow="busy"), application("idle", 2, flow="idle", weight=2.0)
    for of in (busy, idle):
        policy.application_arrived(of)
    for ready in range(1, 50):
        run(policy, call(busy, ready), made=5000)
    assert policy._rounds.deficit("idle") == 2 * policy.quantum
    policy.application_left(idle)
    policy.application_arrived(application("idle2", 60, flow="idle"))
    assert policy._rounds.deficit("idle") == 0, "what is left is lost on leaving"


def test_a_call_moves_ahead_when_its_prefix_is_cached_and_back_when_it_is_evicted() -> None:
    policy = Dlpm(cache_blocks=2)
    of = application("a")
    policy.application_arrived(of)
    policy.add(call(of, 1))
    policy.add(call(of, 2, prefix=(1, 2, 3)))
    assert policy.head() == ("a", "c1")
    policy.granted(call(of, 8, prefix=(1, 2)), "r")
    assert policy.head() == ("a", "c2")
    policy.granted(call(of, 9, prefix=(7, 8)), "r")
    assert policy.head() == ("a", "c1")


def test_of_a_prompt_longer_than_the_cache_the_beginning_is_kept() -> None:
    cache = PrefixCache(2)
    assert sorted(cache.touch((1, 2, 3, 4))) == [1, 2, 3, 3, 4, 4]
    assert (cache.match((1, 2, 3)), len(cache), set(cache)) == (2, 2, {1, 2})


def test_a_flow_that_had_its_share_of_a_replica_goes_elsewhere() -> None:
    policy = D2lpm(replica_quantum=1000, block_tokens=4)
    of = application("a")
    policy.application_arrived(of)
    waits = call(of, 99, prefix=(1, 2))
    policy.add(waits)
    assert policy.preferred_replica(waits.key) is None, "nothing is cached anywhere"
    run(policy, call(of, 1, prefix=(1, 2)), replica="r")
    run(policy, call(of, 2, prefix=(1,)), replica="s")
    assert policy.preferred_replica(waits.key) == "r"
    run(policy, call(of, 3), made=600, replica="r")
    assert policy.preferred_replica(waits.key) == "s"
    run(policy, call(of, 4), made=600, replica="s")
    assert policy.preferred_replica(waits.key) == "r", "used up everywhere: another quantum at each"
    policy.application_left(of)
    assert policy._left_at == {}


def test_replicas_that_are_not_used_are_forgotten() -> None:
    policy = D2lpm(cache_blocks=8)
    of = application("a")
    policy.application_arrived(of)
    waits = call(of, 9999, prefix=(1,))
    policy.add(waits)
    early = call(of, 1, prefix=(1,))
    policy.granted(early, "r0")
    for number in range(1, MAX_REPLICAS):
        run(policy, call(of, 1 + number, p=1, prefix=(10 + number,)), replica=f"r{number}")
    assert policy.preferred_replica(waits.key) == "r0"
    run(policy, call(of, 5000, p=1, prefix=(5,)), replica="one more")
    assert policy.preferred_replica(waits.key) is None
    assert policy._queues.first("f") == (waits, 0)
    policy.ended(early, (5,), True)
    assert len(policy._caches) == MAX_REPLICAS == len(policy._left_at["f"])


@pytest.mark.parametrize("option", ["quantum", "prompt_weight", "output_weight", "block_tokens", "cache_blocks"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    for name in ("dlpm", "d2lpm"):
        with pytest.raises(ValueError, match=f"{option} must be positive and finite"):
            create_policy(name, {option: value})
    with pytest.raises(ValueError, match="replica_quantum must be positive and finite"):
        create_policy("d2lpm", {"replica_quantum": value})


def test_options_are_taken() -> None:
    policy = create_policy("dlpm", {"quantum": 50, "prompt_weight": 3, "output_weight": 7, "block_tokens": 4})
    assert isinstance(policy, Dlpm)
    of = application("a")
    policy.application_arrived(of)
    run(policy, call(of, 1, p=4, prefix=(1,)), made=1)
    assert policy._rounds.deficit("f") == 50 - 3 * 4 - 7
    run(policy, call(of, 2, p=4, prefix=(1,)), made=1)
    assert policy._rounds.deficit("f") == 50 - 3 * 4 - 7 - 7


def test_d2lpm_forgets_a_replica_that_left() -> None:
    """Its cache went with it: nobody is sent there, and no match is counted on it."""
    policy = D2lpm()
    policy.pool_changed(1000, 4)
    owner = ApplicationFacts(application_id="a", sequence=1, flow="a")
    policy.application_arrived(owner)

    def waiting(number: int) -> CallFacts:
        key = CallKey("a", f"c{number}")
        return CallFacts(key=key, application=owner, ready_sequence=number, prompt_tokens=32, prefix=(1, 2))

    for number, replica_id in ((1, "dead"), (2, "live")):
        policy.add(waiting(number))
        policy.granted(waiting(number), replica_id)
        policy.remove(waiting(number).key)
    policy.add(waiting(3))
    policy.replica_left("nobody")
    policy.replica_left("live")
    assert policy.preferred_replica(waiting(3).key) == "dead"
    policy.replica_left("dead")
    assert policy.preferred_replica(waiting(3).key) is None
    assert policy.matched((1, 2)) == 0
    assert policy.head() == waiting(3).key
