"""Justitia: the application that fair sharing would finish first takes all it can use.

Applications are ordered by virtual finish tag F = V(arrival) + C/w, smallest first (Justitia, arXiv:2510.17015, section
4). C is the predicted cost of all its calls in KV token-time, w its weight, and V the virtual time of the fluid
reference GPS: the service that a unit of weight has had there. With service S delivered by the engines V moves by S/W,
W the weights of the applications that the reference has not finished, each of which leaves it when V reaches its tag,
whenever it really ends. The core keeps V and the tags (`gps.py`, `applications.py`). Of equal tags, an application with
a call that was granted and came back goes first, since its work is lost as long as it waits; then the order of arrival.
Inside an application, calls run in the order in which they became ready. The tag is fixed at arrival and moves only by
corrections, each published with its reason: an early end (to the true cost), an overrun (what was served plus what is
expected still), work revealed later. This policy keeps the order and never computes a tag. Nothing is charged, and an
application that idles between calls keeps its tag.

The option `cost` measures applications, tags and virtual time by another function than KV token-time, which is what the
paper takes: `profile`, an engine's measured time, counts what prefill costs its neighbours, where memory held does not;
`linear` makes the order that of the paper's ablation. V then moves by what calls are seen to make, in that unit.

KV token-time of a call is p·d + d·(d + 1)/2 summed over its sequences, p prompt tokens and d output tokens of each.

Defining property: no call of an application is granted while an application with a smaller tag has a call
waiting. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, memory_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.types import CallKey

AHEAD_OF_EQUALS = 2**62
"""Larger than any application's number."""


class Justitia(Policy):
    """Smallest finish tag first; two heaps, applications by tag and an application's calls by readiness."""

    name = "justitia"
    summary = "applications in the order in which fair sharing would finish them"
    paper = "Justitia (Yang et al., arXiv:2510.17015)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    orders_by_tag = True

    def __init__(self, *, cost: CostModel = memory_cost) -> None:
        self.cost = None if cost is memory_cost else cost  # engines report service in KV token-time
        self._applications: FinishHeap[str] = FinishHeap()
        self._calls: dict[str, FinishHeap[CallKey]] = {}
        self._came_back: dict[str, set[CallKey]] = {}

    def add(self, call: CallFacts) -> None:
        application = call.application
        calls = self._calls.get(application.application_id)
        if calls is None:
            calls = self._calls[application.application_id] = FinishHeap()
        calls.set(call.key, 0.0, call.ready_sequence)
        if call.grants:
            self._came_back.setdefault(application.application_id, set()).add(call.key)
        self._place(application.application_id, application.finish_tag, application.sequence)

    def remove(self, key: CallKey) -> None:
        calls = self._calls.get(key.application_id)
        if calls is None:
            return
        calls.discard(key)
        if calls and key.application_id in self._came_back:
            self._answer_came_back(key)
        if not calls:
            del self._calls[key.application_id]
            self._came_back.pop(key.application_id, None)
            self._applications.discard(key.application_id)

    def application_changed(self, application: ApplicationFacts) -> None:
        if application.application_id in self._applications:
            self._place(application.application_id, application.finish_tag, application.sequence)

    def head(self) -> CallKey | None:
        application_id = self._applications.peek()
        return None if application_id is None else self._calls[application_id].peek()

    def rank(self, call: CallFacts) -> float | None:
        return call.application.finish_tag

    def _place(self, application_id: str, finish_tag: float, sequence: int) -> None:
        ahead = AHEAD_OF_EQUALS if application_id in self._came_back else 0
        self._applications.set(application_id, finish_tag, sequence - ahead)

    def _answer_came_back(self, key: CallKey) -> None:
        """A call that had come back waits no more; with the last of them its application loses its precedence."""
        waiting = self._came_back[key.application_id]
        waiting.discard(key)
        if not waiting:
            del self._came_back[key.application_id]
            finish_tag, ahead = self._applications.place(key.application_id)
            self._place(key.application_id, finish_tag, ahead + AHEAD_OF_EQUALS)
