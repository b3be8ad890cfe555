"""Relaying an answer's ASGI messages to the HTTP client, and noticing a client that leaves.

Nothing is sent before the first message has come, so a refusal until then is a proper HTTP error. What breaks an
answer later is the last of its events, where it is a stream of them, and else breaks the connection: a half answer
never looks like a whole one. A client that leaves, before or after, closes the stream, which frees its place
wherever it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from scheduler.actions import Refusal
from serve_app.errors import ApiError, from_refusal

Messages = AsyncGenerator[dict[str, Any]]


async def relay(request: Request, messages: Messages, headers: dict[str, str]) -> Response:
    """The response that streams `messages`; `headers` are added to the engine's."""
    try:
        first = await _unless_disconnected(request.receive, _first_of(messages))
    except BaseException:
        await messages.aclose()
        raise
    return RelayedResponse(first, messages, headers)


class RelayedResponse(Response):
    """An answer that comes as ASGI messages."""

    def __init__(self, first: dict[str, Any], rest: Messages, headers: dict[str, str]) -> None:
        super().__init__(status_code=first["status"])
        extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._first = {**first, "headers": [*first.get("headers", []), *extra]}
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        try:
            await send(self._first)
            async for message in self._rest:
                await send(message)
        except ApiError as error:
            if not _is_event_stream(self._first):
                raise
            body = f"data: {json.dumps(error.body())}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            await self._rest.aclose()


def _is_event_stream(start: dict[str, Any]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", [])
    )


async def _first_of(messages: Messages) -> dict[str, Any]:
    return await anext(aiter(messages))


async def _unless_disconnected(receive: Receive, first: Any) -> dict[str, Any]:
    coming = asyncio.ensure_future(first)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not coming.done():
            coming.cancel()
        await asyncio.gather(coming, leaving, return_exceptions=True)
    if coming.cancelled():
        raise from_refusal(Refusal.CANCELLED, "the client left")
    message: dict[str, Any] = coming.result()
    return message


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
