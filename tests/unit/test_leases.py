"""Granted, claimed once, ended in one fact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import leases
from cluster.engine import LeaseRefused
from cluster.leases import LeaseTable
from cluster.messages import CallRequest, PullReply
from scheduler.actions import Grant
from scheduler.cost import kv_token_time
from scheduler.events import CallFailed, CallFinished, CallStarted, CallStopped


def grant(lease_id: str = "1-1", epoch: int = 1) -> Grant:
    return Grant("r", "app", "call", lease_id, epoch, priority=7)


def request(lease_id: str = "1-1", sequences: int = 1) -> CallRequest:
    return CallRequest(lease_id, "app", "call", sequences, "POST", "/v1/completions", b"", (), b"{}")


def table(changed: Callable[[], None] = lambda: None) -> LeaseTable:
    return LeaseTable(changed)


async def granted(*grants: Grant) -> LeaseTable:
    leases_ = table()
    await leases_.apply(PullReply(1, grants))
    return leases_


async def test_a_lease_is_claimed_once() -> None:
    held = await granted(grant())
    lease = await held.claim(request(sequences=2), lambda: None)
    assert (lease.priority, lease.sequences, lease.application_id) == (7, 2, "app")
    with pytest.raises(LeaseRefused, match="used before"):
        await held.claim(request(), lambda: None)
    held.finish(lease)
    with pytest.raises(LeaseRefused, match="used before"):
        await held.claim(request(), lambda: None)


async def test_a_request_may_overtake_its_grant() -> None:
    held = table()
    claims = [asyncio.create_task(held.claim(request(f"1-{number}"), lambda: None)) for number in (1, 2)]
    await asyncio.sleep(0.01)
    await held.apply(PullReply(1, (grant("1-2"),)))
    assert (await asyncio.wait_for(claims[1], 10)).lease_id == "1-2"
    assert not claims[0].done()
    claims[0].cancel()
    await asyncio.wait(claims)
    await held.apply(PullReply(1, (grant("1-1"),)))
    assert list(held.active) == ["1-2"]
    assert (await held.claim(request("1-1"), lambda: None)).lease_id == "1-1"


async def test_a_grant_that_never_comes_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "CLAIM_WAIT_S", 0.02)
    with pytest.raises(LeaseRefused, match="no grant for lease 1-1"):
        await table().claim(request(), lambda: None)


async def test_a_claim_that_is_cancelled_as_its_grant_comes_claims_nothing() -> None:
    held = table()
    claim = asyncio.create_task(held.claim(request(), lambda: None))
    await asyncio.sleep(0.01)
    await held.apply(PullReply(1, (grant(),)))
    claim.cancel()
    await asyncio.wait([claim])
    assert claim.cancelled()
    assert held.active == {}
    assert held.facts == ()


async def test_a_lease_aborted_before_its_claim_is_refused_even_to_who_waits_for_it() -> None:
    held = table()
    claim = asyncio.create_task(held.claim(request(), lambda: None))
    await asyncio.sleep(0.01)
    await held.apply(PullReply(1, (grant(),), ("1-1",)))
    with pytest.raises(LeaseRefused, match="taken back"):
        await claim
    assert held.facts == ()


async def test_a_running_lease_that_is_aborted_is_stopped_and_revoked() -> None:
    held = await granted(grant())
    stops: list[int] = []
    lease = await held.claim(request(), lambda: stops.append(1))
    await held.apply(PullReply(1, aborted_leases=("1-1", "1-99")))
    assert stops == [1]
    with pytest.raises(LeaseRefused, match="revoked"):
        lease.begin(3, 1)
    held.stopped(lease)
    assert held.facts == (CallStarted("1-1"), CallStopped("1-1", 0, ()))


async def test_unclaimed_grants_of_an_earlier_scheduler_are_void() -> None:
    held = await granted(grant("1-1"), grant("1-2"))
    lease = await held.claim(request("1-1"), lambda: None)
    await held.apply(PullReply(2, (grant("2-1", epoch=2),)))
    held.follow(2)
    with pytest.raises(LeaseRefused, match="scheduler was replaced"):
        await held.claim(request("1-2"), lambda: None)
    assert (await held.claim(request("2-1"), lambda: None)).lease_id == "2-1"
    assert not lease.revoked


async def test_every_claimed_lease_ends_in_one_fact_that_is_kept_until_it_arrived() -> None:
    news: list[int] = []
    held = LeaseTable(lambda: news.append(1))
    await held.apply(PullReply(1, (grant("1-1"), grant("1-2"), grant("1-3"))))
    first, second, third = [await held.claim(request(f"1-{number}"), lambda: None) for number in (1, 2, 3)]
    first.begin(10, 1).output_tokens[0] = 4
    held.finish(first)
    held.stopped(first)
    held.fail(second, "why")
    held.finish(second)
    held.stopped(third)
    ends = (CallFinished("1-1", 10, (4,)), CallFailed("1-2", "why"), CallStopped("1-3", 0, ()))
    assert held.facts == (CallStarted("1-1"), CallStarted("1-2"), CallStarted("1-3"), *ends)
    assert len(news) == 6
    held.acknowledge(4)
    assert held.facts == ends[1:]
    held.acknowledge(2)
    assert held.facts == ()


async def test_ends_that_only_an_earlier_scheduler_knew_are_stated_again_once() -> None:
    held = await granted(grant("1-1"), grant("1-2"))
    leases_ = [await held.claim(request(f"1-{number}"), lambda: None) for number in (1, 2)]
    held.finish(leases_[0])
    held.acknowledge(3)
    held.stopped(leases_[1])
    held.follow(2)
    assert held.facts == (CallFinished("1-1", 0, ()), CallStopped("1-2", 0, ()))
    held.acknowledge(2)
    held.follow(3)
    assert len(held.facts) == 2


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.lists(st.integers(0, 20), min_size=1, max_size=3)), max_size=3),
        max_size=4,
    )
)
def test_served_token_iterations_grow_step_by_step_to_the_cost_formula(
    calls: list[list[tuple[int, list[int]]]],
) -> None:
    """Each call is a list of generations (p, output tokens of each sequence), run one token at a time."""
    asyncio.run(_serve(calls))


async def _serve(calls: list[list[tuple[int, list[int]]]]) -> None:
    held, seen, stepwise = table(), [0.0], 0
    for number, generations in enumerate(calls):
        await held.apply(PullReply(1, (grant(f"1-{number}"),)))
        lease = await held.claim(request(f"1-{number}", sequences=9), lambda: None)
        for prompt_tokens, outputs in generations:
            use = lease.begin(prompt_tokens, len(outputs))
            for slot, tokens in enumerate(outputs):
                for made in range(1, tokens + 1):
                    use.output_tokens[slot] = made
                    stepwise += prompt_tokens + made
                    seen.append(held.served_token_iterations)
                    assert seen[-1] == stepwise
        (held.stopped if number % 2 else held.finish)(lease)
        seen.append(held.served_token_iterations)
    assert seen == sorted(seen)
    assert seen[-1] == sum(kv_token_time(p, d) for generations in calls for p, ds in generations for d in ds)
