"""Earliest eligible virtual deadline first: of those that are owed service, the one whose next call is due first.

Stoica and Abdel-Wahab, "Earliest Eligible Virtual Deadline First", ODU TR-95-22, 1995 (with others: RTSS 1996); in
Linux since 6.6. Virtual time V is the service that a unit of weight has received among the backlogged flows. A flow's
virtual eligible time is e_i, its normalized service, its lag w_i·(V − e_i), how much it is owed. Its first call, of
predicted cost L, has the virtual deadline d_i = e_i + L/w_i. Among the flows with lag >= 0 (e_i <= V) the earliest
deadline runs (equal ones: the flow with the older application), and

    e_i += L/w_i,    V += L/W    (W: weights of the backlogged flows).

With lags that add up to 0, V is the weighted mean of the e_i, so somebody is always eligible. To keep it so, V moves
when a flow with lag l comes or goes: V −= l/(W + w) when it joins, V += l/(W − w) when it leaves (section 3, eq. 18
and 19), which shares among the others what it leaves behind.

Charged: the predicted cost at the grant, what a call makes beyond it as it appears, and the difference to the true
cost when it ends or is lost: e_i and V move as for a grant of that much.

Leaving and returning. The paper leaves open how a lag is carried over. Here a flow that returns has e_i = max(e_i, V):
owed service is lost by leaving, and service received ahead stays a debt until V has reached e_i once, upon which the
flow is forgotten. When nothing waits, all times begin anew.

Different from the paper: requests are calls that run to their end, many at once; a request is the whole call.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence. A call that ends before its first token cost
nothing.

Defining property: a flow that is picked has lag >= 0 (with a tolerance of 1e-9, because V is rounded); and among flows
that stay backlogged, with true predictions, −L_i <= lag_i <= L_max at each decision. O(log n) for each operation, and
as much again for each flow whose e_i V passes: as V can also fall (when a flow that is ahead leaves), flows can
become eligible more than once a call.
"""

from __future__ import annotations

from itertools import count

from scheduler.cost import CostModel, linear_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.policies.flow_weights import FlowWeights
from scheduler.policies.running_charges import RunningCharges
from scheduler.types import CallKey

_TOLERANCE = 1e-9


class Eevdf(Policy):
    """Earliest virtual deadline among the flows with lag >= 0; the others stand by eligible time."""

    name = "eevdf"
    summary = "earliest virtual deadline among the flows that are owed service"
    paper = "EEVDF (Stoica and Abdel-Wahab, 1995)"
    follows_service = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        self._cost = cost
        self._queues = FlowQueues()
        self._running = RunningCharges(cost)
        self._order = count()
        self._reset()

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._join(call.flow, call.flow_weight)
        self._file(call.flow)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.flow_of(key)
        if flow is None:
            return
        if self._queues.remove(key) is None:
            self._file(flow)
        else:
            self._leave(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._charge(call, self._running.granted(call))

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self._charge(call, self._running.progressed(call, output_tokens))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._charge(call, self._running.ended(call, output_tokens))

    def application_left(self, application: ApplicationFacts) -> None:
        if not self._queues:
            self._reset()

    def head(self) -> CallKey | None:
        flow = self._by_deadline.peek() or self._early.peek()
        return None if flow is None else self._queues.first(flow).key

    def lag(self, flow: str) -> float:
        """Service that a backlogged flow is owed; negative if it is ahead."""
        return self._weights[flow] * (self._virtual_time - self._eligible_at[flow])

    def _reset(self) -> None:
        self._virtual_time = 0.0
        self._weights = FlowWeights()
        self._eligible_at: dict[str, float] = {}
        self._by_deadline: FinishHeap[str] = FinishHeap()
        self._latest: FinishHeap[str] = FinishHeap()
        self._early: FinishHeap[str] = FinishHeap()
        self._debts: FinishHeap[str] = FinishHeap()

    def _join(self, flow: str, weight: float) -> None:
        self._eligible_at[flow] = self._own_time(flow)
        self._debts.discard(flow)
        self._weights.set(flow, weight)
        self._move(-self.lag(flow) / self._weights.total)

    def _leave(self, flow: str) -> None:
        lag, eligible_at = self.lag(flow), self._eligible_at.pop(flow)
        self._weights.discard(flow)
        self._unfile(flow)
        if not self._queues:
            self._reset()
            return
        self._owe(flow, eligible_at)
        self._move(lag / self._weights.total)

    def _charge(self, call: CallFacts, cost: float) -> None:
        flow = call.flow
        if flow not in self._queues:
            self._owe(flow, self._own_time(flow) + cost / call.flow_weight)
            return
        self._eligible_at[flow] += cost / self._weights[flow]
        self._move(cost / self._weights.total)
        self._file(flow)

    def _own_time(self, flow: str) -> float:
        return self._debts.rank(flow) if flow in self._debts else self._virtual_time

    def _owe(self, flow: str, eligible_at: float) -> None:
        """Remember an idle flow that is ahead."""
        self._debts.discard(flow)
        if eligible_at > self._virtual_time:
            self._debts.set(flow, eligible_at, next(self._order))

    def _move(self, by: float) -> None:
        """Move V, file the flows that it passes and forget the debts that it reaches."""
        self._virtual_time += by
        while (flow := self._early.peek()) is not None and self._is_eligible(flow):
            self._file(flow)
        while (flow := self._latest.peek()) is not None and not self._is_eligible(flow):
            self._file(flow)
        while (flow := self._debts.peek()) is not None and self._debts.rank(flow) <= self._virtual_time:
            self._debts.discard(flow)

    def _file(self, flow: str) -> None:
        self._unfile(flow)
        call, eligible_at, number = self._queues.first(flow), self._eligible_at[flow], self._queues.number(flow)
        if self._is_eligible(flow):
            self._by_deadline.set(flow, eligible_at + call.predicted_cost(self._cost) / self._weights[flow], number)
            self._latest.set(flow, -eligible_at, number)
        else:
            self._early.set(flow, eligible_at, number)

    def _unfile(self, flow: str) -> None:
        for heap in (self._by_deadline, self._latest, self._early):
            heap.discard(flow)

    def _is_eligible(self, flow: str) -> bool:
        virtual_time = self._virtual_time
        return self._eligible_at[flow] <= virtual_time + _TOLERANCE * max(1.0, abs(virtual_time))
