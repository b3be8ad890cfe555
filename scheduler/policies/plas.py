"""Program-level attained service: calls of programs that have had little go first.

PLAS of Autellix (Luo et al., arXiv:2502.13965, 2025, section 4.2), for programs that make one call after another.
With a program's calls c_1, c_2, ... the value of a call is

    value(c_j) = service of the program's calls that ended before c_j began to wait, over the program's weight

in the unit of the option `cost`, p + 2·d unless told. Its level is the number of thresholds t_i =
first_threshold·factor^i, i = 0..levels − 2, that its value has reached, and is fixed while it waits. The smallest level
goes first, inside a level the call that became ready first. Promotion: with W the seconds that the program's calls
waited for their grants and T the seconds from grant to end of those that ended, a call that has waited w seconds goes
to level 0 once (W + w)/T >= beta, and stays there until it is granted. Service is charged once, at a call's end, and
stays charged though the call was lost or cancelled: what was spent was attained. An application that idles keeps its
service until it leaves; one that leaves and returns under another id is a new program.

The paper counts service in seconds of engine time and moves a running call down when it outgrows its queue; here
service is in tokens, seconds count for promotion alone, and a call that was granted runs to its end. Chosen, where the
paper leaves it open: first_threshold 1,024 and factor 4 with 8 levels (the last from 4,194,304), beta 10; a promotion
resets no counter. The paper has no weights.

Defining property: no call starts while one of a smaller level waits, or an older one of its own level; a call is
promoted as soon as (W + w)/T >= beta. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need
from scheduler.policies.program_levels import ProgramLevels


class ProgramLevelAttainedService(ProgramLevels):
    """Smallest level of the program's attained service first."""

    name = "plas"
    summary = "calls in levels by the service of their application's finished calls over weight"
    paper = "Autellix (Luo et al., arXiv:2502.13965)"
    needs = (Need.WEIGHTS,)

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
        self._attained: dict[str, float] = {}

    def value(self, call: CallFacts) -> float:
        return self._attained.get(call.key.application_id, 0.0)

    def count(self, call: CallFacts, service: float) -> None:
        self._attained[call.key.application_id] = self.value(call) + service

    def application_left(self, application: ApplicationFacts) -> None:
        super().application_left(application)
        self._attained.pop(application.application_id, None)
