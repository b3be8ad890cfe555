"""Replicas under one core, iteration by iteration, with nothing but the protocol between them.

An iteration takes a second, on every replica at once. Every running sequence makes one token in it; the service
delivered is the KV that they hold then. Lengths are what was predicted, unless `true_tokens` says otherwise.
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
    grant: Grant
    spec: CallSpec
    tokens: int
    started: int
    made: int = 0

    @property
    def lease_id(self) -> str:
        return self.grant.lease_id

    @property
    def held(self) -> int:
        return self.spec.sequences * (self.spec.prompt_tokens + self.made)


@dataclass
class ClosedLoop:
    """`arrivals`: (second, application), in order of time; `replicas`: those that joined the bench.

    The laws of the core are checked after every iteration while `check_each` is set.
    """

    bench: Bench
    arrivals: Sequence[tuple[int, ApplicationSpec]]
    true_tokens: Mapping[tuple[str, str], int] = field(default_factory=dict)
    replicas: Sequence[str] = ("r",)
    check_each: bool = True
    running: list[Running] = field(default_factory=list)
    served: list[Stretch] = field(default_factory=list)
    starts: list[tuple[int, str, str]] = field(default_factory=list)
    ran: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """When each call started and ended."""
    overcommitted: int = 0
    seen: int = 0
    _specs: dict[tuple[str, str], CallSpec] = field(default_factory=dict)

    def run(self, horizon: int = 5000) -> None:
        second = 0
        pending = list(reversed(self.arrivals))
        while pending or self.bench.core.applications:
            self.bench.now_s = float(second)
            while pending and pending[-1][0] <= second:
                self._submit(pending.pop()[1])
            self._start(second)
            second += 1
            self._iterate(second)
            if second > horizon:
                raise AssertionError(f"not done after {horizon} iterations")

    def _submit(self, spec: ApplicationSpec) -> None:
        self.bench.handle(ApplicationArrived(spec))
        for call in spec.calls:
            self._specs[spec.application_id, call.call_id] = call
            self.bench.handle(
                CallReady(spec.application_id, call.call_id, call.prompt_tokens, call.predicted_output_tokens)
            )

    def _start(self, second: int) -> None:
        """Offer room, and start what was granted since the last iteration, on this offer or the one before."""
        for replica_id in self.replicas:
            self.bench.handle(CapacityOffered(replica_id, 64))
        for grant in self._new_grants():
            name = (grant.application_id, grant.call_id)
            spec = self._specs[name]
            tokens = self.true_tokens.get(name, spec.predicted_output_tokens)
            self.running.append(Running(grant, spec, tokens, second))
            self.starts.append((second, *name))
            self.bench.handle(CallStarted(grant.lease_id))

    def _new_grants(self) -> list[Grant]:
        fresh = [action for action in self.bench.actions[self.seen :] if isinstance(action, Grant)]
        self.seen = len(self.bench.actions)
        return fresh

    def _iterate(self, second: int) -> None:
        for sequence in self.running:
            sequence.made += 1
        self.bench.now_s = float(second)
        self.served.append(Stretch(second, sum(self._report(replica_id) for replica_id in self.replicas)))
        done = [r for r in self.running if r.made >= r.tokens]
        self.running = [r for r in self.running if r.made < r.tokens]
        for r in done:
            self.ran[r.grant.application_id, r.grant.call_id] = (r.started, second)
            self.bench.handle(CallFinished(r.lease_id, r.spec.prompt_tokens, (r.made,) * r.spec.sequences))
        if self.check_each:
            invariants.check(self.bench.core)

    def _report(self, replica_id: str) -> int:
        """Tell what one replica did in this iteration; returns the service it delivered."""
        here = [r for r in self.running if r.grant.replica_id == replica_id]
        served = sum(r.held for r in here)
        self.overcommitted += served > self.bench.core.replicas[replica_id].limits.pool_tokens
        generated = tuple((r.lease_id, (r.made,) * r.spec.sequences) for r in here if r.made < r.tokens)
        self.bench.handle(ProgressReported(replica_id, served, 1, served, generated))
        return served
