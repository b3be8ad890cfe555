"""The scheduler in real time: the core, with mailboxes for ingresses and parked pulls for replicas.

It knows no Ray: the Serve deployment in `scheduler_actor` and the tests call its methods. Everything runs on one
event loop, and nothing awaits between a fact and the delivery of the core's orders, so each message is applied
whole.

Laws: an offer reaches the core only from a replica that every ingress can call (a draining replica pulls for
seconds after routers dropped it; an ingress that knows no replica yet, or is silent, has no say); grants go to
the parked pull that they answer and to the ingress that holds the call; a message of another epoch changes
nothing; repeats of submissions, reports and facts change nothing; mail is kept only for what an ingress introduced
while it was there, so that of an absent one is bounded; after an exception out of the core this scheduler takes
nothing more, and a fresh one rebuilds its state.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.ingress_register import Ingress, IngressRegister
from cluster.journal import Journal
from cluster.live_log import LiveLog
from cluster.messages import (
    Collection,
    CollectionReply,
    LeaseFact,
    Pull,
    PullReply,
    Report,
    ReportReply,
    Submission,
    SubmissionReply,
    TenantApplications,
)
from cluster.settings import SchedulerSettings
from cluster.telemetry import SchedulerTelemetry, log_event
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
from scheduler.event_log import LogHeader
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    CallAdopted,
    CallCancelled,
    CallRevealed,
    CapacityOffered,
    Event,
    OfferWithdrawn,
    ProgressReported,
    ReplicaJoined,
    ReplicaLeft,
    SettingsChanged,
    TimePassed,
)
from scheduler.explain import brief, explain, overview
from scheduler.lifecycle import CallState
from scheduler.types import ApplicationRecord, CallKey

logger = logging.getLogger("ray.serve")

MAX_RECORDS = 10_000
MOST_LISTED = 1_000
MAX_EARLY_FACTS = 10_000
ADOPTION_WAIT_S = 5.0
VIEW_AGE_S = 3.0
MAX_WAIT_S = 1.0

_INTRODUCTIONS = (ApplicationArrived, CallRevealed)


class SchedulerBroken(RuntimeError):
    """The core raised, and may have applied half an event: this scheduler takes nothing more."""


@dataclass(slots=True)
class _ReplicaLink:
    """What the service knows of one replica besides the core's ledger."""

    last_seen_s: float
    served_token_iterations: float | None = None
    iterations: int = 0
    preemptions: int = 0
    pull: asyncio.Future[PullReply] | None = None
    offered: bool = False
    aborts: list[str] = field(default_factory=list)


class SchedulerService:
    """One scheduler. `clock` gives monotonic seconds."""

    def __init__(self, settings: SchedulerSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._clock = clock
        self._journal = Journal(settings.state_dir)
        self._accepted = False
        self._broken = ""
        self._saved = True
        self._settings_refused: str | None = None
        self._begin()
        self._telemetry = SchedulerTelemetry()
        self._register = IngressRegister(clock)
        self._links: dict[str, _ReplicaLink] = {}
        self._records: OrderedDict[str, ApplicationRecord] = OrderedDict()
        self._early_facts: OrderedDict[str, LeaseFact] = OrderedDict()

    @property
    def epoch(self) -> int:
        return self.core.epoch

    def check_health(self) -> None:
        """Raise SchedulerBroken after the core has raised."""
        if self._broken:
            raise SchedulerBroken(self._broken)

    def _begin(self) -> None:
        """An empty core under the journal's epoch, and its log."""
        header = LogHeader(self.settings.core(), self.settings.policy, self._journal.epoch, self._journal.virtual_time)
        self.core = header.create_core()
        directory = self.settings.state_dir or Path()
        self._log = LiveLog(directory if self.settings.event_log else None, header)

    def _concerns(self, epoch: int) -> bool:
        """Is a message of this epoch meant for this scheduler?

        A later epoch comes from a later scheduler, or from an earlier one on a clock that was set back. A scheduler
        that was never spoken to has lost nothing by moving above it. One that was is the earlier of two that live
        side by side while code changes: it stays where it is, for moving would take everybody from the later one.
        """
        self.check_health()
        if epoch > self.epoch and not self._accepted and self._journal.move_above(epoch):
            log_event(logger, "epoch_moved", of=self.epoch, to=self._journal.epoch)
            self._log.close()
            self._begin()
        self._accepted = self._accepted or epoch == self.epoch
        return epoch == self.epoch

    # ---- ingresses

    async def submit(self, submission: Submission) -> SubmissionReply:
        """Apply an ingress's events in order, once."""
        if not self._concerns(submission.epoch):
            return SubmissionReply(self.epoch, accepted=False)
        await self._wait_for_adopting_replicas(submission.events)
        ingress = self._register.hear(submission.ingress_id)
        if submission.sequence <= ingress.sequence:
            return SubmissionReply(self.epoch, accepted=True)
        ingress.sequence = submission.sequence
        self._see_replicas(ingress, submission.live_replicas)
        for event in submission.events:
            self._handle(event, submission.ingress_id)
            if isinstance(event, CallAdopted) and event.lease_id in self._early_facts:
                self._handle(self._early_facts.pop(event.lease_id))
        return SubmissionReply(self.epoch, accepted=True)

    async def collect(self, collection: Collection) -> CollectionReply:
        """Hand an ingress its mail; waits a little for a first piece."""
        if not self._concerns(collection.epoch):
            return CollectionReply(self.epoch, (), 0)
        mailbox = self._register.hear(collection.ingress_id).mailbox
        actions, last = await mailbox.collect(collection.after, min(collection.wait_s, MAX_WAIT_S))
        return CollectionReply(self.epoch, actions, last)

    async def _wait_for_adopting_replicas(self, events: Iterable[Event]) -> None:
        """A scheduler started anew hears of running calls before it hears of the replicas that run them."""
        named = {event.replica_id for event in events if isinstance(event, CallAdopted)}
        deadline_s = self._clock() + ADOPTION_WAIT_S
        while named - self.core.replicas.keys() and self._clock() < deadline_s:  # noqa: ASYNC110 - rare, short
            await asyncio.sleep(0.05)

    def _known(self, event: Event) -> set[CallKey]:
        """Which of the names that an event introduces the core knows; an application's own has no call id."""
        if isinstance(event, ApplicationArrived):
            application_id, call_ids = event.application.application_id, [""]
        elif isinstance(event, CallRevealed):
            application_id, call_ids = event.application_id, ["", event.call.call_id]
        else:
            return set()
        application = self.core.applications.get(application_id)
        if application is None:
            return set()
        return {CallKey(application_id, name) for name in call_ids if not name or name in application.calls}

    # ---- replicas

    async def pull(self, pull: Pull) -> PullReply:
        """Park a replica that has room until it gets grants or its wait is over."""
        if not self._concerns(pull.epoch):
            return PullReply(self.epoch)
        link = self._link(pull.replica_id)
        self._handle(ReplicaJoined(pull.replica_id, pull.limits))
        self._reply(pull.replica_id, link)
        answer: asyncio.Future[PullReply] = asyncio.get_running_loop().create_future()
        link.pull = answer
        if link.aborts:
            self._reply(pull.replica_id, link)
        elif self._is_live(pull.replica_id):
            link.offered = True
            self._handle(CapacityOffered(pull.replica_id, pull.max_grants))
        try:
            await asyncio.wait({answer}, timeout=min(pull.wait_s, MAX_WAIT_S))
        finally:
            if link.pull is answer:
                self._reply(pull.replica_id, link)
        return answer.result()

    async def report(self, report: Report) -> ReportReply:
        """Apply what a replica did since its last report."""
        if not self._concerns(report.epoch):
            return ReportReply(self.epoch, accepted=False)
        link = self._link(report.replica_id)
        self._handle(self._progress(link, report))
        for fact in report.facts:
            self._apply_fact(fact)
        self._take_back_strays(report, link)
        if report.leaving:
            self._drop_replica(report.replica_id, "the replica has stopped")
        return ReportReply(self.epoch, accepted=True)

    def _link(self, replica_id: str) -> _ReplicaLink:
        link = self._links.setdefault(replica_id, _ReplicaLink(self._clock()))
        link.last_seen_s = self._clock()
        return link

    def _progress(self, link: _ReplicaLink, report: Report) -> ProgressReported:
        """The growth of the replica's counters; the first report of a replica sets the marks."""
        before = link.served_token_iterations
        served = 0.0 if before is None else max(0.0, report.served_token_iterations - before)
        iterations = 0 if before is None else max(0, report.iterations - link.iterations)
        link.served_token_iterations = max(before or 0.0, report.served_token_iterations)
        link.iterations = max(link.iterations, report.iterations)
        self._telemetry.report(report.replica_id, report.kv_used_tokens)
        self._telemetry.preempted(max(0, report.preemptions - link.preemptions))
        link.preemptions = max(link.preemptions, report.preemptions)
        return ProgressReported(report.replica_id, served, iterations, report.kv_used_tokens, report.generated)

    def _apply_fact(self, fact: LeaseFact) -> None:
        if fact.lease_id in self.core.leases:
            self._handle(fact)
            return
        self._early_facts[fact.lease_id] = fact
        while len(self._early_facts) > MAX_EARLY_FACTS:
            self._early_facts.popitem(last=False)

    def _take_back_strays(self, report: Report, link: _ReplicaLink) -> None:
        """A replica that was given up for lost may come back: what it still runs has been granted anew.

        It may also run what it was told to stop, where the reply that told it was lost.
        """
        unwanted = [lease_id for lease_id, _ in report.generated if self._is_unwanted(lease_id)]
        link.aborts.extend(lease_id for lease_id in unwanted if lease_id not in link.aborts)
        if link.aborts:
            self._reply(report.replica_id, link)

    def _is_unwanted(self, lease_id: str) -> bool:
        """Does nobody wait for what runs under this lease? One of another epoch may yet be adopted."""
        call = self.core.leases.get(lease_id)
        if call is None:
            return lease_id.startswith(f"{self.epoch}-")
        return call.state is CallState.STOPPING

    def _is_live(self, replica_id: str) -> bool:
        return self._register.can_all_call(replica_id, VIEW_AGE_S)

    def _see_replicas(self, ingress: Ingress, live_replicas: frozenset[str]) -> None:
        """Send replicas that became callable, or no longer are, to pull again: offers depend on it."""
        if ingress.live_replicas == live_replicas:
            return
        ingress.live_replicas = live_replicas
        for replica_id, link in list(self._links.items()):
            if link.pull is not None and link.offered != self._is_live(replica_id):
                self._reply(replica_id, link)

    def _reply(self, replica_id: str, link: _ReplicaLink, grants: Iterable[Grant] = ()) -> None:
        """Answer a parked pull; the core first loses an offer that the answer leaves unused."""
        if link.pull is None:
            return
        answer, link.pull = link.pull, None
        batch, aborts, link.aborts = tuple(grants), tuple(link.aborts), []
        answer.set_result(PullReply(self.epoch, batch, aborts))
        unused = link.offered and not batch
        link.offered = False
        if unused:
            self._handle(OfferWithdrawn(replica_id))

    def _drop_replica(self, replica_id: str, reason: str) -> None:
        link = self._links.get(replica_id)
        if link is not None:
            self._reply(replica_id, link)
            del self._links[replica_id]
            self._telemetry.forget(replica_id)
            self._handle(ReplicaLeft(replica_id, reason))
            log_event(logger, "replica_gone", replica_id=replica_id, reason=reason)

    # ---- time

    def tick(self) -> None:
        """Let time limits run out; call it a few times a second."""
        now_s = self._clock()
        for replica_id in [r for r, link in self._links.items() if self._silent(link.last_seen_s, now_s)]:
            self._drop_replica(replica_id, f"nothing heard from it for {self.settings.replica_timeout_s:g} s")
        for ingress_id in self._register.silent(self.settings.ingress_timeout_s):
            self._drop_ingress(ingress_id)
        self._handle(TimePassed())
        self._save()
        self._telemetry.observe(self.core)

    def _save(self) -> None:
        """Without the journal a successor's V begins lower, which is no reason to stop."""
        try:
            self._journal.save(self.core.virtual_time)
        except sqlite3.Error as error:
            if self._saved:
                log_event(logger, "journal_not_saved", error=repr(error))
            self._saved = False
        else:
            self._saved = True

    def _silent(self, last_seen_s: float, now_s: float) -> bool:
        return now_s - last_seen_s > self.settings.replica_timeout_s

    def _drop_ingress(self, ingress_id: str) -> None:
        """An ingress that is gone takes the clients of its calls with it. Its mail is kept, should it come back."""
        ingress = self._register.present[ingress_id]
        reason = "its ingress is gone"
        log_event(logger, "ingress_gone", ingress_id=ingress_id, calls=len(ingress.calls))
        for key in list(ingress.calls):
            self._handle(CallCancelled(*key, reason))
        held = [self.core.applications[name] for name in ingress.applications if name in self.core.applications]
        for application in held:
            if not application.spec.open:
                self._handle(ApplicationCancelled(application.application_id, reason))
        self._register.give_up(ingress_id, [one.application_id for one in held if one.spec.open])

    def change_settings(self, settings: SchedulerSettings) -> None:
        """Take other limits, another clock rate or policy in place; nothing that waits or runs is lost."""
        self._handle(SettingsChanged(settings.core(), settings.policy))
        self.settings = settings
        self._settings_refused = None

    def refuse_settings(self, why: str) -> None:
        """Other settings were wrong: this scheduler goes on with those that it has, and says so."""
        self._settings_refused = why
        log_event(logger, "settings_refused", reason=why)

    # ---- questions

    def overview(self) -> dict[str, Any]:
        """The state of the whole in a few numbers, and what was wrong with the settings that it did not take.

        Iterations and preemptions are those of the replicas that are there, each since its engine started.
        """
        links = self._links.values()
        return {
            **overview(self.core),
            "iterations": sum(link.iterations for link in links),
            "preemptions": sum(link.preemptions for link in links),
            "settings_refused": self._settings_refused,
        }

    def explain(self, application_id: str) -> dict[str, Any] | None:
        """Why an application waits or runs; None when it is not in the system."""
        return explain(self.core, application_id)

    def record(self, application_id: str) -> ApplicationRecord | None:
        """What became of an application that ended, among the last `MAX_RECORDS`."""
        return self._records.get(application_id)

    def applications_of(self, tenant: str) -> TenantApplications:
        """A tenant's applications, oldest first: those in the system, in brief, and what became of the last that ended.

        At most `MOST_LISTED` of each, the newest.
        """
        inside = [one for one in self.core.applications.values() if one.spec.tenant == tenant]
        ended = [record for record in self._records.values() if record.tenant == tenant]
        shown = tuple(brief(self.core, one) for one in inside[-MOST_LISTED:])
        return TenantApplications(shown, tuple(ended[-MOST_LISTED:]))

    def close(self) -> None:
        """Save what must outlive this scheduler; the V of a broken one was saved while it was sound."""
        if not self._broken:
            self._save()
        self._journal.close()
        self._log.close()

    # ---- one fact, and where its orders go

    def _handle(self, event: Event, sender: str | None = None) -> None:
        self.check_health()
        now_s = self._clock()
        self._log.write(now_s, event)
        try:
            grants = self._apply(now_s, event, sender)
        except Exception as error:  # whatever it is: half of the event may have been applied
            kind = type(event).__name__
            self._broken = f"the core broke on {kind}: {error!r}"
            log_event(logger, "scheduler_broken", fact=kind, error=repr(error))
            raise SchedulerBroken(self._broken) from error
        for replica_id, batch in grants.items():
            self._reply(replica_id, self._links[replica_id], batch)
        for replica_id in [replica_id for replica_id, link in self._links.items() if link.aborts]:
            self._reply(replica_id, self._links[replica_id])  # after the grants: this withdraws unused offers

    def _apply(self, now_s: float, event: Event, sender: str | None) -> dict[str, list[Grant]]:
        """Let the core take one fact and deliver its orders, but for the grants: those to each replica."""
        known = self._known(event)
        actions = self.core.handle(now_s, event)
        if sender is not None:
            self._register.own(sender, self._known(event) - known)
        if self.settings.check_invariants:
            invariants.check(self.core)
        grants: dict[str, list[Grant]] = {}
        for action in actions:
            self._telemetry.count(action)
            self._deliver(action, grants, sender if isinstance(event, _INTRODUCTIONS) else None)
        return grants

    def _deliver(self, action: Action, grants: dict[str, list[Grant]], introducer: str | None) -> None:
        match action:
            case Grant():
                grants.setdefault(action.replica_id, []).append(action)
                self._register.tell_call(CallKey(action.application_id, action.call_id), action)
                log_event(logger, "call_granted", **_names(action), replica_id=action.replica_id, lease=action.lease_id)
            case Abort():
                self._abort(action)
            case Reject():
                self._register.tell_rejection(action, introducer)
                log_event(logger, "refused", **_names(action), refusal=action.refusal.value, reason=action.message)
            case PublishTag():
                self._register.tell_application(action.application_id, action)
                log_event(
                    logger, "tag_set", application_id=action.application_id, tag=action.finish_tag, reason=action.reason
                )
            case PublishCallEnd():
                self._register.tell_call_end(action)
                log_event(logger, "call_ended", **_names(action), outcome=action.outcome, reason=action.reason)
            case PublishCompletion(record) | PublishAudit(record):
                self._keep(record)
                self._register.tell_application_end(action, record.application_id in self.core.applications)
                log_event(
                    logger,
                    "application_audited" if isinstance(action, PublishAudit) else "application_ended",
                    application_id=record.application_id,
                    tenant=record.tenant,
                    outcome=record.outcome,
                    completion_s=record.completion_s,
                    lag_s=record.lag_s,
                )

    def _abort(self, action: Abort) -> None:
        if action.replica_id in self._links:
            self._links[action.replica_id].aborts.append(action.lease_id)

    def _keep(self, record: ApplicationRecord) -> None:
        self._records[record.application_id] = record
        self._records.move_to_end(record.application_id)
        while len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)


def _names(action: Grant | Reject | PublishCallEnd) -> dict[str, Any]:
    return {"application_id": action.application_id, "call_id": action.call_id}
