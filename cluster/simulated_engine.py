"""An engine without a model: OpenAI's API over the batching model of `scheduler.sim.engine`, in real time.

A background task steps the BatchEngine and waits out each iteration's duration times `time_scale`; tokens
come at the end of their iteration. Text is made-up words, one a token, that depend only on the prompt, the
seed and the sequence's index; the length an answer has when nothing bounds it depends only on the prompt.
All that a request will say is therefore known when it starts, and stop strings are applied beforehand.

Laws: a generation runs only under the lease in CURRENT_LEASE, and the lease counts each token when it is
made; a request that ends, fails or loses its client leaves nothing in the batch; an error that a client can
cause is a 4xx in OpenAI's shape; bodies are kept in `last_bodies` as they came, unknown fields included.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.clock import monotonic_s, wall_s
from cluster.engine import (
    CURRENT_LEASE,
    ActiveLease,
    EngineCounters,
    LeaseRefused,
    Message,
    Receive,
    Scope,
    Send,
    SequenceUse,
)
from cluster.engines import SimulatedSettings
from cluster.iteration_log import IterationLog
from scheduler.sim.engine import BatchEngine, IterationOutcome
from scheduler.types import EngineLimits

CHARACTERS_PER_TOKEN = 4
SHORTEST_ANSWER_TOKENS, LONGEST_ANSWER_TOKENS = 8, 64
DEFAULT_COMPLETION_TOKENS = 16
KEPT_BODIES = 256
WORDS = tuple(first + last for first in "bdfklmnprst" for last in ("a", "elo", "imi", "oru", "un", "ando", "este"))

JsonObject = dict[str, Any]


def approximate_tokens(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand: a token each four characters, at least 1."""
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text that stands for a chat: each message's role and content (of a list the text parts) a line."""
    return "\n".join(f"{message.get('role', '')}: {_content_text(message.get('content'))}" for message in messages)


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


class _RequestError(Exception):
    """A request that gets an error answer: HTTP status, message and OpenAI's error type."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param


TokenCount = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(BaseModel):
    """The fields of a request that shape a simulated answer; any other passes."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def output_limit_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> list[str]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


_B = TypeVar("_B", bound=_Body)


class _ChatBody(_Body):
    messages: Annotated[list[JsonObject], Field(min_length=1)]

    def prompts(self) -> list[_Prompt]:
        text = chat_text(self.messages)
        return [_Prompt(text, approximate_tokens(text))]


class _CompletionBody(_Body):
    prompt: str | Annotated[list[int] | list[str] | list[list[int]], Field(min_length=1)]

    @property
    def output_limit_tokens(self) -> int | None:
        return super().output_limit_tokens or DEFAULT_COMPLETION_TOKENS

    def prompts(self) -> list[_Prompt]:
        whole = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [_prompt(part) for part in ([self.prompt] if whole else self.prompt)]


@dataclass(frozen=True, slots=True)
class _Prompt:
    text: str
    tokens: int


def _prompt(part: object) -> _Prompt:
    """A text, or token ids, as a prompt."""
    if isinstance(part, list):
        return _Prompt(" ".join(map(str, part)), max(1, len(part)))
    return _Prompt(str(part), approximate_tokens(str(part)))


@dataclass(slots=True)
class _Choice:
    """One sequence of an answer: what it will say, and where its tokens are counted."""

    index: int
    prompt_tokens: int
    pieces: list[str]
    finish_reason: str
    use: SequenceUse
    slot: int
    made: int = 0

    @property
    def finished(self) -> bool:
        return self.made == len(self.pieces)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How chat and completion answers differ."""

    prefix: str
    answer: str
    chunk: str
    content: Callable[[str], JsonObject]
    delta: Callable[[str, bool], JsonObject]


def _chat_delta(piece: str, first: bool) -> JsonObject:
    return {"delta": {"role": "assistant", "content": piece} if first else {"content": piece}}


CHAT = _Dialect(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    _chat_delta,
)
COMPLETION = _Dialect(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda text: {"text": text},
    lambda piece, _: {"text": piece},
)


class _Generation:
    """The choices of one request on their way through the batch; iterating yields a choice a token made."""

    def __init__(self, choices: list[_Choice], prompt_tokens: int) -> None:
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self._events: asyncio.Queue[_Choice | _RequestError] = asyncio.Queue()

    def note_token(self, choice: _Choice) -> None:
        choice.made += 1
        choice.use.output_tokens[choice.slot] += 1
        self._events.put_nowait(choice)

    def fail(self, error: _RequestError) -> None:
        self._events.put_nowait(error)

    async def tokens(self) -> AsyncGenerator[tuple[_Choice, int]]:
        """Each token as (choice, position), as it comes, until every choice has ended."""
        seen = [0] * len(self.choices)
        for _ in range(sum(len(choice.pieces) for choice in self.choices)):
            event = await self._events.get()
            if isinstance(event, _RequestError):
                raise event
            yield event, seen[event.index]
            seen[event.index] += 1

    @property
    def usage(self) -> JsonObject:
        completion_tokens = sum(choice.made for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }


class SimulatedEngine:
    """Implements `cluster.engine.Engine`. `wall_s` gives the time of day that answers carry as `created`.

    `clock` measures iterations, for the iteration log.
    """

    def __init__(
        self,
        settings: SimulatedSettings,
        wall_s: Callable[[], float] = wall_s,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self.settings = settings
        self.last_bodies: deque[JsonObject] = deque(maxlen=KEPT_BODIES)
        self._wall_s = wall_s
        self._clock = clock
        self._log = IterationLog(settings.iteration_log, clock)
        self._batch = BatchEngine(settings.profile)
        self._sequences: dict[int, tuple[_Generation, _Choice]] = {}
        self._numbers = 0
        self._iterations = 0
        self._preemptions = 0
        self._work = asyncio.Event()
        self._stepper: asyncio.Task[None] | None = None
        self._app = _application(self)

    async def start(self) -> EngineLimits:
        self._stepper = asyncio.create_task(self._step_forever(), name="simulated-engine")
        profile = self.settings.profile
        return EngineLimits(
            usable_blocks=profile.usable_blocks,
            block_tokens=profile.block_tokens,
            max_model_len=profile.max_model_len,
            max_sequences=profile.max_sequences,
        )

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _run_while_connected(self._app, scope, receive, send)

    def refresh(self, leases: Mapping[str, ActiveLease]) -> EngineCounters:
        """The counters; leases need nothing, for they count each token when it is made."""
        used_tokens = self._batch.used_blocks * self._batch.profile.block_tokens
        return EngineCounters(self._iterations, self._preemptions, used_tokens)

    async def check_health(self) -> None:
        if self._stepper is None or self._stepper.done():
            raise RuntimeError("the simulated engine is not running")

    async def stop(self) -> None:
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        self._log.close()
        for generation in {id(generation): generation for generation, _ in self._sequences.values()}.values():
            generation.fail(_stopped())

    async def answer(self, body: _ChatBody | _CompletionBody, dialect: _Dialect) -> Callable[..., Any]:
        """Begin one request under the current lease; returns the response to send."""
        if self._stepper is None or self._stepper.done():
            raise _stopped()
        self._check_model(body.model)
        generation = self._plan(body)
        head: JsonObject = {
            "id": f"{dialect.prefix}-{uuid4().hex}",
            "created": int(self._wall_s()),
            "model": self.settings.served_model_name,
        }
        if body.stream:
            return _EventStream(self._events(generation, dialect, head, body.wants_usage))
        async with aclosing(self._run(generation)) as tokens:
            async for _ in tokens:
                pass
        choices = [_choice_part(choice, dialect.content(choice.text), True) for choice in generation.choices]
        return JSONResponse(head | {"object": dialect.answer, "choices": choices, "usage": generation.usage})

    async def _events(
        self, generation: _Generation, dialect: _Dialect, head: JsonObject, wants_usage: bool
    ) -> AsyncGenerator[JsonObject]:
        head = head | {"object": dialect.chunk}
        async with aclosing(self._run(generation)) as tokens:
            async for choice, position in tokens:
                content = dialect.delta(choice.pieces[position], position == 0)
                last = position + 1 == len(choice.pieces)
                yield head | {"choices": [_choice_part(choice, content, last)]}
        if wants_usage:
            yield head | {"choices": [], "usage": generation.usage}

    async def _run(self, generation: _Generation) -> AsyncGenerator[tuple[_Choice, int]]:
        """Put a generation into the batch and yield its tokens; whatever happens, nothing of it stays."""
        numbers = range(self._numbers, self._numbers + len(generation.choices))
        self._numbers = numbers.stop
        lease = CURRENT_LEASE.get()
        priority = lease.priority if lease else 0
        try:
            for number, choice in zip(numbers, generation.choices, strict=True):
                self._sequences[number] = (generation, choice)
                self._batch.add(number, choice.prompt_tokens, len(choice.pieces), priority)
            self._work.set()
            async with aclosing(generation.tokens()) as tokens:
                async for token in tokens:
                    yield token
        finally:
            for number in numbers:
                self._batch.abort(number)
                self._sequences.pop(number, None)

    def _check_model(self, model: str | None) -> None:
        if model not in (None, "", self.settings.served_model_name):
            raise _RequestError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")

    def _plan(self, body: _ChatBody | _CompletionBody) -> _Generation:
        """Decide all that a request will say, and open its generations under the current lease."""
        prompts = body.prompts()
        limits = [self._output_limit(prompt, body) for prompt in prompts]
        lease = CURRENT_LEASE.get()
        if lease is None:
            raise LeaseRefused("this engine generates only under a lease of the scheduler")
        uses = [lease.begin(prompt.tokens, body.n or 1) for prompt in prompts]
        choices: list[_Choice] = []
        for prompt, limit, use in zip(prompts, limits, uses, strict=True):
            for slot in range(body.n or 1):
                pieces, reason = _speech(prompt.text, slot, limit, body)
                choices.append(_Choice(len(choices), prompt.tokens, pieces, reason, use, slot))
        return _Generation(choices, sum(prompt.tokens for prompt in prompts))

    def _output_limit(self, prompt: _Prompt, body: _Body) -> int:
        """The most tokens an answer may have: what was asked for, cut to the room the prompt leaves (as vLLM).

        A limit beyond the model, or a prompt that leaves no room, is the client's error.
        """
        longest = self.settings.max_model_len
        wanted = body.output_limit_tokens or longest
        if wanted > longest or prompt.tokens >= longest:
            message = (
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{wanted} output tokens and your prompt contains {prompt.tokens} input tokens."
            )
            raise _RequestError(400, message, "BadRequestError")
        return min(wanted, longest - prompt.tokens)

    async def _step_forever(self) -> None:
        while True:
            self._work.clear()
            if self._batch.idle:
                await self._work.wait()
                continue
            begun_s = self._clock()
            outcome = self._batch.step()
            await asyncio.sleep(outcome.duration_s * self.settings.time_scale)
            self._note_iteration(outcome, self._clock() - begun_s)
            self._iterations += 1
            self._preemptions += len(outcome.preempted)
            for number in outcome.produced:
                self._note_token(number)

    def _note_iteration(self, outcome: IterationOutcome, duration_s: float) -> None:
        used_tokens = self._batch.used_blocks * self._batch.profile.block_tokens
        self._log.write(duration_s, outcome.sequences, outcome.prefilled_tokens, used_tokens)
        if self._batch.idle:
            self._log.flush()

    def _note_token(self, number: object) -> None:
        held = self._sequences.get(number)  # type: ignore[call-overload]
        if held is not None:
            generation, choice = held
            generation.note_token(choice)


def _stopped() -> _RequestError:
    return _RequestError(503, "the engine is not running", "ServiceUnavailableError")


def _choice_part(choice: _Choice, content: JsonObject, last: bool) -> JsonObject:
    reason = choice.finish_reason if last else None
    return {"index": choice.index, "logprobs": None, "finish_reason": reason} | content


def _speech(prompt: str, index: int, limit_tokens: int, body: _Body) -> tuple[list[str], str]:
    """The pieces of text of one sequence, one a token, and its finish reason."""
    natural_tokens = _seeded(prompt).randint(SHORTEST_ANSWER_TOKENS, LONGEST_ANSWER_TOKENS)
    wanted_tokens = limit_tokens if body.ignore_eos else max(natural_tokens, body.min_tokens or 0)
    words = _seeded(prompt, body.seed or 0, index)
    pieces = [words.choice(WORDS) + " " for _ in range(min(wanted_tokens, limit_tokens))]
    stopped = _cut_at_stop(pieces, body.stops)
    if stopped is not None:
        return stopped, "stop"
    return pieces, "length" if body.ignore_eos or wanted_tokens > limit_tokens else "stop"


def _seeded(*parts: object) -> Random:
    digest = blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return Random(int.from_bytes(digest, "big"))


def _cut_at_stop(pieces: Sequence[str], stops: Sequence[str]) -> list[str] | None:
    """The pieces up to the one that completes a stop string, with the stop string cut off; None without one.

    A piece that held a part of it shrinks or becomes empty, so there stays one piece a token.
    """
    text = ""
    for position, piece in enumerate(pieces):
        text += piece
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return list(_cut(pieces[: position + 1], min(found)))
    return None


def _cut(pieces: Sequence[str], characters: int) -> Iterator[str]:
    for piece in pieces:
        yield piece[: max(0, characters)]
        characters -= len(piece)


class _EventStream:
    """Server-sent events; the source is closed whatever becomes of the client."""

    def __init__(self, events: AsyncGenerator[JsonObject]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await send(_event(json.dumps(event)))
            except _RequestError as error:
                await send(_event(json.dumps(_error_body(error))))
        await send(_event("[DONE]"))
        await send({"type": "http.response.body", "body": b""})


def _event(text: str) -> Message:
    return {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True}


def _application(engine: SimulatedEngine) -> Starlette:
    """OpenAI's routes over one engine."""

    async def chat(request: Request) -> Any:
        return await engine.answer(await _parse(request, _ChatBody, engine), CHAT)

    async def completion(request: Request) -> Any:
        return await engine.answer(await _parse(request, _CompletionBody, engine), COMPLETION)

    async def models(request: Request) -> Response:
        model = {
            "id": engine.settings.served_model_name,
            "object": "model",
            "created": 0,
            "owned_by": "justitia",
            "max_model_len": engine.settings.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(request: Request) -> Response:
        try:
            await engine.check_health()
        except RuntimeError:
            return Response(status_code=503)
        return Response()

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", health),
    ]
    handlers: dict[Any, Any] = {
        _RequestError: lambda _, error: _error_response(error),
        LeaseRefused: lambda _, error: _error_response(_RequestError(403, str(error), "PermissionDeniedError")),
        HTTPException: lambda _, error: _error_response(_http_error(error)),
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _http_error(error: HTTPException) -> _RequestError:
    return _RequestError(error.status_code, error.detail, "NotFoundError")


async def _parse(request: Request, shape: type[_B], engine: SimulatedEngine) -> _B:
    """The request's body, kept as it came and checked."""
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise _RequestError(400, f"the body is not JSON: {error}", "BadRequestError") from error
    if isinstance(body, dict):
        engine.last_bodies.append(body)
    try:
        return shape.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"]))
        raise _RequestError(400, f"{param}: {first['msg']}", "BadRequestError", param) from error


def _error_body(error: _RequestError) -> JsonObject:
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}
    return {"error": fields}


def _error_response(error: _RequestError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse(_error_body(error), error.status, headers)


async def _run_while_connected(app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an ASGI application for one request and cancel it when the client leaves."""
    messages: asyncio.Queue[Message] = asyncio.Queue()

    async def listen() -> None:
        while True:
            message = await receive()
            messages.put_nowait(message)
            if message["type"] == "http.disconnect":
                running.cancel()
                return

    running = asyncio.ensure_future(app(scope, messages.get, send))
    listening = asyncio.create_task(listen())
    try:
        await asyncio.wait([running])
    finally:
        listening.cancel()
        running.cancel()
        await asyncio.gather(running, listening, return_exceptions=True)
    if not running.cancelled():
        running.result()
