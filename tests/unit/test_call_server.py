"""Whatever way a call takes on its replica, its lease ends in one fact, once the engine has let go."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from cluster.call_server import CallServer
from cluster.engine import CURRENT_LEASE, LeaseRefused, Receive, Scope, Send
from cluster.leases import LeaseTable
from cluster.messages import CallRequest, PullReply
from scheduler.actions import Grant
from scheduler.events import CallFailed, CallFinished, CallStarted, CallStopped

LEASE = "1-1"
REQUEST = CallRequest(LEASE, "a", "c", 1, "POST", "/v1/completions", b"", (), b"{}")


class ScriptedEngine:
    """Answers by a script: messages, exceptions, or "wait" until the client leaves."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.let_go = False

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = CURRENT_LEASE.get()
        use = None if lease is None else lease.begin(10, 1)
        await receive()
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if step == "wait":
                    await receive()
                    return
                if use is not None and step["type"] == "http.response.body":
                    use.output_tokens[0] += 1
                await send(step)
        finally:
            await asyncio.sleep(0)
            self.let_go = True


def start(status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": []}


def part(more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"x", "more_body": more}


class Bench:
    def __init__(self, *steps: Any) -> None:
        self.engine = ScriptedEngine(*steps)
        self.leases = LeaseTable(self._look)
        self.server = CallServer(self.engine, self.leases)  # type: ignore[arg-type]
        self.let_go_at_end: bool | None = None

    def _look(self) -> None:
        if len(self.leases.facts) == 2:
            self.let_go_at_end = self.engine.let_go

    async def grant(self) -> None:
        await self.leases.apply(PullReply(1, (Grant("r", "a", "c", LEASE, 1, 0),)))

    async def read_all(self) -> list[Any]:
        await self.grant()
        async with aclosing(self.server.serve(REQUEST)) as messages:
            return [message async for message in messages]

    def ended_with(self, fact: object) -> None:
        assert self.leases.facts == (CallStarted(LEASE), fact)
        assert self.let_go_at_end
        assert self.leases.active == {}


async def test_a_whole_answer_finishes_its_lease() -> None:
    bench = Bench(start(), part(True), part(False))
    await bench.read_all()
    bench.ended_with(CallFinished(LEASE, 10, (2,)))


async def test_an_answer_that_refuses_fails_its_lease() -> None:
    bench = Bench(start(400), part(False))
    await bench.read_all()
    bench.ended_with(CallFailed(LEASE, "the engine answered 400"))


@pytest.mark.parametrize("begun", [(), (start(), part(True))])
async def test_an_exception_of_the_engine_fails_its_lease(begun: tuple[Any, ...]) -> None:
    bench = Bench(*begun, ZeroDivisionError("a text that may hold some of the prompt"))
    with pytest.raises(ZeroDivisionError):
        await bench.read_all()
    bench.ended_with(CallFailed(LEASE, "the engine failed: ZeroDivisionError"))


async def test_an_exception_after_the_answer_takes_nothing_from_it() -> None:
    bench = Bench(start(), part(False), ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await bench.read_all()
    bench.ended_with(CallFinished(LEASE, 10, (1,)))


async def test_a_reader_that_leaves_stops_its_lease() -> None:
    bench = Bench(start(), part(True), "wait")
    await bench.grant()
    messages = bench.server.serve(REQUEST)
    await anext(messages)
    await anext(messages)
    await messages.aclose()
    bench.ended_with(CallStopped(LEASE, 10, (1,)))


async def test_a_reader_that_is_cancelled_stops_its_lease() -> None:
    bench = Bench(start(), part(True), "wait")
    reading = asyncio.create_task(bench.read_all())
    await asyncio.sleep(0.01)
    reading.cancel()
    await asyncio.wait([reading])
    bench.ended_with(CallStopped(LEASE, 10, (1,)))


async def test_an_abort_ends_the_stream_and_stops_the_lease() -> None:
    bench = Bench(start(), part(True), "wait")
    reading = asyncio.create_task(bench.read_all())
    await asyncio.sleep(0.01)
    await bench.leases.apply(PullReply(1, aborted_leases=(LEASE,)))
    assert len(await asyncio.wait_for(reading, 10.0)) == 2
    bench.ended_with(CallStopped(LEASE, 10, (1,)))


async def test_a_refused_lease_runs_nothing() -> None:
    bench = Bench(start(), part(False))
    await bench.leases.apply(PullReply(1, aborted_leases=(LEASE,)))
    with pytest.raises(LeaseRefused):
        await anext(bench.server.serve(REQUEST))
    assert bench.leases.facts == ()
    assert not bench.engine.let_go


async def test_what_generates_nothing_needs_no_lease() -> None:
    bench = Bench(start(), part(False))
    assert [message async for message in bench.server.pass_through(REQUEST)] == [start(), part(False)]
    assert bench.leases.facts == ()
