"""Calls in a few queues by the service that their program has had: what the policies of Autellix share.

Autellix (Luo et al., "Autellix: An efficient serving engine for LLM agents as general programs", arXiv:2502.13965,
2025, section 4.2). A program is an application. Its calls are queued as follows:

- A call that begins to wait has a value, the service behind it over its weight, which a policy defines; thresholds
  t_i = first_threshold·factor^i cut values into levels 0..levels − 1: its level is the number of thresholds that its
  value has reached. It is fixed while the call waits.
- The smaller level goes first; inside a level the call that became ready first.
- Promotion: let W be the seconds that calls of the program waited before they were granted, T the seconds from grant
  to end of those that ended. A call that has waited for w seconds goes to level 0 as soon as (W + w)/T >= beta, and
  stays there until it is granted. Without any service, T = 0, there is no ratio, and its level is 0 anyway.

Laws: no call waits longer than beta·T − W seconds below level 0, if T stays what it is; a promoted call precedes all
that became ready after it. Nothing is kept of a program that has left. All operations are O(log n); a promotion is
O(log n) once a call.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf

from scheduler.cost import CostModel
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.policies.levels import geometric_steps, level_priority, require_positive
from scheduler.policies.service_meter import ServiceMeter
from scheduler.types import CallKey


@dataclass(slots=True)
class _Program:
    """Seconds that a program's calls have waited and run, and those of its calls that may be promoted, by readiness."""

    sequence: int
    waited_s: float = 0.0
    served_s: float = 0.0
    below: FinishHeap[CallKey] = field(default_factory=FinishHeap)

    def due_s(self, beta: float) -> float:
        """When its first call below level 0 will have waited for its promotion; infinite when there is none."""
        first = self.below.peek()
        if first is None or not self.served_s:
            return inf
        return self.below.rank(first) + beta * self.served_s - self.waited_s


class ProgramLevels(Policy):
    """Smallest level first, then readiness; a policy says what a call's value is and hears of the service."""

    ages = True

    def __init__(self, cost: CostModel, first_threshold: float, factor: float, levels: int, beta: float) -> None:
        self._thresholds = geometric_steps("first_threshold", first_threshold, factor, levels)
        self._beta = require_positive("beta", beta)
        self._meter = ServiceMeter(cost)
        self._waiting: FinishHeap[CallKey] = FinishHeap()
        self._ready: dict[CallKey, int] = {}
        self._programs: dict[str, _Program] = {}
        self._due: FinishHeap[str] = FinishHeap()
        self._granted_s: dict[CallKey, float] = {}
        self._now_s = 0.0

    @abstractmethod
    def value(self, call: CallFacts) -> float:
        """The service behind a call, in the unit of the cost function, over its application's weight."""

    @abstractmethod
    def count(self, call: CallFacts, service: float) -> None:
        """A call has ended after this much service, divided by its application's weight."""

    # ---- the question

    def head(self) -> CallKey | None:
        return self._waiting.peek()

    def rank(self, call: CallFacts) -> float | None:
        level = self._waiting.rank(call.key) if call.key in self._waiting else self._level(call)
        return level_priority(level, call.ready_sequence)

    # ---- the queue

    def add(self, call: CallFacts) -> None:
        level = self._level(call)
        self._waiting.set(call.key, level, call.ready_sequence)
        self._ready[call.key] = call.ready_sequence
        if level:
            self._program(call).below.set(call.key, call.ready_s, call.ready_sequence)
            self._promote(call.key.application_id)

    def remove(self, key: CallKey) -> None:
        self._waiting.discard(key)
        self._ready.pop(key, None)
        program = self._programs.get(key.application_id)
        if program is not None:
            program.below.discard(key)
            self._promote(key.application_id)

    # ---- facts

    def advance(self, now_s: float) -> None:
        self._now_s = now_s
        while (first := self._due.peek()) is not None and self._due.rank(first) <= now_s:
            self._promote(first)

    def application_left(self, application: ApplicationFacts) -> None:
        self._programs.pop(application.application_id, None)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._granted_s[call.key] = self._now_s
        self._program(call).waited_s += max(self._now_s - call.ready_s, 0.0)
        self._promote(call.key.application_id)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._program(call).served_s += self._now_s - self._granted_s.pop(call.key, self._now_s)
        self.count(call, self._meter.last(call, output_tokens) / call.application.weight)
        self._promote(call.key.application_id)

    # ---- inside

    def runs(self, key: CallKey) -> bool:
        """Whether a call was granted and has not ended."""
        return key in self._granted_s

    def _level(self, call: CallFacts) -> int:
        return bisect_right(self._thresholds, self.value(call))

    def _program(self, call: CallFacts) -> _Program:
        application = call.application
        return self._programs.setdefault(application.application_id, _Program(application.sequence))

    def _promote(self, application_id: str) -> None:
        """Promote those of a program's calls that are due, and note when the next one will be."""
        program = self._programs[application_id]
        while (due_s := program.due_s(self._beta)) <= self._now_s:
            key = program.below.pop()
            self._waiting.set(key, 0, self._ready[key])
        if due_s < inf:
            self._due.set(application_id, due_s, program.sequence)
        else:
            self._due.discard(application_id)
