"""Open applications that were begun with a statement of their own: type, weight, deadline.

The scheduler hears of one before its first call, and knows its status from then on, whichever ingress is asked. The
ingress that began it has its events. Laws: an id is taken as long as its application is kept here; once it has ended,
a call of its name begins another one, which the statement is not about; `max_kept` later ones may have settled before
it is forgotten. Of its events the last `MAX_EVENTS` are kept.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

from cluster.clock import wall_s
from cluster.scheduler_link import SchedulerLink
from cluster.telemetry import log_event
from scheduler.actions import (
    Action,
    Grant,
    PublishAudit,
    PublishCallEnd,
    PublishCompletion,
    PublishTag,
    Refusal,
    Reject,
)
from scheduler.events import ApplicationArrived, ApplicationCancelled
from scheduler.types import ApplicationRecord, ApplicationSpec
from serve_app.application_events import EventStream
from serve_app.application_status import record_fields
from serve_app.documents import ApplicationStatus
from serve_app.errors import ApiError, from_refusal
from serve_app.tenants import bare_id, in_tenants_words

logger = logging.getLogger("ray.serve")

MAX_EVENTS = 10_000


class OpenApplication:
    """One of them: whether the scheduler has taken it, what has happened to it, and how it ended."""

    def __init__(self, spec: ApplicationSpec) -> None:
        self.application_id = spec.application_id
        self.spec = spec
        self.created_s = wall_s()
        self._tag: PublishTag | None = None
        self._started = False
        self._calls_done = 0
        self.events = EventStream(MAX_EVENTS)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._record: ApplicationRecord | None = None

    def take(self, action: Action) -> None:
        """Learn from one action of the scheduler. After its end only the audit is about it, and not a namesake."""
        match action:
            case PublishAudit(record=record) if self._record is not None:
                if record.arrival_s == self._record.arrival_s:
                    self.events.add("application_audited", lag_s=record.lag_s, bound_violated=record.bound_violated)
                    self.events.close()
            case _ if self._record is None:
                self._take_while_it_runs(action)

    def summary(self) -> ApplicationStatus:
        """What a client may know, as far as this ingress was told."""
        known = {} if self._record is None else {**record_fields(self._record), "calls_total": self._record.calls}
        running = "running" if self._started else "queued"
        return ApplicationStatus.model_validate(
            {
                **known,
                "application_id": bare_id(self.application_id),
                "application_type": self.spec.application_type,
                "tenant": self.spec.tenant,
                "weight": self.spec.weight,
                "state": running if self._record is None else self._record.outcome,
                "finish_tag": None if self._tag is None else self._tag.finish_tag,
                "predicted_cost": None if self._tag is None else self._tag.predicted_cost,
                "created_s": self.created_s,
                "calls_done": self._calls_done,
            }
        )

    def lose_audit(self) -> None:
        """The scheduler that ended this application is gone, and the reference that it kept went with it."""
        if self._record is not None:
            self.events.close()

    def _take_while_it_runs(self, action: Action) -> None:
        match action:
            case PublishTag():
                self._tag = action
                self.events.add("tag_set", tag=action.finish_tag, reason=action.reason)
                if not self.accepted.done():
                    self.accepted.set_result(None)
            case Reject(call_id=None):
                self._refuse(action)
            case Grant():
                self._started = True
                self.events.add("call_granted", call=action.call_id, replica=action.replica_id)
            case PublishCallEnd():
                self._started = True
                self._calls_done += action.outcome == "finished"
                tokens = sum(action.output_tokens)
                self.events.add("call_ended", call=action.call_id, outcome=action.outcome, output_tokens=tokens)
            case PublishCompletion(record=record):
                self._record = record
                self.events.add("application_ended", state=record.outcome, completion_s=record.completion_s)
            case _:
                pass

    def _refuse(self, action: Reject) -> None:
        """At its beginning; or later, by a scheduler that another ingress had told of it before."""
        if not self.accepted.done():
            field = "application_id" if action.refusal is Refusal.DUPLICATE_ID else None
            reason = in_tenants_words(action.message, self.application_id)
            self.accepted.set_exception(from_refusal(action.refusal, reason, field))
            self.accepted.exception()  # its client may have left
        self.events.close()


class OpenApplications:
    """Those that were begun at this ingress."""

    def __init__(self, link: SchedulerLink, max_kept: int) -> None:
        self._link = link
        self._max_kept = max_kept
        self._held: OrderedDict[str, OpenApplication] = OrderedDict()
        link.listen_to_succession(self._lose_audits)

    def holds(self, application_id: str) -> bool:
        """Was this application begun here, and is it kept?"""
        return application_id in self._held

    def type_of(self, application_id: str) -> str | None:
        """What type the application was said to be, where it is held."""
        one = self._held.get(application_id)
        return None if one is None else one.spec.application_type

    def summaries(self, tenant: str) -> list[ApplicationStatus]:
        """A tenant's applications that are kept here, oldest first."""
        known = [one for one in self._held.values() if one.spec.tenant == tenant and one.accepted.done()]
        return [one.summary() for one in sorted(known, key=lambda one: one.created_s)]

    def events(self, application_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events of an application that is held, from number `after` + 1 on, until it has settled."""
        return self._held[application_id].events.follow(after)

    async def begin(self, spec: ApplicationSpec) -> None:
        """Have the scheduler take an open application. Raises ApiError when it is refused."""
        application_id = spec.application_id
        if application_id in self._held:
            message = f"application {bare_id(application_id)!r} exists already"
            raise from_refusal(Refusal.DUPLICATE_ID, message, "application_id")
        one = self._held[application_id] = OpenApplication(spec)
        self._link.listen(application_id, lambda action: self._take(one, action))
        self._link.tell(ApplicationArrived(spec))
        try:
            await asyncio.shield(one.accepted)
        except asyncio.CancelledError:
            one.accepted.add_done_callback(lambda accepted: self._give_up(one, accepted))
            raise
        except ApiError:
            self._held.pop(application_id, None)
            raise
        log_event(logger, "application_begun", application_id=application_id, tenant=spec.tenant)

    def _give_up(self, one: OpenApplication, accepted: asyncio.Future[None]) -> None:
        """Its client left before the scheduler had answered: one that it refuses may have a namesake that runs."""
        if accepted.exception() is None:
            self._link.tell(ApplicationCancelled(one.application_id, "its client left"))
        elif self._held.get(one.application_id) is one:
            del self._held[one.application_id]

    def _take(self, one: OpenApplication, action: Action) -> None:
        one.take(action)
        self._let_go_if_settled(one)

    def _lose_audits(self) -> None:
        for one in [one for one in self._held.values() if not one.events.closed]:
            one.lose_audit()
            self._let_go_if_settled(one)

    def _let_go_if_settled(self, one: OpenApplication) -> None:
        if not one.events.closed:
            return
        self._link.unlisten(one.application_id)
        self._held.move_to_end(one.application_id)  # one that ran for long has settled last
        settled = [application_id for application_id, other in self._held.items() if other.events.closed]
        for application_id in settled[: max(0, len(settled) - self._max_kept)]:
            del self._held[application_id]


def new_id() -> str:
    """An id that nobody else has."""
    return f"app-{uuid.uuid4().hex[:20]}"
