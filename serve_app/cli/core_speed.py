"""What the scheduler costs an application: the whole core, at a rate of arrivals, with simulated engines.

Applications arrive one after another without end (Poisson, from a seed), whatever became of those before: `FAN_OUT`
calls at most side by side, and in every second one a call that comes after all of them. The replicas have as much
memory as the calls need in the mean (load 1), so that a queue forms; at low rates more, and none does. A replica makes
a token of each sequence every TOKEN_S, reports every REPORT_S, and asks for more as soon as its offer was used. All
time is simulated, except for the time spent in `SchedulerCore.handle`: CPU time of the thread, so that the turns of
other programs do not count (the core waits for nothing).

That time is counted for the applications that an event concerns, in equal parts: the one that arrived, became ready,
started or ended; all whose calls a replica reports on; all whose grants used up an offer. The sum over the life of an
application is its scheduling overhead. Applications of the first WARM_UP_S are not counted, and others go on
arriving until the last of those counted has ended.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from random import Random
from statistics import fmean, quantiles

from scheduler.actions import Action, Grant
from scheduler.core import SchedulerCore
from scheduler.events import (
    ApplicationArrived,
    CallFinished,
    CallReady,
    CallStarted,
    CapacityOffered,
    Event,
    ProgressReported,
    ReplicaJoined,
)
from scheduler.settings import CoreSettings
from scheduler.tenants import choose_policy
from scheduler.types import ApplicationSpec, CallSpec, EngineLimits

RATES_A_MINUTE = (100, 10_000, 100_000)
PAPER_RATE_A_MINUTE, PAPER_MS = 100, 8.093
"""Justitia (arXiv:2510.17015), table III: scheduling overhead at its highest rate."""

TENANTS = 50
FAN_OUT = 6
SHORTEST_TOKENS, LONGEST_TOKENS = 20, 180
TOKEN_S = 0.01
REPORT_S = 0.25
WARM_UP_S = 3.0
BLOCKS_A_SEQUENCE = 22
"""Of 16 tokens: what a sequence holds in the mean and what admission keeps free, so that memory is what fills up."""
MEAN_SEQUENCES, MAX_SEQUENCES = 200, 256
LEAST_SEQUENCES = 7
"""Of which a replica holds the memory at any rate: less would not hold the longest call and others beside it."""
MAX_GRANTS = 256
MEAN_CALLS = (1 + FAN_OUT) / 2 + 0.5
SEED = 20


@dataclass(frozen=True, slots=True)
class CoreSpeed:
    """The core at one rate. Overhead in milliseconds of real time an application; the queue in calls that wait."""

    applications_a_minute: int
    replicas: int
    mean_ms: float
    p99_ms: float
    mean_queue: float


def measure_core(applications_a_minute: int, applications: int = 2_000, policy: str = "justitia") -> CoreSpeed:
    """Run until so many applications have been counted."""
    station = _Station(applications_a_minute / 60, applications, policy)
    gc.collect()
    gc.disable()
    try:
        station.run()
    finally:
        gc.enable()
    spent_ms = [1e3 * spent_s for spent_s in station.counted_s.values()]
    return CoreSpeed(
        applications_a_minute,
        len(station.replicas),
        fmean(spent_ms),
        quantiles(spent_ms, n=100)[-1],
        station.queue_area / (station.now_s - WARM_UP_S),
    )


@dataclass(slots=True)
class _Running:
    """A call that an engine runs."""

    application_id: str
    call: CallSpec
    begin_s: float
    tokens: int = 0


@dataclass(slots=True)
class _Replica:
    replica_id: str
    running: dict[str, _Running] = field(default_factory=dict)


class _Station:
    """The core, its replicas, and what is to happen when. `counted_s` is real time by application."""

    def __init__(self, rate: float, applications: int, policy: str) -> None:
        settings = CoreSettings()
        self.core = SchedulerCore(settings, choose_policy(policy, settings))
        self.now_s = 0.0
        self.queue_area = 0.0
        self.counted_s: dict[str, float] = {}
        self.replicas: dict[str, _Replica] = {}
        self._rate = rate
        self._to_count = applications
        self._unfinished: dict[str, int] = {}
        self._counting = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._random = Random(SEED)

    def run(self) -> None:
        self._start_replicas()
        self._at(0.0, self._application_arrives)
        while self._to_count or self._counting:
            moment_s, _, happen = heapq.heappop(self._agenda)
            if moment_s > WARM_UP_S:
                self.queue_area += self.core.ready_calls * (moment_s - max(self.now_s, WARM_UP_S))
            self.now_s = moment_s
            happen()

    def _start_replicas(self) -> None:
        mean_call_s = TOKEN_S * (SHORTEST_TOKENS + LONGEST_TOKENS) / 2
        sequences = max(ceil(self._rate * MEAN_CALLS * mean_call_s), LEAST_SEQUENCES)
        replicas = ceil(sequences / MEAN_SEQUENCES)
        limits = EngineLimits(
            usable_blocks=ceil(BLOCKS_A_SEQUENCE * sequences / replicas),
            block_tokens=16,
            max_model_len=8_192,
            max_sequences=MAX_SEQUENCES,
        )
        for number in range(replicas):
            replica = self.replicas[f"r{number}"] = _Replica(f"r{number}")
            self._tell(ReplicaJoined(replica.replica_id, limits), ())
            self._tell(CapacityOffered(replica.replica_id, MAX_GRANTS), ())
            self._at(REPORT_S * (number + 1) / replicas, self._reporting(replica))

    def _at(self, moment_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment_s, next(self._number), happen))

    def _tell(self, event: Event, concerned: Sequence[str]) -> None:
        """One event, its time, and what follows from it at once."""
        begin_s = time.thread_time()
        actions = self.core.handle(self.now_s, event)
        spent_s = time.thread_time() - begin_s
        for application_id in concerned:
            if application_id in self.counted_s:
                self.counted_s[application_id] += spent_s / len(concerned)
        self._start_granted(actions)

    def _start_granted(self, actions: Iterable[Action]) -> None:
        used: dict[str, list[str]] = {}
        for action in actions:
            if isinstance(action, Grant):
                used.setdefault(action.replica_id, []).append(action.application_id)
                self._start(action)
        for replica_id, application_ids in used.items():
            self._tell(CapacityOffered(replica_id, MAX_GRANTS), application_ids)

    def _start(self, grant: Grant) -> None:
        call = self.core.applications[grant.application_id].calls[grant.call_id]
        assert call.true_output_tokens is not None
        spec = CallSpec(
            call_id=grant.call_id,
            prompt_tokens=call.prompt_tokens,
            predicted_output_tokens=call.true_output_tokens,
            max_output_tokens=call.max_output_tokens,
        )
        replica = self.replicas[grant.replica_id]
        replica.running[grant.lease_id] = _Running(grant.application_id, spec, self.now_s)
        self._tell(CallStarted(grant.lease_id), (grant.application_id,))
        self._at(self.now_s + TOKEN_S * call.true_output_tokens, lambda: self._finish(replica, grant.lease_id))

    def _finish(self, replica: _Replica, lease_id: str) -> None:
        running = replica.running.pop(lease_id)
        application_id, spec = running.application_id, running.call
        event = CallFinished(lease_id, spec.prompt_tokens, (spec.predicted_output_tokens,))
        self._tell(event, (application_id,))
        self._unfinished[application_id] -= 1
        if not self._unfinished[application_id]:
            del self._unfinished[application_id]
            self._counting -= application_id in self.counted_s
        elif self._unfinished[application_id] == 1 and "last" in self.core.applications[application_id].calls:
            self._call_is_ready(application_id, self.core.applications[application_id].spec.calls[-1])

    def _reporting(self, replica: _Replica) -> Callable[[], None]:
        def report() -> None:
            self._report(replica)
            self._at(self.now_s + REPORT_S, report)

        return report

    def _report(self, replica: _Replica) -> None:
        served = 0.0
        for running in replica.running.values():
            made = min(int((self.now_s - running.begin_s) / TOKEN_S), running.call.predicted_output_tokens)
            served += (made - running.tokens) * (running.call.prompt_tokens + (made + running.tokens) / 2)
            running.tokens = made
        generated = tuple((lease_id, (running.tokens,)) for lease_id, running in replica.running.items())
        held = sum(running.call.prompt_tokens + running.tokens for running in replica.running.values())
        concerned = [running.application_id for running in replica.running.values()]
        self._tell(ProgressReported(replica.replica_id, served, int(REPORT_S / TOKEN_S), held, generated), concerned)

    def _application_arrives(self) -> None:
        application = self._next_application()
        application_id = application.application_id
        self._unfinished[application_id] = len(application.calls)
        if self._to_count and self.now_s >= WARM_UP_S:
            self._to_count -= 1
            self._counting += 1
            self.counted_s[application_id] = 0.0
        self._tell(ApplicationArrived(application), (application_id,))
        for call in application.calls:
            if not call.after:
                self._call_is_ready(application_id, call)
        self._at(self.now_s + self._random.expovariate(self._rate), self._application_arrives)

    def _call_is_ready(self, application_id: str, call: CallSpec) -> None:
        event = CallReady(application_id, call.call_id, call.prompt_tokens, call.predicted_output_tokens)
        self._tell(event, (application_id,))

    def _next_application(self) -> ApplicationSpec:
        number = next(self._number)
        names = [f"c{n}" for n in range(self._random.randint(1, FAN_OUT))]
        calls = [self._call(name, ()) for name in names]
        if self._random.random() < 0.5:
            calls.append(self._call("last", tuple(names)))
        return ApplicationSpec(
            application_id=f"a{number}", calls=tuple(calls), tenant=f"t{self._random.randrange(TENANTS)}"
        )

    def _call(self, call_id: str, after: tuple[str, ...]) -> CallSpec:
        """A call whose length was predicted to within a half."""
        tokens = self._random.randint(SHORTEST_TOKENS, LONGEST_TOKENS)
        return CallSpec(
            call_id=call_id,
            prompt_tokens=self._random.randint(50, 500),
            predicted_output_tokens=ceil(tokens * self._random.uniform(0.5, 1.5)),
            max_output_tokens=1_024,
            after=after,
            true_output_tokens=tokens,
        )
