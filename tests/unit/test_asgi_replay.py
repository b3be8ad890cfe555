"""An HTTP request replayed on an ASGI application: streams, failures, clients that leave."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from cluster import asgi_replay
from cluster.asgi_replay import MAX_MESSAGES_AHEAD, Answer, AsgiApplication, replay
from cluster.engine import CURRENT_LEASE, ActiveLease, Receive, Scope, Send
from cluster.messages import CallRequest

REQUEST = CallRequest("l", "a", "c", 1, "POST", "/v1/x", b"q=1", ((b"name", b"value"),), b"the body")
START = {"type": "http.response.start", "status": 201, "headers": []}
LAST = {"type": "http.response.body", "body": b"", "more_body": False}


def part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def read_all(application: AsgiApplication, answer: Answer | None = None, lease: Any = None) -> list[Any]:
    async with aclosing(replay(application, REQUEST, answer or Answer(), lease)) as messages:
        return [message async for message in messages]


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> Any:
    yield
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "replay" in task.get_coro().__qualname__]


async def test_the_request_arrives_whole_and_the_answer_comes_as_it_is_made() -> None:
    seen: list[Any] = []
    go_on = asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([scope["method"], scope["path"], scope["query_string"], scope["headers"], await receive()])
        await send(START)
        await send(part(b"one"))
        await go_on.wait()
        await send(LAST)

    answer = Answer()
    async with aclosing(replay(application, REQUEST, answer)) as messages:
        assert await anext(messages) == START
        assert await anext(messages) == part(b"one")
        assert (answer.status, answer.complete) == (201, False)
        go_on.set()
        assert [message async for message in messages] == [LAST]
    assert answer.complete
    body = {"type": "http.request", "body": b"the body", "more_body": False}
    assert seen == ["POST", "/v1/x", b"q=1", [(b"name", b"value")], body]


async def test_the_application_runs_under_the_lease_and_nothing_else_does() -> None:
    lease = ActiveLease("l", "a", "c", 0, 1)
    seen: list[Any] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(CURRENT_LEASE.get())
        await send(LAST)

    await read_all(application, lease=lease)
    await read_all(application)
    assert seen == [lease, None]
    assert CURRENT_LEASE.get() is None


async def test_an_exception_of_the_application_comes_after_what_it_sent() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        raise ZeroDivisionError

    async with aclosing(replay(application, REQUEST, Answer())) as messages:
        assert await anext(messages) == START
        with pytest.raises(ZeroDivisionError):
            await anext(messages)


async def test_a_slow_reader_holds_up_the_application() -> None:
    sent = 0

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        for _ in range(5 * MAX_MESSAGES_AHEAD):
            await send(part(b"x"))
            sent += 1
        await send(LAST)

    async with aclosing(replay(application, REQUEST, Answer())) as messages:
        first = await anext(messages)
        await asyncio.sleep(0.02)
        assert sent <= 2 * MAX_MESSAGES_AHEAD + 2  # those given to the reader as one, and those that wait
        rest = [message async for message in messages]
        assert len(first["body"]) + sum(len(message["body"]) for message in rest) == 5 * MAX_MESSAGES_AHEAD
        assert [message["more_body"] for message in rest[:-1]] == [True] * (len(rest) - 1)
        assert not rest[-1]["more_body"]


@pytest.mark.parametrize("messages_read", [0, 1, 2])
async def test_a_reader_that_leaves_is_a_client_that_disconnects(messages_read: int) -> None:
    told: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        listening = asyncio.create_task(receive())
        await send(START)
        await send(part(b"x"))
        told.append((await listening)["type"])

    messages = replay(application, REQUEST, Answer())
    for _ in range(messages_read):
        await anext(messages)
    async with asyncio.timeout(0.5):
        await messages.aclose()
    assert told == (["http.disconnect"] if messages_read else [])


async def test_a_full_queue_does_not_keep_an_application_that_was_told() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        leaving = asyncio.create_task(receive())
        while not leaving.done():
            await send(part(b"x"))

    messages = replay(application, REQUEST, Answer())
    await anext(messages)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(1.0):
        await messages.aclose()


async def test_disconnect_tells_the_application_while_the_reader_goes_on() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(START)
        await receive()

    answer = Answer()
    async with aclosing(replay(application, REQUEST, answer)) as messages:
        await anext(messages)
        answer.disconnect()
        assert [message async for message in messages] == []
    assert not answer.complete


@pytest.fixture
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_replay, "LEAVE_S", 0.05)


@pytest.mark.usefixtures("_little_patience")
async def test_an_application_that_ignores_its_clients_leave_is_cancelled() -> None:
    ended: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    messages = replay(application, REQUEST, Answer())
    await anext(messages)
    async with asyncio.timeout(1.0):
        await messages.aclose()
    assert ended == ["cancelled"]


async def test_a_second_cancellation_ends_the_patience_but_leaves_nothing_behind() -> None:
    ended: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    reader = asyncio.create_task(read_all(application))
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.sleep(0.01)
    assert not reader.done()
    reader.cancel()
    async with asyncio.timeout(1.0):
        await asyncio.wait([reader])
    assert ended == ["cancelled"]


@pytest.mark.parametrize("deaf_to_errors", [False, True])
async def test_a_flood_that_survives_its_cancellation_ends_all_the_same(
    deaf_to_errors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the disconnect, the first cancellation and, when deaf, what `send` raises."""
    monkeypatch.setattr(asgi_replay, "CANCEL_AGAIN_S", 0.2)
    caught: list[str] = []

    async def flood(send: Send) -> None:
        while True:
            try:
                await send(part(b"x"))
            except ConnectionResetError:
                if not deaf_to_errors:
                    raise
                await asyncio.sleep(0)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await flood(send)
        except asyncio.CancelledError:
            caught.append("cancelled")
        await flood(send)

    async def read_slowly() -> None:
        async with aclosing(replay(application, REQUEST, Answer())) as messages:
            async for _ in messages:
                await asyncio.sleep(60)

    before = asyncio.all_tasks()
    reader = asyncio.create_task(read_slowly())
    await asyncio.sleep(0.02)  # the queue is full, and the application waits in `send`
    reader.cancel()
    await asyncio.sleep(0.02)
    assert not reader.done()
    reader.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait([reader])
    assert caught == ["cancelled"]
    assert asyncio.all_tasks() == before


async def test_an_application_that_ends_with_a_full_queue_is_read_to_its_end() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for _ in range(MAX_MESSAGES_AHEAD - 2):
            await send(part(b"x"))
        await send(LAST)

    async with aclosing(replay(application, REQUEST, Answer())) as messages:
        assert await anext(messages) == START
        await asyncio.sleep(0.01)
        (body,) = [message async for message in messages]
    assert body == {"type": "http.response.body", "body": b"x" * (MAX_MESSAGES_AHEAD - 2), "more_body": False}


async def test_an_application_that_sends_nothing_ends() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.01)

    async with asyncio.timeout(1.0):
        assert await read_all(application) == []


async def test_an_application_that_fails_because_its_client_left_is_no_error() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(START)
        await receive()
        raise ConnectionResetError

    messages = replay(application, REQUEST, Answer())
    await anext(messages)
    await messages.aclose()
