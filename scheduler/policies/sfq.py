"""Start-time fair queueing at a router: the smallest meter runs, and is charged when its call leaves.

Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996, section 2, in the form for a router before servers
that it cannot look into. Each flow has a meter M_i, the start tag of its first waiting call. At each decision

    i = argmin M_i over the backlogged flows (equal meters: the flow with the older application),
    V = M_i,    the first call of i runs,    M_i += c/w_i,

with c the predicted cost. It is charged at dispatch and never corrected: a call that is cancelled after that, fails,
or makes more or less than predicted keeps its charge, and one that is lost is charged again.

Leaving and returning. A flow that returns has M_i = max(M_i, V): idleness earns nothing, and a debt stays until V has
passed it. When nothing waits, V = max(V, max M_i); as only differences count, this is done by setting all to 0.

Different from the paper: V is the start tag of the last call dispatched rather than of the one in service (there are
many servers), and M_i carries the finish tag of the flow's last call, so calls that wait have no tags of their own.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence.

Defining property: at each decision V <= M_i <= V + q for every backlogged flow, and over every interval in which both
are backlogged |W_i/w_i − W_j/w_j| <= 2·q, where W is the predicted cost of what was dispatched and q the largest c/w.
O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.policies.flow_meters import FlowMeters
from scheduler.policies.flow_queues import FlowQueues
from scheduler.types import CallKey


class Sfq(Policy):
    """Smallest meter first; the floor of the meters is V."""

    name = "sfq"
    summary = "smallest start tag, charged at dispatch"
    paper = "Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        self._cost = cost
        self._queues = FlowQueues()
        self._meters = FlowMeters()

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._meters.join(call.flow, self._queues.number(call.flow))

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._meters.leave(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._meters.raise_floor_to_least()
        self._meters.charge(call.flow, call.predicted_cost(self._cost) / call.flow_weight)

    def application_left(self, application: ApplicationFacts) -> None:
        self._meters.forget_if_empty()

    def head(self) -> CallKey | None:
        flow = self._meters.least()
        return None if flow is None else self._queues.first(flow).key
