"""A core with a hand on every event: what the tests of the scheduler share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from scheduler import invariants
from scheduler.actions import (
    Abort,
    Action,
    Grant,
    PublishAudit,
    PublishCallEnd,
    PublishCompletion,
    PublishTag,
    Reject,
)
from scheduler.applications import Application, Call
from scheduler.core import SchedulerCore
from scheduler.events import (
    ApplicationArrived,
    CallFinished,
    CallReady,
    CallStarted,
    CapacityOffered,
    Event,
    ProgressReported,
    ReplicaJoined,
)
from scheduler.settings import CoreSettings
from scheduler.tenants import choose_policy
from scheduler.types import ApplicationSpec, CallSpec, EngineLimits

A = TypeVar("A", Abort, Grant, PublishAudit, PublishCallEnd, PublishCompletion, PublishTag, Reject)


def limits(
    blocks: int = 64, block_tokens: int = 16, max_model_len: int = 1024, max_sequences: int = 256
) -> EngineLimits:
    return EngineLimits(
        usable_blocks=blocks, block_tokens=block_tokens, max_model_len=max_model_len, max_sequences=max_sequences
    )


def call(
    call_id: str = "c", p: int = 10, d: int = 10, *, n: int = 1, after: Iterable[str] = (), most: int = 0
) -> CallSpec:
    """A call of p prompt tokens that is predicted to make d, and may make `most` (16·d unless told)."""
    return CallSpec(
        call_id=call_id,
        prompt_tokens=p,
        predicted_output_tokens=d,
        max_output_tokens=most or 16 * d,
        sequences=n,
        after=tuple(after),
    )


def application(application_id: str, *calls: CallSpec, **fields: Any) -> ApplicationSpec:
    return ApplicationSpec(application_id=application_id, calls=calls, **fields)


class Bench:
    """A core, its time, and every action that it gave; the laws are checked after every event, unless told."""

    def __init__(self, policy: str = "justitia", *, check_each: bool = True, **settings: Any) -> None:
        self.check_each = check_each
        core_settings = CoreSettings(**settings)
        self.core = SchedulerCore(core_settings, choose_policy(policy, core_settings))
        self.now_s = 0.0
        self.actions: list[Action] = []
        self.last: list[Action] = []

    def handle(self, event: Event, *, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        self.last = self.core.handle(self.now_s, event)
        self.actions += self.last
        if self.check_each:
            invariants.check(self.core)
        return self.last

    def all(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    def latest(self, kind: type[A]) -> list[A]:
        return [action for action in self.last if isinstance(action, kind)]

    def join(self, replica_id: str = "r", **engine: int) -> None:
        self.handle(ReplicaJoined(replica_id, limits(**engine)))

    def arrive(self, application_id: str, *calls: CallSpec, **fields: Any) -> list[Action]:
        return self.handle(ApplicationArrived(application(application_id, *calls, **fields)))

    def ready(self, application_id: str, spec: CallSpec) -> list[Action]:
        return self.handle(CallReady(application_id, spec.call_id, spec.prompt_tokens, spec.predicted_output_tokens))

    def arrive_ready(self, application_id: str, *calls: CallSpec, **fields: Any) -> None:
        """Submit an application whose calls all have their prompts."""
        self.arrive(application_id, *calls, **fields)
        for spec in calls:
            self.ready(application_id, spec)

    def offer(self, replica_id: str = "r", grants: int = 1) -> list[Grant]:
        self.handle(CapacityOffered(replica_id, grants))
        return self.latest(Grant)

    def start(self, *grants: Grant) -> None:
        for grant in grants:
            self.handle(CallStarted(grant.lease_id))

    def finish(self, grant: Grant, p: int = 10, d: Sequence[int] = (10,)) -> list[Action]:
        return self.handle(CallFinished(grant.lease_id, p, tuple(d)))

    def serve(self, service: float, replica_id: str = "r", *, iterations: int = 1, after_s: float = 0.0) -> None:
        self.handle(ProgressReported(replica_id, service, iterations, 0), after_s=after_s)

    def run_one(self, application_id: str, spec: CallSpec, replica_id: str = "r") -> Grant:
        """A call from its prompt to its end, when nothing is ahead of it."""
        self.ready(application_id, spec)
        (grant,) = self.offer(replica_id)
        self.start(grant)
        self.finish(grant, spec.prompt_tokens, (spec.predicted_output_tokens,) * spec.sequences)
        return grant

    def app(self, application_id: str) -> Application:
        return self.core.applications[application_id]

    def state_of(self, application_id: str, call_id: str) -> Call:
        return self.app(application_id).calls[call_id]


def clean_state(core: SchedulerCore) -> None:
    """Nothing of what has ended is kept."""
    invariants.check(core)
    assert core.applications == {}
    assert core.leases == {}
    assert core.unfinished_calls == 0
    assert core.ready_calls == 0
    assert core.policy.head() is None
    assert len(core.reference) == 0
    assert core.reference.active_weight == 0.0
    assert len(core.audit) == 0
    for replica in core.replicas.values():
        assert replica.holdings == {}
    assert core._book.reserved_s == {}
    assert core._idle_applications == {}
    assert core._fairness.running == {}
