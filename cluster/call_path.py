"""One call from its grant to its answer: past the scheduler, straight to the granted replica.

Laws: the answer comes from the replica that the grant names; a stream that its reader drops is cancelled at the
replica; a replica that dies before the first byte costs the caller nothing but time (the scheduler grants the
call anew, a bounded number of times); after the first byte the answer ends in AnswerBroken, since half an answer
cannot be taken back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NoReturn, Protocol

from ray.exceptions import RayActorError

from cluster.engine import LeaseRefused
from cluster.live_replicas import ReplicaGone
from cluster.messages import CallRequest
from cluster.replica_router import replica_session
from cluster.scheduler_link import SchedulerLink
from scheduler.actions import Grant
from scheduler.events import CallFailed, CallLost, CallReady, CallRevealed
from scheduler.types import CallKey


class AnswerBroken(Exception):
    """The engine failed, or the replica was lost in the middle of an answer."""


class Replicas(Protocol):
    """The replicas of one engine deployment."""

    def serve_call(self, replica_id: str, request: CallRequest) -> AsyncGenerator[dict[str, Any]]: ...


class ServeReplicas:
    """Replicas behind a Serve handle; streams come by value, which is faster than by object reference."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(stream=True, _by_reference=False)

    async def serve_call(self, replica_id: str, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        """Have one replica run a call; yields its ASGI messages, and cancels it there when the reader leaves."""
        handle = self._handle.options(session_id=replica_session(replica_id))
        stream = handle.serve_call.remote(request)
        try:
            async for message in stream:
                yield message
        finally:
            stream.cancel()

    async def pass_through(self, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        """Have any replica answer a request that generates nothing."""
        stream = self._handle.pass_through.remote(request)
        try:
            async for message in stream:
                yield message
        finally:
            stream.cancel()


_LOST = (RayActorError, ReplicaGone, LeaseRefused)


async def run_call(
    link: SchedulerLink,
    replicas: Replicas,
    ready: CallReady,
    request: CallRequest,
    reveal: CallRevealed | None = None,
) -> AsyncGenerator[dict[str, Any]]:
    """Announce a call, wait for its grant and stream its answer's ASGI messages.

    `reveal` introduces a call that the scheduler does not know yet; `request.lease_id` is filled in from the
    grant. Raises CallRefused when the scheduler refuses the call, and AnswerBroken. However this ends, the
    scheduler hears of it.
    """
    key = CallKey(ready.application_id, ready.call_id)
    complete = False
    with link.expecting(key) as grants:
        link.tell(*([] if reveal is None else [reveal]), ready)
        try:
            while not complete:
                grant = await grants.next()
                async with aclosing(_attempt(link, replicas, grant, request)) as messages:
                    async for message in messages:
                        complete = complete or _is_last(message)
                        yield message
        finally:
            if not complete:
                link.cancel(key, "its client left")


async def _attempt(
    link: SchedulerLink, replicas: Replicas, grant: Grant, request: CallRequest
) -> AsyncGenerator[dict[str, Any]]:
    """The answer under one grant; nothing when the replica was lost, or stopped, before its first byte.

    Status and headers, which an engine may send long before, are held back until then.
    """
    begun = complete = False
    start: dict[str, Any] | None = None
    try:
        async with aclosing(replicas.serve_call(grant.replica_id, _under(request, grant))) as messages:
            async for message in messages:
                if message["type"] == "http.response.start":
                    start = message
                    continue
                if start is not None:
                    yield start
                begun, complete, start = True, complete or _is_last(message), None
                yield message
    except Exception as error:  # whatever the replica raises; the parent sorts it
        if not complete:
            _report_loss(link, grant, error, begun)
        return
    if begun and not complete:
        raise AnswerBroken("the answer was stopped before its end")


def _report_loss(link: SchedulerLink, grant: Grant, error: Exception, begun: bool) -> None:
    """Only the kind of an error goes on: its text may hold some of the prompt or of the answer."""
    kind = type(error).__name__
    if not isinstance(error, _LOST):
        _break_off(link, grant, f"the engine failed: {kind}")
    if begun:
        _break_off(link, grant, f"the replica was lost in the middle of the answer: {kind}")
    link.held.lose_grant(grant)
    link.tell(CallLost(grant.lease_id, kind))


def _break_off(link: SchedulerLink, grant: Grant, reason: str) -> NoReturn:
    link.tell(CallFailed(grant.lease_id, reason))
    raise AnswerBroken(reason) from None  # its cause would bring the text into every log


def _under(request: CallRequest, grant: Grant) -> CallRequest:
    return CallRequest(
        lease_id=grant.lease_id,
        application_id=grant.application_id,
        call_id=grant.call_id,
        sequences=request.sequences,
        method=request.method,
        path=request.path,
        query=request.query,
        headers=request.headers,
        body=request.body,
    )


def _is_last(message: dict[str, Any]) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body", False)


async def drain(stream: AsyncGenerator[dict[str, Any]]) -> tuple[int, bytes]:
    """The status and the whole body of an answer."""
    status, body = 0, bytearray()
    async with aclosing(stream):
        async for message in stream:
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                body += message.get("body", b"")
    return status, bytes(body)
