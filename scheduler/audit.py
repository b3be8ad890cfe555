"""The live audit: did anyone finish later than the delay bound allows?

For an application whose calls are all ready at its arrival, with true costs and late binding, the real finish f
follows the finish in the reference by at most two longest calls: f ≤ f_GPS + 2·D_max. A chain of calls breaks
that form by nature, since no scheduler can run a chain faster than its calls last. The bound exported for an
application of k stages is therefore

    f ≤ max(f_GPS, arrival + critical path) + (k + 1)·D_max

with the critical path in seconds as its calls really lasted, and D_max the longest call of anyone that ended
during the application's life or was still running at its end. Applications that were open, that lost a lease on
the way or did not finish every call have no bound.

The first form needs everybody's calls ready, small against the pool. The staged form is no theorem: it held for every
random workload tried (`tests/theory/test_delay_bound.py`), but the fluid reference serves work that a dependency still
keeps from running, and an application built like an hourglass can make another later than this. The audit counts such
a case as the violation that it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.applications import Application, Call
from scheduler.lifecycle import CallState
from scheduler.types import ApplicationRecord


class LongestCalls:
    """The longest call that ended since a given moment, for every moment; memory O(distinct records)."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._durations_s: list[float] = []

    def add(self, end_s: float, duration_s: float) -> None:
        """A call ended; ends come in order of time."""
        while self._durations_s and self._durations_s[-1] <= duration_s:
            self._ends_s.pop()
            self._durations_s.pop()
        self._ends_s.append(end_s)
        self._durations_s.append(duration_s)

    def since(self, moment_s: float) -> float:
        """Duration of the longest call that ended at or after `moment_s`; 0 when none did."""
        index = bisect_left(self._ends_s, moment_s)
        return self._durations_s[index] if index < len(self._durations_s) else 0.0

    def forget_before(self, moment_s: float) -> None:
        """Nobody will ask about moments before this one."""
        index = bisect_left(self._ends_s, moment_s)
        del self._ends_s[:index]
        del self._durations_s[:index]


def critical_path_s(calls: Iterable[Call]) -> tuple[float, int]:
    """The longest chain of calls, in seconds from grant to end, and the largest number of calls in a chain.

    Only calls that ran count. A call ends after those it depends on, so the order of ends is a topological one.
    """
    seconds: dict[str, float] = {}
    stages: dict[str, int] = {}
    ran = [call for call in calls if call.replica_id is not None and call.ended]
    for call in sorted(ran, key=lambda call: call.ended_s):
        before = [name for name in call.after if name in seconds]
        seconds[call.key.call_id] = max((seconds[name] for name in before), default=0.0) + (
            call.ended_s - call.granted_s
        )
        stages[call.key.call_id] = max((stages[name] for name in before), default=0) + 1
    return max(seconds.values(), default=0.0), max(stages.values(), default=0)


def latest_finish_s(gps_finish_s: float, arrival_s: float, path_s: float, stages: int, longest_call_s: float) -> float:
    """The bound of this module's docstring, in seconds on the clock of its arguments."""
    return max(gps_finish_s, arrival_s + path_s) + (stages + 1) * longest_call_s


@dataclass(frozen=True, slots=True)
class _Ended:
    """An application that has ended, while the reference still serves it."""

    record: ApplicationRecord
    path_s: float
    stages: int
    longest_call_s: float
    static: bool


class AuditBook:
    """Applications that ended before their reference did, and how many finished later than the bound allows."""

    def __init__(self) -> None:
        self.audited = 0
        self.violations = 0
        self._ended: dict[int, _Ended] = {}
        self._longest_calls = LongestCalls()

    def __contains__(self, application: int) -> bool:
        return application in self._ended

    def __len__(self) -> int:
        return len(self._ended)

    def note_call(self, end_s: float, duration_s: float) -> None:
        """A call that ran has ended."""
        self._longest_calls.add(end_s, duration_s)

    def note_end(self, application: Application, record: ApplicationRecord, longest_running_s: float) -> None:
        """An application has ended; its audit waits for the reference. Calls that still run count too."""
        path_s, stages = critical_path_s(application.calls.values())
        undisturbed = all(
            call.state is CallState.FINISHED and call.attempts == 1 for call in application.calls.values()
        )
        static = undisturbed and record.outcome == "finished" and not application.spec.open
        longest_s = max(longest_running_s, self._longest_calls.since(application.arrival_s))
        self._ended[application.sequence] = _Ended(record, path_s, stages, longest_s, static)

    def settle(self, application: int, gps_finish_s: float) -> ApplicationRecord:
        """The reference has finished too: the record with lag and bound."""
        ended = self._ended.pop(application)
        record = ended.record
        bound_s = latest_finish_s(gps_finish_s, record.arrival_s, ended.path_s, ended.stages, ended.longest_call_s)
        audited = replace(record, gps_finish_s=gps_finish_s, bound_s=bound_s if ended.static else None)
        self.audited += 1
        self.violations += audited.bound_violated
        return audited

    def forget_calls_before(self, moment_s: float) -> None:
        """No application that is still running arrived before this moment."""
        self._longest_calls.forget_before(moment_s)
