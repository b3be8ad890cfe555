"""A reverse proxy that records the inferences that pass through it.

Laws.
1. A client gets what the service answers, status, headers and bytes, as it comes; but for streams, which are asked for
   their usage: a client that did not ask for it does not see it.
2. A client that leaves takes its request at the service with it.
3. What is recorded never changes or fails what is answered. It delays an answer by the time to read the request and to
   look for earlier answers in its prompt (bounded: `serve_app.recorder_calls`), and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, MutableMapping
from contextlib import aclosing, contextmanager, nullcontext
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from serve_app.errors import ApiError
from serve_app.recorder import RecordedCall, Recorder
from serve_app.recorder_reading import UNREADABLE, Seen, Told, seen_in

MAX_BODY_BYTES = 64 * 2**20
CONNECT_S = 10.0
_OF_ONE_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_PASSED_ON = _OF_ONE_HOP | {b"host", b"content-length", b"accept-encoding"}

Clock = Callable[[], float]


class RecordingProxy:
    """An ASGI application. `clock` gives seconds since the recording began; `http` replaces connections, for tests."""

    def __init__(
        self, upstream: str, recorder: Recorder, clock: Clock, http: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._client = httpx.AsyncClient(
            base_url=upstream,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            transport=http,
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _read(receive)
        if body is None:
            return
        if len(body) > MAX_BODY_BYTES:
            await _refuse(send, 413, f"the body is longer than {MAX_BODY_BYTES} bytes")
            return
        answering = asyncio.create_task(self._answer(scope, body, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            raise error  # the server breaks the connection: half an answer never looks like a whole one

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        seen: Seen | None = None
        with self._beside():
            seen = seen_in(scope, body, self._clock())
        with nullcontext() if seen is None else self._recorder.expected(seen.asked):
            await self._ask(scope, body, seen, send)

    async def _ask(self, scope: Scope, body: bytes, seen: Seen | None, send: Send) -> None:
        """Have the service answer, and pass that on."""
        request = self._client.build_request(
            scope["method"],
            httpx.URL(path=scope["path"], query=scope["query_string"]),
            headers=[(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED_ON],
            content=body if seen is None else seen.body,
        )
        request.headers["accept-encoding"] = "identity"
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            if seen is not None:
                self._recorder.leave_out("the service cannot be reached")
            await _refuse(send, 502, f"the service cannot be reached: {error or type(error).__name__}")
            return
        try:
            await self._pass_back(answer, seen, send)
        finally:
            await answer.aclose()

    async def _pass_back(self, answer: httpx.Response, seen: Seen | None, send: Send) -> None:
        headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _OF_ONE_HOP]
        hides = seen is not None and seen.hides_usage
        if hides:
            headers = [(name, value) for name, value in headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async with aclosing(self._recorded(answer, seen)) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _recorded(self, answer: httpx.Response, seen: Seen | None) -> AsyncGenerator[bytes]:
        """The answer's bytes; what it said is recorded at its end, however that comes."""
        if seen is None or answer.status_code != 200:
            if seen is not None:
                self._recorder.leave_out(f"refused with {answer.status_code}")
            async for part in answer.aiter_raw():
                yield part
            return
        call: RecordedCall | None = None
        with self._beside():
            call = self._recorder.begin(seen.asked, answer.headers.get("x-application-id"))
        told = Told()
        try:
            async for part in told.listen(answer.aiter_raw(), seen.streams, seen.hides_usage):
                yield part
        finally:
            if call is not None:
                with self._beside():
                    told.end(call, self._clock())

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """What is recorded beside an answer: where that fails, one call is left out, and the answer goes on."""
        try:
            yield
        except Exception:  # services and programs say what they like
            self._recorder.leave_out(UNREADABLE)


async def _read(receive: Receive) -> bytes | None:
    """The body, or as much of it as shows that it is too long; None from a client that has left."""
    body = bytearray()
    while len(body) <= MAX_BODY_BYTES:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: int, message: str) -> None:
    error = ApiError(status, message)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error.body()).encode(), "more_body": False})
