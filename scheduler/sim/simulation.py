"""A driver of `SchedulerCore` in virtual time: a workload, some engines, and what became of every application.

The core is the one of the live system and hears the same events. Engines (`scheduler.sim.batch`) jump from one moment
at which something can change to the next. In an iteration's order: service of the iterations before is reported, calls
that ended are told, arrivals up to now are seen, and the head of the policy's order is admitted as long as it fits.

Which moments matter follows from the policy. While a waiting call could fit, an engine stops where the policy's head
may change: in every iteration, under one that follows time, or service in ways that it cannot foresee. What running
calls have made is told at every stop or, where only the sum of it matters, before the order is asked for or moved.

Laws: the same workload, settings and seed give the same results, to the byte; memory grows with the applications
in the system, not with those that were; virtual time only moves forward.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler import invariants
from scheduler.actions import Action, Grant, PublishAudit, PublishCompletion, Reject
from scheduler.applications import Call
from scheduler.core import SchedulerCore
from scheduler.cost import memory_cost
from scheduler.events import (
    ApplicationArrived,
    ApplicationClosed,
    CallFinished,
    CallPreempted,
    CallReady,
    CapacityOffered,
    Event,
    OfferWithdrawn,
    ProgressReported,
    ReplicaJoined,
    Resumption,
)
from scheduler.lifecycle import CallState
from scheduler.policies.contract import ALWAYS, RunningCall
from scheduler.settings import Admission, ClockMode, CoreSettings
from scheduler.sim.batch import NS, Batch, Moved
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.prediction import Oracle, Predictor
from scheduler.sim.workload import TraceApplication, TraceCall, WorkloadError
from scheduler.tenants import choose_policy
from scheduler.types import ApplicationRecord, EngineLimits


def engine_admission() -> CoreSettings:
    """The settings of the reference model: the engine admits by the blocks that are free at the moment."""
    return CoreSettings(admission=Admission.ENGINE, watermark=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """Which policy, on which engines, with how much memory kept free and which clock: see `CoreSettings`."""

    policy: str = "justitia"
    core: CoreSettings = field(default_factory=engine_admission)
    engines: tuple[EngineProfile, ...] = (REFERENCE,)
    check_invariants: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationResult:
    """What became of one application. Seconds of virtual time; costs are true KV token-iterations.

    `gps_finish_s` is when fair sharing (the core's reference) would have finished it, `bound_s` the latest finish that
    the delay bound allows; None where the core states none.
    """

    application_id: str
    application_type: str
    tenant: str
    weight: float
    arrival_s: float
    finish_s: float
    cost: float
    predicted_cost: float
    calls: int
    gps_finish_s: float | None = None
    bound_s: float | None = None

    @property
    def completion_s(self) -> float:
        return self.finish_s - self.arrival_s


@dataclass(slots=True)
class SimulationResult:
    """A whole run. `kv_used` is the mean share of the pool in use while engines ran, weighted by time."""

    policy: str
    applications: list[ApplicationResult] = field(default_factory=list)
    makespan_s: float = 0.0
    iterations: int = 0
    calls: int = 0
    output_tokens: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    kv_used: float = 0.0
    busy_s: float = 0.0
    bound_violations: int = 0


@dataclass(slots=True)
class _Running:
    """An application in the system; `order` numbers its calls as the trace has them.

    `unthought` has the calls before which it will think, each with the calls that must end before it begins to.
    """

    trace: TraceApplication
    calls: dict[str, TraceCall]
    order: dict[str, int]
    predicted: Mapping[str, int]
    unthought: dict[str, set[str]]

    def thinks_after(self, ended: str) -> Iterator[TraceCall]:
        """A call has ended: those before which the application thinks from here on."""
        for name, waits_for in list(self.unthought.items()):
            waits_for.discard(ended)
            if not waits_for:
                del self.unthought[name]
                yield self.calls[name]


@dataclass(slots=True)
class _Engine:
    """One engine: its batch, the end of its last iteration, and how many it does at present (0: it sleeps).

    `short` holds the calls that will make more than is predicted of them at present; `told` numbers the iteration up
    to which the core knows what its calls have made, `steady` the one up to which the head of the order, which did not
    fit, is sure to stay who it is while nothing comes and nothing leaves.
    """

    replica_id: str
    batch: Batch
    at_ns: int = 0
    planned: int = 0
    version: int = 0
    told: int = 0
    steady: int = -1
    short: dict[str, Call] = field(default_factory=dict)

    def iterations_over(self, now_ns: int) -> int:
        """How many of the planned iterations are over, though nobody has been told yet."""
        if not self.planned or now_ns <= self.at_ns:
            return 0
        within = self.batch.iterations_within(now_ns - self.at_ns)
        return within if self.at_ns + self.batch.duration_ns(within) <= now_ns else within - 1


Sink = Callable[[ApplicationResult], None]
Watch = Callable[["Simulation"], None]
Hear = Callable[[float, Event, Sequence[Action]], None]
Generated = tuple[tuple[str, tuple[int, ...]], ...]

SPARE_SIZES = 64
"""Sizes of calls that wait no more, kept beside those that do."""

RECHECK_ITERATIONS = 16
"""Under admission by projected peak a waiting call may come to fit while nothing ends: so often it is asked."""


class Simulation:
    """One run of a workload under one policy.

    `sink` takes each result once it is known (by default they are kept in `result.applications`); `watch` is called
    after every moment at which something happened; `hear` with each fact that the
    core was told, its second of virtual time, and what the core ordered.
    """

    def __init__(
        self,
        workload: Iterable[TraceApplication],
        settings: SimulationSettings | None = None,
        predictor: Predictor | None = None,
        sink: Sink | None = None,
        watch: Watch = lambda simulation: None,
        hear: Hear = lambda now_s, event, actions: None,
    ) -> None:
        self.settings = settings or SimulationSettings()
        self.now_ns = 0
        self.core = SchedulerCore(self.settings.core, choose_policy(self.settings.policy, self.settings.core))
        self.result = SimulationResult(self.settings.policy)
        self._workload = iter(workload)
        self._coming = next(self._workload, None)
        self._predictor = predictor or Oracle()
        self._sink = sink or self.result.applications.append
        self._watch = watch
        self._hear = hear
        self._engines = [
            _Engine(f"r{number}", self._create_batch(profile)) for number, profile in enumerate(self.settings.engines)
        ]
        self._by_id = {engine.replica_id: engine for engine in self._engines}
        self._running: dict[str, _Running] = {}
        self._ended: dict[str, ApplicationResult] = {}
        self._wakes: list[tuple[int, int, int]] = []
        self._thoughts: list[tuple[int, int, str, str]] = []
        self._waiting_tokens: list[tuple[int, str, str]] = []
        self._thought_count = 0
        self._used_block_ns = 0
        self._settling = -1
        policy = self.core.policy
        projected = self.settings.core.admission is Admission.PROJECTED_PEAK
        counts_calls = self.core.cost is not memory_cost  # virtual time is then what calls are seen to make
        self._reports_all = policy.follows_service or projected or counts_calls
        self._reports_late = policy.service_adds_up and not (projected or counts_calls or policy.ages)
        self._by_service = self.settings.core.clock is ClockMode.SERVICE and not counts_calls
        self._recheck = RECHECK_ITERATIONS if projected else None

    def _create_batch(self, profile: EngineProfile) -> Batch:
        return Batch(profile)

    @property
    def now_s(self) -> float:
        """Virtual time, in seconds."""
        return self.now_ns / NS

    def running_calls(self) -> Iterator[tuple[Call, int]]:
        """The calls in the batches, and the tokens that each of their sequences has made by now."""
        for engine in self._engines:
            over = engine.iterations_over(self.now_ns)
            for lease_id in engine.batch.leases:
                yield self.core.leases[lease_id], engine.batch.made_tokens(lease_id) + over

    # ---- the run

    def run(self) -> SimulationResult:
        """Serve the whole workload; WorkloadError for an application that no engine can hold."""
        for engine in self._engines:
            self._tell(ReplicaJoined(engine.replica_id, _limits(engine.batch.profile)))
        while self._next_outside_ns() is not None or any(engine.planned for engine in self._engines):
            self._next_moment()
            if self.settings.check_invariants:
                invariants.check(self.core)
            self._watch(self)
        self._close_books()
        return self.result

    def _next_moment(self) -> None:
        """Go to the next end of some iterations, or to an arrival (or prompt) that finds a sleeping engine before."""
        outside_ns = self._next_outside_ns()
        wake = self._next_wake()
        sleeper = next((engine for engine in self._engines if not engine.planned), None)
        if outside_ns is not None and sleeper is not None and (wake is None or outside_ns < wake[0]):
            self.now_ns, self._settling = max(self.now_ns, outside_ns), -1
            self._see_outside()
            self._admit_where_possible(None)
            return
        assert wake is not None
        self.now_ns, self._settling, _ = heapq.heappop(self._wakes)
        engine = self._engines[self._settling]
        changed = self._settle(engine)
        changed = self._see_outside() or changed
        changed = self._admit(engine, changed) or changed
        self._plan(engine)
        if changed and len(self._engines) > 1:
            self._admit_where_possible(engine)

    def _arrival_ns(self) -> int | None:
        return None if self._coming is None else round(self._coming.arrival_s * NS)

    def _next_outside_ns(self) -> int | None:
        """When the next application arrives, or the next one has thought: what engines do not bring about."""
        arrival_ns = self._arrival_ns()
        if not self._thoughts:
            return arrival_ns
        thought_ns = self._thoughts[0][0]
        return thought_ns if arrival_ns is None else min(arrival_ns, thought_ns)

    def _next_wake(self) -> tuple[int, int, int] | None:
        while self._wakes and self._wakes[0][2] != self._engines[self._wakes[0][1]].version:
            heapq.heappop(self._wakes)
        return self._wakes[0] if self._wakes else None

    def _admit_where_possible(self, settled: _Engine | None) -> None:
        """After a change: sleeping engines admit at once, busy ones at the end of the iteration that they are in."""
        for number, engine in enumerate(self._engines):
            if engine is settled:
                continue
            if engine.planned and (self.core.ready_calls or self._thoughts):
                self._shorten(engine, self.now_ns + (number < self._settling))  # one before was settled before
            elif not engine.planned and self.core.ready_calls:
                engine.at_ns = self.now_ns
                self._admit(engine, changed=True)
                self._plan(engine)

    # ---- engines

    def _settle(self, engine: _Engine) -> bool:
        """Some iterations are over: tell the core. Returns whether the queue may have changed by it."""
        moved = self._run(engine, engine.planned)
        generated = tuple(self._progress(engine, bool(moved.preempted or moved.ended)))
        self._report(engine, moved, generated)
        for lease_id, made in moved.preempted:
            self._preempt(engine, lease_id, made)
        for lease_id in sorted(moved.ended, key=self._place_in_trace):
            self._finish(engine, lease_id)
        return bool(moved.preempted or moved.ended or generated)

    def _run(self, engine: _Engine, iterations: int) -> Moved:
        """Let an engine do so many of the planned iterations."""
        batch, used_before = engine.batch, engine.batch.used_blocks
        engine.planned -= iterations
        moved = batch.run(iterations, self._in_order)
        engine.at_ns += moved.duration_ns
        self._used_block_ns += moved.duration_ns * (used_before + batch.used_blocks) // 2
        self.result.iterations += moved.iterations
        self.result.busy_s += moved.duration_ns / NS
        return moved

    def _report(self, engine: _Engine, moved: Moved, generated: Generated) -> None:
        used_tokens = engine.batch.used_blocks * engine.batch.profile.block_tokens if self._reports_all else 0
        service = float(moved.service)
        self._tell(ProgressReported(engine.replica_id, service, moved.iterations, used_tokens, generated))

    def _progress(self, engine: _Engine, leave: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        """What the core must hear of running calls at a stop: all of them, or those that outgrow their predictions.

        `leave` says whether calls leave the batch now.
        """
        if self._reports_all and (leave or not self._reports_late):
            yield from self._made(engine)
            return
        for lease_id, call in list(engine.short.items()):
            if lease_id in engine.batch and _has_outgrown(call, made := engine.batch.made_tokens(lease_id)):
                yield lease_id, (made,) * call.sequences

    def _made(self, engine: _Engine) -> Iterator[tuple[str, tuple[int, ...]]]:
        engine.told = engine.batch.iterations
        for lease_id in engine.batch.leases:
            yield lease_id, (engine.batch.made_tokens(lease_id),) * self.core.leases[lease_id].sequences

    def _catch_up(self) -> None:
        """Before the order is asked for or moved: tell what all engines have done by now and the core does not know."""
        for number, engine in enumerate(self._engines):
            over = engine.iterations_over(self.now_ns - (number > self._settling))  # it is settled after this one
            if over:
                moved = self._run(engine, over)
                self._report(engine, moved, tuple(self._progress(engine, leave=False)))
            if self._reports_late and engine.told < engine.batch.iterations:
                self._tell(ProgressReported(engine.replica_id, 0.0, 0, 0, tuple(self._made(engine))))

    def _finish(self, engine: _Engine, lease_id: str) -> None:
        call = self.core.leases[lease_id]
        truth = self._running[call.key.application_id].calls[call.key.call_id]
        engine.short.pop(lease_id, None)
        self.result.calls += 1
        self.result.output_tokens += truth.output_tokens * truth.sequences
        running = self._running[call.key.application_id]
        thought_of = list(running.thinks_after(truth.name)) if running.unthought else []
        dependents = self.core.applications[call.key.application_id].dependents(call.key.call_id)
        self._tell(CallFinished(lease_id, truth.prompt_tokens, (truth.output_tokens,) * truth.sequences))
        for dependent in dependents:
            self._note_waiting(dependent)
        for next_call in thought_of:
            self._think(running.trace.application_id, next_call, self.now_ns)

    def _preempt(self, engine: _Engine, lease_id: str, made: int) -> None:
        call = self.core.leases[lease_id]
        engine.short.pop(lease_id, None)
        self.result.preemptions += 1
        self._tell(CallPreempted(lease_id, (made,) * call.sequences))
        self._note_waiting(call)

    def _admit(self, engine: _Engine, changed: bool) -> bool:
        """Admit the head of the order, taken anew each time, until one does not fit; returns whether one did.

        `changed` says whether anything came or left since the engine was asked last.
        """
        if not self.core.ready_calls or not self._smallest_fits(engine):
            return False
        if not changed and engine.batch.iterations <= engine.steady and not self._head_fits(engine):
            return False
        if self._reports_all:
            self._catch_up()
        admitted = False
        while self._head_fits(engine):
            if not self._tell(CapacityOffered(engine.replica_id, 1)):
                self._tell(OfferWithdrawn(engine.replica_id))
                break
            admitted = True
        engine.steady = engine.batch.iterations + self._steady_iterations(engine)
        return admitted

    def _head_fits(self, engine: _Engine) -> bool:
        call = self.core.next_call()
        return call is not None and engine.batch.fits(call.prompt_tokens, call.generated_tokens, call.sequences)

    def _plan(self, engine: _Engine) -> None:
        """Let an engine do as many iterations at once as nothing can change in."""
        batch = engine.batch
        iterations = min([batch.longest_jump(), *self._limits_of_jump(engine)])
        engine.version += 1
        engine.planned = iterations
        if self._reports_late and batch.falls_short(iterations):
            self._catch_up()
        if iterations:
            ends_ns = engine.at_ns + batch.duration_ns(iterations)
            heapq.heappush(self._wakes, (ends_ns, int(engine.replica_id[1:]), engine.version))

    def _limits_of_jump(self, engine: _Engine) -> Iterator[int]:
        for lease_id, call in engine.short.items():
            yield max(call.predicted_output_tokens - engine.batch.made_tokens(lease_id), 1)
        if self.core.ready_calls and self._smallest_fits(engine):
            yield max(engine.steady - engine.batch.iterations, 0) + 1
        if self.core.ready_calls and self._recheck is not None:
            yield self._recheck
        if self._by_service and len(engine.batch):
            left = self.core.reference.service_until_next()
            if left is not None:  # the iteration in which somebody's GPS finish falls is done alone, to date it
                yield max(engine.batch.iterations_before(left / self.settings.core.clock_rate), 1)
        outside_ns = self._next_outside_ns()
        if outside_ns is not None and len(engine.batch):
            yield engine.batch.iterations_within(outside_ns - engine.at_ns)

    def _steady_iterations(self, engine: _Engine) -> int:
        """In how many iterations from here tokens and time alone are sure to put no other call first."""
        policy = self.core.policy
        if policy.ages or (engine.short and policy.tenant_count() > 1 and self._outgrown(engine)):
            return 0  # tenants are charged for calls that outgrow their predictions
        head = self.core.next_call()
        if head is None:
            return ALWAYS
        steady = policy.steady_tokens(self.core.applications[head.key.application_id].facts(), self._running_calls())
        return steady if len(self._engines) == 1 or steady == ALWAYS else 0  # others make other numbers of tokens

    def _outgrown(self, engine: _Engine) -> bool:
        return any(_has_outgrown(call, engine.batch.made_tokens(name)) for name, call in engine.short.items())

    def _running_calls(self) -> list[RunningCall]:
        return [_running(call) for call in self.core.leases.values()]

    def _note_waiting(self, call: Call) -> None:
        """Keep the size of a call that has come to wait."""
        if call.state is CallState.READY:
            tokens = call.sequences * (call.prompt_tokens + call.generated_tokens + 1)
            heapq.heappush(self._waiting_tokens, (tokens, *call.key))
        if len(self._waiting_tokens) > 2 * self.core.ready_calls + SPARE_SIZES:
            self._waiting_tokens = [size for size in self._waiting_tokens if self._waits(*size[1:])]
            heapq.heapify(self._waiting_tokens)

    def _waits(self, application_id: str, call_id: str) -> bool:
        application = self.core.applications.get(application_id)
        call = None if application is None else application.calls.get(call_id)
        return call is not None and call.state is CallState.READY

    def _smallest_fits(self, engine: _Engine) -> bool:
        """Might the smallest of the calls that wait fit, whoever is first? Blocks only become fewer until an end."""
        while not self._waits(*self._waiting_tokens[0][1:]):
            heapq.heappop(self._waiting_tokens)
        return engine.batch.profile.blocks_of(self._waiting_tokens[0][0]) <= engine.batch.free_blocks

    def _shorten(self, engine: _Engine, moment_ns: int) -> None:
        """Let a busy engine stop at the end of the iteration of this moment, since the order may be another."""
        engine.steady = -1
        iterations = engine.batch.iterations_within(moment_ns - engine.at_ns)
        if iterations < engine.planned:
            engine.planned = iterations
            engine.version += 1
            ends_ns = engine.at_ns + engine.batch.duration_ns(iterations)
            heapq.heappush(self._wakes, (ends_ns, int(engine.replica_id[1:]), engine.version))

    def _in_order(self, leases: list[str]) -> list[str]:
        if self._reports_all:
            self._catch_up()
        return sorted(leases, key=self.core.standing)

    def _place_in_trace(self, lease_id: str) -> tuple[int, int]:
        key = self.core.leases[lease_id].key
        return self.core.applications[key.application_id].sequence, self._running[key.application_id].order[key.call_id]

    # ---- the core

    def _tell(self, event: Event) -> bool:
        """State a fact to the core and do what it says; returns whether it granted a call."""
        actions = self.core.handle(self.now_s, event)
        self._hear(self.now_s, event, actions)
        for action in actions:
            self._obey(action)
        return any(isinstance(action, Grant) for action in actions)

    def _obey(self, action: Action) -> None:
        match action:
            case Grant():
                self._start(action)
            case PublishCompletion(record):
                self._end(record)
            case PublishAudit(record):
                ended = self._ended.pop(record.application_id)
                self._sink(replace(ended, gps_finish_s=record.gps_finish_s, bound_s=record.bound_s))
            case Reject(application_id, call_id, refusal, message):
                where = application_id if call_id is None else f"{application_id}, call {call_id}"
                raise WorkloadError(f"application {where}: {refusal.value}: {message}")
            case _:
                pass

    def _start(self, grant: Grant) -> None:
        engine = self._by_id[grant.replica_id]
        call = self.core.leases[grant.lease_id]
        truth = self._running[grant.application_id].calls[grant.call_id]
        done = call.generated_tokens
        if call.preemptions:
            self.result.recomputed_tokens += truth.prompt_tokens + done
        if call.predicted_output_tokens < truth.output_tokens:
            engine.short[grant.lease_id] = call
        engine.batch.admit(
            grant.lease_id,
            truth.prompt_tokens,
            truth.output_tokens,
            done_tokens=done,
            sequences=truth.sequences,
            prefix=truth.prefix,
        )

    def _end(self, record: ApplicationRecord) -> None:
        trace = self._running.pop(record.application_id).trace
        self._predictor.learn(trace)
        self._ended[record.application_id] = ApplicationResult(
            application_id=record.application_id,
            application_type=record.application_type,
            tenant=record.tenant,
            weight=record.weight,
            arrival_s=trace.arrival_s,
            finish_s=self.now_s,
            cost=trace.cost,
            predicted_cost=record.predicted_cost,
            calls=record.calls,
        )

    # ---- arrivals and thoughts

    def _see_outside(self) -> bool:
        """Tell the core of all that happened outside by now; returns whether anything has."""
        seen = False
        while (moment_ns := self._next_outside_ns()) is not None and moment_ns <= self.now_ns:
            self._catch_up()
            if moment_ns == self._arrival_ns():
                assert self._coming is not None
                self._arrive(self._coming, moment_ns)
                self._coming = next(self._workload, None)
            else:
                _, _, application_id, name = heapq.heappop(self._thoughts)
                self._make_ready(application_id, self._running[application_id].calls[name])
            seen = True
        return seen

    def _arrive(self, trace: TraceApplication, arrival_ns: int) -> None:
        self._check_fits(trace)
        prediction = self._predictor.predict(trace)
        calls = {call.name: call for call in trace.calls}
        order = {call.name: number for number, call in enumerate(trace.calls)}
        unthought = {call.name: set(call.after) for call in trace.calls if call.delay_s and call.after}
        self._running[trace.application_id] = _Running(trace, calls, order, prediction.outputs, unthought)
        age_s = (self.now_ns - arrival_ns) / NS
        spec = trace.spec(prediction.outputs, prediction.cost)
        self._tell(ApplicationArrived(spec, Resumption(self.core.virtual_time, age_s, 0.0)))
        for call in trace.calls:
            if not call.delay_s:
                self._make_ready(trace.application_id, call)
            elif not call.after:
                self._think(trace.application_id, call, arrival_ns)
        if trace.thinks:
            self._tell(ApplicationClosed(trace.application_id))

    def _make_ready(self, application_id: str, call: TraceCall) -> None:
        predicted = self._running[application_id].predicted[call.name]
        self._tell(CallReady(application_id, call.name, call.prompt_tokens, predicted, call.prefix))
        self._note_waiting(self.core.applications[application_id].calls[call.name])

    def _think(self, application_id: str, call: TraceCall, begin_ns: int) -> None:
        """An application thinks from this moment on before a call.

        The engine that is looked at now stops where it will have thought, or sleeps: then the others are asked too.
        """
        thought_ns = begin_ns + round(call.delay_s * NS)
        self._thought_count += 1
        heapq.heappush(self._thoughts, (thought_ns, self._thought_count, application_id, call.name))

    def _check_fits(self, trace: TraceApplication) -> None:
        """Raises WorkloadError for a call that would never end on any of the engines."""
        for call in trace.calls:
            if not any(_can_hold(engine.batch.profile, call) for engine in self._engines):
                tokens = f"{call.sequences} × ({call.prompt_tokens} + {call.output_tokens}) tokens"
                raise WorkloadError(f"application {trace.application_id}: {tokens} of call {call.name} fit no engine")

    def _close_books(self) -> None:
        result = self.result
        result.makespan_s = self.now_s
        result.prefilled_tokens = sum(engine.batch.prefilled_tokens for engine in self._engines)
        result.bound_violations = self.core.audit.violations
        blocks = sum(engine.batch.profile.usable_blocks for engine in self._engines)
        pool_block_ns = result.busy_s * NS * blocks / len(self._engines)
        result.kv_used = self._used_block_ns / pool_block_ns if pool_block_ns else 0.0
        result.applications.sort(key=lambda one: (one.arrival_s, one.application_id))


def _running(call: Call) -> RunningCall:
    assert call.facts is not None
    kept = max(call.kept_tokens, default=0)
    return RunningCall(call.facts, call.generated_tokens - kept, kept)


def _has_outgrown(call: Call, made_tokens: int) -> bool:
    """Has a running call made what was predicted of it when it was granted?"""
    assert call.facts is not None
    return 0 < made_tokens >= call.facts.predicted_output_tokens


def _can_hold(profile: EngineProfile, call: TraceCall) -> bool:
    tokens = call.prompt_tokens + call.output_tokens
    fits = call.sequences * profile.blocks_of(tokens) <= profile.usable_blocks
    return fits and tokens <= profile.longest_sequence_tokens and call.sequences <= profile.max_sequences


def _limits(profile: EngineProfile) -> EngineLimits:
    return EngineLimits(
        usable_blocks=profile.usable_blocks,
        block_tokens=profile.block_tokens,
        max_model_len=profile.max_model_len,
        max_sequences=profile.max_sequences,
    )
