"""What an ingress holds: the applications and calls it introduced, and what it was told about them.

The scheduler's ordering state is soft. When a scheduler was started anew, `reintroduction` gives the events that
put it in the picture again: applications with the tags they had, calls that wait, calls that run under a lease.
Laws: a call that ended is never introduced again; a call that runs is adopted, not granted a second time, unless
its replica is gone; what was cancelled is cancelled again, since the word of it may have been lost; an application
that came call by call is kept between two of its calls, with its tag, age and cost so far, by the ingress that is
told of it, until the word that it has ended: the scheduler's `max_applications` and `open_idle_s` bound that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scheduler.actions import Action, Grant, PublishCallEnd, PublishCompletion, PublishTag, Reject
from scheduler.cost import memory_cost
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallAdopted,
    CallCancelled,
    CallReady,
    CallRevealed,
    Event,
    Resumption,
)
from scheduler.types import MAX_COST, ApplicationSpec, CallSpec


@dataclass(slots=True)
class HeldCall:
    """One call that has not ended."""

    spec: CallSpec
    ready: CallReady | None = None
    grant: Grant | None = None
    cancelled: CallCancelled | None = None

    @property
    def latest_spec(self) -> CallSpec:
        """With the numbers that were stated last."""
        if self.ready is None:
            return self.spec
        predicted_tokens = min(max(self.ready.predicted_output_tokens, 1), self.spec.max_output_tokens)
        return replace(self.spec, prompt_tokens=self.ready.prompt_tokens, predicted_output_tokens=predicted_tokens)


@dataclass(slots=True)
class HeldApplication:
    """One application that has not ended, as far as this ingress introduced it.

    `tag` is the last that was published, None where another ingress is told of it. `ended_cost` is what its ended
    calls cost, in token-iterations. `by_call`: it came call by call, and may have calls from other ingresses.
    """

    spec: ApplicationSpec
    arrival_s: float
    by_call: bool = False
    tag: PublishTag | None = None
    ended_cost: float = 0.0
    cancelled: ApplicationCancelled | None = None
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
                held = HeldApplication(spec, now_s, by_call=spec.open, calls=calls)
                self.applications.setdefault(spec.application_id, held)
            case CallRevealed(application_id=application_id, call=call, opens=opens):
                spec = opens or ApplicationSpec(application_id=application_id, open=True)
                held = self.applications.setdefault(application_id, HeldApplication(spec, now_s, by_call=True))
                held.calls[call.call_id] = HeldCall(call)
            case CallReady(application_id=application_id, call_id=call_id):
                held_call = self._call(application_id, call_id)
                if held_call is not None and held_call.ready is None:
                    held_call.ready = event
            case ApplicationClosed(application_id=application_id) if application_id in self.applications:
                held = self.applications[application_id]
                held.spec = replace(held.spec, open=False)
            case ApplicationCancelled(application_id=application_id) if application_id in self.applications:
                self.applications[application_id].cancelled = event
            case CallCancelled(application_id=application_id, call_id=call_id):
                held_call = self._call(application_id, call_id)
                if held_call is not None:
                    held_call.cancelled = event
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
                self.applications[application_id].tag = action
            case PublishCallEnd(application_id=application_id, call_id=call_id):
                self._end_call(application_id, call_id, memory_cost(action.prompt_tokens, action.output_tokens))
            case Reject(application_id=application_id, call_id=call_id) if call_id is not None:
                self._end_call(application_id, call_id, 0.0)
            case Reject(application_id=application_id):
                self._refuse_application(application_id)
            case PublishCompletion(record):
                self._end_application(record.application_id)
            case _:
                pass

    def cancellations(self, reason: str) -> list[Event]:
        """What to tell the scheduler when this ingress gives everything up.

        An application that came call by call stays open for other ingresses, without the calls from here.
        """
        events: list[Event] = []
        for application_id, held in self.applications.items():
            if held.by_call:
                kept = [call_id for call_id, call in held.calls.items() if call.cancelled is None]
                events.extend(CallCancelled(application_id, call_id, reason) for call_id in kept)
            elif held.cancelled is None:
                events.append(ApplicationCancelled(application_id, reason))
        return events

    def lose_grant(self, grant: Grant) -> None:
        """This lease brought no answer; its call waits again, unless a later grant has arrived."""
        held_call = self._call(grant.application_id, grant.call_id)
        if held_call is not None and held_call.grant == grant:
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

    def _refuse_application(self, application_id: str) -> None:
        """Where it came call by call, another ingress was the first to introduce it again, and is told of it."""
        held = self.applications.get(application_id)
        if held is not None and held.by_call and held.calls:
            held.tag = None
        else:
            self.applications.pop(application_id, None)

    def _end_application(self, application_id: str) -> None:
        """Calls that are left were revealed after its end: they opened an application of the same name."""
        held = self.applications.pop(application_id, None)
        if held is not None and held.by_call and held.calls:
            self.applications[application_id] = HeldApplication(
                replace(held.spec, open=True), held.arrival_s, by_call=True, calls=held.calls
            )

    def _end_call(self, application_id: str, call_id: str, cost: float) -> None:
        held = self.applications.get(application_id)
        if held is None or held.calls.pop(call_id, None) is None:
            return
        held.ended_cost += cost
        if held.by_call and not held.calls and held.tag is None:
            del self.applications[application_id]


def _introduce(held: HeldApplication, now_s: float) -> list[Event]:
    """The application, its calls, how far each of them is, and what nobody waits for any more."""
    application_id = held.spec.application_id
    left = [
        replace(call.latest_spec, after=tuple(name for name in call.spec.after if name in held.calls))
        for call in held.calls.values()
    ]
    events: list[Event] = [
        ApplicationArrived(_resumed_spec(held, () if held.by_call else tuple(left)), _resumption(held, now_s))
    ]
    if held.cancelled is not None and not held.by_call:
        return [*events, held.cancelled]  # its streams are closed already: nothing of it need be taken over
    if held.by_call:
        events.extend(CallRevealed(application_id, spec) for spec in left)
    for call in held.calls.values():
        events.extend(_progress(application_id, call))
    if held.by_call and not held.spec.open:
        events.append(ApplicationClosed(application_id))
    return events if held.cancelled is None else [*events, held.cancelled]


def _resumed_spec(held: HeldApplication, calls: tuple[CallSpec, ...]) -> ApplicationSpec:
    """Expected to cost what was last published, so that the finish tag is the one it had."""
    published = 0.0 if held.tag is None else min(held.tag.predicted_cost, MAX_COST)
    if held.by_call and held.spec.cost_deviation is not None:
        published = 0.0  # what was published follows from what was predicted and what is known, and will again
    return replace(held.spec, calls=calls, open=held.by_call, predicted_cost=published or held.spec.predicted_cost)


def _resumption(held: HeldApplication, now_s: float) -> Resumption | None:
    """None for an application whose tag this ingress was not told: it begins at the present V, not ahead of all."""
    if held.tag is None:
        return None
    return Resumption(held.tag.start_tag, now_s - held.arrival_s, held.ended_cost)


def _progress(application_id: str, call: HeldCall) -> list[Event]:
    """How far a call is. One that runs is adopted first, which makes its readiness no news; where its replica is
    unknown the adoption changes nothing, and the call waits again."""
    events: list[Event] = []
    if call.grant is not None:
        events.append(CallAdopted(application_id, call.spec.call_id, call.grant.replica_id, call.grant.lease_id))
    if call.cancelled is not None:
        events.append(call.cancelled)
    elif call.ready is not None:
        events.append(call.ready)
    return events
