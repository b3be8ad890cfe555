"""Justitia with a compute-centric cost: the order of finish tags, applications measured in p + 2·d.

The paper's ablation "Justitia/C" (Yang et al., arXiv:2510.17015, evaluation): an order as Justitia's, but an
application's cost counts tokens as prices do, prompt once and output twice, instead of the KV memory that it holds over
its life. Applications are ordered by virtual finish tag F = V(arrival) + C/w with C = Σ over its calls of p + 2·Σd,
smallest first; equal tags in order of arrival; inside an application, calls in the order in which they became ready.

The cost function is this policy's own (`cost`), so that the core measures applications, tags and virtual time in it.
Engines report service as KV token-time; in p + 2·d virtual time moves by what calls are seen to make: with each report
of their progress and at their ends. Nothing is charged here, and the policy never computes a tag: a tag is fixed at
arrival and moves only by the corrections that the core publishes. An application that is idle between calls keeps its
tag.

What the ablation shows: an application of long prompts with short answers, and one of short prompts with long answers
hold very different memory for equal p + 2·d; counted so, those that hold much of it for long are let ahead, and
everyone behind waits for memory.

V is the service that a unit of weight has had in a fluid reference: service S moves it by S/W, W the weights of the
applications that V has not brought to their tags; w is the application's weight. Corrections: an early end, an overrun,
work revealed later.

Defining property: no call of an application is granted while an application with a smaller tag in p + 2·d has a call
waiting. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.types import CallKey


class JustitiaC(Policy):
    """Smallest finish tag first, tags in tokens."""

    name = "justitia_c"
    summary = "applications in the order in which fair sharing of tokens, not memory, would finish them"
    paper = "Justitia/C (Yang et al., arXiv:2510.17015)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    orders_by_tag = True

    def __init__(self) -> None:
        self.cost: CostModel = linear_cost
        self._queues = ApplicationQueues()

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, call.application.finish_tag)

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def application_changed(self, application: ApplicationFacts) -> None:
        self._queues.move(application.application_id, application.finish_tag)

    def head(self) -> CallKey | None:
        return self._queues.head()

    def rank(self, call: CallFacts) -> float | None:
        return call.application.finish_tag
