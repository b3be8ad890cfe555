"""What programs asked an OpenAI service, as applications of a workload that can be simulated.

A call is known by its request, its answer and three moments: when it was asked, when it was known whose it is, when its
answer was complete. What is inferred from them:

1. Application: the one that the service's answer names; where it names none, the one that the request names, or else
   the key that it was sent with. One that was idle for `idle_s` seconds, or has `MAX_CALLS_OF_ONE` calls, has ended; a
   later call begins another. While the service has not begun to answer a call, the application that the call names (or
   that its name stood for last) is not idle.
2. Dependencies: a call may depend on those of its application that had ended before it was asked. Where its prompt
   holds the beginning of the text, or the tool calls, of some of them, it depends on these alone (`Evidence.TEXT`);
   otherwise on all. What follows from other dependencies is left out (transitive reduction). Text that was changed on
   its way into the prompt leaves no trace, so edges are likely ones, not certain ones; `Evidence.TIME` takes all of
   them.
3. Tokens: from the answer's own usage; several sequences of a call count as equally long.

Calls that were refused, that broke off or that told no usage are counted in `left_out` and are in no application. At
most `max_calls` are kept. Which answers are looked for in prompts, and how: `serve_app.recorder_calls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum

from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.recorder_calls import Answered, Application, Asked, Call, bits

MAX_PROMPT_CHARS = 4_000
MAX_CALLS = 100_000
MAX_CALLS_OF_ONE = 10_000
UNNAMED = "unnamed"

Key = tuple[str, str]
"""A group and an application's name in it."""


class Evidence(Enum):
    """By what a call is seen to depend on an earlier one."""

    TEXT = "text"
    TIME = "time"


class RecordedCall:
    """A call under way: end it with `answer` or `fail`, once."""

    def __init__(self, recorder: Recorder, application: Application, call: Call) -> None:
        self._recorder = recorder
        self._application = application
        self._call = call

    def answer(self, now_s: float, answered: Answered) -> None:
        """Its answer was complete at `now_s`."""
        self._recorder.end(self._application, self._call, now_s, answered)
        self._recorder.calls += 1

    def fail(self, now_s: float, reason: str) -> None:
        """It has ended without an answer that counts."""
        self._recorder.end(self._application, self._call, now_s, None)
        self._recorder.leave_out(reason)


class Recorder:
    """All that was seen, in memory. Times come from outside, in seconds since the recording began.

    `calls` is the number of those with an answer that counts.
    """

    def __init__(
        self, idle_s: float = 60.0, evidence: Evidence = Evidence.TEXT, delays: bool = False, max_calls: int = MAX_CALLS
    ) -> None:
        self.calls = 0
        self.left_out: Counter[str] = Counter()
        self._idle_s = idle_s
        self._evidence = evidence
        self._delays = delays
        self._max_calls = max_calls
        self._count = 0
        self._awaited: dict[Asked, None] = {}
        self._names: dict[Key, str] = {}
        self._latest: dict[Key, Application] = {}
        self._resting: dict[Application, None] = {}
        self._all: list[Application] = []
        self._ids: Counter[str] = Counter()

    @contextmanager
    def expected(self, asked: Asked) -> Iterator[None]:
        """In this block a call is with the service, until `begin` is told of it."""
        self._awaited[asked] = None
        try:
            yield
        finally:
            self._awaited.pop(asked, None)

    def begin(self, asked: Asked, served_as: str | None = None) -> RecordedCall | None:
        """A call whose application is known: `served_as`, where the service has said so. None: there are too many."""
        self._awaited.pop(asked, None)
        if self._count >= self._max_calls:
            self.leave_out("too many")
            return None
        self._count += 1
        application = self._application(asked, served_as)
        quoted = application.quoted_by(asked) if self._evidence is Evidence.TEXT else 0
        kept = replace(asked, texts="", prompt=asked.prompt[:MAX_PROMPT_CHARS])
        call = application.begin(kept, quoted or application.answered_by(asked.asked_s))
        self._resting.pop(application, None)
        self._let_go(asked.asked_s)
        return RecordedCall(self, application, call)

    def end(self, application: Application, call: Call, now_s: float, answered: Answered | None) -> None:
        """A call has ended; for `RecordedCall`, which says what else follows."""
        application.end(call, now_s, answered)
        if not application.under_way:
            self._resting[application] = None

    def leave_out(self, reason: str) -> None:
        """One call more of which nothing is recorded."""
        self.left_out[reason] += 1

    def applications(self) -> list[TraceApplication]:
        """What is known, in order of arrival; calls that are under way are left out."""
        for application in self._all:
            application.trace = application.trace or self._trace(application)
        traces = (application.trace for application in self._all)
        return sorted((trace for trace in traces if trace is not None), key=lambda trace: trace.arrival_s)

    # ---- whose a call is

    def _application(self, asked: Asked, served_as: str | None) -> Application:
        name = served_as or asked.application_id or UNNAMED
        key = asked.group, name
        self._names[asked.group, asked.application_id or UNNAMED] = name
        application = self._latest.get(key)
        if application is None or self._had_ended(application, key, asked):
            self._ids[name] += 1
            again = f"#{self._ids[name]}" if self._ids[name] > 1 else ""
            application = Application(f"{name}{again}", asked.application_type or "unknown")
            self._latest[key] = application
            self._all.append(application)
        return application

    def _had_ended(self, application: Application, key: Key, asked: Asked) -> bool:
        """Is it full, or was it idle for too long when the first of its calls that the service still has was asked?"""
        if len(application.calls) >= MAX_CALLS_OF_ONE:
            return True
        if asked.asked_s - application.active_s <= self._idle_s:
            return False
        first_s = min((other.asked_s for other in self._awaited if self._key(other) == key), default=asked.asked_s)
        return min(first_s, asked.asked_s) - application.active_s > self._idle_s

    def _key(self, awaited: Asked) -> Key:
        """Of the application that a call is likely to be of, before the service has said so."""
        name = awaited.application_id or UNNAMED
        return awaited.group, self._names.get((awaited.group, name), name)

    def _let_go(self, now_s: float) -> None:
        """Of what had ended when the earliest call that may still begin was asked, no answer will be looked for."""
        first_s = min(now_s, next((asked.asked_s for asked in self._awaited), now_s))
        while self._resting and first_s - (application := next(iter(self._resting))).ended_s > self._idle_s:
            application.let_go()
            del self._resting[application]

    # ---- what is made of it

    def _trace(self, application: Application) -> TraceApplication | None:
        whole = [(call, call.answered) for call in application.calls if call.answered is not None]
        if not whole:
            return None
        arrival_s = min(call.asked.asked_s for call, _ in whole)
        first = min(whole, key=lambda pair: pair[0].asked.asked_s)[0]
        return TraceApplication(
            application_id=application.application_id,
            application_type=application.application_type,
            arrival_s=round(arrival_s, 6),
            prompt=first.asked.prompt,
            calls=tuple(self._trace_call(application, call, answered, arrival_s) for call, answered in whole),
        )

    def _trace_call(self, application: Application, call: Call, answered: Answered, arrival_s: float) -> TraceCall:
        before = [application.calls[index] for index in bits(call.after)]
        free_s = max((other.ended_s or 0.0 for other in before), default=arrival_s)
        return TraceCall(
            name=call.name,
            after=tuple(other.name for other in before),
            prompt_tokens=-(-answered.prompt_tokens // call.asked.prompts),
            output_tokens=max(1, -(-answered.output_tokens // call.asked.sequences)),
            sequences=call.asked.sequences,
            delay_s=round(max(0.0, call.asked.asked_s - free_s), 6) if self._delays else 0.0,
        )
