"""Clients that leave: queued, while their answer streams, in the middle of their request. Nothing of them stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlparse

import pytest

from tests.ray_service import SLOTS, Service, completion, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

FREED_WITHIN_S = 1.0
POLLING_S = 4.0  # a poll of /v1/scheduler goes through proxy, ingress and scheduler of a busy machine
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[Connection]:
    """A bare socket, closed at the end whatever the other side does."""
    address = urlparse(service.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(writer: asyncio.StreamWriter, body: bytes, claimed_bytes: int | None = None) -> None:
    """A completion request whose body may be shorter than it claims."""
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        f"content-length: {claimed_bytes or len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


def long_stream(application_id: str, n: int = 1) -> bytes:
    return json.dumps(completion(5_000, stream=True, application_id=application_id, n=n)).encode()


async def pieces(reader: asyncio.StreamReader, count: int) -> None:
    """Wait for the head of an answer and its first pieces."""
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(count):
        await reader.readuntil(b"data: ")


async def test_one_that_leaves_the_queue(service: Service) -> None:
    async with occupied(service, rounds=1):
        async with connected(service) as (_, writer):
            await send(writer, long_stream("left-queued"))
            await service.until(lambda seen: seen["calls_waiting"] == 1)
        await service.until(lambda seen: seen["calls_waiting"] == 0, FREED_WITHIN_S + POLLING_S)
        assert (await service.overview())["calls_running"] == 2  # nobody else lost anything


async def test_one_that_leaves_while_streaming(service: Service) -> None:
    """The slot and the memory of an answer are free although the release is behind the stream."""
    async with connected(service) as (reader, writer):
        await send(writer, long_stream("left-streaming", n=SLOTS))
        await pieces(reader, 3)
        assert (await service.overview())["kv_held_tokens"] > 0
    await service.until_idle(FREED_WITHIN_S + POLLING_S)


async def test_one_that_leaves_in_its_request(service: Service) -> None:
    """What is told of it is no error of the service."""
    async with connected(service) as (_, writer):
        await send(writer, b'{"prompt": "half a bo', claimed_bytes=1000)
        await asyncio.sleep(0.2)
    await service.until_idle()
    for log in service.logs("Ingress").values():
        assert [record["message"] for record in log if "POST /v1/completions 500" in record["message"]] == []


async def test_fifty_in_a_row_leave_nothing(service: Service) -> None:
    """All four slots of a replica each time, so one that stayed would be felt at once."""
    for attempt in range(50):
        async with connected(service) as (reader, writer):
            match attempt % 3:
                case 0:
                    await send(writer, long_stream(f"gone-{attempt}", n=SLOTS))
                    await pieces(reader, 2)
                case 1:
                    await send(writer, long_stream(f"gone-{attempt}", n=SLOTS))
                case _:
                    await send(writer, b"{", claimed_bytes=500)
    await service.until_idle(FREED_WITHIN_S + POLLING_S)
    async with service.async_http() as client:
        answers = await asyncio.gather(*(client.post("/v1/completions", json=completion(4, n=SLOTS)) for _ in "1234"))
    assert [answer.status_code for answer in answers] == [200] * 4
    await service.until_clean()


async def test_all_of_a_crowd_leaves_at_once(service: Service) -> None:
    """Some run, some wait, some are on their way from one to the other."""
    async with service.async_http() as client:
        calls = [
            asyncio.create_task(client.post("/v1/completions", json=completion(3_000, application_id=f"leavers-{i}")))
            for i in range(60)
        ]
        await service.until(lambda seen: seen["calls_running"] == 2 * SLOTS)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await service.until_idle(FREED_WITHIN_S + 2 * POLLING_S)


async def test_one_that_leaves_while_its_application_is_taken(service: Service) -> None:
    """Whichever way it falls, its id is not blocked for ever by an application that runs for nobody."""
    document = {"application_id": "left-early", "calls": [{"name": "c", "prompt": "x" * 10**6, "max_tokens": 5}]}
    body = json.dumps(document).encode()
    head = f"POST /v1/applications HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with connected(service) as (_, writer):
        writer.write(head + body)
        await writer.drain()
    await service.until_clean()
