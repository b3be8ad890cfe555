"""What a replica needs from an engine: one contract, kept by vLLM and by the simulated engine.

The replica hands an engine one HTTP request at a time through `asgi`, with the lease that allows it in
`CURRENT_LEASE`. The engine runs a generation only under a lease: it asks `begin()` for the priority before the
first token, notes progress as it comes, and leaves ending the lease to the replica. Requests that generate
nothing (`/v1/models`, `/health`) need none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.types import EngineLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class LeaseRefused(Exception):
    """A generation was asked for without a valid lease."""


@dataclass(slots=True)
class SequenceUse:
    """One generation under a lease: its prompt and the output tokens of each of its sequences, so far."""

    prompt_tokens: int
    output_tokens: list[int]
    cached_tokens: int = 0


@dataclass(slots=True)
class ActiveLease:
    """Leave to run one call, while it runs.

    A request with several prompts generates several times under one lease, at most `sequences` sequences in all.
    """

    lease_id: str
    application_id: str
    call_id: str
    priority: int
    sequences: int
    revoked: bool = False
    uses: list[SequenceUse] = field(default_factory=list)

    def begin(self, prompt_tokens: int, sequences: int) -> SequenceUse:
        """Open one generation of `sequences` sequences; raises LeaseRefused if the lease does not cover it."""
        if self.revoked:
            raise LeaseRefused(f"lease {self.lease_id} was revoked")
        begun = sum(len(use.output_tokens) for use in self.uses)
        if begun + sequences > self.sequences:
            raise LeaseRefused(
                f"lease {self.lease_id} covers {self.sequences} sequences, {begun} begun, {sequences} more asked for"
            )
        use = SequenceUse(prompt_tokens, [0] * sequences)
        self.uses.append(use)
        return use

    @property
    def output_tokens(self) -> tuple[int, ...]:
        """Output tokens of every sequence begun so far."""
        return tuple(tokens for use in self.uses for tokens in use.output_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of a sequence, the mean (rounded up) where prompts differ; 0 before the first begins."""
        sequences = sum(len(use.output_tokens) for use in self.uses)
        held = sum(use.prompt_tokens * len(use.output_tokens) for use in self.uses)
        return -(-held // sequences) if sequences else 0


CURRENT_LEASE: ContextVar[ActiveLease | None] = ContextVar("justitia_current_lease", default=None)


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Since the engine started: iterations run and preemptions; and KV tokens in use at this moment."""

    iterations: int
    preemptions: int
    kv_used_tokens: int


class Engine(Protocol):
    """One inference engine. `start` comes first and once; `stop` ends it; everything else lies between."""

    async def start(self) -> EngineLimits:
        """Load the model, and return what the engine can hold."""

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request (OpenAI's API). A client that leaves is `http.disconnect` from `receive`."""

    def refresh(self, leases: Mapping[str, ActiveLease]) -> EngineCounters:
        """Bring `output_tokens` of the running leases up to date and return the counters; cheap, no waiting."""

    async def check_health(self) -> None:
        """Raise when the engine can no longer answer."""

    async def stop(self) -> None:
        """Release the engine; idempotent."""
