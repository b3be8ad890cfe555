"""Justitia: the application that fair sharing would finish first takes all it can use.

Applications are ordered by virtual finish tag F = V(arrival) + C/w, smallest first (Justitia, arXiv:2510.17015,
section 4); equal tags in order of arrival. Inside an application, calls run in the order in which they became
ready. The tag is fixed at arrival and moves only by the corrections that the core publishes; this policy keeps
the order and never computes a tag.

Defining property: no call of an application is granted while an application with a smaller tag has a call
waiting.
"""

from __future__ import annotations

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import Policy, WaitingCall, bounded_priority
from scheduler.types import CallKey


class Justitia(Policy):
    """Smallest finish tag first; two heaps, applications by tag and an application's calls by readiness."""

    name = "justitia"
    summary = "applications in the order in which fair sharing would finish them"
    paper = "Justitia (Yang et al., arXiv:2510.17015)"
    needs = ("predictions", "weights")

    def __init__(self) -> None:
        self._applications: FinishHeap[str] = FinishHeap()
        self._sequences: dict[str, int] = {}
        self._calls: dict[str, FinishHeap[CallKey]] = {}

    def add(self, call: WaitingCall) -> None:
        application_id = call.key.application_id
        calls = self._calls.setdefault(application_id, FinishHeap())
        calls.set(call.key, 0.0, call.ready_sequence)
        self._sequences[application_id] = call.application_sequence
        self._applications.set(application_id, call.finish_tag, call.application_sequence)

    def remove(self, key: CallKey) -> None:
        calls = self._calls.get(key.application_id)
        if calls is None:
            return
        calls.discard(key)
        if not calls:
            self._forget(key.application_id)

    def head(self) -> CallKey | None:
        application_id = self._applications.peek()
        return None if application_id is None else self._calls[application_id].peek()

    def priority(self, call: WaitingCall) -> int:
        return bounded_priority(call.finish_tag)

    def retag(self, application_id: str, finish_tag: float) -> None:
        if application_id in self._applications:
            self._applications.set(application_id, finish_tag, self._sequences[application_id])

    def _forget(self, application_id: str) -> None:
        del self._calls[application_id]
        del self._sequences[application_id]
        self._applications.discard(application_id)
