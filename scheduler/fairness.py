"""Who has had what: the reference beside the real system, the tags that follow from it, and the audit of the bound.

The core tells what arrived, what is known of costs and what was served; this part keeps virtual time, moves tags and
says when the reference has finished someone. Laws: every tag that is set or moved is published with its reason; an
application that ended is audited exactly once, when both it and its reference are done.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.actions import Action, PublishAudit, PublishCompletion, PublishTag
from scheduler.applications import Application
from scheduler.audit import AuditBook
from scheduler.gps import ReferenceClock, ReferenceFinish
from scheduler.types import ApplicationRecord

Publish = Callable[[Action], None]


class Fairness:
    """The reference clock, the applications in it, and the audit; `publish` takes what the core must tell."""

    def __init__(self, virtual_time: float, publish: Publish) -> None:
        self.reference = ReferenceClock(virtual_time)
        self.audit = AuditBook()
        self.running: dict[int, Application] = {}
        self._publish = publish

    def resume_at(self, now_s: float, virtual_time: float) -> None:
        """V had come at least this far under an earlier scheduler."""
        self._note(self.reference.catch_up(now_s, virtual_time))

    def enter(self, application: Application, now_s: float) -> None:
        """An application arrived. Service reported from here on is dated after its arrival, never before it."""
        self.running[application.sequence] = application
        self.serve(now_s, 0.0)
        self._place(application, now_s)
        self._publish_tag(application, "arrival")

    def retag(self, application: Application, now_s: float, reason: str) -> bool:
        """Let an application's tag follow what is known of its cost; returns whether it moved."""
        if not application.update_tag():
            return False
        self._place(application, now_s)
        self._publish_tag(application, reason)
        return True

    def serve(self, now_s: float, service: float) -> None:
        """Share service, in token-iterations, that was delivered since the last time."""
        self._note(self.reference.advance(now_s, service))

    def complete(self, application: Application, longest_running_s: float) -> None:
        """An application has ended; `longest_running_s` is how long the oldest call that still runs has run."""
        del self.running[application.sequence]
        record = record_of(application)
        self._publish(PublishCompletion(record))
        self.audit.note_end(application, record, longest_running_s)
        if application.gps_finish_s is not None:
            self._note([ReferenceFinish(application.sequence, application.gps_finish_s)])

    def end_busy_period(self, now_s: float) -> None:
        """Nobody is left to serve: what the reference still owes, it owes to nobody."""
        self._note(self.reference.drain(now_s))
        self.audit.forget_calls_before(now_s)

    def _note(self, finishes: list[ReferenceFinish]) -> None:
        for finish in finishes:
            application = self.running.get(finish.application)
            if application is not None:
                application.gps_finish_s = finish.at_s
            else:
                self._publish(PublishAudit(self.audit.settle(finish.application, finish.at_s)))

    def _place(self, application: Application, now_s: float) -> None:
        """Into the reference, or out of it: one whose tag V has passed was served in full when V reached that tag."""
        waits = self.reference.place(application.sequence, application.finish_tag, application.spec.weight)
        reached_s = self.reference.reached_at_s(application.finish_tag, now_s)
        application.gps_finish_s = None if waits else max(reached_s, application.arrival_s)

    def _publish_tag(self, application: Application, reason: str) -> None:
        self._publish(
            PublishTag(
                application.application_id,
                application.start_tag,
                application.finish_tag,
                application.prediction,
                reason,
            )
        )


def record_of(application: Application) -> ApplicationRecord:
    """What became of an application, before its reference has finished."""
    return ApplicationRecord(
        application_id=application.application_id,
        application_type=application.spec.application_type,
        tenant=application.spec.tenant,
        weight=application.spec.weight,
        outcome=application.outcome,
        arrival_s=application.arrival_s,
        finish_s=application.last_end_s,
        predicted_cost=application.predicted_cost,
        true_cost=application.expected_cost,
        finish_tag=application.finish_tag,
        calls=application.call_count,
    )
