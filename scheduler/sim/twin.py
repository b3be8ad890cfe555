"""A live run gone through once more: what it did, and its traffic as a workload for other policies.

`Replay` feeds a recorded event log (`scheduler.event_log`) to a fresh core. A log holds facts and no orders; that the
orders come out as they did then shows in the leases that the facts speak of: a lease that a replica started, reported
or ended must have been granted before, to that replica. Every line that says otherwise is a disagreement.

`Recording` makes applications of what a core heard and ordered (its `hear` is also that of a `Simulation`):

- an application arrives when its first event says, counted from the first arrival of the log; a second one under an id
  that has ended gets `#2` behind it;
- its calls are those that finished, with their true tokens; of several sequences the longest counts. Calls that were
  cancelled, failed or had not ended are left out, and so is an application of which no call finished: `left_out` says
  how many;
- a call comes after those that it was submitted to come after. One that an open application revealed later without
  saying so comes after those that had finished by then and that nothing finished had come after: an agent is taken to
  have waited for them;
- if its prompt was ready more than `THOUGHT_S` after the last of these (or the arrival), the gap is its `delay_s`: the
  application will think as long again, whenever it gets there. Shorter gaps are the system's own.

In the workload an application is known whole at its arrival, an open one too. Logs of several epochs follow each other;
an application that a later epoch takes back goes on. A line that was cut off at the end of a log is ignored.
Memory grows with the applications since the oldest that has not ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.actions import Action, Grant, PublishCallEnd, PublishCompletion, Reject
from scheduler.core import SchedulerCore
from scheduler.event_log import LogHeader, event_from_json
from scheduler.events import (
    ApplicationArrived,
    CallAdopted,
    CallFailed,
    CallFinished,
    CallLost,
    CallPreempted,
    CallReady,
    CallRevealed,
    CallStarted,
    CallStopped,
    Event,
    ProgressReported,
    ReplicaJoined,
)
from scheduler.sim.workload import TraceApplication, TraceCall
from scheduler.types import ApplicationSpec, CallSpec, EngineLimits

THOUGHT_S = 0.05
"""A gap before a call that is longer was the application's own."""

Step = tuple[float, Event, Sequence[Action]]


class LogError(ValueError):
    """A file that is no event log, or one that a core cannot take."""


class Replay:
    """One log through a fresh core. Iterate over `steps()`; the other fields are whole when it has ended."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.header = _read_header(next(self._lines, ""))
        self.core: SchedulerCore = self.header.create_core()
        self.disagreements: list[str] = []
        self.limits: dict[str, EngineLimits] = {}
        self.events = 0
        self.grants = 0
        self.first_s = 0.0
        self.last_s = 0.0

    def steps(self) -> Iterator[Step]:
        """Each moment, its event, and what the core orders. LogError names the line at which this cannot go on."""
        pending = next(self._lines, None)
        number = 2
        while pending is not None:
            line, pending = pending, next(self._lines, None)
            try:
                now_s, event = event_from_json(line)
            except (ValueError, KeyError, TypeError) as error:
                if pending is None and not line.endswith("\n"):
                    return  # it was cut off
                raise LogError(f"line {number}: no event: {error}") from error
            yield now_s, event, self._take(number, now_s, event)
            number += 1

    def _take(self, number: int, now_s: float, event: Event) -> Sequence[Action]:
        self._compare(number, event)
        try:
            actions = self.core.handle(now_s, event)
        except Exception as error:  # whatever it was that broke the live core too
            raise LogError(f"line {number}: the core breaks on {type(event).__name__}: {error!r}") from error
        self._count(now_s, event, actions)
        return actions

    def _count(self, now_s: float, event: Event, actions: Sequence[Action]) -> None:
        self.first_s = self.first_s if self.events else now_s
        self.last_s = now_s
        self.events += 1
        self.grants += sum(isinstance(action, Grant) for action in actions)
        if isinstance(event, ReplicaJoined):
            self.limits[event.replica_id] = event.limits

    def _compare(self, number: int, event: Event) -> None:
        """Note what an event says of leases that were not granted as it says."""
        for lease_id, replica_id in _leases_of(event):
            call = self.core.leases.get(lease_id)
            if call is None and self._was_granted(lease_id):
                continue
            if call is None:
                self._disagree(number, event, f"lease {lease_id} was never granted")
            elif replica_id not in (None, call.replica_id):
                self._disagree(number, event, f"{replica_id} holds lease {lease_id}, granted to {call.replica_id}")

    def _was_granted(self, lease_id: str) -> bool:
        """Leases are numbered; one of another epoch is none of ours."""
        epoch, _, place = lease_id.rpartition("-")
        if epoch != str(self.header.epoch):
            return True
        return place.isdecimal() and int(place) <= self.grants

    def _disagree(self, number: int, event: Event, what: str) -> None:
        self.disagreements.append(f"line {number}: {type(event).__name__}: {what}")


def _read_header(line: str) -> LogHeader:
    try:
        return LogHeader.from_json(line)
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(f"line 1: not the beginning of an event log: {error}") from error


def _leases_of(event: Event) -> Iterator[tuple[str, str | None]]:
    """The leases that an event speaks of, each with the replica that holds it where it says so."""
    match event:
        case CallStarted() | CallFinished() | CallStopped() | CallFailed() | CallLost() | CallPreempted():
            yield event.lease_id, None
        case ProgressReported():
            for lease_id, _ in event.generated:
                yield lease_id, event.replica_id
        case _:
            pass


# ---- traffic


@dataclass(slots=True)
class LeftOut:
    """What a workload lacks of the recorded traffic."""

    calls: Counter[str] = field(default_factory=Counter)
    applications: int = 0

    def __str__(self) -> str:
        calls = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.calls.items()))
        return (
            f"{self.calls.total()} calls ({calls or 'none'}), {self.applications} applications without a finished call"
        )


@dataclass(slots=True)
class _Call:
    spec: CallSpec
    after: tuple[str, ...]
    ready_s: float | None = None
    prefix: tuple[int, ...] = ()
    outcome: str = "unfinished"
    end_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        return self.outcome == "finished" and bool(self.output_tokens)


@dataclass(slots=True)
class _Application:
    """An application so far; `frontier` has the finished calls that nothing finished has come after.

    The core may have heard of it later than it arrived.
    """

    name: str
    spec: ApplicationSpec
    arrival_s: float
    heard_s: float
    calls: dict[str, _Call] = field(default_factory=dict)
    frontier: dict[str, None] = field(default_factory=dict)
    ended: bool = False


class Recording:
    """Applications of what cores heard and ordered; `take` gives those out that have ended, in order of arrival."""

    def __init__(self) -> None:
        self.left_out = LeftOut()
        self._present: dict[str, _Application] = {}
        self._in_order: deque[_Application] = deque()
        self._uses: Counter[str] = Counter()
        self._origin_s: float | None = None
        self._shift_s = 0.0
        self._now_s = 0.0
        self._given_s = 0.0

    def traffic_of(self, lines: Iterable[str]) -> Iterator[TraceApplication]:
        """Hear a whole log, the next one in order of epochs; gives out what has ended on the way."""
        for place, (now_s, event, actions) in enumerate(Replay(lines).steps()):
            if place == 0:  # a clock that began anew follows directly on what was heard before
                self._shift_s = max(self._now_s - now_s, 0.0)
            self.hear(now_s, event, actions)
            yield from self.take()

    def hear(self, now_s: float, event: Event, actions: Sequence[Action]) -> None:
        """One moment, what the core was told, and what it ordered."""
        self._now_s = max(now_s + self._shift_s, self._now_s)
        refused = {(one.application_id, one.call_id) for one in actions if isinstance(one, Reject)}
        match event:
            case ApplicationArrived(spec, resumes) if (spec.application_id, None) not in refused:
                self._arrive(spec, 0.0 if resumes is None else resumes.age_s)
            case CallRevealed(name, spec, opens) if (name, spec.call_id) not in refused:
                self._reveal(name, spec, opens)
            case CallReady():
                self._make_ready(event)
            case CallAdopted():
                self._make_ready(CallReady(event.application_id, event.call_id, 0, 1))
            case _:
                pass
        for action in actions:
            self._obey(action)

    def take(self) -> Iterator[TraceApplication]:
        """What is whole by now; call it from time to time."""
        while self._in_order and self._in_order[0].ended:
            yield from self._trace(self._in_order.popleft())

    def take_rest(self) -> Iterator[TraceApplication]:
        """At the end, all others too, with what they had finished."""
        while self._in_order:
            yield from self._trace(self._in_order.popleft())

    # ---- what happened

    def _arrive(self, spec: ApplicationSpec, age_s: float) -> None:
        application = self._present.get(spec.application_id)
        if application is None:
            application = self._enter(spec, self._now_s - age_s)
        for call in spec.calls:
            application.calls.setdefault(call.call_id, _Call(call, call.after))

    def _enter(self, spec: ApplicationSpec, arrival_s: float) -> _Application:
        self._uses[spec.application_id] += 1
        uses = self._uses[spec.application_id]
        name = spec.application_id if uses == 1 else f"{spec.application_id}#{uses}"
        if self._origin_s is None:
            self._origin_s = arrival_s
        application = _Application(name, spec, arrival_s, self._now_s)
        self._present[spec.application_id] = application
        self._in_order.append(application)
        return application

    def _reveal(self, application_id: str, spec: CallSpec, opens: ApplicationSpec | None) -> None:
        application = self._present.get(application_id)
        if application is None and opens is not None:
            application = self._enter(opens, self._now_s)
        if application is not None:
            after = spec.after or tuple(application.frontier)
            application.calls.setdefault(spec.call_id, _Call(spec, after))

    def _make_ready(self, event: CallReady) -> None:
        application = self._present.get(event.application_id)
        call = None if application is None else application.calls.get(event.call_id)
        if call is not None and call.ready_s is None:
            call.ready_s = self._now_s
            call.prefix = event.prefix

    def _obey(self, action: Action) -> None:
        match action:
            case PublishCallEnd():
                self._end_call(action)
            case PublishCompletion(record):
                application = self._present.pop(record.application_id, None)
                if application is not None:
                    application.ended = True
            case _:
                pass

    def _end_call(self, end: PublishCallEnd) -> None:
        application = self._present.get(end.application_id)
        call = None if application is None else application.calls.get(end.call_id)
        if application is None or call is None:
            return
        call.outcome, call.end_s = end.outcome, self._now_s
        call.prompt_tokens, call.output_tokens = end.prompt_tokens, end.output_tokens
        if call.finished:
            for name in call.after:
                application.frontier.pop(name, None)
            application.frontier[end.call_id] = None

    # ---- what to give out

    def _trace(self, application: _Application) -> Iterator[TraceApplication]:
        kept = {name: call for name, call in application.calls.items() if call.finished}
        self.left_out.calls.update(call.outcome for name, call in application.calls.items() if name not in kept)
        if not kept:
            self.left_out.applications += 1
            return
        assert self._origin_s is not None
        self._given_s = max(application.arrival_s - self._origin_s, self._given_s)
        spec = application.spec
        yield TraceApplication(
            application_id=application.name,
            application_type=spec.application_type,
            arrival_s=self._given_s,
            tenant=spec.tenant,
            weight=spec.weight,
            deadline_s=spec.deadline_s,
            period_s=spec.period_s,
            calls=tuple(_trace_call(name, call, kept, application.heard_s) for name, call in kept.items()),
        )


def _trace_call(name: str, call: _Call, kept: dict[str, _Call], heard_s: float) -> TraceCall:
    after = tuple(other for other in call.after if other in kept)
    free_s = max((kept[other].end_s for other in after), default=heard_s)
    gap_s = 0.0 if call.ready_s is None else call.ready_s - free_s
    return TraceCall(
        name=name,
        prompt_tokens=call.prompt_tokens,
        output_tokens=max(*call.output_tokens, 1),
        after=after,
        sequences=len(call.output_tokens),
        prefix=call.prefix,
        delay_s=round(gap_s, 9) if gap_s > THOUGHT_S else 0.0,
    )


def workload_from_log(lines: Iterable[str]) -> Iterator[TraceApplication]:
    """The traffic of one log as a workload."""
    recording = Recording()
    yield from recording.traffic_of(lines)
    yield from recording.take_rest()
