"""Stride scheduling: lottery scheduling without chance, by passes that grow with what was given.

Waldspurger and Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT/LCS/TM-528,
1995, sections 2 and 3. Each flow has a pass; the backlogged flow with the smallest pass runs its first call
(equal passes: the flow with the older application) and

    pass_i += c/w_i,    G += c/W    (W: weights of the backlogged flows),

with c the call's predicted cost, charged at the grant and never corrected, so that a call that is lost is charged
again and one that is cancelled while it waits is not. G is the global pass: how far a flow would have come that was
given exactly its part.

Leaving and returning. The paper keeps remain = pass − G of a client that leaves and lets it return at G + remain. Here
a flow that leaves keeps its pass itself and returns with max(pass, G): a debt (pass > G) shrinks while others are
served, a credit is lost; and a new flow begins at G, not a stride behind it. This way an idle flow is forgotten once
G has passed it. As a flow that leaves takes its distance to G along, G may come to differ from the mean pass of those
that stay; it is lifted to the smallest pass when it falls below. When nothing waits, all passes and G begin anew.

Different from the paper: strides are in cost, not in quanta, since calls differ; no hierarchy (section 4).

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence.

Defining property: for two flows backlogged since they began with equal passes, the services W_i/w_i and W_j/w_j
never differ by more than the larger of c_i/w_i and c_j/w_j, the largest single charges (less than one quantum).
O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.policies.flow_meters import FlowMeters
from scheduler.policies.flow_queues import FlowQueues
from scheduler.policies.flow_weights import FlowWeights
from scheduler.types import CallKey


class Stride(Policy):
    """Smallest pass first; the floor of the meters is the global pass."""

    name = "stride"
    summary = "smallest pass, which grows by cost over weight"
    paper = "Stride scheduling (Waldspurger and Weihl, MIT 1995)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        self._cost = cost
        self._queues = FlowQueues()
        self._passes = FlowMeters()
        self._weights = FlowWeights()

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._passes.join(call.flow, self._queues.number(call.flow))
            self._weights.set(call.flow, call.flow_weight)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._weights.discard(flow)
            self._passes.leave(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        cost = call.predicted_cost(self._cost)
        self._passes.charge(call.flow, cost / call.flow_weight)
        if call.flow in self._weights:
            self._passes.raise_floor(self._passes.floor + cost / self._weights.total)
            self._passes.raise_floor_to_least()

    def application_left(self, application: ApplicationFacts) -> None:
        self._passes.forget_if_empty()

    def head(self) -> CallKey | None:
        flow = self._passes.least()
        return None if flow is None else self._queues.first(flow).key
