"""What calls answered, as the client hands it on, and the trace of what ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from serve_app.client_errors import JustitiaError, object_of, reading

Messages = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CallTrace:
    """One call that ran. Times are seconds since its application began; `after` are names of earlier calls.

    `name` is the stage and a number (`map-2`). Token counts are the call's in all, 0 where no usage was told.
    """

    name: str
    stage: str | None
    started_s: float
    finished_s: float
    after: tuple[str, ...]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call answered: one text a sequence, `text` the first of them; `raw` is the service's own answer.

    `output_tokens` are those of all sequences. `name` is that of its `CallTrace`.
    """

    texts: list[str]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    name: str
    raw: dict[str, Any] = field(repr=False)

    @property
    def text(self) -> str:
        return self.texts[0]


@dataclass(slots=True)
class Trace:
    """What ran under one application id; sub-agents share it with their root."""

    started_s: float = field(default_factory=monotonic)
    calls: list[CallTrace] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)

    def name(self, stage: str | None) -> str:
        """A name that no other call of the application has."""
        self.numbers[stage or "call"] += 1
        return f"{stage or 'call'}-{self.numbers[stage or 'call']}"

    def elapsed_s(self) -> float:
        return monotonic() - self.started_s


def chat_messages(given: Messages) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [dict(message) for message in given]


def answer_of(raw: dict[str, Any], name: str) -> Answer:
    """The service's answer to the call `name`. Raises JustitiaUnreachable for one that is no inference."""
    with reading(raw):
        choices = sorted(raw["choices"], key=lambda choice: choice["index"])
        usage = raw.get("usage") or {}
        return Answer(
            texts=[_text_of(choice) for choice in choices],
            finish_reason=choices[0].get("finish_reason") or "",
            prompt_tokens=usage.get("prompt_tokens") or 0,
            output_tokens=usage.get("completion_tokens") or 0,
            name=name,
            raw=raw,
        )


def _text_of(choice: dict[str, Any]) -> str:
    return choice["message"].get("content") or "" if "message" in choice else choice["text"]


async def chunks_of(lines: Any) -> AsyncGenerator[dict[str, Any]]:
    """The objects of an event stream. Raises JustitiaError for an error among them, or an end without its mark."""
    async with aclosing(lines):
        async for line in lines:
            text = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if text == "[DONE]":
                return
            if not text:
                continue
            with reading(text):
                chunk = object_of(json.loads(text))
            if "error" in chunk:
                error = chunk["error"]
                raise JustitiaError(str(error.get("message", error) if isinstance(error, dict) else error), 503)
            yield chunk
    raise JustitiaError("the answer broke off", 503)
