"""An application whose calls come one by one, as its program sees it.

Laws.
1. Entering begins it at the service; leaving closes it; leaving with an exception, a cancellation among them, cancels
   it there. Neither ending raises: what cannot be said now, the service finds out when the application is idle.
2. An application that is made inside another's block, without an id of its own, is a sub-agent: its calls are those
   of the outermost one, which alone is begun and ended, and whose weight and deadline hold.
3. `calls` tells what ran, sub-agents included, in order of ending. What `openai()` sends is not among them.
4. It is entered once, and has calls inside its block only: RuntimeError says so before the service is asked anything,
   or asked again: a call that arrived after the end would begin another application with the same id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from serve_app.client_answers import Answer, CallTrace, Messages, Trace, answer_of, chat_messages, chunks_of
from serve_app.client_errors import JustitiaError, reading
from serve_app.client_transport import Transport, application_path

if TYPE_CHECKING:
    import openai

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
END_S = 10.0
OUTSIDE = "an application has calls inside its block: async with client.application(...) as app"


class Model(Protocol):
    """Which model requests name."""

    async def model_name(self) -> str: ...


_current: ContextVar[AsyncApplication | None] = ContextVar("justitia_application", default=None)


@dataclass(frozen=True, slots=True)
class Statement:
    """What an application says of itself when it begins."""

    application_type: str
    weight: float = 1.0
    deadline_s: float | None = None


class AsyncApplication:
    """One open application; made by `AsyncJustitia.application`, used as an async context manager."""

    def __init__(
        self,
        transport: Transport,
        models: Model,
        statement: Statement,
        application_id: str | None = None,
        root: AsyncApplication | None = None,
    ) -> None:
        if root is None and application_id is None:
            root = _enclosing(transport)
        self._transport = transport
        self._models = models
        self.statement = statement
        self.id: str = root.id if root is not None else application_id or f"app-{uuid.uuid4().hex[:20]}"
        self._named_by_us = application_id is None
        self._trace: Trace = Trace() if root is None else root._trace
        self._is_root = root is None
        self._root: AsyncApplication = self if root is None else root._root
        self._life: Literal["made", "beginning", "open", "ended"] = "made"
        self._outer: AsyncApplication | None = None

    @property
    def calls(self) -> list[CallTrace]:
        """What ran, in order of ending."""
        return list(self._trace.calls)

    def child(self, application_type: str | None = None) -> AsyncApplication:
        """A sub-agent of this application; lengths of its calls are learnt by its own type."""
        statement = Statement(application_type or self.statement.application_type)
        return AsyncApplication(self._transport, self._models, statement, root=self)

    # ---- its life

    async def __aenter__(self) -> Self:
        await self.begin()
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        await self.end(cancelled=error is not None)

    async def begin(self) -> None:
        """Begin it at the service. Raises JustitiaError, 409 when its id is in use."""
        if self._life != "made":
            raise RuntimeError("an application is entered once")
        self._life = "beginning"  # and so it stays where it is refused: its id may be that of somebody else's
        if self._is_root:
            await self._begin_at_service()
        elif self._root._life != "open":
            raise RuntimeError(OUTSIDE)
        self._life = "open"

    async def _begin_at_service(self) -> None:
        document = {
            "open": True,
            "application_id": self.id,
            "application_type": self.statement.application_type,
            "weight": self.statement.weight,
            "deadline_s": self.statement.deadline_s,
        }
        try:
            await self._transport.ask("POST", "/v1/applications", document, repeatable=self._named_by_us)
        except asyncio.CancelledError:
            if self._named_by_us:  # another id may be that of somebody else's
                await self.end(cancelled=True)
            raise
        except JustitiaError as error:
            if not (self._named_by_us and error.code == "duplicate_id"):  # its answer was lost on the way
                raise
        self._trace.started_s = monotonic()

    async def end(self, *, cancelled: bool) -> None:
        """Close it at the service, or cancel it. Raises nothing but CancelledError."""
        self._life = "ended"
        if not self._is_root:
            return
        method, path = (
            ("DELETE", application_path(self.id)) if cancelled else ("POST", application_path(self.id, "close"))
        )
        with suppress(JustitiaError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._transport.ask(method, path)

    def enter(self) -> None:
        """Be the application that others are begun inside of."""
        self._outer = _current.get()
        _current.set(self)

    def leave(self) -> None:
        """Hand that back to the one outside."""
        _current.set(self._outer)

    # ---- calls

    async def chat(
        self,
        messages: Messages,
        *,
        stage: str | None = None,
        max_tokens: int = 256,
        n: int = 1,
        after: Sequence[Answer] = (),
        **sampling: Any,
    ) -> Answer:
        """One chat; a text stands for a user's message. `stage` names the kind of call, so that lengths are learnt.

        `after`: the answers that it was made from, for the trace. Raises JustitiaError.
        """
        body = {"messages": chat_messages(messages), "max_tokens": max_tokens, "n": n, **sampling}
        return await self._call(CHAT_PATH, body, stage, after)

    async def complete(
        self,
        prompt: str,
        *,
        stage: str | None = None,
        max_tokens: int = 256,
        n: int = 1,
        after: Sequence[Answer] = (),
        **sampling: Any,
    ) -> Answer:
        """One completion of a text; otherwise as `chat`."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "n": n, **sampling}
        return await self._call(COMPLETIONS_PATH, body, stage, after)

    async def stream(
        self,
        messages: Messages,
        *,
        stage: str | None = None,
        max_tokens: int = 256,
        after: Sequence[Answer] = (),
        **sampling: Any,
    ) -> AsyncGenerator[str]:
        """The text of one chat, piece by piece. Raises JustitiaError, in the middle too, ValueError for n above 1."""
        if sampling.get("n", 1) != 1:
            raise ValueError("a stream of text has one sequence: n must be 1")
        options = {"stream": True, "stream_options": {"include_usage": True}}
        body = await self._body(
            {"messages": chat_messages(messages), "max_tokens": max_tokens, **options, **sampling}, stage
        )
        with self._traced(stage, after) as (_, usage):
            async with self._transport.stream(CHAT_PATH, body, self._require_open) as lines:
                async for chunk in chunks_of(lines):
                    with reading(chunk):
                        usage.update(chunk.get("usage") or {})
                        pieces = [choice["delta"].get("content") for choice in chunk["choices"]]
                    for piece in filter(None, pieces):
                        yield piece

    @property
    def _is_open(self) -> bool:
        return self._life == self._root._life == "open"

    def _require_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(OUTSIDE)

    def openai(self) -> openai.AsyncOpenAI:
        """OpenAI's client, with this application's name on every request. Raises ImportError without that package."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(**self.openai_settings())

    def openai_settings(self) -> dict[str, Any]:
        """What any client of OpenAI's SDK needs to speak for this application."""
        self._require_open()
        return {
            "base_url": f"{self._transport.base_url}/v1",
            "api_key": self._transport.api_key or "unused",
            "timeout": self._transport.timeout_s,
            "max_retries": self._transport.max_retries,
            "default_headers": {
                "X-Application-Id": self.id,
                "X-Application-Type": self.statement.application_type,
            },
        }

    async def _call(self, path: str, fields: dict[str, Any], stage: str | None, after: Sequence[Answer]) -> Answer:
        body = await self._body(fields, stage)
        with self._traced(stage, after) as (name, usage):
            raw = await self._transport.ask("POST", path, body, check=self._require_open)
            answer = answer_of(raw, name)
            usage.update(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.output_tokens)
        return answer

    async def _body(self, fields: dict[str, Any], stage: str | None) -> dict[str, Any]:
        self._require_open()
        names = {"application_id": self.id, "application_type": self.statement.application_type}
        model = fields.get("model") or await self._models.model_name()
        return {**fields, **names, "model": model, **({} if stage is None else {"stage": stage})}

    @contextmanager
    def _traced(self, stage: str | None, after: Sequence[Answer]) -> Iterator[tuple[str, dict[str, int]]]:
        """Note a call that comes to its end; the block fills in its usage."""
        name, started_s = self._trace.name(stage), self._trace.elapsed_s()
        usage: dict[str, int] = {}
        yield name, usage
        counts = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        names = tuple(answer.name for answer in after)
        self._trace.calls.append(CallTrace(name, stage, started_s, self._trace.elapsed_s(), names, *counts))


def _enclosing(transport: Transport) -> AsyncApplication | None:
    """The application of the same client whose block this runs in."""
    current = _current.get()
    return current if current is not None and current._transport is transport and current._is_open else None
