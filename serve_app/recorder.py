"""What programs asked an OpenAI service, as applications of a workload that can be simulated.

A call is known by its request, its answer and three moments: when it was asked, when it was known whose it is, when its
answer was complete. What is inferred from them:

1. Application: the one that the service's answer names; where it names none, the one that the request names, or else
   the key that it was sent with. One that was idle for `idle_s` seconds, or has `MAX_CALLS_OF_ONE` calls, has ended; a
   later call begins another.
2. Dependencies: a call may depend on those of its application that had ended before it was asked. Where its prompt
   holds the text, or the tool calls, of some of them, it depends on these alone (`Evidence.TEXT`); otherwise on all.
   What follows from other dependencies is left out (transitive reduction). Text that was changed on its way into the
   prompt leaves no trace, so edges are likely ones, not certain ones; `Evidence.TIME` takes all of them.
3. Tokens: from the answer's own usage; several sequences of a call count as equally long.

Calls that were refused, that broke off or that told no usage are counted in `left_out` and are in no application. At
most `max_calls` are kept. Answers are looked for among the last `MAX_SEARCHED` of an application.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from scheduler.sim.workload import TraceApplication, TraceCall

MIN_MARK_CHARS = 12
"""Shorter texts ("yes") stand in prompts by chance."""
MAX_PROMPT_CHARS = 4_000
MAX_CALLS = 100_000
MAX_CALLS_OF_ONE = 10_000
MAX_SEARCHED = 1_000
UNNAMED = "unnamed"


class Evidence(Enum):
    """By what a call is seen to depend on an earlier one."""

    TEXT = "text"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as far as it matters here. `asked_s`: seconds since the recording began.

    `texts` is all text of its prompt; `prompt` what its user asks in it; `group` tells API keys apart.
    """

    asked_s: float
    texts: str
    prompt: str
    sequences: int = 1
    prompts: int = 1
    application_id: str | None = None
    application_type: str | None = None
    stage: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer: its tokens in all, and the `marks` by which it can be found in a later prompt."""

    prompt_tokens: int
    output_tokens: int
    marks: tuple[str, ...] = ()


@dataclass(slots=True)
class _Call:
    """`after` and `ancestors` are sets of calls of its application, as bits at their indices.

    `asked` is without its texts, which matter when it begins only: a recording may be long.
    """

    name: str
    asked: Asked
    after: int
    ancestors: int
    ended_s: float | None = None
    answered: Answered | None = None


@dataclass(slots=True)
class _Application:
    """`trace` is what is known of it, None where it has to be made anew."""

    application_id: str
    application_type: str
    calls: list[_Call] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    ended_s: float = float("-inf")
    trace: TraceApplication | None = None

    @property
    def active_s(self) -> float:
        """When it was last seen to do something; infinite while a call of it is under way."""
        return float("inf") if self.under_way else self.ended_s

    def begin(self, call: _Call) -> None:
        self.calls.append(call)
        self.under_way += 1

    def end(self, call: _Call, now_s: float, answered: Answered | None) -> None:
        call.ended_s, call.answered = now_s, answered
        self.under_way -= 1
        self.ended_s = max(self.ended_s, now_s)
        if answered is not None:
            self.trace = None


class RecordedCall:
    """A call under way: end it with `answer` or `fail`, once."""

    def __init__(self, recorder: Recorder, application: _Application, call: _Call) -> None:
        self._recorder = recorder
        self._application = application
        self._call = call

    def answer(self, now_s: float, answered: Answered) -> None:
        """Its answer was complete at `now_s`."""
        self._application.end(self._call, now_s, answered)
        self._recorder.calls += 1

    def fail(self, now_s: float, reason: str) -> None:
        """It has ended without an answer that counts."""
        self._application.end(self._call, now_s, None)
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
        self._latest: dict[tuple[str, str], _Application] = {}
        self._all: list[_Application] = []
        self._ids: Counter[str] = Counter()

    def begin(self, asked: Asked, served_as: str | None = None) -> RecordedCall | None:
        """A call whose application is known: `served_as`, where the service has said so. None: there are too many."""
        if self._count >= self._max_calls:
            self.leave_out("too many")
            return None
        self._count += 1
        application = self._application(asked, served_as)
        stage = asked.stage or "call"
        application.numbers[stage] += 1
        earlier = self._earlier(application, asked)
        implied = 0
        for index in _bits(earlier):
            implied |= application.calls[index].ancestors
        kept = replace(asked, texts="", prompt=asked.prompt[:MAX_PROMPT_CHARS])
        call = _Call(f"{stage}-{application.numbers[stage]}", kept, earlier & ~implied, earlier | implied)
        application.begin(call)
        return RecordedCall(self, application, call)

    def leave_out(self, reason: str) -> None:
        """One call more of which nothing is recorded."""
        self.left_out[reason] += 1

    def applications(self) -> list[TraceApplication]:
        """What is known, in order of arrival; calls that are under way are left out."""
        for application in self._all:
            application.trace = application.trace or self._trace(application)
        traces = (application.trace for application in self._all)
        return sorted((trace for trace in traces if trace is not None), key=lambda trace: trace.arrival_s)

    def _application(self, asked: Asked, served_as: str | None) -> _Application:
        name = served_as or asked.application_id or UNNAMED
        application = self._latest.get((asked.group, name))
        full = application is not None and len(application.calls) >= MAX_CALLS_OF_ONE
        if application is None or full or asked.asked_s - application.active_s > self._idle_s:
            self._ids[name] += 1
            again = f"#{self._ids[name]}" if self._ids[name] > 1 else ""
            application = _Application(f"{name}{again}", asked.application_type or "unknown")
            self._latest[asked.group, name] = application
            self._all.append(application)
        return application

    def _earlier(self, application: _Application, asked: Asked) -> int:
        """The calls that this one is seen to depend on, as bits."""
        ended = [
            (index, call.answered.marks)
            for index, call in enumerate(application.calls)
            if call.answered is not None and call.ended_s is not None and call.ended_s <= asked.asked_s
        ]
        quoted = 0
        if self._evidence is Evidence.TEXT:
            quoted = _set_of(i for i, marks in ended[-MAX_SEARCHED:] if any(mark in asked.texts for mark in marks))
        return quoted or _set_of(index for index, _ in ended)

    def _trace(self, application: _Application) -> TraceApplication | None:
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

    def _trace_call(self, application: _Application, call: _Call, answered: Answered, arrival_s: float) -> TraceCall:
        before = [application.calls[index] for index in _bits(call.after)]
        free_s = max((other.ended_s or 0.0 for other in before), default=arrival_s)
        return TraceCall(
            name=call.name,
            after=tuple(other.name for other in before),
            prompt_tokens=-(-answered.prompt_tokens // call.asked.prompts),
            output_tokens=max(1, -(-answered.output_tokens // call.asked.sequences)),
            sequences=call.asked.sequences,
            delay_s=round(max(0.0, call.asked.asked_s - free_s), 6) if self._delays else 0.0,
        )


def _set_of(indices: Iterable[int]) -> int:
    members = 0
    for index in indices:
        members |= 1 << index
    return members


def _bits(members: int) -> Iterator[int]:
    """The indices in a set, in order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value, ids of tool calls included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)


def marks_of(texts: Mapping[int, str], tool_call_ids: list[str]) -> tuple[str, ...]:
    """By what an answer of these sequences can be found in a later prompt."""
    whole = (text.strip() for text in texts.values())
    return (*(text for text in whole if len(text) >= MIN_MARK_CHARS), *tool_call_ids)
