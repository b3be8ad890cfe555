"""FairServe's weighted service counter: flows are compared by interactions, not by tokens.

A user of long documents needs more tokens for one answer than a user of a chat; comparing tokens gives the first fewer
answers. So service is normalized by what the type of application usually needs (Khan et al., "Ensuring Fair LLM
Serving Amid Diverse Applications", arXiv:2411.15997, weighted service counter):

    S_f += h(p, d) / (ω(type)·w_f),   smallest S_f first, first come, first served inside a flow.

h is linear, p + 2·d (`cost` names another); the prompt is charged at admission, again at each re-admission, output
tokens as they are made. An interaction is an application with all its calls: a typical one moves the counter of a flow
of weight 1 by 1. ω(type) is the mean of h over the applications of that type that have left, the last `window` of them
(1,000) weighing most: mean += (h − mean)/min(n, window). It is taken when the first call of an application is granted
and holds for all its calls; an application of a type that nobody knows yet is normalized by its own predicted cost.
Applications that left without service teach nothing. The means of at most 1,024 types are kept; of more, the least
recently used is forgotten.

Where it differs: the paper weighs input, system and output tokens apart and takes the expected lengths of a type from
traces; it gives users priorities, which are weights here. Its throttling under overload (OIT), which refuses calls, is
the business of another layer and is left out.

Leaving and returning: a flow that returns is lifted to the smallest counter of the flows with an application in the
system, unless its own is larger (`scheduler.policies.service_counters`, which has the laws of the counters).

A flow is an application or a tenant, as the operator set it, and w its weight. Equal counters: the flow with the older
application. A counter of a flow that left is kept while it is above the smallest active one (the 512 largest), until
nobody is active; then all begin at 0. An application never returns.

Defining property: flows that are backlogged throughout get equal numbers of typical interactions by weight, up to those
under way, however long the interactions of their types are. Each operation is O(log n).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need
from scheduler.policies.service_counters import CounterPolicy

MAX_TYPES = 1024


@dataclass(slots=True)
class _Mean:
    """A running mean that forgets."""

    value: float
    count: int = 1

    def learn(self, cost: float, window: float) -> None:
        self.count += 1
        self.value += (cost - self.value) / min(self.count, window)


@dataclass(slots=True)
class _Interaction:
    """An application in the system: what its type usually needs, and what it has been given."""

    expected: float
    service: float = 0.0


class FairServe(CounterPolicy):
    """Smallest counter of interactions first."""

    name = "fairserve"
    summary = "the flow that was given the fewest interactions, each measured by what its type usually needs"
    paper = "FairServe (Khan et al., arXiv:2411.15997)"
    service_demotes = True
    needs = (Need.PREDICTIONS, Need.WEIGHTS)

    def __init__(self, *, cost: CostModel = linear_cost, window: float = 1000) -> None:
        if not window >= 1:
            raise ValueError(f"window must be at least 1, got {window}")
        super().__init__()
        self.cost: CostModel = cost
        self.window = window
        self._service = cost
        self._means: OrderedDict[str, _Mean] = OrderedDict()
        self._interactions: dict[str, _Interaction] = {}

    def granted(self, call: CallFacts, replica_id: str) -> None:
        if call.key.application_id not in self._interactions:
            self._interactions[call.key.application_id] = _Interaction(self._expected(call.application))
        super().granted(call, replica_id)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        if call.key in self._charged:
            made = output_tokens or (0,) * call.sequences
            self._interactions[call.key.application_id].service += self._service(call.prompt_tokens, made)
        super().ended(call, output_tokens, finished)

    def application_left(self, application: ApplicationFacts) -> None:
        super().application_left(application)
        interaction = self._interactions.pop(application.application_id, None)
        if interaction is not None and interaction.service > 0:
            self._learn(application.application_type, interaction.service)

    def charge_while_running(self, call: CallFacts, made: tuple[int, ...]) -> float:
        return self._service(call.prompt_tokens, made)

    def unit(self, call: CallFacts) -> float:
        return call.flow_weight * self._interactions[call.key.application_id].expected

    def _expected(self, application: ApplicationFacts) -> float:
        mean = self._means.get(application.application_type)
        return mean.value if mean is not None else application.predicted_cost or 1.0

    def _learn(self, application_type: str, service: float) -> None:
        mean = self._means.get(application_type)
        if mean is None:
            self._means[application_type] = _Mean(service)
        else:
            mean.learn(service, self.window)
        self._means.move_to_end(application_type)
        if len(self._means) > MAX_TYPES:
            self._means.popitem(last=False)
