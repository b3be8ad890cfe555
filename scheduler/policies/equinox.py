"""Equinox: two counters a flow, one for what its user got and one for what the machine spent on it.

Tokens alone tell neither how long a user waited nor what a call costs the machine: a token of prompt computes, a token
of answer holds memory. So each flow f has two counters, and the backlogged flow with the smallest sum is next, first
come, first served inside (Wei et al., "Equinox: Holistic Fair Scheduling in Serving Large Language Models",
arXiv:2508.16646):

    HF_f = alpha·UFC_f + beta·RFC_f

- UFC, user fairness: weighted tokens, less the longer the call had to wait: (p + 2·Σd)/(1 + wait_discount·wait),
  waited seconds from ready to granted.
- RFC, resource fairness: the time that an engine needs for the call, processor and memory together. `cost` names the
  measure: profile, the fit of measured times 2.1·p + d + 0.04·p·d + 0.032·d² + 11.46 a sequence (VTC, appendix B),
  linear or kv_time.

Both are charged, divided by the flow's weight, with the predicted length when a call is admitted; tokens beyond the
prediction when they are made; and settled to what was made when it ends, as the paper corrects its counters.

Where it differs: the paper predicts latency, throughput and utilization with a model of its engine (a mixture of
experts); this policy knows lengths only, so the wait is the measured one and the resource use is that of the length.
Chosen here: alpha 0.7, beta 0.3, wait_discount 0.1 per second, an output token counted as two. The paper's adaptive
batching and stall-free scheduling are the engine's business.

Leaving and returning: a flow that returns is lifted to the smallest HF of the flows with an application in the system,
unless its own is larger (`scheduler.policies.service_counters`, which has the laws of the counters).

A flow is an application or a tenant, as the operator set it, and w its weight. Equal counters: the flow with the older
application. A counter of a flow that left is kept while it is above the smallest active one (the 512 largest), until
nobody is active; then all begin at 0. An application never returns.

Defining property: the granted call's flow has the smallest alpha·UFC + beta·RFC of all backlogged flows. With beta = 0
and no discount the order is that of VTC with length prediction, and on one server, for flows that are there from the
start, that of VTC. Each operation is O(log n).
"""

from __future__ import annotations

from math import isfinite

from scheduler.cost import CostModel, linear_cost, profile_cost
from scheduler.policies.contract import CallFacts, Need
from scheduler.policies.service_counters import CounterPolicy
from scheduler.types import CallKey


class Equinox(CounterPolicy):
    """Smallest weighted sum of the users' and the machine's counter first."""

    name = "equinox"
    summary = "the flow whose user got least and that cost the machine least, the two weighed"
    paper = "Equinox (Wei et al., arXiv:2508.16646)"
    service_demotes = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)

    def __init__(
        self,
        *,
        alpha: float = 0.7,
        beta: float = 0.3,
        wait_discount: float = 0.1,
        cost: CostModel = profile_cost,
    ) -> None:
        for name, value in (("alpha", alpha), ("beta", beta), ("wait_discount", wait_discount)):
            if not (value >= 0 and isfinite(value)):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        if alpha + beta == 0:
            raise ValueError("alpha and beta must not both be 0")
        super().__init__()
        self.alpha = alpha
        self.beta = beta
        self.wait_discount = wait_discount
        self._resources = cost
        self._now_s = 0.0
        self._discounts: dict[CallKey, float] = {}

    def advance(self, now_s: float) -> None:
        self._now_s = now_s

    def granted(self, call: CallFacts, replica_id: str) -> None:
        waited_s = max(0.0, self._now_s - call.ready_s)
        self._discounts[call.key] = 1 / (1 + self.wait_discount * waited_s)
        super().granted(call, replica_id)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        super().ended(call, output_tokens, finished)
        self._discounts.pop(call.key, None)

    def charge_while_running(self, call: CallFacts, made: tuple[int, ...]) -> float:
        return self.charge_at_end(call, tuple(max(call.predicted_output_tokens, tokens) for tokens in made))

    def charge_at_end(self, call: CallFacts, made: tuple[int, ...]) -> float:
        user = linear_cost(call.prompt_tokens, made) * self._discounts[call.key]
        return self.alpha * user + self.beta * self._resources(call.prompt_tokens, made)
