"""Fluid tracking: GPS is simulated, and the flow that is furthest behind its fluid share runs.

Parekh and Gallager, "A Generalized Processor Sharing Approach to Flow Control in Integrated Services Networks", ToN
1993, section II, has the fluid: each backlogged flow is served in proportion to its weight. No server can do that
with calls that are not divisible, so the fluid is followed greedily. The fluid's clock is the service that was
granted: a grant of predicted cost L delivers L to the fluid. Then

    lag_i = what the fluid has served flow i − what flow i was granted = waiting_i − left_i,

with waiting_i the cost of its waiting calls and left_i the work that the fluid has left for it; the backlogged flow
with the largest lag runs its first call (equal lags: the flow with the older application).

Charged: the predicted cost at the grant; what a call makes beyond it, as it appears, and the difference to its true
cost, when it ends or is lost, count as work that came for its flow and was granted to it and delivered to the fluid
(what the fluid delivered too early is withheld from what comes next; until then lags add up to that, and not to 0). A
call that is cancelled while it waits takes its work back out of the fluid, down to what the fluid has delivered.

Leaving and returning: a flow that has been granted more than the fluid gave it (lag < 0) finds its debt in the fluid,
where it has work left; when the fluid has emptied a flow that has nothing waiting, nothing is known of it. When
nothing waits, the fluid has delivered what was granted, and begins anew; until then nothing is counted.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence. A call that ends before its first token cost
nothing.

Defining property: with granted service as the clock, lag_i <= L_max·H(n − 1) at each decision, H(k) = 1 + 1/2 + ... +
1/k, n the most flows at once that have work in the fluid or waiting; with equal weights lag_i <= L_max·(n − 1)/n.
The proof is that of the cup game. Lags add up to 0. Let A_k be the largest mean of k lags, A_n = 0. A grant adds
L·(share of the k)/k at most to a mean of k, and if the flow picked is among them takes L/k away: then the mean does
not grow. If it is not, its lag was at least each of theirs, so their mean was at most A_{k+1}. So A_k <= L_max·(1/k +
1/(k+1) + ... + 1/(n − 1)), and the factor (share of the k) <= 1 is k/n when weights are equal.

Complexity: all lags of flows in the fluid grow at their own rates, w_i, so their order changes without any event;
within one weight it does not. There is a heap for each weight in use, and one for flows that the fluid has emptied:
head is O(k log n) for k different weights, other operations O(log n), and as much again for each flow that the fluid
empties.
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.policies.fluid_flows import FluidFlows
from scheduler.policies.running_charges import RunningCharges
from scheduler.types import CallKey

_EMPTIED = 0.0
"""The class of the flows that the fluid has emptied; the others are in the class of their weight."""


class Gps(Policy):
    """Largest lag behind the fluid first."""

    name = "gps"
    summary = "the flow furthest behind its share in simulated GPS"
    paper = "GPS (Parekh and Gallager, ToN 1993)"
    follows_service = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        self._cost = cost
        self._queues = FlowQueues()
        self._running = RunningCharges(cost)
        self._fluid = FluidFlows()
        self._waiting: dict[str, float] = {}
        self._class_of: dict[str, float] = {}
        self._classes: dict[float, FinishHeap[str]] = {}

    def add(self, call: CallFacts) -> None:
        cost = call.predicted_cost(self._cost)
        self._queues.add(call)
        self._waiting[call.flow] = self._waiting.get(call.flow, 0.0) + cost
        self._work(call, cost)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.flow_of(key)
        if flow is None:
            return
        call = self._queues.call(key)
        cost = call.predicted_cost(self._cost)
        self._waiting[flow] -= cost
        if self._queues.remove(key) is not None:
            del self._waiting[flow]
        self._work(call, 0.0 if key in self._running else -cost)
        if not self._queues:
            self._fluid.clear()

    def granted(self, call: CallFacts, replica_id: str) -> None:
        cost = self._running.granted(call)
        if not self._queues:
            return
        if self._queues.flow_of(call.key) is None:
            self._work(call, cost)
        self._serve(cost)

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self._correct(call, self._running.progressed(call, output_tokens))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._correct(call, self._running.ended(call, output_tokens))

    def head(self) -> CallKey | None:
        heads = [flow for heap in self._classes.values() if (flow := heap.peek()) is not None]
        if not heads:
            return None
        flow = max(heads, key=lambda flow: (self.lag(flow), -self._queues.number(flow)))
        return self._queues.first(flow).key

    def lag(self, flow: str) -> float:
        """How much less service a flow has been granted than the fluid gave it."""
        return self._waiting.get(flow, 0.0) - self._fluid.remaining(flow)

    def _correct(self, call: CallFacts, difference: float) -> None:
        if self._queues:
            self._work(call, difference)
            self._serve(difference)

    def _work(self, call: CallFacts, work: float) -> None:
        self._fluid.add(call.flow, call.flow_weight, work)
        self._file(call.flow)

    def _serve(self, service: float) -> None:
        for flow in self._fluid.serve(service):
            self._file(flow)

    def _file(self, flow: str) -> None:
        """Put a flow where it belongs: within a class, the smallest rank is the largest lag."""
        self._unfile(flow)
        if flow not in self._queues:
            return
        waiting = self._waiting[flow]
        if flow in self._fluid:
            weight = self._fluid.weight(flow)
            self._put(flow, weight, self._fluid.end(flow) - waiting / weight)
        else:
            self._put(flow, _EMPTIED, -waiting)

    def _put(self, flow: str, which: float, rank: float) -> None:
        self._class_of[flow] = which
        self._classes.setdefault(which, FinishHeap()).set(flow, rank, self._queues.number(flow))

    def _unfile(self, flow: str) -> None:
        which = self._class_of.pop(flow, None)
        if which is None:
            return
        self._classes[which].discard(flow)
        if not self._classes[which]:
            del self._classes[which]
