"""One simulated engine (`scheduler.sim.engine`) under the core, in the engine's own seconds.

Between two reports pass `steps_a_report` iterations, or fewer when a call ends; a call ends at its true length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.actions import Grant, PublishCompletion
from scheduler.events import ApplicationArrived, CallFinished, CallStarted, CapacityOffered, ProgressReported
from scheduler.sim.engine import REFERENCE, BatchEngine, EngineProfile
from scheduler.types import ApplicationSpec, CallSpec
from tests.scheduling import Bench


@dataclass
class EngineLoop:
    """`arrivals`: (second, application), in order of time."""

    bench: Bench
    arrivals: Sequence[tuple[float, ApplicationSpec]]
    profile: EngineProfile = REFERENCE
    steps_a_report: int = 20
    calls: dict[str, CallSpec] = field(default_factory=dict)
    """What runs, by its lease."""
    seen: int = 0

    def __post_init__(self) -> None:
        self.engine = BatchEngine(self.profile)
        self.bench.join(
            blocks=self.profile.usable_blocks,
            block_tokens=self.profile.block_tokens,
            max_model_len=self.profile.max_model_len,
            max_sequences=self.profile.max_sequences,
        )
        self.pending = list(reversed(self.arrivals))

    def seconds_of(self, application_id: str) -> float:
        """Run until this application has ended; returns how long it took."""
        while not (ends := self._ends(application_id)):
            self._submit()
            self._start()
            self._run_engine()
        return ends[0]

    def _ends(self, application_id: str) -> list[float]:
        records = [action.record for action in self.bench.all(PublishCompletion)]
        return [r.finish_s - r.arrival_s for r in records if r.application_id == application_id]

    def _submit(self) -> None:
        if self.engine.idle and not self.bench.core.applications:
            self.bench.now_s = max(self.bench.now_s, self.pending[-1][0])
        while self.pending and self.pending[-1][0] <= self.bench.now_s:
            spec = self.pending.pop()[1]
            self.bench.handle(ApplicationArrived(spec))
            for call in spec.calls:
                self.bench.ready(spec.application_id, call)

    def _start(self) -> None:
        self.bench.handle(CapacityOffered("r", self.profile.max_sequences))
        grants = [action for action in self.bench.actions[self.seen :] if isinstance(action, Grant)]
        self.seen = len(self.bench.actions)
        for grant in grants:
            call = self.bench.state_of(grant.application_id, grant.call_id)
            spec = next(s for s in self.bench.app(grant.application_id).spec.calls if s.call_id == grant.call_id)
            self.calls[grant.lease_id] = spec
            self.engine.add(grant.lease_id, call.prompt_tokens, spec.predicted_output_tokens, grant.priority)
            self.bench.handle(CallStarted(grant.lease_id))

    def _run_engine(self) -> None:
        served = steps = 0
        finished: tuple[object, ...] = ()
        while not self.engine.idle and not finished and steps < self.steps_a_report:
            outcome = self.engine.step()
            served += outcome.served_token_iterations
            self.bench.now_s += outcome.duration_s
            finished = outcome.finished
            steps += 1
        self._report(served, steps)
        for lease_id in map(str, finished):
            spec = self.calls.pop(lease_id)
            self.bench.handle(CallFinished(lease_id, spec.prompt_tokens, (spec.predicted_output_tokens,)))

    def _report(self, served: int, steps: int) -> None:
        made = tuple(
            (lease_id, (self.engine.done_tokens(lease_id),)) for lease_id in self.calls if lease_id in self._held
        )
        used = self.engine.used_blocks * self.profile.block_tokens
        self.bench.handle(ProgressReported("r", served, steps, used, made))

    @property
    def _held(self) -> set[object]:
        return {*self.engine.running, *self.engine.waiting}
