"""What can be read from requests and answers while they pass.

An answer is noted by its usage and by how it begins; of what it says no more is kept than it is looked for by
(`serve_app.recorder_calls`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Scope

from serve_app.application_prompts import prompt_of_request
from serve_app.documents import CHAT_PATH, COMPLETIONS_PATH
from serve_app.errors import ApiError
from serve_app.inference_request import InferenceRequest, parse_inference
from serve_app.recorder import RecordedCall
from serve_app.recorder_calls import MAX_MARK_CHARS, Answered, Asked, marks_of

UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Seen:
    """An inference that was seen to be asked: what goes on to the service, and how its answer is to be read."""

    asked: Asked
    body: bytes
    streams: bool
    hides_usage: bool


class Told:
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
                self._add(choice.get("index", 0), text)
            ids = (tool_call.get("id") for tool_call in message.get("tool_calls") or ())
            self._tool_calls += [tool_call_id for tool_call_id in ids if tool_call_id and isinstance(tool_call_id, str)]

    def _add(self, sequence: int, text: str) -> None:
        """More of what a sequence says; what comes after its beginning is not kept."""
        begun = self._texts.get(sequence, "")
        if len(begun) < MAX_MARK_CHARS:
            self._texts[sequence] = (begun + text).lstrip()[:MAX_MARK_CHARS]


def _tokens_of(usage: dict[str, Any]) -> tuple[int, int] | None:
    """Tokens of the prompt and of the answer; None where they are not told."""
    prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens") or 0
    return (prompt_tokens, output_tokens) if isinstance(prompt_tokens, int) and isinstance(output_tokens, int) else None


def seen_in(scope: Scope, body: bytes, now_s: float) -> Seen | None:
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


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value, ids of tool calls included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)
