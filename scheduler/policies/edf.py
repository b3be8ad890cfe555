"""Earliest deadline first: the application whose deadline comes first.

Liu and Layland ("Scheduling algorithms for multiprogramming in a hard-real-time environment", Journal of the ACM 20(1),
1973, section 7, the deadline driven rule). Rank of an application: its absolute deadline; applications without one come
last. Equal deadlines in order of arrival, calls of one application in order of readiness. Nothing is charged, idling
changes nothing, weights have no part (a deadline is due whoever set it), and a deadline that has passed still ranks
first: nobody is dropped.

The paper preempts; here a call runs to its end, and the rule decides at each grant.

Defining property, on one server: whenever some order meets all deadlines, this one does, for (1) calls of one unit of
time that arrive at whole units, (2) calls of any length that arrive together, where it also has the smallest largest
lateness (Jackson 1955), and (3) applications cut into calls of one unit that arrive at whole units, which is the
preemptive rule of the paper (feasible whenever utilization is at most 1). With calls of any length that arrive at any
time no rule without foresight has it. O(log n).
"""

from __future__ import annotations

from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.types import CallKey

_MICROSECONDS_PER_S = 1e6


class EarliestDeadlineFirst(Policy):
    """Smallest absolute deadline of the application first."""

    name = "edf"
    summary = "applications in order of their deadlines"
    paper = "Liu and Layland (JACM 1973)"
    needs = (Need.DEADLINES, Need.PREEMPTION)

    def __init__(self) -> None:
        self._queues = ApplicationQueues()

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, call.application.deadline_s)

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def head(self) -> CallKey | None:
        return self._queues.head()

    def rank(self, call: CallFacts) -> float | None:
        return call.application.deadline_s * _MICROSECONDS_PER_S
