"""Round robin: flows in turn, one call each, more often by weight.

Nagle ("On packet switches with infinite storage", IEEE Transactions on Communications, 1987): a queue for each flow,
and a list of the backlogged flows. The head is the first call of the first flow in the list; a flow goes to the tail
of the list when it becomes backlogged and each time one of its calls is granted. One call is charged at its grant,
whatever it costs and however it ends: a call that was lost takes another turn.

The list is kept as rounds: a flow of weight w that goes to the tail has its next turn in round R + 1/w, R being the
round of the last grant; the earliest round is first, and in one round who went to the tail first. Flows that went there
between the same two grants stand in the order of their numbers, that of arrival; the source leaves this open. With
equal weights that is the list as it stands; with others a flow of twice the weight has two turns where one has one (the
source has no weights; whole ones in turns are weighted round robin, Katevenis et al., IEEE JSAC 1991). A flow that left
and returns goes to the tail like any other, so nothing is kept of it.

A flow is an application or a tenant, as the operator set it, and w its weight.

Defining property: over any interval in which two flows of equal weight are backlogged throughout, the numbers of their
calls granted differ by at most one, because one that was granted stands behind all that wait; of flows i and j in
general, |n_i/w_i − n_j/w_j| <= 1/w_i + 1/w_j. O(log n).
"""

from __future__ import annotations

from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.types import CallKey

_NUMBER_BITS = 64


class RoundRobin(Policy):
    """The flow whose turn comes first; first come, first served inside a flow."""

    name = "rr"
    summary = "flows in turn, one call each, more often by weight"
    paper = "Nagle (IEEE Trans. Communications, 1987)"
    needs = (Need.WEIGHTS,)
    shares_among_flows = True

    def __init__(self) -> None:
        self._queues = FlowQueues()
        self._turns: FinishHeap[str] = FinishHeap()
        self._round = 0.0
        self._grants = 0

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._go_to_tail(call)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._turns.discard(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        if call.flow in self._queues:
            self._grants += 1
            self._round = max(self._round, self._turns.rank(call.flow))
            self._go_to_tail(call)

    def head(self) -> CallKey | None:
        flow = self._turns.peek()
        return None if flow is None else self._queues.first(flow).key

    def _go_to_tail(self, call: CallFacts) -> None:
        number = self._queues.number(call.flow)
        self._turns.set(call.flow, self._round + 1 / call.flow_weight, (self._grants << _NUMBER_BITS) + number)
