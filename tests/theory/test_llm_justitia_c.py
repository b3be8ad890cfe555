"""Justitia with the cost p + 2·d, on the whole core."""

from __future__ import annotations

import random

import pytest

from scheduler.actions import Grant
from scheduler.cost import kv_token_time, linear_cost, memory_cost
from scheduler.events import ApplicationCancelled, CallCancelled, CallFinished, CallLost, ProgressReported
from scheduler.policies.justitia_c import JustitiaC
from scheduler.types import CallKey
from tests.scheduling import Bench, call, clean_state
from tests.theory.llm_loads import application
from tests.theory.llm_loads import call as call_facts

LONG_HELD, MANY_TOKENS = (200, 60), (1, 162)


def order(policy: str) -> list[str]:
    bench = Bench(policy)
    bench.join(max_sequences=1)
    bench.arrive_ready("many", call("c", *MANY_TOKENS))
    bench.arrive_ready("held", call("c", *LONG_HELD))
    names = []
    for _ in range(2):
        (grant,) = bench.offer()
        names.append(grant.application_id)
        bench.finish(grant, 1, (1,))
    clean_state(bench.core)
    return names


def test_what_holds_memory_for_long_but_makes_few_tokens_moves_ahead() -> None:
    assert kv_token_time(*LONG_HELD) > kv_token_time(*MANY_TOKENS)
    assert linear_cost(LONG_HELD[0], (LONG_HELD[1],)) < linear_cost(MANY_TOKENS[0], (MANY_TOKENS[1],))
    assert order("justitia") == ["many", "held"]
    assert order("justitia_c") == ["held", "many"]


@pytest.mark.parametrize("tenant_level", [True, False])
def test_tags_are_counted_in_p_plus_2d(tenant_level: bool) -> None:
    bench = Bench("justitia_c", tenant_level=tenant_level)
    bench.arrive_ready("a", call("x", 10, 20), call("y", 5, 7, n=3), weight=2.0)
    assert bench.core.cost is linear_cost
    assert bench.app("a").finish_tag == ((10 + 2 * 20) + (5 + 2 * 3 * 7)) / 2
    assert Bench("justitia").core.cost is memory_cost


def test_virtual_time_advances_by_what_calls_were_seen_to_make() -> None:
    """10 + 2·5 at the first report, 2·4 more at the second, 2·1 at the end; what engines report in memory is not it."""
    bench = Bench("justitia_c")
    bench.join()
    bench.arrive_ready("a", call(p=10, d=30))
    bench.arrive_ready("b", call(p=10, d=30), weight=3.0)
    grant, _ = bench.offer(grants=2)
    assert bench.core.virtual_time == 0.0
    seen = []
    for made in (5, 9):
        bench.handle(ProgressReported("r", 12345.0, 1, 100, ((grant.lease_id, (made,)),)))
        seen.append(bench.core.virtual_time)
    bench.handle(CallFinished(grant.lease_id, 10, (10,)))
    assert [*seen, bench.core.virtual_time] == pytest.approx([20 / 4, 28 / 4, 30 / 4])


@pytest.mark.parametrize("seed", range(10))
def test_no_call_is_granted_past_a_smaller_tag_in_tokens(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench("justitia_c", tenant_level=False)
    bench.join(max_sequences=3)
    running: list[Grant] = []
    grants = 0
    for step in range(120):
        if step < 40:
            calls = [call(str(n), rng.randint(1, 40), rng.randint(1, 20)) for n in range(rng.randint(1, 3))]
            bench.arrive_ready(f"a{step}", *calls, weight=rng.choice([0.5, 1.0, 2.0]))
        tags = {name: (app.finish_tag, app.sequence) for name, app in bench.core.applications.items()}
        waits = {
            name for name, app in bench.core.applications.items() if any(c.state == "ready" for c in app.calls.values())
        }
        new = bench.offer(grants=1)
        for grant in new:
            assert tags[grant.application_id] == min(tags[name] for name in waits)
        running += new
        grants += len(new)
        if len(running) == 3:
            grant = running.pop(rng.randrange(3))
            if rng.random() < 0.15:
                bench.handle(CallLost(grant.lease_id, "gone"))
            else:
                bench.finish(grant, 10, (rng.randint(1, 20),))
    assert grants > 60


def test_lost_calls_return_to_their_place_and_cancelled_ones_leave() -> None:
    bench = Bench("justitia_c")
    bench.join(max_sequences=1)
    bench.arrive_ready("a", call("x", 10, 10), call("y", 10, 10))
    bench.arrive_ready("b", call(p=10, d=50))
    (grant,) = bench.offer()
    bench.handle(CallLost(grant.lease_id, "gone"))
    (grant,) = bench.offer()
    assert (grant.application_id, grant.call_id) == ("a", "x")
    bench.finish(grant)
    bench.handle(CallCancelled("a", "y", "not needed"))
    (grant,) = bench.offer()
    assert grant.application_id == "b"
    bench.handle(ApplicationCancelled("b", "given up"))
    bench.handle(CallFinished(grant.lease_id, 10, (1,)))
    clean_state(bench.core)


def test_the_policy_alone_follows_tags_and_ignores_strangers() -> None:
    policy = JustitiaC()
    small, large = application("small", 1, finish_tag=10.0), application("large", 2, finish_tag=20.0)
    policy.add(call_facts(large, 1))
    policy.add(call_facts(small, 2))
    policy.remove(CallKey("nobody", "c"))
    policy.application_changed(application("nobody", 3, finish_tag=0.0))
    assert policy.head() == ("small", "c2")
    assert policy.priority(call_facts(small, 2)) == 10
    policy.application_changed(application("small", 1, finish_tag=30.0))
    assert policy.head() == ("large", "c1")
    for key in (CallKey("large", "c1"), CallKey("small", "c2")):
        policy.remove(key)
    assert policy.head() is None
