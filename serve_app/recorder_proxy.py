"""A reverse proxy that records the inferences that pass through it.

Laws.
1. A client gets what the service answers, status, headers and bytes, as it comes; but for streams, which are asked for
   their usage: a client that did not ask for it does not see it.
2. A client that leaves takes its request at the service with it.
3. What is recorded never changes, delays or fails what is answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from serve_app.application_prompts import prompt_of_request
from serve_app.documents import CHAT_PATH, COMPLETIONS_PATH
from serve_app.errors import ApiError
from serve_app.inference_request import InferenceRequest, parse_inference
from serve_app.recorder import Answered, Asked, RecordedCall, Recorder, marks_of, texts_of

MAX_BODY_BYTES = 64 * 2**20
CONNECT_S = 10.0
_OF_ONE_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_PASSED_ON = _OF_ONE_HOP | {b"host", b"content-length", b"accept-encoding"}
UNREADABLE = "unreadable"

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
            seen = _seen(scope, body, self._clock())
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
        parts = answer.aiter_raw() if seen is None else self._recorded(answer, seen)
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _recorded(self, answer: httpx.Response, seen: Seen) -> AsyncIterator[bytes]:
        """The answer's bytes; what it said is recorded at its end, however that comes."""
        if answer.status_code != 200:
            self._recorder.leave_out(f"refused with {answer.status_code}")
            async for part in answer.aiter_raw():
                yield part
            return
        call: RecordedCall | None = None
        with self._beside():
            call = self._recorder.begin(seen.asked, answer.headers.get("x-application-id"))
        told = _Told()
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


@dataclass(frozen=True, slots=True)
class Seen:
    """An inference that was seen to be asked: what goes on to the service, and how its answer is to be read."""

    asked: Asked
    body: bytes
    streams: bool
    hides_usage: bool


class _Told:
    """What an answer says, gathered while it passes."""

    def __init__(self) -> None:
        self._tokens: tuple[int, int] | None = None
        self._texts: dict[int, str] = {}
        self._tool_calls: list[str] = []
        self._complete = False
        self._unreadable = False

    async def listen(self, parts: AsyncIterator[bytes], streams: bool, hides_usage: bool) -> AsyncIterator[bytes]:
        """The parts as they are to be passed on."""
        if not streams:
            whole = bytearray()
            async for part in parts:
                whole += part
                yield part
            self._take(bytes(whole))
            self._complete = True
            return
        rest = b""
        async for part in parts:
            *events, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
            kept = [event for event in events if not (self._note_event(event) and hides_usage)]
            if kept:
                yield b"\n\n".join(kept) + b"\n\n"
        if rest:
            yield rest

    def end(self, call: RecordedCall, now_s: float) -> None:
        if not self._complete:
            call.fail(now_s, "broke off")
        elif self._unreadable:
            call.fail(now_s, UNREADABLE)
        elif self._tokens is None:
            call.fail(now_s, "told no usage")
        else:
            prompt_tokens, output_tokens = self._tokens
            marks = marks_of(self._texts, self._tool_calls)
            call.answer(now_s, Answered(prompt_tokens=prompt_tokens, output_tokens=output_tokens, marks=marks))

    def _note_event(self, event: bytes) -> bool:
        """Take one server-sent event; is it about usage alone?"""
        text = event.removeprefix(b"data:").strip()
        if text == b"[DONE]":
            self._complete = True
            return False
        chunk = self._take(text)
        return bool(chunk.get("usage")) and not chunk.get("choices")

    def _take(self, text: bytes) -> dict[str, Any]:
        """Note what one document says; one that cannot be read makes the whole answer unreadable."""
        try:
            said = _parsed(text)
            self._note(said)
        except Exception:  # the client may know what to make of it
            self._unreadable = True
            return {}
        return said

    def _note(self, said: dict[str, Any]) -> None:
        if isinstance(said.get("usage"), dict):
            self._tokens = _tokens_of(said["usage"])
        for choice in said.get("choices") or ():
            message = choice.get("message") or choice.get("delta") or choice
            text = message.get("content") or message.get("text")
            if isinstance(text, str):
                self._texts[choice.get("index", 0)] = self._texts.get(choice.get("index", 0), "") + text
            ids = (tool_call.get("id") for tool_call in message.get("tool_calls") or ())
            self._tool_calls += [tool_call_id for tool_call_id in ids if tool_call_id and isinstance(tool_call_id, str)]


def _tokens_of(usage: dict[str, Any]) -> tuple[int, int] | None:
    """Tokens of the prompt and of the answer; None where they are not told."""
    prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens") or 0
    return (prompt_tokens, output_tokens) if isinstance(prompt_tokens, int) and isinstance(output_tokens, int) else None


def _seen(scope: Scope, body: bytes, now_s: float) -> Seen | None:
    """The inference in a request; None for what is none, or will be refused for what it says."""
    if scope["method"] != "POST" or scope["path"] not in (CHAT_PATH, COMPLETIONS_PATH):
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        request = parse_inference(scope["path"], headers, body)
    except ApiError:
        return None
    streams = bool(request.body.get("stream"))
    options = request.body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    hides = streams and not options.get("include_usage")
    if hides:
        body = json.dumps({**request.body, "stream_options": {**options, "include_usage": True}}).encode()
    return Seen(_asked(request, now_s), body, streams, hides)


def _asked(request: InferenceRequest, now_s: float) -> Asked:
    hints = request.hints
    asked = Asked(
        asked_s=now_s,
        texts="\n".join(texts_of(request.body.get("messages") or request.body.get("prompt"))),
        prompt=prompt_of_request(request),
        sequences=request.sequences,
        prompts=max(1, request.sequences // request.n),
        application_id=hints.parent_id or hints.application_id,
        application_type=hints.application_type,
        stage=hints.stage,
    )
    return replace(asked, group=hints.key_group)


def _parsed(text: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


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
