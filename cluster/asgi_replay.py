"""Replaying an HTTP request on an ASGI application in this process, its answer as a stream of messages.

The stream ends after the last body message. Closing it early, or calling `Answer.disconnect`, tells the
application that its client left, and waits until the application has let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from cluster.engine import CURRENT_LEASE, ActiveLease, Message, Receive, Scope, Send
from cluster.messages import CallRequest

MAX_MESSAGES_AHEAD = 64
LEAVE_S = 5.0
CANCEL_AGAIN_S = 1.0

AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


class Answer:
    """What is known of an answer: its status, whether it is complete, whether its client has left."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self.abandoned = False
        self._gone = asyncio.Event()

    def disconnect(self) -> None:
        """The client has left."""
        self._gone.set()

    async def disconnected(self) -> None:
        """Wait until the client has left."""
        await self._gone.wait()

    def note(self, message: Message) -> None:
        """Learn from one message of the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True


async def replay(
    application: AsgiApplication, request: CallRequest, answer: Answer, lease: ActiveLease | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """Run the request; yields the ASGI messages of its answer. An exception of the application comes through.

    At most `MAX_MESSAGES_AHEAD` messages wait for a slow reader. The application runs in a task of its own, in
    whose context `CURRENT_LEASE` is `lease`; the end of that task is the end of the answer.
    """
    messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(MAX_MESSAGES_AHEAD)
    body_sent = False

    async def receive() -> Message:
        nonlocal body_sent
        if not body_sent:
            body_sent = True
            return {"type": "http.request", "body": request.body, "more_body": False}
        await answer.disconnected()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if answer.abandoned:
            raise ConnectionResetError("the reader of this answer has left")
        answer.note(message)
        await messages.put(dict(message))

    async def run() -> None:
        CURRENT_LEASE.set(lease)
        await application(_scope(request), receive, send)

    def wake_reader(_: asyncio.Task[None]) -> None:
        if messages.empty():  # else the reader sees the end of the task after the last message
            messages.put_nowait(None)

    task = asyncio.create_task(run())
    task.add_done_callback(wake_reader)
    try:
        while not (task.done() and messages.empty()):
            message = await messages.get()
            if message is not None:
                yield _with_followers(message, messages)
        await task
    finally:
        await _leave(task, answer, messages)


def _with_followers(message: dict[str, Any], messages: asyncio.Queue[dict[str, Any] | None]) -> dict[str, Any]:
    """A piece of the body with those that wait behind it, as one: a reader that lags pays for each only once."""
    if message["type"] != "http.response.body":
        return message
    pieces = [message]
    while pieces[-1].get("more_body", False) and not messages.empty():
        follower = messages.get_nowait()
        if follower is None or follower["type"] != "http.response.body":
            messages.put_nowait(follower)  # the end of the answer: nothing else was behind it
            break
        pieces.append(follower)
    body = b"".join(piece.get("body", b"") for piece in pieces)
    return {"type": "http.response.body", "body": body, "more_body": pieces[-1].get("more_body", False)}


async def _leave(task: asyncio.Task[None], answer: Answer, messages: asyncio.Queue[dict[str, Any] | None]) -> None:
    """Let a task that still runs see its client leave; cancel it, again and again, when that does not end it."""
    answer.disconnect()
    try:
        await _wait_for_end(task, messages, LEAVE_S)
    finally:  # a second cancellation ends the patience, not the duty
        answer.abandoned = True
        while not task.done():
            task.cancel()
            await _wait_for_end(task, messages, CANCEL_AGAIN_S)
        await asyncio.gather(task, return_exceptions=True)


async def _wait_for_end(
    task: asyncio.Task[None], messages: asyncio.Queue[dict[str, Any] | None], patience_s: float
) -> None:
    """Nobody reads any more: messages are thrown away, so that none holds the task up."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + patience_s
    while not task.done() and loop.time() < deadline_s:
        while not messages.empty():
            messages.get_nowait()
        await asyncio.wait({task}, timeout=0.05)


def _scope(request: CallRequest) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": None,
        "server": None,
        "state": {},
    }
