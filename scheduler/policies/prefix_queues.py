"""Calls that wait, inside each flow those with the longest cached prefix first, then in order of readiness.

Laws: a flow is backlogged exactly while one of its calls waits; nothing is kept of calls that do not wait. Adding and
removing a call is O(log n + blocks of its prefix); `sharing` names the calls whose match may have changed when blocks
came to a cache or went from it, and each of them is moved in O(log n): they do change their place.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts
from scheduler.types import CallKey


class PrefixQueues:
    """One queue a flow, ordered by matched blocks."""

    def __init__(self) -> None:
        self._calls: dict[CallKey, CallFacts] = {}
        self._queues: dict[str, FinishHeap[CallKey]] = {}
        self._with_block: dict[int, dict[CallKey, None]] = {}

    def __contains__(self, key: CallKey) -> bool:
        return key in self._calls

    def call(self, key: CallKey) -> CallFacts:
        """A waiting call; KeyError for any other."""
        return self._calls[key]

    def first(self, flow: str) -> tuple[CallFacts, float] | None:
        """The first call of a flow and its rank (less for a longer match); None when none waits."""
        queue = self._queues.get(flow)
        if queue is None:
            return None
        key = queue.peek()
        assert key is not None
        return self._calls[key], queue.rank(key)

    def sharing(self, blocks: Iterable[int]) -> list[CallFacts]:
        """Waiting calls whose prefix has one of these blocks."""
        keys = {key: None for block in blocks for key in self._with_block.get(block, ())}
        return [self._calls[key] for key in keys]

    def place(self, call: CallFacts, matched_blocks: int) -> None:
        """Queue a call, or move it."""
        if call.flow not in self._queues:
            self._queues[call.flow] = FinishHeap()
        self._queues[call.flow].set(call.key, -matched_blocks, call.ready_sequence)
        self._calls[call.key] = call
        for block in call.prefix:
            self._with_block.setdefault(block, {})[call.key] = None

    def remove(self, key: CallKey) -> str | None:
        """Take a call out; returns its flow, None for strangers."""
        call = self._calls.pop(key, None)
        if call is None:
            return None
        queue = self._queues[call.flow]
        queue.discard(key)
        if not queue:
            del self._queues[call.flow]
        for block in set(call.prefix):
            del self._with_block[block][key]
            if not self._with_block[block]:
                del self._with_block[block]
        return call.flow
