"""An answer's ASGI messages on their way to a client that may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi import Request

from serve_app.errors import ApiError
from serve_app.relay import relay

START = {"type": "http.response.start", "status": 202, "headers": [(b"content-type", b"text/plain")]}
PART = {"type": "http.response.body", "body": b"a", "more_body": True}
LAST = {"type": "http.response.body", "body": b"b", "more_body": False}


class Client:
    """One HTTP client: what it is sent, and when it leaves."""

    def __init__(self, slow: bool = False) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self.slow = slow
        self.asked = 0
        self.request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, self.receive)

    async def receive(self) -> Any:
        self.asked += 1
        if self.asked == 1:
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if self.slow:
            await asyncio.Event().wait()

    async def get(self, messages: AsyncGenerator[dict[str, Any]]) -> None:
        response = await relay(self.request, messages, {"x-call-id": "c"})
        await response(self.request.scope, self.receive, self.send)


class Stream:
    """Messages to relay; "wait" waits for ever."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.closed = False

    async def messages(self) -> AsyncGenerator[dict[str, Any]]:
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if step == "wait":
                    await asyncio.Event().wait()
                yield step
        finally:
            await asyncio.sleep(0)
            self.closed = True


async def test_every_message_is_relayed_with_the_headers_of_the_ingress() -> None:
    client, stream = Client(), Stream(START, PART, LAST)
    await client.get(stream.messages())
    headers = [(b"content-type", b"text/plain"), (b"x-call-id", b"c")]
    assert client.sent == [{**START, "headers": headers}, PART, LAST]
    assert stream.closed


async def test_a_refusal_before_the_first_message_is_an_http_error_and_sends_nothing() -> None:
    client, stream = Client(), Stream(ApiError(429, "busy"))
    with pytest.raises(ApiError, match="busy"):
        await client.get(stream.messages())
    assert client.sent == []
    assert stream.closed


async def test_a_client_that_leaves_before_the_first_message_closes_the_stream() -> None:
    client, stream = Client(), Stream("wait")
    getting = asyncio.create_task(client.get(stream.messages()))
    await asyncio.sleep(0.01)
    client.gone.set()
    with pytest.raises(ApiError) as left:
        await asyncio.wait_for(getting, 10.0)
    assert left.value.status == 499
    assert client.sent == []
    assert stream.closed


@pytest.mark.parametrize("slow", [False, True])
async def test_a_client_that_leaves_in_the_middle_closes_the_stream(slow: bool) -> None:
    """Slow: its socket takes nothing more, so that the stream is not being read when it leaves."""
    client, stream = Client(slow), Stream(START, PART, "wait")
    getting = asyncio.create_task(client.get(stream.messages()))
    await asyncio.sleep(0.01)
    client.gone.set()
    await asyncio.wait_for(getting, 10.0)
    assert len(client.sent) == (1 if slow else 2)
    assert stream.closed


@pytest.mark.parametrize("steps", [("wait",), (START, "wait")])
async def test_a_server_that_gives_the_request_up_closes_the_stream(steps: tuple[Any, ...]) -> None:
    client, stream = Client(), Stream(*steps)
    getting = asyncio.create_task(client.get(stream.messages()))
    await asyncio.sleep(0.01)
    getting.cancel()
    await asyncio.wait([getting])
    assert getting.cancelled()
    assert stream.closed


async def test_an_error_in_the_middle_breaks_the_answer_off() -> None:
    client, stream = Client(), Stream(START, PART, ApiError(503, "lost"))
    with pytest.raises(ApiError, match="lost"):
        await client.get(stream.messages())
    assert len(client.sent) == 2
    assert stream.closed


async def test_no_task_is_left() -> None:
    before = asyncio.all_tasks()
    await test_every_message_is_relayed_with_the_headers_of_the_ingress()
    await test_a_client_that_leaves_before_the_first_message_closes_the_stream()
    await test_a_client_that_leaves_in_the_middle_closes_the_stream(slow=True)
    assert asyncio.all_tasks() == before
