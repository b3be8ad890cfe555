"""Round robin: flows in turn, one call each.

Nagle ("On packet switches with infinite storage", IEEE Transactions on Communications, 1987): a queue for each flow,
and a list of the backlogged flows. The head is the first call of the first flow in the list; a flow goes to the tail
of the list when it becomes backlogged and each time one of its calls is granted. One call is charged at its grant,
whatever it costs and however it ends: a call that was lost takes another turn. Weights are not looked at.

The list is kept as ranks: with t grants so far, going to the tail is taking rank t, and the smallest rank is first.
Flows of one rank, which came between the same two grants, stand in the order of their numbers, that of arrival; the
source leaves this open. A flow that left and returns goes to the tail like any other, so nothing is kept of it.

Defining property: over any interval in which two flows are backlogged throughout, the numbers of their calls granted
differ by at most one, because one that was granted stands behind all that wait. A flow that waits is passed by no flow
that comes after the next grant. O(log n).
"""

from __future__ import annotations

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.types import CallKey


class RoundRobin(Policy):
    """The flow that has waited longest for its turn first; first come, first served inside a flow."""

    name = "rr"
    summary = "flows in turn, one call each"
    paper = "Nagle (IEEE Trans. Communications, 1987)"
    shares_among_flows = True

    def __init__(self) -> None:
        self._queues = FlowQueues()
        self._turns: FinishHeap[str] = FinishHeap()
        self._grants = 0

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._go_to_tail(call.flow)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._turns.discard(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        if call.flow in self._queues:
            self._grants += 1
            self._go_to_tail(call.flow)

    def head(self) -> CallKey | None:
        flow = self._turns.peek()
        return None if flow is None else self._queues.first(flow).key

    def _go_to_tail(self, flow: str) -> None:
        self._turns.set(flow, self._grants, self._queues.number(flow))
