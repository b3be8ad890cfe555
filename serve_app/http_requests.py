"""Reading HTTP requests and writing event streams, for the ingress."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from cluster.messages import CallRequest
from scheduler.actions import Refusal
from serve_app.errors import ApiError, from_refusal
from serve_app.inference import forwarded_headers


async def bounded_body(request: Request, limit_bytes: int) -> bytes:
    """The request's body. Raises ApiError 413 as soon as it is longer than the limit, 499 for one that breaks off."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit_bytes:
                raise ApiError(413, f"the body is longer than {limit_bytes} bytes")
    except ClientDisconnect:
        raise from_refusal(Refusal.CANCELLED, "the client left in the middle of its request") from None
    return bytes(body)


def forwarded_get(request: Request) -> CallRequest:
    """A request that generates nothing, for any replica: without a lease, and without its body."""
    return CallRequest(
        lease_id="",
        application_id="",
        call_id="",
        sequences=1,
        method="GET",
        path=request.url.path,
        query=request.url.query.encode(),
        headers=forwarded_headers(request.headers.raw),
        body=b"",
    )


def last_event_id(request: Request) -> int:
    """The number of the last event that the client has seen, 0 for none. Raises ApiError 400 for no number."""
    text = request.headers.get("last-event-id", "0")
    if not text.isdecimal() or len(text) > 9:
        raise ApiError(400, "Last-Event-ID must be the number of an event", param="Last-Event-ID")
    return int(text)


async def server_sent(events: AsyncGenerator[dict[str, Any]]) -> AsyncIterator[str]:
    """Events (with `id` and `event` among their fields) as a `text/event-stream`; closes them at its own end."""
    async with aclosing(events):
        async for event in events:
            yield f"id: {event['id']}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n"
