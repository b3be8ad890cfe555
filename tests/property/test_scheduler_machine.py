"""The core against a world that lies, repeats itself and forgets: every law after every event.

The model beside the core knows only what was said to it and what it ordered. The machine ends by letting the world
come to rest, in one of two ways, after which nothing may be left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from scheduler import invariants
from scheduler.actions import Abort, Action, Grant, PublishAudit, PublishCallEnd, PublishCompletion, PublishTag, Reject
from scheduler.core import SchedulerCore
from scheduler.event_log import LogHeader, event_to_json, replay
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallAdopted,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallLost,
    CallPreempted,
    CallReady,
    CallRevealed,
    CallStarted,
    CallStopped,
    CapacityOffered,
    Event,
    OfferWithdrawn,
    ProgressReported,
    ReplicaJoined,
    ReplicaLeft,
    Resumption,
    SettingsChanged,
    TimePassed,
)
from scheduler.explain import explain, overview
from scheduler.lifecycle import CallState
from scheduler.policies import POLICIES
from scheduler.settings import Admission, ClockMode, CoreSettings, Flows
from scheduler.tenants import choose_policy
from scheduler.types import ApplicationSpec, CallSpec
from tests.scheduling import application, call, clean_state, limits

T = TypeVar("T")

names = st.sampled_from(["a", "b", "c", "d"])
call_names = st.sampled_from(["1", "2", "3", "4"])
replica_names = st.sampled_from(["r", "s"])
picks = st.integers(0, 2**16)
weights = st.sampled_from([0.25, 1.0, 1.0, 3.0])
costs = st.none() | st.sampled_from([1.0, 500.0, 1e5])
spreads = st.none() | st.sampled_from([0.01, 0.7, 3.0])
tenants = st.sampled_from(["default", "gold", "x"])
times_s = st.none() | st.sampled_from([0.5, 30.0])


@st.composite
def call_lists(draw: st.DrawFn) -> tuple[CallSpec, ...]:
    """A DAG of one to four calls in any order; now and then a graph that must be refused."""
    count = draw(st.integers(1, 4))
    specs = [
        call(
            str(index + 1),
            draw(st.sampled_from([1, 7, 40, 40, 5000])) if index == 3 else draw(st.integers(1, 60)),
            draw(st.integers(1, 30)),
            n=draw(st.sampled_from([1, 1, 1, 3])),
            after=draw(st.sets(st.integers(1, index).map(str), max_size=2)) if index else (),
        )
        for index in range(count)
    ]
    return tuple(draw(st.permutations(specs)))


@dataclass
class Lease:
    application_id: str
    call_id: str
    replica_id: str
    started: bool = False
    aborted: bool = False


class World(RuleBasedStateMachine):
    """Any policy at first, and any other later."""

    policies: Sequence[str] = sorted(POLICIES)

    @initialize(
        pick=picks,
        flows=st.sampled_from(Flows),
        tenant_level=st.sampled_from([True, True, False]),
        admission=st.sampled_from([*Admission, Admission.PROJECTED_PEAK]),
        clock=st.sampled_from(ClockMode),
        clock_rate=st.sampled_from([1.0, 1.0, 1.5]),
        attempts=st.integers(1, 3),
        most=st.sampled_from([3, 100]),
    )
    def begin(
        self,
        pick: int,
        flows: Flows,
        tenant_level: bool,
        admission: Admission,
        clock: ClockMode,
        clock_rate: float,
        attempts: int,
        most: int,
    ) -> None:
        self.policy = _pick(self.policies, pick)
        self.settings = CoreSettings(
            flows=flows,
            tenant_level=tenant_level,
            tenant_weights=(("gold", 4.0),),
            admission=admission,
            clock=clock,
            clock_rate=clock_rate,
            nominal_iterations_per_s=0.5,
            max_attempts=attempts,
            max_applications=most,
            max_calls=4 * most,
            reservation_timeout_s=5,
            open_idle_s=20,
            engine_wait_s=30,
        )
        self.core = SchedulerCore(self.settings, choose_policy(self.policy, self.settings), epoch=7)
        self.now_s = 0.0
        self.lines = [LogHeader(self.settings, self.policy, 7, 0.0).to_json()]
        self.told: list[list[Action]] = []
        self.offers: Counter[str] = Counter()
        self.leases: dict[str, Lease] = {}
        self.old_leases: list[str] = ["7-999", "nobody's"]
        self.arrived: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.audited: Counter[str] = Counter()
        self.ended_calls: set[tuple[str, str]] = set()
        self.tags: dict[str, float] = {}
        self.say(ReplicaJoined("r", limits(blocks=20, max_sequences=8)))

    # ---- the model

    def say(self, event: Event) -> list[Action]:
        before = self.core.virtual_time
        self._foresee(event)
        self.lines.append(event_to_json(self.now_s, event))
        actions = self.core.handle(self.now_s, event)
        self.told.append(actions)
        for action in actions:
            self._obey(action)
        self._offers_used(actions)
        assert self.core.virtual_time >= before
        invariants.check(self.core)
        assert set(self.core.leases) == set(self.leases)
        assert {name for name, count in self.arrived.items() if count > self.completed[name]} == set(
            self.core.applications
        )
        return actions

    def _foresee(self, event: Event) -> None:
        """What the event alone says about leases and offers."""
        match event:
            case CallStarted(lease_id) if lease_id in self.leases:
                self.leases[lease_id].started = True
            case CallFinished(lease_id) | CallStopped(lease_id) | CallFailed(lease_id) | CallLost(lease_id):
                self._lease_ended(lease_id)
            case CallPreempted(lease_id) if lease_id in self.leases and not self.leases[lease_id].aborted:
                self._lease_ended(lease_id)
            case ReplicaLeft(replica_id):
                for lease_id in [k for k, lease in self.leases.items() if lease.replica_id == replica_id]:
                    self._lease_ended(lease_id)
                del self.offers[replica_id]
            case CapacityOffered(replica_id, max_grants) if replica_id in self.core.replicas:
                self.offers[replica_id] = max_grants
            case OfferWithdrawn(replica_id):
                self.offers[replica_id] = 0
            case _:
                pass

    def _lease_ended(self, lease_id: str) -> None:
        if self.leases.pop(lease_id, None) is not None:
            self.old_leases.append(lease_id)

    def _obey(self, action: Action) -> None:
        match action:
            case Grant(replica_id, application_id, call_id, lease_id):
                self._granted(replica_id, application_id, call_id, lease_id, action)
            case Abort(replica_id, lease_id):
                self._aborted(replica_id, lease_id)
            case PublishCallEnd(application_id, call_id, outcome):
                assert outcome in ("finished", "failed", "cancelled")
                assert (application_id, call_id) not in self.ended_calls
                self.ended_calls.add((application_id, call_id))
            case PublishTag(application_id, start_tag, finish_tag):
                if application_id not in self.tags:
                    self.arrived[application_id] += 1
                assert finish_tag != self.tags.get(application_id)
                assert finish_tag >= start_tag
                self.tags[application_id] = finish_tag
            case PublishCompletion(record):
                name = record.application_id
                self.completed[name] += 1
                assert self.completed[name] == self.arrived[name]
                assert record.finish_tag == self.tags.pop(name)
                assert record.finish_s >= record.arrival_s
                ended = {key for key in self.ended_calls if key[0] == name}
                assert len(ended) == record.calls
                self.ended_calls -= ended
            case PublishAudit(record):
                self.audited[record.application_id] += 1
                assert self.audited[record.application_id] <= self.completed[record.application_id]
                assert record.gps_finish_s is not None
                assert record.gps_finish_s >= record.arrival_s
            case Reject(_, _, _, message):
                assert message

    def _granted(self, replica_id: str, application_id: str, call_id: str, lease_id: str, grant: Grant) -> None:
        assert lease_id not in self.leases
        assert lease_id not in self.old_leases
        assert (application_id, call_id) not in self.ended_calls
        held = {(lease.application_id, lease.call_id) for lease in self.leases.values()}
        assert (application_id, call_id) not in held, "granted twice without a loss between"
        assert grant.epoch == 7
        assert 0 <= grant.priority <= 2**53
        self.leases[lease_id] = Lease(application_id, call_id, replica_id)

    def _aborted(self, replica_id: str, lease_id: str) -> None:
        lease = self.leases.get(lease_id)
        if lease is None:  # its replica left in the same event, or it could not be taken back
            assert lease_id in self.old_leases
            return
        assert lease.replica_id == replica_id
        assert not lease.aborted
        lease.aborted = True
        if not lease.started:
            self._lease_ended(lease_id)

    def _offers_used(self, actions: list[Action]) -> None:
        for replica_id, grants in Counter(a.replica_id for a in actions if isinstance(a, Grant)).items():
            assert grants <= self.offers[replica_id]
            self.offers[replica_id] = 0
        for replica_id, replica in self.core.replicas.items():
            assert replica.offered_grants == self.offers[replica_id]

    def some_lease(self, pick: int, *, stale: bool) -> str:
        live = sorted(self.leases)
        return _pick(self.old_leases if stale or not live else live, pick)

    # ---- applications

    @rule(
        name=names, calls=call_lists(), weight=weights, cost=costs, tenant=tenants, due_s=times_s, ready=st.booleans()
    )
    def arrive(
        self,
        name: str,
        calls: tuple[CallSpec, ...],
        weight: float,
        cost: float | None,
        tenant: str,
        due_s: float | None,
        ready: bool,
    ) -> None:
        fields = {"weight": weight, "predicted_cost": cost, "tenant": tenant, "deadline_s": due_s, "period_s": due_s}
        self.say(ApplicationArrived(application(name, *calls, **fields)))
        for spec in calls if ready else ():
            prefix = tuple(range(spec.prompt_tokens // 16))
            self.say(CallReady(name, spec.call_id, spec.prompt_tokens, spec.predicted_output_tokens, prefix))

    @rule(name=names, weight=weights, cost=costs, spread=spreads, tenant=tenants, calls=st.just(()) | call_lists())
    def arrive_open(
        self,
        name: str,
        weight: float,
        cost: float | None,
        spread: float | None,
        tenant: str,
        calls: tuple[CallSpec, ...],
    ) -> None:
        fields = {"weight": weight, "predicted_cost": cost, "cost_deviation": spread, "tenant": tenant, "open": True}
        self.say(ApplicationArrived(application(name, *calls, **fields)))

    @rule(name=names, calls=call_lists(), start=st.floats(0, 1e4), age=st.floats(0, 100), cost=st.floats(0, 1e4))
    def resume(self, name: str, calls: tuple[CallSpec, ...], start: float, age: float, cost: float) -> None:
        self.say(ApplicationArrived(application(name, *calls), Resumption(start, age, cost)))

    @rule(
        name=names,
        call_id=call_names,
        opens=st.booleans(),
        p=st.integers(1, 60),
        d=st.integers(1, 30),
        after=st.sets(call_names, max_size=2),
        ready=st.booleans(),
    )
    def reveal(self, name: str, call_id: str, opens: bool, p: int, d: int, after: set[str], ready: bool) -> None:
        if name in self.core.applications:
            after &= set(self.core.applications[name].calls)
        opening: ApplicationSpec | None = application(name, open=True) if opens else None
        self.say(CallRevealed(name, call(call_id, p, d, after=sorted(after)), opening))
        if ready:
            self.say(CallReady(name, call_id, p, d))

    @rule(name=names, call_id=call_names, p=st.sampled_from([1, 20, 20, 60, 5000]), d=st.integers(0, 40))
    def ready(self, name: str, call_id: str, p: int, d: int) -> None:
        self.say(CallReady(name, call_id, p, d))

    @rule(name=names)
    def close(self, name: str) -> None:
        self.say(ApplicationClosed(name))

    @rule(name=names)
    def cancel(self, name: str) -> None:
        self.say(ApplicationCancelled(name, "the client left"))

    @rule(name=names, call_id=call_names)
    def cancel_call(self, name: str, call_id: str) -> None:
        self.say(CallCancelled(name, call_id, "the client left"))

    # ---- replicas

    @rule(name=replica_names, blocks=st.integers(2, 40), sequences=st.integers(1, 8))
    def join(self, name: str, blocks: int, sequences: int) -> None:
        self.say(ReplicaJoined(name, limits(blocks=blocks, max_sequences=sequences)))

    @rule(name=replica_names)
    def leave(self, name: str) -> None:
        self.say(ReplicaLeft(name, "it died"))

    @rule(name=replica_names, grants=st.integers(0, 4))
    def offer(self, name: str, grants: int) -> None:
        self.say(CapacityOffered(name, grants))

    @rule(name=replica_names)
    def withdraw(self, name: str) -> None:
        self.say(OfferWithdrawn(name))

    @rule(
        name=replica_names,
        service=st.integers(0, 3000) | st.floats(0, 3000),
        iterations=st.integers(0, 5),
        used=st.integers(0, 400),
        made=st.lists(st.integers(0, 60), min_size=1, max_size=6),
        stale=st.booleans(),
    )
    def progress(self, name: str, service: float, iterations: int, used: int, made: list[int], stale: bool) -> None:
        mine = [key for key, lease in sorted(self.leases.items()) if lease.replica_id == name]
        generated = [
            (key, (made[index % len(made)],) * self.core.leases[key].sequences) for index, key in enumerate(mine[:5])
        ]
        if stale:
            generated.append((self.old_leases[-1], (made[0],)))
        self.say(ProgressReported(name, service, iterations, used, tuple(generated)))

    # ---- leases; a tenth of all messages speak of leases that are over

    @rule(pick=picks, stale=st.sampled_from([False] * 9 + [True]))
    def start(self, pick: int, stale: bool) -> None:
        self.say(CallStarted(self.some_lease(pick, stale=stale)))

    @rule(pick=picks, stale=st.sampled_from([False] * 9 + [True]), p=st.integers(1, 60), d=st.integers(0, 40))
    def finish(self, pick: int, stale: bool, p: int, d: int) -> None:
        self.say(CallFinished(self.some_lease(pick, stale=stale), p, (d,)))

    @rule(pick=picks, stale=st.sampled_from([False] * 9 + [True]), d=st.lists(st.integers(0, 40), max_size=3))
    def stop(self, pick: int, stale: bool, d: list[int]) -> None:
        self.say(CallStopped(self.some_lease(pick, stale=stale), 9, tuple(d)))

    @rule(pick=picks, stale=st.sampled_from([False] * 9 + [True]))
    def fail(self, pick: int, stale: bool) -> None:
        self.say(CallFailed(self.some_lease(pick, stale=stale), "the engine refused"))

    @rule(pick=picks, stale=st.sampled_from([False] * 9 + [True]))
    def lose(self, pick: int, stale: bool) -> None:
        self.say(CallLost(self.some_lease(pick, stale=stale), "the connection broke"))

    @rule(pick=picks, stale=st.sampled_from([False] * 9 + [True]), d=st.integers(0, 40))
    def preempt(self, pick: int, stale: bool, d: int) -> None:
        lease_id = self.some_lease(pick, stale=stale)
        sequences = self.core.leases[lease_id].sequences if lease_id in self.leases else 1
        self.say(CallPreempted(lease_id, (d,) * sequences))

    @rule(name=names, call_id=call_names, replica=replica_names, number=st.integers(1, 4))
    def adopt(self, name: str, call_id: str, replica: str, number: int) -> None:
        lease_id = f"6-{number}"
        running = self.core.applications.get(name)
        found = None if running is None else running.calls.get(call_id)
        free = found is not None and found.state in (CallState.BLOCKED, CallState.READY)
        if found is not None and free and replica in self.core.replicas and lease_id not in self.leases:
            self.leases[lease_id] = Lease(name, call_id, replica, started=True)
        elif lease_id not in self.leases:
            self.old_leases.append(lease_id)
        self.say(CallAdopted(name, call_id, replica, lease_id))

    # ---- time and settings

    @rule(
        clock=st.sampled_from(ClockMode),
        pick=picks,
        watermark=st.floats(0, 0.5),
        tenant_level=st.booleans(),
        flows=st.sampled_from(Flows),
    )
    def change_settings(self, clock: ClockMode, pick: int, watermark: float, tenant_level: bool, flows: Flows) -> None:
        policy = _pick(self.policies, pick)
        changed = replace(self.settings, clock=clock, watermark=watermark, tenant_level=tenant_level, flows=flows)
        self.say(SettingsChanged(changed, policy))
        assert self.core.policy.name == policy

    @rule(by=st.sampled_from([-60.0, 0.0, 0.5, 1.0, 6.0, 21.0, 31.0]))
    def pass_time(self, by: float) -> None:
        self.now_s += by
        self.say(TimePassed())

    @rule(name=names)
    def ask(self, name: str) -> None:
        """Questions change nothing, and are answered at any moment."""
        before = repr(overview(self.core))
        answer = explain(self.core, name)
        assert (answer is None) == (name not in self.core.applications)
        assert repr(overview(self.core)) == before

    # ---- the end

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        if len(self.told) % 2:
            self._cancel_everything()
        else:
            self._let_everything_finish()
        clean_state(self.core)
        assert self.leases == {}
        assert self.completed == self.arrived
        assert self.audited == self.completed
        self._a_probe_runs()
        assert list(replay(self.lines)) == self.told

    def _cancel_everything(self) -> None:
        for name in list(self.core.applications):
            self.say(ApplicationCancelled(name, "the test is over"))
        for lease_id in sorted(self.leases):
            self.say(CallStopped(lease_id, 9, (1,)))

    def _let_everything_finish(self) -> None:
        self.now_s = self.core.now_s
        self.say(ReplicaJoined("large", limits(blocks=400)))
        for name, running in list(self.core.applications.items()):
            self.say(ApplicationClosed(name))
            for spec in list(running.calls.values()):
                self.say(CallReady(name, spec.key.call_id, spec.prompt_tokens, spec.predicted_output_tokens))
        for _ in range(200):
            if not self.core.applications:
                return
            self.say(CapacityOffered("large", 4))
            for lease_id in sorted(self.leases):
                self.say(CallStarted(lease_id))
                self.say(CallFinished(lease_id, 9, (5,)))
        raise AssertionError(f"never ends: {self.core.applications}")

    def _a_probe_runs(self) -> None:
        self.say(ReplicaJoined("last", limits()))
        self.say(ApplicationArrived(application("probe", call("1"))))
        self.say(CallReady("probe", "1", 10, 10))
        self.say(CapacityOffered("last", 1))
        (lease_id,) = self.leases or [None]
        if lease_id is None:
            raise AssertionError("the probe was not granted")
        self.say(CallFinished(lease_id, 10, (10,)))
        clean_state(self.core)


class JustitiaWorld(World):
    """The policy that the system is for, and nothing else."""

    policies = ("justitia",)


def _pick(choices: Sequence[T], pick: int) -> T:
    return choices[pick % len(choices)]


TestJustitia = JustitiaWorld.TestCase
TestAnyPolicy = World.TestCase
