"""Application-level first come, first served: whole applications in the order in which they arrived.

Parrot (Lin et al., OSDI 2024, section 5.4) schedules the calls of one application together instead of letting each of
them queue anew behind strangers. Rank of an application: its arrival sequence. Inside an application: the call with
the most stages before it first, because it is nearest to the application's end, then by readiness; with
`depth_first=0` by readiness alone.

Nothing is charged, and weights have no part in an order of arrival. Idling neither gains nor loses anything: an
application that has no call waiting lets others pass, and keeps its place for the next call. Parrot also groups calls
by shared prompt prefixes and by a latency or throughput objective deduced from the application; that belongs to
placement and is left out here.

Defining property: no call of a later application starts while one of an earlier application waits. O(log n).
"""

from __future__ import annotations

from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.types import CallKey


class AppFcfs(Policy):
    """Smallest application sequence first; inside it the deepest stage first."""

    name = "app_fcfs"
    summary = "applications in order of arrival, deeper stages first inside each"
    paper = "Parrot (Lin et al., OSDI 2024)"
    needs = (Need.DEPENDENCIES,)

    def __init__(self, *, depth_first: int = 1) -> None:
        if depth_first not in (0, 1):
            raise ValueError(f"depth_first must be 0 or 1, got {depth_first}")
        self._by_depth = depth_first
        self._queues = ApplicationQueues()

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, call.application.sequence, -call.stage * self._by_depth)

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def head(self) -> CallKey | None:
        return self._queues.head()

    def rank(self, call: CallFacts) -> float | None:
        return call.application.sequence
