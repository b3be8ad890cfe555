"""Program-level attained service: calls of programs that have had little go first.

PLAS of Autellix (Luo et al., arXiv:2502.13965, 2025, section 4.2), for programs that make one call after another.
With a program's calls c_1, c_2, ... the value of a call is

    value(c_j) = service of the program's calls that ended before c_j began to wait

in the unit of the option `cost`, p + 2·d unless told. Values are cut into levels, smaller levels go first, inside a
level the call that became ready first; a call that has waited too long for what its program was served is promoted
(`program_levels` states both). Service is charged once, at a call's end, and stays charged though the call was lost or
cancelled: what was spent was attained. An application that idles keeps its service until it leaves; one that leaves and
returns under another id is a new program.

The paper counts service in seconds of engine time and moves a running call down when it outgrows its queue; here
service is in tokens, seconds count for promotion alone, and a call that was granted runs to its end. Chosen, where the
paper leaves it open: first_threshold 1,024 and factor 4 with 8 levels (the last from 4,194,304), beta 10; a promotion
resets no counter.

Defining property: no call starts while one of a smaller level waits, or an older one of its own level; a call is
promoted as soon as (W + w)/T >= beta. O(log n).
"""

from __future__ import annotations

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts
from scheduler.policies.program_levels import ProgramLevels


class ProgramLevelAttainedService(ProgramLevels):
    """Smallest level of the program's attained service first."""

    name = "plas"
    summary = "calls in levels by the service of their application's finished calls"
    paper = "Autellix (Luo et al., arXiv:2502.13965)"

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
