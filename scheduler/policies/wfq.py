"""Weighted fair queueing: the call runs that GPS would finish first, as far as it knows.

Demers, Keshav and Shenker, SIGCOMM 1989, section 2; named PGPS and analysed by Parekh and Gallager, ToN 1993,
section III. With V the virtual time of GPS among flows, a call that begins to wait at V(a) behind one with finish tag
F' has S = max(V(a), F') and F = S + L/w; the backlogged flow whose first call has the smallest F runs it (equal
tags: the flow with the older application). Only a flow's first waiting call has tags: F' is that of the call granted
before it.

V is that of a fluid which every call joins with its predicted length: service S, seen as running calls report what they
have made, moves V by S/W, W the weights of the flows that the fluid has not emptied; a flow with work B left is emptied
when V has moved by B/w. What a call makes beyond its prediction is work that came for its flow, what it does not make
leaves the fluid, as do lost and cancelled calls. When nothing waits or runs all begins anew (`fair_tags`,
`fluid_flows`).

Charged: the predicted cost, through the tag, at the grant; corrected as the call exceeds it and when it ends.
Leaving and returning: a flow that GPS has emptied returns with S = V(a); there is no credit, and no debt beyond what
GPS has still to do for it.

Different from the papers: many servers, of which GPS is the sum, so that GPS may give a flow more than its few calls
can take in reality; the bound below is for one server.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence. A call that ends before its first token cost
nothing.

Defining property: on one server of rate r with true lengths each call ends at most L_max/r after it ends in GPS (GPS
counting a call that comes between two reports of a busy server as come at the earlier one). O(log n) for each
operation, and as much again for each flow that GPS empties.
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import Need
from scheduler.policies.fair_tags import TaggedPolicy
from scheduler.types import CallKey


class Wfq(TaggedPolicy):
    """Smallest finish tag first."""

    name = "wfq"
    summary = "smallest finish tag against simulated GPS"
    paper = "WFQ (Demers, Keshav and Shenker, SIGCOMM 1989; Parekh and Gallager, ToN 1993)"
    follows_service = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        super().__init__(cost)
        self._by_finish: FinishHeap[str] = FinishHeap()

    def head(self) -> CallKey | None:
        flow = self._by_finish.peek()
        return None if flow is None else self._queues.first(flow).key

    def _file(self, flow: str) -> None:
        self._by_finish.set(flow, self.tags(flow)[1], self._queues.number(flow))

    def _unfile(self, flow: str) -> None:
        self._by_finish.discard(flow)
