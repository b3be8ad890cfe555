"""What an ingress holds: the applications and calls it introduced, and what it was told about them.

The scheduler's ordering state is soft. When a scheduler was started anew, `reintroduction` gives the events that
put it in the picture again: applications with the tags they had, calls that wait, calls that run under a lease.
Laws: a call that ended is never introduced again; a call that runs is adopted, not granted a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scheduler.actions import Action, Grant, PublishCallEnd, PublishCompletion, PublishTag, Reject
from scheduler.cost import memory_cost
from scheduler.events import (
    ApplicationArrived,
    ApplicationClosed,
    CallAdopted,
    CallReady,
    CallRevealed,
    Event,
    Resumption,
)
from scheduler.types import ApplicationSpec, CallSpec


@dataclass(slots=True)
class HeldCall:
    """One call that has not ended."""

    spec: CallSpec
    ready: CallReady | None = None
    grant: Grant | None = None


@dataclass(slots=True)
class HeldApplication:
    """One application that has not ended. `ended_cost` estimates what its ended calls cost, in token-iterations."""

    spec: ApplicationSpec
    arrival_s: float
    start_tag: float = 0.0
    ended_cost: float = 0.0
    calls: dict[str, HeldCall] = field(default_factory=dict)


class HeldCalls:
    """Kept up to date with the events that go out and the actions that come in."""

    def __init__(self) -> None:
        self.applications: dict[str, HeldApplication] = {}

    def note_event(self, now_s: float, event: Event) -> None:
        """An event is about to be submitted."""
        match event:
            case ApplicationArrived(application=spec):
                calls = {call.call_id: HeldCall(call) for call in spec.calls}
                self.applications.setdefault(spec.application_id, HeldApplication(spec, now_s, calls=calls))
            case CallRevealed(application_id=application_id, call=call, opens=opens):
                spec = opens or ApplicationSpec(application_id=application_id, open=True)
                held = self.applications.setdefault(application_id, HeldApplication(spec, now_s))
                held.calls[call.call_id] = HeldCall(call)
            case CallReady(application_id=application_id, call_id=call_id):
                held_call = self._call(application_id, call_id)
                if held_call is not None:
                    held_call.ready = event
            case ApplicationClosed(application_id=application_id) if application_id in self.applications:
                held = self.applications[application_id]
                held.spec = replace(held.spec, open=False)
            case _:
                pass

    def note_action(self, action: Action) -> None:
        """An action has arrived."""
        match action:
            case Grant(application_id=application_id, call_id=call_id):
                held_call = self._call(application_id, call_id)
                if held_call is not None:
                    held_call.grant = action
            case PublishTag(application_id=application_id) if application_id in self.applications:
                self.applications[application_id].start_tag = action.start_tag
            case PublishCallEnd(application_id=application_id, call_id=call_id):
                self._end_call(application_id, call_id)
            case Reject(application_id=application_id, call_id=call_id) if call_id is not None:
                self._end_call(application_id, call_id)
            case Reject(application_id=application_id):
                self.applications.pop(application_id, None)
            case PublishCompletion(record):
                self.applications.pop(record.application_id, None)
            case _:
                pass

    def lose_grant(self, application_id: str, call_id: str) -> None:
        """The lease of this call brought no answer; it waits again."""
        held_call = self._call(application_id, call_id)
        if held_call is not None:
            held_call.grant = None

    def reintroduction(self, now_s: float) -> list[Event]:
        """Everything a fresh scheduler must know of what this ingress holds, applications in order of arrival."""
        events: list[Event] = []
        for held in sorted(self.applications.values(), key=lambda held: held.arrival_s):
            events.extend(_introduce(held, now_s))
        return events

    def _call(self, application_id: str, call_id: str) -> HeldCall | None:
        held = self.applications.get(application_id)
        return None if held is None else held.calls.get(call_id)

    def _end_call(self, application_id: str, call_id: str) -> None:
        held = self.applications.get(application_id)
        ended = None if held is None else held.calls.pop(call_id, None)
        if held is None or ended is None:
            return
        spec = ended.spec
        held.ended_cost += memory_cost(spec.prompt_tokens, [spec.predicted_output_tokens] * spec.sequences)
        if held.spec.open and not held.calls:
            del self.applications[application_id]


def _introduce(held: HeldApplication, now_s: float) -> list[Event]:
    left = {
        call_id: replace(call.spec, after=tuple(name for name in call.spec.after if name in held.calls))
        for call_id, call in held.calls.items()
    }
    calls = () if held.spec.open else tuple(left.values())
    resumes = Resumption(held.start_tag, now_s - held.arrival_s, held.ended_cost)
    events: list[Event] = [ApplicationArrived(replace(held.spec, calls=calls), resumes)]
    if held.spec.open:
        events.extend(CallRevealed(held.spec.application_id, spec) for spec in left.values())
    for call_id, call in held.calls.items():
        if call.grant is not None:
            events.append(CallAdopted(held.spec.application_id, call_id, call.grant.replica_id, call.grant.lease_id))
        elif call.ready is not None:
            events.append(call.ready)
    return events
