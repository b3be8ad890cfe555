"""One OpenAI request on its way: counted, predicted, announced to the scheduler, answered by the granted replica.

The request's bytes go to the replica as they came; the scheduler learns numbers and names only. Traffic that
names no application belongs to one open application of its API key, which ends when it is idle.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cluster.call_path import AnswerBroken, Replicas, run_call
from cluster.messages import CallRequest
from cluster.scheduler_link import CallRefused, SchedulerLink
from scheduler.actions import Refusal
from scheduler.events import CallReady, CallRevealed
from scheduler.types import ApplicationSpec, CallKey, CallSpec
from serve_app.application_prompts import prompt_of_request
from serve_app.errors import from_refusal, invalid
from serve_app.inference_request import InferenceRequest
from serve_app.predictions import Predictions
from serve_app.prefixes import prefix_hashes
from serve_app.settings import IngressSettings
from serve_app.tenants import DEFAULT_TENANT, in_tenants_words, scoped_id
from serve_app.token_counting import TokenCounter

ANONYMOUS_APPLICATION = "~anonymous"
"""The application of requests that name none, with a suffix for those that have a key.

No client can give it to a call: it lies outside `documents.ID_PATTERN`. Answers say it, and it can be asked about.
"""
ANONYMOUS_PATTERN = rf"{ANONYMOUS_APPLICATION}(\.[0-9a-f]{{12}})?"
LONG_PROMPT_CHARACTERS = 1_000
"""From here on a model judges a prompt in a thread: it takes a millisecond for the longest."""
_CONNECTION_HEADERS = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding"})
_DROPPED_HEADERS = _CONNECTION_HEADERS | {b"priority", b"authorization"}

Expected = TypeVar("Expected")
Opening = Callable[[], Awaitable[CallRevealed]]


@dataclass(frozen=True, slots=True)
class CountedCall:
    """A request with the numbers that the scheduler needs: tokens of a sequence, sequences, how it begins."""

    request: InferenceRequest
    prompt_tokens: int
    max_output_tokens: int
    prefix: tuple[int, ...] = ()

    @property
    def prompt_field(self) -> str:
        return "messages" if self.request.is_chat else "prompt"


class Inference:
    """Runs calls for one ingress.

    At most `max_calls_in_flight` at a time: of a DAG all are counted when it comes (`check_room`), and none is refused
    later; a request that came by itself is refused while so many are on their way, those of DAGs included.
    `max_model_len` is the longest sequence of the model in tokens, None where only the engine knows it.
    """

    def __init__(
        self,
        link: SchedulerLink,
        replicas: Replicas,
        counter: TokenCounter,
        predictions: Predictions,
        settings: IngressSettings,
        max_model_len: int | None = None,
    ) -> None:
        self.link = link
        self.predictions = predictions
        self._replicas = replicas
        self._counter = counter
        self._settings = settings
        self._max_model_len = max_model_len
        self.default_max_tokens = min(settings.default_max_tokens, max_model_len or settings.default_max_tokens)
        self._in_flight = 0
        self._judging = asyncio.Semaphore(1)

    def check_room(self, unfinished_calls: int, new_calls: int) -> None:
        """Raises ApiError: 429 when these calls are too many beside the unfinished ones, 400 when they always are."""
        most = self._settings.max_calls_in_flight
        if new_calls > most:
            raise invalid("calls", f"calls: {new_calls} are more than this service takes at a time, {most}")
        if unfinished_calls + new_calls > most:
            reason = f"this ingress has {unfinished_calls} unfinished calls of applications; at most {most} are allowed"
            raise from_refusal(Refusal.BUSY, reason)

    def check_length(self, field: str, max_tokens: int | None) -> None:
        """Raises ApiError (400, naming `field`) for more output tokens than a sequence of the model can have."""
        if self._max_model_len is not None and (max_tokens or 0) > self._max_model_len:
            limit = self._max_model_len
            raise invalid(field, f"{field}: {max_tokens} is more than the {limit} tokens that the model can have")

    async def count(self, request: InferenceRequest) -> CountedCall:
        """Count the prompt, off the event loop. Several prompts count as their mean, rounded up.

        Raises ApiError (400) for what the model can never answer.
        """
        self.check_length(_length_field(request), request.max_tokens)
        counts = await self._counter.count(request)
        prompt_tokens = -(-sum(counts) // len(counts))
        prefix = prefix_hashes(request, self._settings.prefix_blocks)
        return CountedCall(request, prompt_tokens, request.max_tokens or self.default_max_tokens, prefix)

    def answer_open(
        self, counted: CountedCall, headers: tuple[tuple[bytes, bytes], ...], tenant: str = DEFAULT_TENANT
    ) -> tuple[CallKey, AsyncGenerator[dict[str, Any]]]:
        """Reveal the request as a call of its (open) application; its key and its answer's ASGI messages."""
        hints = counted.request.hints
        application_id = scoped_id(tenant, hints.application_id or _anonymous(hints.key_group))
        key = CallKey(application_id, f"call-{uuid.uuid4().hex[:16]}")
        kind = hints.application_type or "unknown"
        stage = hints.stage or ("chat" if counted.request.is_chat else "completion")
        predicted = self.predict(key, kind, counted, stage, tenant)
        call = CallSpec(
            call_id=key.call_id,
            prompt_tokens=counted.prompt_tokens,
            predicted_output_tokens=predicted,
            max_output_tokens=counted.max_output_tokens,
            sequences=counted.request.sequences,
        )
        opening = partial(
            self._opening,
            counted.request,
            ApplicationSpec(application_id=key.application_id, application_type=kind, tenant=tenant, open=True),
            call,
        )
        return key, self._tracked(key, counted, predicted, headers, opening)

    async def opening(
        self, application_id: str, application_type: str, tenant: str, **stated: float | None
    ) -> ApplicationSpec:
        """An application whose calls come one by one, before the first: it will cost what its type leads to expect.

        `stated`: its weight, deadline and period.
        """
        expected = await self.expected(self.predictions.of_open, application_type, "")
        spec = ApplicationSpec(
            application_id=application_id, application_type=application_type, tenant=tenant, open=True
        )
        if expected is not None:
            spec = replace(spec, predicted_cost=expected.cost, cost_deviation=expected.deviation)
        return replace(spec, **stated)  # type: ignore[arg-type]

    def answer_member(
        self, key: CallKey, counted: CountedCall, predicted_output_tokens: int
    ) -> AsyncGenerator[dict[str, Any]]:
        """Run a call of an application that the scheduler already knows; its answer's ASGI messages."""
        headers = ((b"content-type", b"application/json"),)
        return self._tracked(key, counted, predicted_output_tokens, headers, None)

    def predict(
        self, key: CallKey, application_type: str, counted: CountedCall, stage: str, tenant: str = DEFAULT_TENANT
    ) -> int:
        """Output tokens that a sequence of this call is expected to make."""
        most, prompt_tokens = counted.max_output_tokens, counted.prompt_tokens
        return self.predictions.output_tokens(key, application_type, stage, most, prompt_tokens, tenant)

    async def expected(self, ask: Callable[[str, str], Expected], application_type: str, prompt: str) -> Expected:
        """What `ask`, a method of the predictions, says of an application; of a long prompt, off the event loop."""
        if self.predictions.model is None or len(prompt) < LONG_PROMPT_CHARACTERS:
            return ask(application_type, prompt)
        async with self._judging:
            return await asyncio.to_thread(ask, application_type, prompt)

    async def _opening(self, request: InferenceRequest, opens: ApplicationSpec, call: CallSpec) -> CallRevealed:
        """The call as the scheduler hears of it, with what its application is expected to cost, where it is the first.

        Requests that name no application have nothing in common, so that the first says nothing of the others.
        """
        underway = self.predictions.underway
        known = underway.get(opens.application_id)
        if known is None:
            prompt = prompt_of_request(request) if request.hints.application_id is not None else ""
            expected = await self.expected(self.predictions.of_open, opens.application_type, prompt)
            underway.begin(opens.application_id, prompt, expected)
        else:
            expected = known.expected
        if expected is not None:
            opens = replace(opens, predicted_cost=expected.cost, cost_deviation=expected.deviation)
        return CallRevealed(opens.application_id, call, opens)

    async def _tracked(
        self,
        key: CallKey,
        counted: CountedCall,
        predicted: int,
        headers: tuple[tuple[bytes, bytes], ...],
        opening: Opening | None,
    ) -> AsyncGenerator[dict[str, Any]]:
        if opening is not None and self._in_flight >= self._settings.max_calls_in_flight:
            self.predictions.forget_call(key)
            raise from_refusal(Refusal.BUSY, f"this ingress has {self._in_flight} calls in flight, the most allowed")
        self._in_flight += 1
        ready = CallReady(*key, counted.prompt_tokens, predicted, counted.prefix)
        try:
            reveal = None if opening is None else await opening()
            answer = run_call(self.link, self._replicas, ready, _request(key, counted, headers), reveal)
            async with aclosing(answer):
                async for message in answer:
                    yield message
        except CallRefused as refused:
            param = counted.prompt_field if refused.refusal is Refusal.CANNOT_FIT else None
            reason = in_tenants_words(str(refused), key.application_id)
            raise from_refusal(refused.refusal, reason, param) from refused
        except AnswerBroken as broken:
            raise from_refusal(Refusal.LOST, str(broken)) from broken
        finally:
            self._in_flight -= 1


def _anonymous(key_group: str) -> str:
    return f"{ANONYMOUS_APPLICATION}.{key_group}" if key_group else ANONYMOUS_APPLICATION


def _length_field(request: InferenceRequest) -> str:
    return "max_completion_tokens" if request.body.get("max_completion_tokens") is not None else "max_tokens"


def forwarded_headers(headers: Mapping[bytes, bytes] | list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """The client's headers without those of its connection, without a wish for priority, and without its key."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, value) for name, value in pairs if name.lower() not in _DROPPED_HEADERS)


def _request(key: CallKey, counted: CountedCall, headers: tuple[tuple[bytes, bytes], ...]) -> CallRequest:
    body = counted.request.raw
    return CallRequest(
        lease_id="",
        application_id=key.application_id,
        call_id=key.call_id,
        sequences=counted.request.sequences,
        method="POST",
        path=counted.request.path,
        query=b"",
        headers=(*headers, (b"content-length", str(len(body)).encode())),
        body=body,
    )
