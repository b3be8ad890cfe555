"""Calls that wait, application by application: the queues under every policy that orders whole applications.

Laws: the head is a call of the waiting application with the smallest rank, of equal ranks of the one that arrived
first; inside an application the call with the smallest place, of equal places the one that became ready first. A call
that was lost returns to its old place; nothing is kept of an application that does not wait. All operations are
O(log n).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts
from scheduler.types import CallKey


class ApplicationQueues:
    """Applications by rank, and one queue of calls each."""

    def __init__(self) -> None:
        self._applications: FinishHeap[str] = FinishHeap()
        self._calls: dict[str, FinishHeap[CallKey]] = {}
        self._sequences: dict[str, int] = {}

    def add(self, call: CallFacts, rank: float, place: float = 0.0) -> None:
        """Queue a call at this place of its application, and the application at this rank."""
        application = call.application
        calls = self._calls.setdefault(application.application_id, FinishHeap())
        calls.set(call.key, place, call.ready_sequence)
        self._sequences[application.application_id] = application.sequence
        self.move(application.application_id, rank)

    def remove(self, key: CallKey) -> None:
        """Take a call out. Strangers are ignored."""
        calls = self._calls.get(key.application_id)
        if calls is None:
            return
        calls.discard(key)
        if not calls:
            del self._calls[key.application_id], self._sequences[key.application_id]
            self._applications.discard(key.application_id)

    def move(self, application_id: str, rank: float) -> None:
        """Change an application's rank. One that does not wait is ignored."""
        if application_id in self._calls:
            self._applications.set(application_id, rank, self._sequences[application_id])

    def rank(self, application_id: str, otherwise: float) -> float:
        """The rank of an application, or `otherwise` when it does not wait."""
        return self._applications.rank(application_id) if application_id in self._applications else otherwise

    def gaps(self, first: str, others: Iterable[str]) -> Iterator[tuple[str, float]]:
        """By how much the ranks of other applications lie above that of `first`; of those that wait."""
        for name in others:
            if name in self._applications and name != first:
                yield name, self._applications.rank(name) - self._applications.rank(first)

    def head(self) -> CallKey | None:
        """The first call of the first application, or None when none waits."""
        application_id = self._applications.peek()
        return None if application_id is None else self._calls[application_id].peek()
