"""Worst-case fair weighted fair queueing: WFQ among the calls that GPS has begun.

Bennett and Zhang, "WF²Q: Worst-case Fair Weighted Fair Queueing", INFOCOM 1996. Tags are those of WFQ: S = max(V(a),
F'), F = S + L/w. A call is eligible once S <= V; the eligible one with the smallest F runs. When none is eligible,
which happens with many servers only (what runs on the others is not finished in GPS either), the one with the smallest
S runs, so that no server stays idle. Equal tags: the flow with the older application.

V is that of a fluid which every call joins with its predicted length L: service S, seen as running calls report what
they have made, moves V by S/W, W the weights of the flows that the fluid has not emptied; a flow with work B left is
emptied when V has moved by B/w. What a call makes beyond its prediction is work that came for its flow, what it does
not make leaves the fluid, as do lost and cancelled calls. When nothing waits or runs all begins anew (`fair_tags`,
`fluid_flows`).

Charged: the predicted cost, through the tag, at the grant; corrected as the call exceeds it and when it ends.
Leaving and returning: a flow that GPS has emptied returns with S = V(a); no credit, and no debt beyond what GPS has
still to do for it.

Different from the paper: many servers, of which GPS is the sum; and S <= V is asked with a tolerance of 1e-9 (of V,
where that is above 1), because V is rounded.

A flow is an application or a tenant, as the operator set it, and w its weight. Cost is that of the option `cost`, p +
2·Σd unless told: p prompt tokens, d output tokens of each sequence. A call that ends before its first token cost
nothing.

V(a) is V when the call began to wait (a lost call: when it returned), F' the finish tag of its flow's call granted
before it, moved by 1/w of what that call makes more or less than predicted; only a flow's first call has tags.

Defining property: on one server of rate r with true lengths each call ends at most L_max/r after it ends in GPS, and no
flow is ever further ahead of GPS than W_i − W_i,GPS <= (1 − w_i/W)·L_i,max (W: all weights); GPS counts a call that
comes between two reports of a busy server as come at the earlier one. O(log n) for each operation amortized, and as
much again for each flow that GPS empties.
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.finish_heap import FinishHeap
from scheduler.policies.contract import Need
from scheduler.policies.fair_tags import TaggedPolicy
from scheduler.types import CallKey

_TOLERANCE = 1e-9


class Wf2q(TaggedPolicy):
    """Smallest finish tag among the flows whose start tag V has reached; the others wait by start tag."""

    name = "wf2q"
    summary = "smallest finish tag among the calls that simulated GPS has begun"
    paper = "WF²Q (Bennett and Zhang, INFOCOM 1996)"
    follows_service = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    shares_among_flows = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        super().__init__(cost)
        self._eligible: FinishHeap[str] = FinishHeap()
        self._early: FinishHeap[str] = FinishHeap()

    def _serve(self, service: float) -> None:
        super()._serve(service)
        while (flow := self._early.peek()) is not None and self._is_eligible(self._early.rank(flow)):
            self._file(flow)

    def head(self) -> CallKey | None:
        flow = self._eligible.peek() or self._early.peek()
        return None if flow is None else self._queues.first(flow).key

    def _file(self, flow: str) -> None:
        self._unfile(flow)
        start, finish = self.tags(flow)
        number = self._queues.number(flow)
        if self._is_eligible(start):
            self._eligible.set(flow, finish, number)
        else:
            self._early.set(flow, start, number)

    def _unfile(self, flow: str) -> None:
        self._eligible.discard(flow)
        self._early.discard(flow)

    def _is_eligible(self, start: float) -> bool:
        virtual_time = self.virtual_time
        return start <= virtual_time + _TOLERANCE * max(1.0, virtual_time)
