"""What ingresses, replicas and the scheduler say to each other.

Frozen values; none carries a prompt or an answer past the scheduler. Every message names the epoch that its
sender believes in: a scheduler that was started anew answers with its own epoch and does nothing else, and the
sender introduces itself again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scheduler.actions import Action, Grant
from scheduler.events import CallFailed, CallFinished, CallLost, CallStarted, CallStopped, Event
from scheduler.types import ApplicationRecord, EngineLimits

LeaseFact = CallStarted | CallFinished | CallStopped | CallFailed | CallLost


@dataclass(frozen=True, slots=True)
class Submission:
    """Events from one ingress, in order. `sequence` counts its submissions from 1; a repeat is applied once.

    `live_replicas` are the replicas that this ingress can call at present.
    """

    ingress_id: str
    epoch: int
    sequence: int
    events: tuple[Event, ...]
    live_replicas: frozenset[str]


@dataclass(frozen=True, slots=True)
class SubmissionReply:
    """`accepted` is False when the submission was meant for another epoch."""

    epoch: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class Collection:
    """An ingress asks for what concerns it; everything up to number `after` has arrived."""

    ingress_id: str
    epoch: int
    after: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class CollectionReply:
    """Actions in order; `last` is the number of the last of them."""

    epoch: int
    actions: tuple[Action, ...]
    last: int


@dataclass(frozen=True, slots=True)
class Pull:
    """A replica with room waits for at most `max_grants` grants, `wait_s` seconds at most."""

    replica_id: str
    epoch: int
    limits: EngineLimits
    max_grants: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class PullReply:
    """Grants to keep for the requests that will come, and leases to end."""

    epoch: int
    grants: tuple[Grant, ...] = ()
    aborted_leases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica did. Counters run since the replica started, so that a repeat counts nothing twice.

    `facts` are repeated until a reply shows that they arrived. `leaving`: the replica is about to stop.
    """

    replica_id: str
    epoch: int
    served_token_iterations: float
    iterations: int
    preemptions: int
    kv_used_tokens: int
    generated: tuple[tuple[str, tuple[int, ...]], ...]
    facts: tuple[LeaseFact, ...]
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class ReportReply:
    epoch: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class CallRequest:
    """The request itself, from an ingress to the granted replica, past the scheduler."""

    lease_id: str
    application_id: str
    call_id: str
    sequences: int
    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class TenantApplications:
    """A tenant's, oldest first: those in the system (`scheduler.explain.brief`), and the last that ended."""

    inside: tuple[dict[str, Any], ...]
    ended: tuple[ApplicationRecord, ...]
