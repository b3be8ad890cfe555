"""VTC with length prediction: the predicted answer is charged when a call is admitted, and settled by what it makes.

The order is that of the virtual token counter: each flow has a counter of its service divided by its weight, the
backlogged flow with the smallest one is next, first come, first served inside (Sheng et al., OSDI 2024, section 4).
What differs from plain VTC is when a call is charged, with cost function h (`cost`: linear p + 2·d, profile or
kv_time) and predicted length d̂:
- at admission h(p, d̂), so that a flow with many calls under way is not taken for one that was served little;
- with each token beyond d̂ the difference h(p, d + 1) − h(p, d);
- at the end h(p, d) in all: what was predicted and not made is paid back. A call that is lost pays for what it made,
  and is charged anew when it is granted again.

Leaving and returning: a flow that returns is lifted to the smallest counter of the flows with an application in the
system (the paper: with a request that waits), unless its own is larger (`scheduler.policies.service_counters`).

A flow is an application or a tenant, as the operator set it, and w its weight. Equal counters: the flow with the older
application. A counter of a flow that left is kept while it is above the smallest active one (the 512 largest), until
nobody is active; then all begin at 0. An application never returns.

Defining property: whatever the predictions, |W_f/w_f − W_g/w_g| ≤ 2·max(w_p·L_input, w_q·M)/min(w) for flows that are
backlogged throughout, where M counts for each call that runs the larger of what was predicted and what it makes (the
calls of f that are yet to make tokens and those of g that were charged for tokens not made run at once); with perfect
predictions the measured difference is smaller than VTC's on the same load.
Each operation is O(log n).
"""

from __future__ import annotations

from scheduler.policies.contract import CallFacts, Need
from scheduler.policies.prepaid import PrepaidVtc


class VtcPredict(PrepaidVtc):
    """Smallest counter first, charged with what is predicted, settled by what was made."""

    name = "vtc_predict"
    summary = "the flow that was served least, predicted answers counted in advance"
    paper = "VTC with length prediction (Sheng et al., OSDI 2024)"
    service_demotes = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)

    def expected_tokens(self, call: CallFacts) -> int:
        return call.predicted_output_tokens
