"""Rate monotonic: the application whose kind comes most often goes first.

Liu and Layland ("Scheduling algorithms for multiprogramming in a hard-real-time environment", Journal of the ACM 20(1),
1973, sections 4 and 5). Rank of an application: its period; those without one come last. Equal periods in order of
arrival, calls of one application in order of readiness. The rank never moves: nothing is charged, idling changes
nothing, deadlines are not looked at, and weights have no part: how often a run comes is what counts.

The paper preempts; here a call runs to its end, so that a call may be held up by one call of a longer period. Tasks
that are cut into calls of one unit and come at whole units are not: for them the rule is the paper's.

Defining property: n such tasks, each due at its next period, all meet their deadlines on one server when their
utilization is U = sum of C/T <= n·(2^(1/n) − 1). Above that a set may miss though its U is below 1. O(log n).
"""

from __future__ import annotations

from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.types import CallKey

_MICROSECONDS_PER_S = 1e6


class RateMonotonic(Policy):
    """Smallest period of the application first."""

    name = "rm"
    summary = "applications in order of their periods, shortest first"
    paper = "Liu and Layland (JACM 1973)"
    needs = (Need.PERIODS, Need.PREEMPTION)

    def __init__(self) -> None:
        self._queues = ApplicationQueues()

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, call.application.period_s)

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def head(self) -> CallKey | None:
        return self._queues.head()

    def rank(self, call: CallFacts) -> float | None:
        return call.application.period_s * _MICROSECONDS_PER_S
