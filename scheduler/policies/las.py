"""Least attained service: the application that was served least for its weight goes first, without any prediction.

The foreground-background rule FB (Kleinrock, Queueing Systems II, 1976, section 4.6; Nuyens and Wierman,
"The foreground-background queue: a survey", Performance Evaluation, 2008). Attained service of an application:

    A = (sum over its calls, running ones as far as they came, of cost(prompt, tokens made)) / weight

Smallest A first, equal A in order of arrival, calls of one application in order of readiness. A grows with each report
of progress and at each call's end; a grant charges nothing, so the calls of one application that are granted before
their first token is heard of count as if none ran. The cost function is the option `cost`, p + 2·d unless told. What
was spent on a call that was lost or cancelled stays counted: it was attained.

An application that idles keeps its A while it is in the system, and so resumes where it stood. FB serves the least
attained together and preempts; here a call runs to its end, and the rule decides at each grant. A policy that is
chosen while the system runs counts from that moment, running calls from their grant.

Defining property: whoever is granted has attained no more than anyone else who waits. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy, bounded_priority
from scheduler.policies.service_meter import ServiceMeter
from scheduler.types import CallKey


class LeastAttainedService(Policy):
    """Smallest attained service of the application over its weight first."""

    name = "las"
    summary = "applications in order of the service that they have had over weight"
    paper = "Foreground-background (Kleinrock, Queueing Systems II, 1976)"
    needs = (Need.WEIGHTS, Need.PREEMPTION)
    follows_service = True
    service_adds_up = True
    service_demotes = True

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        self._meter = ServiceMeter(cost)
        self._queues = ApplicationQueues()
        self._attained: dict[str, float] = {}

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, self._rank(call))

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self._count(call, self._meter.more(call, output_tokens))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._count(call, self._meter.last(call, output_tokens))

    def application_left(self, application: ApplicationFacts) -> None:
        self._attained.pop(application.application_id, None)

    def head(self) -> CallKey | None:
        return self._queues.head()

    def rank(self, call: CallFacts) -> float | None:
        return bounded_priority(self._rank(call))

    def _count(self, call: CallFacts, service: float) -> None:
        application_id = call.key.application_id
        self._attained[application_id] = self._attained.get(application_id, 0.0) + service
        self._queues.move(application_id, self._rank(call))

    def _rank(self, call: CallFacts) -> float:
        """Divided last, so that it is the same in however many reports service is told."""
        return self._attained.get(call.key.application_id, 0.0) / call.application.weight
