"""VTC told the truth: a call's true length is charged when it is admitted. For simulations, as a yardstick.

The order is that of the virtual token counter: each flow has a counter of its service divided by its weight, the
backlogged flow with the smallest one is next, first come, first served inside (Sheng et al., OSDI 2024, evaluation).
With cost function h (`cost`: linear p + 2·d, profile or kv_time) a call is charged h(p, d) at admission, d being its
true output length. A call that is lost or cancelled while it runs is paid back what it did not make, and charged anew
when granted again.

On a real engine nobody knows d: there it charges the prediction instead, each token beyond it as it is made, and pays
back at the end what was not made, as VTC with length prediction does.

Leaving and returning: a flow that returns is lifted to the smallest counter of the flows with an application in the
system (the paper: with a request that waits), unless its own is larger (`scheduler.policies.service_counters`).

A flow is an application or a tenant, as the operator set it, and w its weight. Equal counters: the flow with the older
application. A counter of a flow that left is kept while it is above the smallest active one (the 512 largest), until
nobody is active; then all begin at 0. An application never returns.

Defining property: predictions, right or wrong, change nothing where the truth is known; counters never move but at
admissions, and when a call is lost or cancelled. Each operation is O(log n).
"""

from __future__ import annotations

from scheduler.policies.contract import CallFacts, Need
from scheduler.policies.prepaid import PrepaidVtc


class VtcOracle(PrepaidVtc):
    """Smallest counter first, charged with the true length at admission."""

    name = "vtc_oracle"
    summary = "the flow that was served least, true lengths counted in advance"
    paper = "VTC oracle (Sheng et al., OSDI 2024)"
    service_demotes = True
    needs = (Need.TRUE_LENGTHS, Need.WEIGHTS)

    def expected_tokens(self, call: CallFacts) -> int:
        return call.predicted_output_tokens if call.true_output_tokens is None else call.true_output_tokens
