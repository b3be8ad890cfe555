"""Calls that wait, first come first served inside each flow: the queues under every policy that shares among flows.

Laws: a flow is backlogged exactly while one of its calls waits; a call that was lost returns to its old place; nothing
is kept of a flow that is not backlogged. All operations are O(log n) in the calls of one flow.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts
from scheduler.types import CallKey


class FlowQueues:
    """One queue a flow. Iterating gives the backlogged flows, in the order in which they became so."""

    def __init__(self) -> None:
        self._queues: dict[str, FinishHeap[CallKey]] = {}
        self._calls: dict[CallKey, CallFacts] = {}
        self._numbers: dict[str, int] = {}

    def __contains__(self, flow: str) -> bool:
        return flow in self._queues

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    def __len__(self) -> int:
        """Backlogged flows."""
        return len(self._queues)

    def add(self, call: CallFacts) -> bool:
        """Queue a call; returns whether its flow became backlogged by it."""
        began = call.flow not in self._queues
        if began:
            self._queues[call.flow] = FinishHeap()
            self._numbers[call.flow] = call.application.sequence
        self._queues[call.flow].set(call.key, 0.0, call.ready_sequence)
        self._calls[call.key] = call
        return began

    def remove(self, key: CallKey) -> str | None:
        """Take a call out; returns its flow if that is no longer backlogged. Strangers are ignored."""
        call = self._calls.pop(key, None)
        if call is None:
            return None
        queue = self._queues[call.flow]
        queue.discard(key)
        if queue:
            return None
        del self._queues[call.flow]
        del self._numbers[call.flow]
        return call.flow

    def call(self, key: CallKey) -> CallFacts:
        """A waiting call; KeyError for any other."""
        return self._calls[key]

    def flow_of(self, key: CallKey) -> str | None:
        """The flow of a waiting call; None for any other key."""
        call = self._calls.get(key)
        return None if call is None else call.flow

    def first(self, flow: str) -> CallFacts:
        """The call of a backlogged flow that became ready first; KeyError for any other flow."""
        key = self._queues[flow].peek()
        assert key is not None
        return self._calls[key]

    def number(self, flow: str) -> int:
        """A number to break ties between backlogged flows: unique, smaller for those with older applications."""
        return self._numbers[flow]
