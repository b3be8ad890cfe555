"""One call from its grant to its answer: whatever the replica and the reader do, it is told once and ends."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from cluster import scheduler_link
from cluster.call_path import AnswerBroken, drain, run_call
from cluster.clock import monotonic_s
from cluster.engine import LeaseRefused
from cluster.live_replicas import ReplicaGone
from cluster.messages import CallRequest, Pull, Report
from cluster.scheduler_link import CallRefused, SchedulerLink
from cluster.scheduler_service import SchedulerService
from cluster.settings import SchedulerSettings
from scheduler.actions import Grant, Refusal
from scheduler.events import CallFinished, CallReady, CallRevealed, CallStarted
from scheduler.lifecycle import CallState
from scheduler.types import CallKey
from tests.in_process import eventually
from tests.scheduling import application, call, limits

START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "body": b"half", "more_body": True}
LAST = {"type": "http.response.body", "body": b" whole", "more_body": False}
WHOLE = [START, PART, LAST]

Step = dict[str, Any] | Exception | str


class Replicas:
    """Plays one script a call: messages, an exception to raise, or "wait" for ever."""

    def __init__(self, *scripts: list[Step]) -> None:
        self.scripts = list(scripts)
        self.requests: list[tuple[str, CallRequest]] = []
        self.closed = 0

    async def serve_call(self, replica_id: str, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        self.requests.append((replica_id, request))
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, str):
                    await asyncio.Event().wait()
                else:
                    yield step
        finally:
            self.closed += 1


class Bench:
    """A real scheduler and a real link; replicas "r" and "s" take every grant."""

    def __init__(self) -> None:
        self.service = SchedulerService(SchedulerSettings(check_invariants=True), monotonic_s)
        self.link = SchedulerLink("i", self.service, lambda: frozenset("rs"))
        self.tasks: list[asyncio.Task[None]] = []
        self.granted: list[Grant] = []

    def start(self, *names: str) -> None:
        self.link.start()
        self.tasks = [asyncio.create_task(self._take_grants(name)) for name in names]

    async def _take_grants(self, name: str) -> None:
        while True:
            reply = await self.service.pull(Pull(name, self.service.epoch, limits(), 10, 1.0))
            self.granted += reply.grants
            if reply.grants:
                await self.report(name, *(CallStarted(grant.lease_id) for grant in reply.grants))

    async def report(self, name: str, *facts: Any) -> None:
        await self.service.report(Report(name, self.service.epoch, 0.0, 0, 0, 0, (), facts))

    def run(self, replicas: Replicas, **spec: int) -> AsyncGenerator[dict[str, Any]]:
        reveal = CallRevealed("app", call("c", **spec), application("app", open=True))
        request = CallRequest("", "app", "c", 1, "POST", "/v1/completions", b"", (), b"{}")
        ready = CallReady("app", "c", reveal.call.prompt_tokens, reveal.call.predicted_output_tokens)
        return run_call(self.link, replicas, ready, request, reveal)

    @property
    def held_calls(self) -> list[str]:
        """Calls that the ingress holds; their application stays open between calls."""
        return [name for held in self.link.held.applications.values() for name in held.calls]

    @property
    def call(self) -> Any:
        return self.service.core.applications["app"].calls["c"]

    async def ended(self, state: CallState) -> None:
        await eventually(lambda: self.call.state is state, 1.0)
        assert self.link._expected == {}
        if state is not CallState.STOPPING:
            await eventually(lambda: self.held_calls == [], 1.0)

    async def close(self) -> None:
        await self.link.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.service.close()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(scheduler_link, "RETRY_S", 0.01)
    bench = Bench()
    yield bench
    await bench.close()


async def test_the_granted_replica_answers_under_its_lease(bench: Bench) -> None:
    bench.start("r")
    replicas = Replicas(WHOLE)
    assert await drain(bench.run(replicas)) == (200, b"half whole")
    ((replica_id, request),) = replicas.requests
    await eventually(lambda: bench.service.core.applications["app"].calls["c"].state is CallState.RUNNING)
    (grant,) = bench.granted
    assert (replica_id, request.lease_id) == ("r", grant.lease_id)
    await bench.report("r", CallFinished(grant.lease_id, 10, (5,)))
    await bench.ended(CallState.FINISHED)
    assert replicas.closed == 1


@pytest.mark.parametrize(
    "loss",
    [
        [ActorDiedError()],
        [ActorUnavailableError("gone", None)],
        [ReplicaGone("r")],
        [LeaseRefused("no grant")],
        [START, ActorDiedError()],
    ],
)
async def test_a_replica_lost_before_the_first_byte_costs_the_reader_nothing(bench: Bench, loss: list[Step]) -> None:
    bench.start("r", "s")
    replicas = Replicas(loss, loss, WHOLE)
    messages = [message async for message in bench.run(replicas)]
    assert messages == WHOLE
    assert len({request.lease_id for _, request in replicas.requests}) == 3
    assert bench.call.attempts == 3


async def test_a_replica_lost_again_and_again_is_given_up(bench: Bench) -> None:
    bench.start("r")
    with pytest.raises(CallRefused, match="lost 3 times") as refused:
        await drain(bench.run(Replicas(*[[ActorDiedError()]] * 3)))
    assert refused.value.refusal is Refusal.LOST
    await bench.ended(CallState.FAILED)


async def test_a_replica_lost_in_the_middle_breaks_the_answer(bench: Bench) -> None:
    bench.start("r")
    replicas = Replicas([START, PART, ActorDiedError()])
    seen: list[Any] = []
    with pytest.raises(AnswerBroken, match="in the middle"):  # noqa: PT012 - what came before is asserted
        async for message in bench.run(replicas):
            seen.append(message)
    assert seen == [START, PART]
    await bench.ended(CallState.FAILED)
    assert "in the middle" in bench.call.end_reason


async def test_an_error_after_the_last_byte_is_no_error(bench: Bench) -> None:
    bench.start("r")
    assert await drain(bench.run(Replicas([*WHOLE, ActorDiedError()]))) == (200, b"half whole")


@pytest.mark.parametrize("begun", [[], [START, PART]])
async def test_an_exception_of_the_engine_fails_the_call(bench: Bench, begun: list[Step]) -> None:
    bench.start("r")
    error = ZeroDivisionError("a text that may hold some of the prompt")
    with pytest.raises(AnswerBroken) as broken:
        await drain(bench.run(Replicas([*begun, error])))
    await bench.ended(CallState.FAILED)
    assert str(broken.value) == bench.call.end_reason == "the engine failed: ZeroDivisionError"
    assert "prompt" not in "".join(traceback.format_exception(broken.value))


async def test_an_answer_that_stops_before_its_end_is_broken(bench: Bench) -> None:
    bench.start("r")
    with pytest.raises(AnswerBroken, match="stopped"):
        await drain(bench.run(Replicas([START, PART])))


async def test_a_refusal_of_the_scheduler_comes_through(bench: Bench) -> None:
    bench.start("r")
    await eventually(lambda: bool(bench.service.core.replicas))
    replicas = Replicas()
    with pytest.raises(CallRefused, match="cannot fit") as refused:
        await drain(bench.run(replicas, p=5000))
    assert refused.value.refusal is Refusal.CANNOT_FIT
    assert replicas.requests == []
    assert bench.link.held.applications == {}


async def test_a_reader_that_leaves_while_the_call_waits_leaves_nothing(bench: Bench) -> None:
    bench.start()
    replicas = Replicas()
    reading = asyncio.create_task(drain(bench.run(replicas)))
    await eventually(lambda: bench.service.core.ready_calls == 1)
    reading.cancel()
    await asyncio.wait([reading])
    await bench.ended(CallState.CANCELLED)
    assert bench.service.core.unfinished_calls == 0
    assert replicas.requests == []


@pytest.mark.parametrize("leaves", ["by closing", "by cancellation"])
@pytest.mark.parametrize("messages_read", [1, 2])
async def test_a_reader_that_leaves_in_the_middle_closes_the_stream_at_once(
    bench: Bench, leaves: str, messages_read: int
) -> None:
    bench.start("r")
    replicas = Replicas([START, PART, "wait"])
    messages = bench.run(replicas)
    for _ in range(messages_read):
        await anext(messages)
    if leaves == "by closing":
        await messages.aclose()
    else:
        reading = asyncio.create_task(drain(messages))
        await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.wait([reading])
    assert replicas.closed == 1
    await bench.ended(CallState.STOPPING)
    assert bench.held_calls == ["c"]
    await bench.report("r", CallFinished(bench.granted[0].lease_id, 10, (5,)))
    await eventually(lambda: bench.held_calls == [])
    assert bench.call.state is CallState.CANCELLED


async def test_a_reader_that_leaves_as_the_grant_comes_gives_it_back(bench: Bench) -> None:
    bench.start()
    reading = asyncio.create_task(drain(bench.run(Replicas(["wait"]))))
    await eventually(lambda: bench.service.core.ready_calls == 1)
    pull = asyncio.create_task(bench.service.pull(Pull("r", bench.service.epoch, limits(), 1, 1.0)))
    await eventually(lambda: bench.service.core.applications["app"].calls["c"].state is CallState.GRANTED)
    reading.cancel()
    await asyncio.wait([reading])
    await bench.ended(CallState.CANCELLED)
    assert bench.service.core.leases == {}
    assert len((await pull).grants) == 1


async def test_the_end_of_a_call_whose_answer_was_lost_ends_the_wait(bench: Bench) -> None:
    """The engine finished, the replica reported it and died before the answer had arrived."""
    bench.start("r")
    reading = asyncio.create_task(drain(bench.run(Replicas([START, "wait"]))))
    await eventually(lambda: bool(bench.granted))
    await bench.report("r", CallFinished(bench.granted[0].lease_id, 10, (5,)))
    reading.cancel()
    await asyncio.wait([reading])
    lost = asyncio.create_task(drain(_run_another(bench, [START, ActorDiedError()])))
    with pytest.raises(CallRefused, match="lost on the way") as refused:
        await asyncio.wait_for(lost, 10.0)
    assert refused.value.refusal is Refusal.LOST


async def _run_another(bench: Bench, script: list[Step]) -> AsyncGenerator[dict[str, Any]]:
    """A call whose replica reports the end before its stream breaks."""

    class Reporting(Replicas):
        async def serve_call(self, replica_id: str, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
            await bench.report(replica_id, CallFinished(request.lease_id, 10, (5,)))
            async with aclosing(super().serve_call(replica_id, request)) as messages:
                async for message in messages:
                    yield message

    key = CallKey("app", "c2")
    reveal = CallRevealed("app", call("c2"), application("app", open=True))
    request = CallRequest("", *key, 1, "POST", "/v1/completions", b"", (), b"{}")
    answer = run_call(bench.link, Reporting(script), CallReady(*key, 10, 10), request, reveal)
    async with aclosing(answer):
        async for message in answer:
            yield message
