"""One replica under the core, iteration by iteration, with nothing but the protocol between them.

An iteration takes a second. Every running sequence makes one token in it; the service delivered is the KV that they
hold then. Lengths are what was predicted, unless `true_tokens` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler import invariants
from scheduler.actions import Grant
from scheduler.events import ApplicationArrived, CallFinished, CallReady, CallStarted, CapacityOffered, ProgressReported
from scheduler.types import ApplicationSpec, CallSpec
from tests.property.fluid_gps import Stretch
from tests.scheduling import Bench


@dataclass
class Running:
    lease_id: str
    spec: CallSpec
    tokens: int
    made: int = 0

    @property
    def held(self) -> int:
        return self.spec.sequences * (self.spec.prompt_tokens + self.made)


@dataclass
class ClosedLoop:
    """`arrivals`: (second, application), in order of time."""

    bench: Bench
    arrivals: Sequence[tuple[int, ApplicationSpec]]
    true_tokens: Mapping[tuple[str, str], int] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    served: list[Stretch] = field(default_factory=list)
    starts: list[tuple[int, str, str]] = field(default_factory=list)
    overcommitted: int = 0
    seen: int = 0

    def run(self, horizon: int = 5000) -> None:
        second = 0
        pending = list(self.arrivals)
        while pending or self.bench.core.applications:
            self.bench.now_s = float(second)
            while pending and pending[0][0] <= second:
                self._submit(pending.pop(0)[1])
            self._start(second)
            second += 1
            self._iterate(second)
            if second > horizon:
                raise AssertionError(f"not done after {horizon} iterations")

    def _submit(self, spec: ApplicationSpec) -> None:
        self.bench.handle(ApplicationArrived(spec))
        for call in spec.calls:
            self.bench.handle(
                CallReady(spec.application_id, call.call_id, call.prompt_tokens, call.predicted_output_tokens)
            )

    def _start(self, second: int) -> None:
        """Offer room, and start what was granted since the last iteration, on this offer or the one before."""
        self.bench.handle(CapacityOffered("r", 64))
        for grant in self._new_grants():
            application = self.bench.app(grant.application_id).spec
            spec = next(call for call in application.calls if call.call_id == grant.call_id)
            tokens = self.true_tokens.get((grant.application_id, grant.call_id), spec.predicted_output_tokens)
            self.running.append(Running(grant.lease_id, spec, tokens))
            self.starts.append((second, grant.application_id, grant.call_id))
            self.bench.handle(CallStarted(grant.lease_id))

    def _new_grants(self) -> list[Grant]:
        fresh = [action for action in self.bench.actions[self.seen :] if isinstance(action, Grant)]
        self.seen = len(self.bench.actions)
        return fresh

    def _iterate(self, second: int) -> None:
        for sequence in self.running:
            sequence.made += 1
        served = sum(sequence.held for sequence in self.running)
        self.overcommitted += served > self.bench.core.pool_tokens
        self.served.append(Stretch(second, served))
        generated = tuple((r.lease_id, (r.made,) * r.spec.sequences) for r in self.running if r.made < r.tokens)
        self.bench.handle(ProgressReported("r", served, 1, served, generated), after_s=float(second) - self.bench.now_s)
        for done in [r for r in self.running if r.made >= r.tokens]:
            self.running.remove(done)
            made = (done.made,) * done.spec.sequences
            self.bench.handle(CallFinished(done.lease_id, done.spec.prompt_tokens, made))
        invariants.check(self.bench.core)
