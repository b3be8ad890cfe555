"""Adaptive thread-level attained service: calls with little service on the path behind them go first.

ATLAS of Autellix (Luo et al., arXiv:2502.13965, 2025, section 4.2), for programs whose calls run side by side. Counting
a program's whole service, as PLAS does, would sink one that is merely wide. The value of a call, fixed when it begins
to wait, is the service along the longest path behind it:

    value(c) = max over calls c' that c came directly after of value(c') + service(c')
    value(c) = the longest such sum that its program has seen, when c came after no call that is known

in the unit of the option `cost`, p + 2·d unless told, over the program's weight. Its level is the number of thresholds
t_i = first_threshold·factor^i, i = 0..levels − 2, that its value has reached. The smallest level goes first, inside a
level the call that became ready first. Promotion: with W the seconds that the program's calls waited for their grants
and T the seconds from grant to end of those that ended, a call that has waited w seconds goes to level 0 once (W + w)/T
>= beta, and stays there until it is granted. Service is charged once, at a call's end, lost or cancelled ones included;
of a call that is granted again only the last run counts for those after it, an earlier one only for the program's
longest path. An application that idles keeps its paths until it leaves.

The paper counts service in seconds of engine time and moves a running call down when it outgrows its queue; here
service is in tokens, seconds count for promotion alone, and a call that was granted runs to its end. Chosen, where the
paper leaves it open: first_threshold 1,024 and factor 4 with 8 levels, beta 10; a promotion resets no counter. The
paper has no weights. Of a program the ends of the last 4,096 calls are kept; a call that came after an older one counts
that as the longest path.

Defining property: no call starts while one of a smaller level waits, or an older one of its own level, levels being
those of the critical path; a call is promoted as soon as (W + w)/T >= beta. O(log n), and O(k) to value a call that
came after k others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need
from scheduler.policies.program_levels import ProgramLevels
from scheduler.types import CallKey

MAX_PATHS = 4096


@dataclass(slots=True)
class _Paths:
    """The service along a program's longest path, and along those that end in each of its last calls."""

    longest: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)

    def note(self, call_id: str, service: float) -> None:
        """A path of this much service ends in a call."""
        self.longest = max(self.longest, service)
        self.ends.pop(call_id, None)
        self.ends[call_id] = service
        if len(self.ends) > MAX_PATHS:
            del self.ends[next(iter(self.ends))]


class CriticalPathAttainedService(ProgramLevels):
    """Smallest level of the service along the critical path first."""

    name = "atlas"
    summary = "calls in levels by the service along the critical path behind them over weight"
    paper = "Autellix (Luo et al., arXiv:2502.13965)"
    needs = (Need.DEPENDENCIES, Need.WEIGHTS)

    def __init__(
        self,
        *,
        cost: CostModel = linear_cost,
        first_threshold: float = 1024.0,
        factor: float = 4.0,
        levels: int = 8,
        beta: float = 10.0,
    ) -> None:
        super().__init__(cost, first_threshold, factor, levels, beta)
        self._paths: dict[str, _Paths] = {}
        self._behind: dict[CallKey, float] = {}

    def value(self, call: CallFacts) -> float:
        paths = self._paths.get(call.key.application_id)
        if paths is None:
            return 0.0
        return max((paths.ends.get(name, paths.longest) for name in call.after), default=paths.longest)

    def add(self, call: CallFacts) -> None:
        self._behind[call.key] = self.value(call)
        super().add(call)

    def remove(self, key: CallKey) -> None:
        if not self.runs(key):
            self._behind.pop(key, None)
        super().remove(key)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._behind.setdefault(call.key, self.value(call))
        super().granted(call, replica_id)

    def count(self, call: CallFacts, service: float) -> None:
        paths = self._paths.setdefault(call.key.application_id, _Paths())
        paths.note(call.key.call_id, self._behind.pop(call.key, 0.0) + service)

    def application_left(self, application: ApplicationFacts) -> None:
        super().application_left(application)
        self._paths.pop(application.application_id, None)
