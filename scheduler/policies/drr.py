"""Deficit round robin: in each round a flow may spend its quantum, and what it saved.

Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", SIGCOMM 1995, section 3. Rounds visit the
backlogged flows one after another. At its visit a flow's deficit grows by quantum·weight; it runs calls from its
queue, first come first served, while the next one costs no more than the deficit, which it lowers; then the next flow
is visited. A flow that waits no more loses its deficit, and when it returns it is visited from the next round on.

Charged: the predicted cost at the grant, never corrected; a call that was lost is charged again. The paper leaves the
quantum open and asks for at least the largest packet: the default is 4096 units of cost. With a smaller one than the
largest call the shares are the same, and a flow is skipped until it has saved enough.

How it is computed. With deficit D after its last grant, in round r0, a flow's next call of cost L runs in round
r0 + ⌈(L − D)/(quantum·weight)⌉ (in r0 itself if L <= D). So each flow stands in one heap by (round, number), and visits
that would grant nothing are never made: one step a grant, whatever the quantum. A head that changes because a call
was cancelled or returns changes the round, which is never before that of the last grant.

Different from the paper: the order within a round is that of the flows' oldest applications, not that of a list to
whose end newcomers are added. This makes an operation O(log n) instead of O(1), and equal applications that come at
the same moment run in order of arrival. A newcomer waits for the rest of the round and at most one more.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence.

Defining property: O(1) steps a grant; each flow has at least one call a round when quantum·weight covers the largest;
over every interval in which both are backlogged |W_i/w_i − W_j/w_j| <= quantum + L_i/w_i + L_j/w_j, with L the
flows' largest calls. O(log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from scheduler.cost import CostModel, linear_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.types import CallKey


@dataclass(slots=True)
class _Account:
    """What a backlogged flow had left after its visit in a round."""

    round: int
    deficit: float = 0.0


class Drr(Policy):
    """Smallest (round, number) first."""

    name = "drr"
    summary = "rounds in which each flow may spend a quantum by weight"
    paper = "Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, quantum: float = 4096.0, cost: CostModel = linear_cost) -> None:
        if not 1 <= quantum < inf:
            raise ValueError(f"quantum must be finite and at least 1, got {quantum}")
        self._quantum = quantum
        self._cost = cost
        self._queues = FlowQueues()
        self._accounts: dict[str, _Account] = {}
        self._visits: FinishHeap[str] = FinishHeap()
        self._round = 0

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._accounts[call.flow] = _Account(self._round)
        self._file(call.flow)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.flow_of(key)
        if flow is None:
            return
        if self._queues.remove(key) is None:
            self._file(flow)
            return
        del self._accounts[flow]
        self._visits.discard(flow)
        self._round = self._round if self._accounts else 0

    def granted(self, call: CallFacts, replica_id: str) -> None:
        account = self._accounts.get(call.flow)
        if account is None:
            return
        if call.flow == self._visits.peek():
            self._round = int(self._visits.rank(call.flow))
            account.deficit += (self._round - account.round) * self._quantum * call.flow_weight
            account.round = self._round
        account.deficit -= call.predicted_cost(self._cost)
        self._file(call.flow)

    def head(self) -> CallKey | None:
        flow = self._visits.peek()
        return None if flow is None else self._queues.first(flow).key

    def _file(self, flow: str) -> None:
        call, account = self._queues.first(flow), self._accounts[flow]
        missing = max(call.predicted_cost(self._cost) - account.deficit, 0.0)
        visit = account.round + ceil(missing / (self._quantum * call.flow_weight))
        self._visits.set(flow, max(visit, self._round), self._queues.number(flow))
