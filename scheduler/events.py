"""Facts that come into the core, in the past tense.

A driver (the Ray actor, the simulator, a test) states them through `SchedulerCore.handle(now_s, event)`. They
hold plain values only, so that an event log can be written and replayed (`scheduler.event_log`).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.settings import CoreSettings
from scheduler.types import ApplicationSpec, CallSpec, EngineLimits


@dataclass(frozen=True, slots=True)
class Resumption:
    """What an earlier scheduler had decided about an application that a later one takes back.

    `age_s`: seconds since it arrived; `ended_cost`: token-iterations of its calls that ended before.
    """

    start_tag: float
    age_s: float
    ended_cost: float


@dataclass(frozen=True, slots=True)
class ApplicationArrived:
    """An application was submitted. Rejected with a reason when its id is taken or a call can never fit."""

    application: ApplicationSpec
    resumes: Resumption | None = None


@dataclass(frozen=True, slots=True)
class CallRevealed:
    """An open application showed one more call; `opens` starts the application if it is not known."""

    application_id: str
    call: CallSpec
    opens: ApplicationSpec | None = None


@dataclass(frozen=True, slots=True)
class CallReady:
    """A call's prompt is complete. It waits for a grant as soon as the calls that it comes after have finished.

    `prefix` has a hash for each leading block of the prompt, each covering all blocks before it; equal hashes mean
    equal beginnings. Empty when nobody asks for them.
    """

    application_id: str
    call_id: str
    prompt_tokens: int
    predicted_output_tokens: int
    prefix: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplicationClosed:
    """An open application will reveal no more calls."""

    application_id: str


@dataclass(frozen=True, slots=True)
class ApplicationCancelled:
    """Nobody waits for this application any more."""

    application_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """Nobody waits for this call any more; its application goes on."""

    application_id: str
    call_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CallAdopted:
    """A call was found running under a lease of an earlier epoch, after the scheduler was started anew."""

    application_id: str
    call_id: str
    replica_id: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class ReplicaJoined:
    replica_id: str
    limits: EngineLimits


@dataclass(frozen=True, slots=True)
class ReplicaLeft:
    """A replica is gone; the calls that it held are tried again elsewhere, a bounded number of times."""

    replica_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """What a replica did since its last report.

    `served_token_iterations`: KV tokens held by running sequences, summed over the engine iterations.
    `kv_used_tokens`: KV tokens in use at the moment of the report, whoever uses them.
    `generated`: (lease id, output tokens so far of each of its sequences) for every running lease.
    """

    replica_id: str
    served_token_iterations: float
    iterations: int
    kv_used_tokens: int
    generated: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class CapacityOffered:
    """A replica waits for at most `max_grants` grants. The offer stands until it is used or withdrawn."""

    replica_id: str
    max_grants: int


@dataclass(frozen=True, slots=True)
class OfferWithdrawn:
    replica_id: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The request that holds this lease reached its replica."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The engine has let go of a lease; true numbers. `output_tokens` has one entry a sequence."""

    lease_id: str
    prompt_tokens: int
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallStopped:
    """The engine has let go of a lease before its end, since nobody waited for the answer; true numbers so far."""

    lease_id: str
    prompt_tokens: int
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The engine refused the call of this lease; trying again would not help, and its application fails."""

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CallLost:
    """A lease ended without an answer through no fault of the call."""

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CallPreempted:
    """The engine took a lease's memory back for others; the call waits again at its place and keeps what it has made.

    Only engines whose queue is the scheduler's own say so (the simulator); one that queues by itself, as vLLM does,
    keeps the lease and says nothing.
    """

    lease_id: str
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The operator chose other settings or another policy; waiting calls are put in the new order."""

    settings: CoreSettings
    policy: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened, but time limits may have run out."""


Event = (
    ApplicationArrived
    | CallRevealed
    | CallReady
    | ApplicationClosed
    | ApplicationCancelled
    | CallCancelled
    | CallAdopted
    | ReplicaJoined
    | ReplicaLeft
    | ProgressReported
    | CapacityOffered
    | OfferWithdrawn
    | CallStarted
    | CallFinished
    | CallStopped
    | CallFailed
    | CallLost
    | CallPreempted
    | SettingsChanged
    | TimePassed
)
