"""VTC, the virtual token counter: the client that was served least is next, charged as tokens appear.

Each flow f has a counter c_f. The backlogged flow with the smallest counter is next, its calls first come, first
served (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 4).

Charges, divided by the flow's weight: the prompt at once when a call is admitted, w_p·p, again at each re-admission;
every output token when it is made, w_q (w_p = 1, w_q = 2, the paper's). In general, with a cost function h(p, d):
h(p, 0) at admission and h(p, d + 1) − h(p, d) with a token; `cost` names h: linear
(p + 2·d), profile or kv_time. The counter needs no prediction.

Leaving and returning: a flow that returns has its counter lifted to the smallest one of the active flows, unless its
own is larger. Active means here: has an application in the system. The paper looks at requests that wait; an agent
between two of its calls has not gone idle, and lifting it then would take away what it is owed. When nobody is active
the paper lifts to the counter of the last flow to leave; here debts are forgiven at that moment, so that it is the
same for all others (`scheduler.policies.service_counters`, which has the laws of the counters).

A flow is an application or a tenant, as the operator set it, and w its weight. Equal counters: the flow with the older
application. A counter of a flow that left is kept while it is above the smallest active one (the 512 largest), until
nobody is active; then all begin at 0. An application never returns.

Defining property (theorem 4.4): for any interval in which flows f and g are backlogged throughout,
|W_f/w_f − W_g/w_g| ≤ 2·max(w_p·L_input, w_q·M)/min(w), where W is service as it is charged, L_input the longest
prompt and M the tokens of calls that run at once. Each operation is O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import CallFacts
from scheduler.policies.service_counters import CounterPolicy


class Vtc(CounterPolicy):
    """Smallest counter first, charged with what was made."""

    name = "vtc"
    summary = "the flow that was served least, counted token by token"
    paper = "VTC (Sheng et al., OSDI 2024)"
    service_demotes = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        super().__init__()
        self._service = cost

    def charge_while_running(self, call: CallFacts, made: tuple[int, ...]) -> float:
        return self._service(call.prompt_tokens, made)
