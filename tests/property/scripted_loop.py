"""A closed loop in which clients also cancel and reveal, and the engine stops what it is told to abort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from scheduler.actions import Abort, Grant, PublishCompletion
from scheduler.events import CallRevealed, CallStopped, Event
from tests.property.closed_loop import ClosedLoop
from tests.property.fluid_gps import Job, fluid_finishes


@dataclass
class ScriptedLoop(ClosedLoop):
    """`script`: (second, event), said after that second's arrivals."""

    script: Sequence[tuple[int, Event]] = ()

    def _start(self, second: int) -> None:
        for moment, event in self.script:
            if moment == second:
                self._say(event)
        super()._start(second)

    def _say(self, event: Event) -> None:
        if isinstance(event, CallRevealed):
            self._specs[event.application_id, event.call.call_id] = event.call
        for action in self.bench.handle(event):
            if isinstance(action, Abort):
                self._stop(action.lease_id)

    def _stop(self, lease_id: str) -> None:
        for running in [r for r in self.running if r.lease_id == lease_id]:
            self.running.remove(running)
            made = (running.made,) * running.spec.sequences
            self.bench.handle(CallStopped(lease_id, running.spec.prompt_tokens, made))

    def _new_grants(self) -> list[Grant]:
        """Grants that still stand."""
        return [grant for grant in super()._new_grants() if grant.lease_id in self.bench.core.leases]

    def finish_s(self, tenant: str) -> float:
        """When the last application of a tenant ended."""
        records = [action.record for action in self.bench.all(PublishCompletion)]
        return max(record.finish_s for record in records if record.tenant == tenant)

    def fair_finishes_s(self, jobs: Sequence[Job]) -> list[float]:
        """When fluid sharing by weight of what the engine delivered would have finished these jobs."""
        return [inf if finish is None else float(finish) for finish in fluid_finishes(jobs, self.served)]
