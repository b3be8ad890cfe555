"""First come, first served: calls run in the order in which they became ready.

What vLLM does on its own. A call that was lost and returns keeps its old place. Nothing is charged, and weights have no
part in it: an order of arrival has nothing to scale.

Defining property: start order is arrival order. O(log n).
"""

from __future__ import annotations

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Policy
from scheduler.types import CallKey


class Fcfs(Policy):
    """Smallest ready sequence first."""

    name = "fcfs"
    summary = "calls in order of arrival"
    paper = "vLLM (Kwon et al., SOSP 2023)"

    def __init__(self) -> None:
        self._waiting: FinishHeap[CallKey] = FinishHeap()

    def add(self, call: CallFacts) -> None:
        self._waiting.set(call.key, 0.0, call.ready_sequence)

    def remove(self, key: CallKey) -> None:
        self._waiting.discard(key)

    def head(self) -> CallKey | None:
        return self._waiting.peek()

    def rank(self, call: CallFacts) -> float | None:
        return call.ready_sequence
