"""Calls as they were seen, the application that they are of, and which of its answers a prompt quotes.

Laws.
1. An answer is found by a text of its own: the beginning of what it says, at most `MAX_MARK_CHARS` characters, or the
   id of a tool call. Those shorter than `MIN_MARK_CHARS` stand in prompts by chance, and are not looked for.
2. The last `MAX_MARKS` of an application are kept, and none once it has ended. One search looks through at most
   `MAX_LOOKED_THROUGH_CHARS` characters, a prompt's length for each, the latest first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from scheduler.sim.workload import TraceApplication

MIN_MARK_CHARS = 12
MAX_MARK_CHARS = 500
MAX_MARKS = 1_000
MAX_LOOKED_THROUGH_CHARS = 2**26


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A request, as far as it matters here. `asked_s`: seconds since the recording began.

    `texts` is all text of its prompt; `prompt` what its user asks in it; `group` tells API keys apart. Two requests are
    never the same one, whatever they say.
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
class Call:
    """`after` and `ancestors` are sets of calls of its application, as bits at their indices; `index` is its own.

    `asked` is without its texts, and `answered` without its marks: a recording may be long.
    """

    name: str
    index: int
    asked: Asked
    after: int
    ancestors: int
    ended_s: float | None = None
    answered: Answered | None = None

    def answered_by(self, moment_s: float) -> bool:
        return self.answered is not None and self.ended_s is not None and self.ended_s <= moment_s


@dataclass(slots=True, eq=False)
class Application:
    """`trace` is what is known of it, None where it has to be made anew."""

    application_id: str
    application_type: str
    calls: list[Call] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    ended_s: float = float("-inf")
    trace: TraceApplication | None = None
    _marks: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MAX_MARKS))

    @property
    def active_s(self) -> float:
        """When it was last seen to do something; infinite while a call of it is under way."""
        return float("inf") if self.under_way else self.ended_s

    def begin(self, asked: Asked, earlier: int) -> Call:
        """Note a call that depends on `earlier` ones, a set."""
        stage = asked.stage or "call"
        self.numbers[stage] += 1
        implied = 0
        for index in bits(earlier):
            implied |= self.calls[index].ancestors
        name = f"{stage}-{self.numbers[stage]}"
        call = Call(name, len(self.calls), asked, earlier & ~implied, earlier | implied)
        self.calls.append(call)
        self.under_way += 1
        return call

    def end(self, call: Call, now_s: float, answered: Answered | None) -> None:
        """It has ended, with an answer that counts or without one."""
        call.ended_s = now_s
        self.under_way -= 1
        self.ended_s = max(self.ended_s, now_s)
        if answered is not None:
            call.answered = replace(answered, marks=())
            self._marks.extend((call.index, mark) for mark in answered.marks)
            self.trace = None

    def answered_by(self, moment_s: float) -> int:
        """The calls that had an answer by then, a set."""
        return set_of(call.index for call in self.calls if call.answered_by(moment_s))

    def quoted_by(self, asked: Asked) -> int:
        """The calls whose answers stand in this request's prompt, a set."""
        quoted: set[int] = set()
        left_chars = MAX_LOOKED_THROUGH_CHARS
        for index, mark in reversed(self._marks):
            if left_chars < len(asked.texts):
                break
            if index not in quoted and self.calls[index].answered_by(asked.asked_s):
                left_chars -= len(asked.texts)
                if mark in asked.texts:
                    quoted.add(index)
        return set_of(quoted)

    def let_go(self) -> None:
        """No later prompt will quote it."""
        self._marks.clear()


def set_of(indices: Iterable[int]) -> int:
    members = 0
    for index in indices:
        members |= 1 << index
    return members


def bits(members: int) -> Iterator[int]:
    """The indices in a set, in order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def marks_of(texts: Mapping[int, str], tool_call_ids: Iterable[str]) -> tuple[str, ...]:
    """By what an answer of these sequences can be found in a later prompt."""
    whole = (text.strip()[:MAX_MARK_CHARS] for text in texts.values())
    ids = (tool_call_id[:MAX_MARK_CHARS] for tool_call_id in tool_call_ids)
    return (*(text for text in whole if len(text) >= MIN_MARK_CHARS), *ids)
