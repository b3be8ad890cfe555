"""The scheduler: facts in, orders out.

`SchedulerCore.handle(now_s, event)` is the only way to change anything; everything else is a question. The core
reads no clock and draws no lots, so the same events always give the same actions: the Ray actor, the simulator
and the tests are drivers of this one object.

Promises, for any order of events:
- a call runs under at most one lease at a time, and ends exactly once;
- grants go only to replicas with an open offer, only when the projected peak fits (`scheduler.admission`), and
  always to the head of the policy's order: a head that does not fit makes those behind it wait;
- an application's tag is fixed at arrival and moves only by the corrections of `scheduler.applications`, each
  published with its reason;
- V never falls, and the reference is a matter of V alone (`scheduler.gps`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from scheduler.actions import (
    Abort,
    Action,
    Grant,
    PublishCallEnd,
    Refusal,
    Reject,
)
from scheduler.applications import Application, Call
from scheduler.audit import AuditBook
from scheduler.capacity import Replica
from scheduler.cost import CostModel, memory_cost
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
from scheduler.fairness import Fairness
from scheduler.gps import ReferenceClock
from scheduler.lease_book import LeaseBook, leading
from scheduler.lifecycle import ADOPTABLE, CallState
from scheduler.policies.contract import Policy
from scheduler.refusals import Gate
from scheduler.settings import ClockMode, CoreSettings, Flows
from scheduler.tenants import choose_policy, order_of
from scheduler.types import ApplicationSpec


class SchedulerCore:
    """The state of one scheduler. `epoch` marks its grants; `virtual_time` continues an earlier scheduler's V."""

    def __init__(
        self,
        settings: CoreSettings,
        policy: Policy,
        *,
        epoch: int = 1,
        virtual_time: float = 0.0,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.epoch = epoch
        self.applications: dict[str, Application] = {}
        self.now_s = 0.0
        self.unfinished_calls = 0
        self.ready_calls = 0
        self._made_cost = 0.0
        self._tenant_weights = dict(settings.tenant_weights)
        self._book = LeaseBook(epoch)
        self._gate = Gate(settings, self.applications, self._book.replicas)
        self._actions: list[Action] = []
        self._fairness = Fairness(virtual_time, lambda action: self._actions.append(action))
        self._idle_applications: dict[str, float] = {}
        self._engineless_since_s: float | None = None
        self._application_count = 0
        self._ready_count = 0

    # ---- the one door

    def handle(self, now_s: float, event: Event) -> list[Action]:
        """Take one fact at time `now_s` (seconds, monotonic; an earlier time counts as no time at all)."""
        elapsed_s = max(0.0, now_s - self.now_s)
        self.now_s += elapsed_s
        self._actions = []
        self.policy.advance(self.now_s)
        if self.settings.clock is ClockMode.CAPACITY:
            self._serve(elapsed_s * self.settings.nominal_iterations_per_s * self.pool_tokens)
        self._apply(event)
        if self._made_cost:
            self._serve(max(self._made_cost, 0.0))
            self._made_cost = 0.0
        self._dispatch()
        return self._actions

    def _apply(self, event: Event) -> None:
        match event:
            case ProgressReported():
                self._progress_reported(event)
            case CapacityOffered():
                self._capacity_offered(event)
            case OfferWithdrawn():
                self._offer_withdrawn(event)
            case CallReady():
                self._call_ready(event)
            case CallStarted():
                self._call_started(event)
            case CallFinished():
                self._call_finished(event)
            case CallRevealed():
                self._call_revealed(event)
            case ApplicationArrived():
                self._application_arrived(event)
            case TimePassed():
                self._time_passed()
            case _:
                self._apply_rare(event)

    def _apply_rare(
        self,
        event: ApplicationClosed
        | ApplicationCancelled
        | CallCancelled
        | CallAdopted
        | CallStopped
        | CallFailed
        | CallLost
        | CallPreempted
        | ReplicaJoined
        | ReplicaLeft
        | SettingsChanged,
    ) -> None:
        match event:
            case ApplicationClosed():
                self._application_closed(event)
            case ApplicationCancelled():
                self._application_cancelled(event)
            case CallCancelled():
                self._call_cancelled(event)
            case CallAdopted():
                self._call_adopted(event)
            case CallStopped():
                self._call_stopped(event)
            case CallFailed():
                self._call_failed(event)
            case CallLost():
                self._call_lost(event)
            case CallPreempted():
                self._call_preempted(event)
            case ReplicaJoined():
                self._replica_joined(event)
            case ReplicaLeft():
                self._replica_left(event)
            case SettingsChanged():
                self._settings_changed(event)
            case _:
                assert_never(event)

    # ---- questions

    @property
    def reference(self) -> ReferenceClock:
        """The fluid reference (GPS), to look at."""
        return self._fairness.reference

    @property
    def cost(self) -> CostModel:
        """The cost function in which applications are measured: the policy's own, or else KV token-time."""
        return self.policy.cost or memory_cost

    @property
    def audit(self) -> AuditBook:
        """The audit of the delay bound, to look at."""
        return self._fairness.audit

    @property
    def virtual_time(self) -> float:
        """V: token-iterations that each unit of weight has received in the reference."""
        return self.reference.virtual_time

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """The replicas' ledgers, to look at."""
        return self._book.replicas

    @property
    def leases(self) -> Mapping[str, Call]:
        """Calls that hold a lease, by lease id, to look at."""
        return self._book.leases

    @property
    def pool_tokens(self) -> int:
        """M: KV tokens of all replicas together."""
        return self._book.pool_tokens

    def next_call(self) -> Call | None:
        """The waiting call that goes next."""
        key = self.policy.head()
        return None if key is None else self.applications[key.application_id].calls[key.call_id]

    def standing(self, lease_id: str) -> tuple[float, int, int]:
        """Where a call that holds a lease stands in the policy's order at present; the smallest is the first.

        Under a policy whose order is not a number a call it stands where it was granted.
        """
        call = self.leases[lease_id]
        assert call.facts is not None
        application = self.applications[call.key.application_id]
        rank = self.policy.rank(replace(call.facts, application=application.facts()))
        granted = int(lease_id.rpartition("-")[2])
        return (granted, 0, 0) if rank is None else (rank, application.sequence, call.ready_sequence)

    def roomiest_replica(self, call: Call) -> Replica | None:
        """Of the replicas that wait and have room for the call, the one with most free memory."""
        return self._book.roomiest_replica(call)

    # ---- applications

    def _application_arrived(self, event: ApplicationArrived) -> None:
        spec = event.application
        refused = self._gate.application_refused(spec, self.unfinished_calls)
        if refused is not None:
            self._actions.append(Reject(spec.application_id, None, *refused))
        elif event.resumes is None:
            self._admit(spec, Resumption(self.virtual_time, 0.0, 0.0))
        else:
            self._resume(spec, event.resumes)

    def _resume(self, spec: ApplicationSpec, begin: Resumption) -> None:
        """Take back an application; V had come at least as far as its start tag when it arrived."""
        self._fairness.resume_at(self.now_s, begin.start_tag)
        self._admit(spec, begin)

    def _admit(self, spec: ApplicationSpec, begin: Resumption) -> Application:
        self._application_count += 1
        arrival_s = self.now_s - begin.age_s
        application = Application(
            spec, self._application_count, arrival_s, begin.start_tag, self.cost, begin.ended_cost
        )
        self._join_flow(application)
        self.applications[spec.application_id] = application
        self.unfinished_calls += application.unfinished_calls
        self._fairness.enter(application, self.now_s)
        self._introduce_application(application)
        self._note_idleness(application)
        return application

    def _join_flow(self, application: Application) -> None:
        """Say as whom it takes part when a policy shares among flows."""
        spec = application.spec
        application.tenant_weight = self._tenant_weights.get(spec.tenant, 1.0)
        if self.settings.flows is Flows.TENANTS:
            application.flow, application.flow_weight = spec.tenant, application.tenant_weight
        else:
            application.flow, application.flow_weight = spec.application_id, spec.weight

    def _call_revealed(self, event: CallRevealed) -> None:
        refused = self._gate.call_refused(event, self.unfinished_calls)
        if refused is not None:
            self._actions.append(Reject(event.application_id, event.call.call_id, *refused))
            return
        application = self.applications.get(event.application_id)
        if application is None:
            assert event.opens is not None
            application = self._admit(event.opens, Resumption(self.virtual_time, 0.0, 0.0))
        application.start_anew_if_served(self.virtual_time)
        application.reveal(event.call)
        self.unfinished_calls += 1
        self._note_idleness(application)
        self._retag(application, f"call {event.call.call_id} revealed")

    def _application_closed(self, event: ApplicationClosed) -> None:
        application = self.applications.get(event.application_id)
        if application is not None:
            application.open = False
            self._complete_if_ended(application)

    def _application_cancelled(self, event: ApplicationCancelled) -> None:
        application = self.applications.get(event.application_id)
        if application is None:
            return
        application.cancellation = application.cancellation or event.reason
        self._stop_application(application, event.reason)

    def _stop_application(self, application: Application, reason: str) -> None:
        application.open = False
        for call in list(application.calls.values()):
            self._cancel(application, call, reason)
        self._complete_if_ended(application)

    # ---- calls

    def _call_ready(self, event: CallReady) -> None:
        application, call = self._find(event.application_id, event.call_id)
        if application is None or call is None or call.announced or call.state is not CallState.BLOCKED:
            return
        call.announced = True
        call.prefix = event.prefix
        call.prompt_tokens = max(event.prompt_tokens, 0)
        call.predicted_output_tokens = min(max(event.predicted_output_tokens, 1), call.max_output_tokens)
        application.reestimate(call)
        self._retag(application, f"call {call.key.call_id} has its prompt")
        self._make_ready_if_free(application, call)

    def _make_ready_if_free(self, application: Application, call: Call) -> None:
        if call.announced and not call.waiting_for and call.state is CallState.BLOCKED:
            self._take_place(call)
            self._wait(application, call)

    def _take_place(self, call: Call) -> None:
        """Give a call its place among those that became ready; it keeps it when a lease is lost."""
        self._ready_count += 1
        call.ready_sequence = self._ready_count

    def _wait(self, application: Application, call: Call) -> None:
        call.move(CallState.READY)
        self.ready_calls += 1
        call.facts = application.call_facts(call, self.now_s)
        self.policy.add(call.facts)

    def _leave_queue(self, call: Call) -> None:
        if call.state is CallState.READY:
            self.ready_calls -= 1
            self.policy.remove(call.key)

    def _call_cancelled(self, event: CallCancelled) -> None:
        application, call = self._find(event.application_id, event.call_id)
        if application is not None and call is not None:
            self._cancel(application, call, event.reason)
            self._complete_if_ended(application)

    def _cancel(self, application: Application, call: Call, reason: str) -> None:
        """Stop a call at whatever stage it is; a running one keeps its memory until the engine lets go."""
        if call.state is CallState.RUNNING:
            call.move(CallState.STOPPING)
            call.end_reason = reason
            self._abort(call)
        elif call.state is CallState.GRANTED:
            self._abort(call)
            self._release(call, finished=False)
            self._end(application, call, CallState.CANCELLED, reason)
        elif not call.ended and call.state is not CallState.STOPPING:
            self._leave_queue(call)
            self._end(application, call, CallState.CANCELLED, reason)

    def _release(self, call: Call, *, finished: bool) -> None:
        """A call's lease is over."""
        assert call.facts is not None
        self._book.release(call)
        self.policy.ended(call.facts, call.made_under_lease(), finished)

    def _abort(self, call: Call) -> None:
        assert call.replica_id is not None
        assert call.lease_id is not None
        self._actions.append(Abort(call.replica_id, call.lease_id))

    def _refuse_call(self, application: Application, call: Call, refusal: Refusal, message: str) -> None:
        self._actions.append(Reject(*call.key, refusal, message))
        self._fail(application, call, message)

    def _fail(self, application: Application, call: Call, reason: str) -> None:
        self._leave_queue(call)
        self._end(application, call, CallState.FAILED, reason)
        if not application.open:
            application.failure = application.failure or f"call {call.key.call_id}: {reason}"
            self._stop_application(application, f"call {call.key.call_id} failed")
        self._complete_if_ended(application)

    def _end(self, application: Application, call: Call, state: CallState, reason: str) -> None:
        if call.replica_id is not None:
            self.audit.note_call(self.now_s, self.now_s - call.granted_s)
        before = call.served_cost
        application.end_call(call, state, self.now_s, reason)
        self._count_served(call.served_cost - before)
        self.unfinished_calls -= 1
        self._publish_call_end(call)
        if state is CallState.FINISHED:
            self._unblock_dependents(application, call)
        else:
            self._cancel_dependents(application, call)
        self._note_idleness(application)

    def _publish_call_end(self, call: Call) -> None:
        self._actions.append(
            PublishCallEnd(*call.key, call.state.value, call.end_reason, call.prompt_tokens, call.output_tokens)
        )

    def _unblock_dependents(self, application: Application, call: Call) -> None:
        for dependent in application.dependents(call.key.call_id):
            dependent.waiting_for.discard(call.key.call_id)
            self._make_ready_if_free(application, dependent)

    def _cancel_dependents(self, application: Application, call: Call) -> None:
        doomed = application.dependents(call.key.call_id)
        while doomed:
            dependent = doomed.pop()
            if dependent.state is not CallState.BLOCKED:
                continue
            application.end_call(dependent, CallState.CANCELLED, self.now_s, f"{call.key.call_id} has no answer")
            self.unfinished_calls -= 1
            self._publish_call_end(dependent)
            doomed.extend(application.dependents(dependent.key.call_id))

    def _call_adopted(self, event: CallAdopted) -> None:
        application, call = self._find(event.application_id, event.call_id)
        replica = self.replicas.get(event.replica_id)
        if event.lease_id in self.leases:
            return
        if application is None or call is None or replica is None or call.state not in ADOPTABLE:
            self._actions.append(Abort(event.replica_id, event.lease_id))  # what runs there, nobody waits for
        else:
            if call.ready_sequence < 0:
                self._take_place(call)
            call.facts = call.facts or application.call_facts(call, self.now_s)
            self.policy.granted(call.facts, replica.replica_id)
            self._leave_queue(call)
            self._book.hold(replica, call, event.lease_id, self.now_s)
            call.move(CallState.RUNNING)

    # ---- leases

    def _call_started(self, event: CallStarted) -> None:
        call = self.leases.get(event.lease_id)
        if call is not None and call.state is CallState.GRANTED:
            self._book.use(event.lease_id)
            call.move(CallState.RUNNING)

    def _call_finished(self, event: CallFinished) -> None:
        call = self.leases.get(event.lease_id)
        if call is None:
            return
        state = CallState.CANCELLED if call.state is CallState.STOPPING else CallState.FINISHED
        self._let_go(call, event.prompt_tokens, event.output_tokens, state)

    def _call_stopped(self, event: CallStopped) -> None:
        call = self.leases.get(event.lease_id)
        if call is not None:
            self._let_go(call, event.prompt_tokens, event.output_tokens, CallState.CANCELLED)

    def _let_go(self, call: Call, prompt_tokens: int, output_tokens: tuple[int, ...], state: CallState) -> None:
        application = self.applications[call.key.application_id]
        if output_tokens:
            call.prompt_tokens = prompt_tokens
        call.output_tokens = output_tokens
        self._release(call, finished=state is CallState.FINISHED)
        self._end(application, call, state, call.end_reason)
        self._retag(application, f"call {call.key.call_id} ended")
        self._complete_if_ended(application)

    def _call_failed(self, event: CallFailed) -> None:
        call = self.leases.get(event.lease_id)
        if call is None:
            return
        application = self.applications[call.key.application_id]
        self._release(call, finished=False)
        if call.state is CallState.STOPPING:
            self._end(application, call, CallState.CANCELLED, event.reason)
            self._complete_if_ended(application)
        else:
            self._fail(application, call, event.reason)

    def _call_lost(self, event: CallLost) -> None:
        call = self.leases.get(event.lease_id)
        if call is not None:
            self._lose(call, event.reason)

    def _call_preempted(self, event: CallPreempted) -> None:
        call = self.leases.get(event.lease_id)
        if call is None or call.state is CallState.STOPPING:
            return
        self._progress(call, event.output_tokens)
        self._release(call, finished=False)
        call.kept_tokens = event.output_tokens
        call.preemptions += 1
        self._wait(self.applications[call.key.application_id], call)

    def _lose(self, call: Call, reason: str) -> None:
        """Take back a lease that brought no answer; the call returns to its place, or fails in the end."""
        application = self.applications[call.key.application_id]
        self._release(call, finished=False)
        if call.state is CallState.STOPPING:
            self._end(application, call, CallState.CANCELLED, reason)
            self._complete_if_ended(application)
        elif call.attempts >= self.settings.max_attempts:
            message = f"lost {call.attempts} times, the last time: {reason}"
            self._actions.append(Reject(*call.key, Refusal.LOST, message))
            self._fail(application, call, message)
        else:
            call.output_tokens, call.kept_tokens, call.replica_id = (), (), None
            application.reestimate(call)
            self._tell_changed(application)
            self._wait(application, call)

    # ---- replicas

    def _replica_joined(self, event: ReplicaJoined) -> None:
        if event.replica_id not in self.replicas:
            replica = Replica(event.replica_id, event.limits, self.settings.watermark, self.settings.admission)
            self._book.replicas[event.replica_id] = replica
            self._tell_pool()
            self._engineless_since_s = None

    def _replica_left(self, event: ReplicaLeft) -> None:
        replica = self.replicas.get(event.replica_id)
        if replica is None:
            return
        for lease_id in list(replica.holdings):
            if lease_id in self.leases:
                self._lose(self.leases[lease_id], event.reason)
        del self._book.replicas[event.replica_id]
        self.policy.replica_left(event.replica_id)
        self._tell_pool()

    def _tell_pool(self) -> None:
        sequences = sum(replica.limits.max_sequences for replica in self.replicas.values())
        self.policy.pool_changed(self.pool_tokens, sequences)

    def _progress_reported(self, event: ProgressReported) -> None:
        replica = self.replicas.get(event.replica_id)
        if replica is None:
            return
        self._advance_clock(event, replica)
        for lease_id, output_tokens in event.generated:
            if lease_id in replica.holdings:
                self._progress(self.leases[lease_id], output_tokens)
        replica.observe(event.kv_used_tokens, {lease_id for lease_id, _ in event.generated})

    def _progress(self, call: Call, output_tokens: tuple[int, ...]) -> None:
        application = self.applications[call.key.application_id]
        assert call.facts is not None
        call.progress(output_tokens)
        self._book.refresh(call)
        before = call.served_cost
        application.reestimate(call)
        self._count_served(call.served_cost - before)
        self.policy.progressed(call.facts, call.made_under_lease())
        self._retag(application, f"call {call.key.call_id} outlives its prediction")

    def _capacity_offered(self, event: CapacityOffered) -> None:
        replica = self.replicas.get(event.replica_id)
        if replica is not None:
            replica.offered_grants = event.max_grants

    def _offer_withdrawn(self, event: OfferWithdrawn) -> None:
        replica = self.replicas.get(event.replica_id)
        if replica is not None:
            replica.offered_grants = 0

    def _settings_changed(self, event: SettingsChanged) -> None:
        before, self.settings = self.settings, event.settings
        self._gate.settings = event.settings
        for replica in self.replicas.values():
            replica.watermark, replica.admission = event.settings.watermark, event.settings.admission
        self._tenant_weights = dict(event.settings.tenant_weights)
        if event.policy != self.policy.name or order_of(before) != order_of(event.settings):
            self._change_policy(choose_policy(event.policy, event.settings))

    def _change_policy(self, policy: Policy) -> None:
        """Tell a policy what is there, and let it decide from here on."""
        cost, self.policy = self.cost, policy
        policy.advance(self.now_s)
        self._tell_pool()
        for application in self.applications.values():
            self._join_flow(application)
            if self.cost is not cost:
                application.measure_in(self.cost, self.virtual_time)
                self._fairness.retag(application, self.now_s, f"policy {policy.name} counts another cost")
            self._introduce_application(application)
        for application in self.applications.values():
            for call in application.calls.values():
                self._introduce(application, call)

    def _introduce(self, application: Application, call: Call) -> None:
        if call.state is CallState.READY:
            call.facts = application.call_facts(call, self.now_s)
            self.policy.add(call.facts)
        elif call.replica_id is not None and call.lease_id is not None:
            call.facts = application.call_facts(call, self.now_s)
            self.policy.granted(call.facts, call.replica_id)
            self.policy.progressed(call.facts, call.made_under_lease())

    # ---- who runs next

    def _dispatch(self) -> None:
        """Grant heads of the order while they fit; an offer that was used is closed."""
        used: set[str] = set()
        while (key := self.policy.head()) is not None:
            application = self.applications[key.application_id]
            call = application.calls[key.call_id]
            if not self._gate.can_ever_fit(call.prompt_tokens):
                refused = self._gate.cannot_fit(call.key.call_id, call.prompt_tokens)
                self._refuse_call(application, call, *refused)
                continue
            replica = self._book.preferred_replica(call, self.policy.preferred_replica(key))
            if replica is None:
                break
            self._grant(application, call, replica)
            used.add(replica.replica_id)
        for replica_id in used:
            self.replicas[replica_id].offered_grants = 0

    def _grant(self, application: Application, call: Call, replica: Replica) -> None:
        assert call.facts is not None
        priority = self.policy.priority(call.facts)
        self.policy.granted(call.facts, replica.replica_id)
        self._leave_queue(call)
        call.move(CallState.GRANTED)
        lease_id = self._book.reserve(replica, call, self.now_s)
        in_order = self._book.granted if priority is None else priority
        self._actions.append(Grant(replica.replica_id, *call.key, lease_id, self.epoch, in_order))

    # ---- the clock and the tags

    def _advance_clock(self, event: ProgressReported, replica: Replica) -> None:
        if self.settings.clock is ClockMode.SERVICE and self.cost is memory_cost:
            self._serve(event.served_token_iterations)
        elif self.settings.clock is ClockMode.ITERATION:
            self._serve(event.iterations * replica.limits.pool_tokens)

    def _count_served(self, cost: float) -> None:
        """Under a cost function that engines do not count in, service is what calls were seen to make."""
        if self.settings.clock is ClockMode.SERVICE and self.cost is not memory_cost:
            self._made_cost += cost

    def _serve(self, service: float) -> None:
        self._fairness.serve(self.now_s, service * self.settings.clock_rate)
        self.policy.served(service * self.settings.clock_rate)

    def _retag(self, application: Application, reason: str) -> None:
        self._fairness.retag(application, self.now_s, reason)
        self._tell_changed(application)

    def _introduce_application(self, application: Application) -> None:
        application.told = application.facts()
        self.policy.application_arrived(application.told)

    def _tell_changed(self, application: Application) -> None:
        """Tell the policy what an application is like, unless it has been told just that."""
        facts = application.facts()
        if facts is not application.told:
            application.told = facts
            self.policy.application_changed(facts)

    # ---- the end of an application

    def _complete_if_ended(self, application: Application) -> None:
        if self.applications.get(application.application_id) is not application:
            return
        self._retag(application, "ended with its true cost" if application.ended else "less work is left")
        if not application.ended:
            return
        del self.applications[application.application_id]
        self._idle_applications.pop(application.application_id, None)
        self.policy.application_left(application.facts())
        self._fairness.complete(application, self._book.longest_running_s(self.now_s))
        if not self.applications:
            self._fairness.end_busy_period(self.now_s)

    # ---- time limits

    def _time_passed(self) -> None:
        self._return_unused_leases()
        self._close_idle_applications()
        self._refuse_without_engine()

    def _return_unused_leases(self) -> None:
        deadline_s = self.now_s - self.settings.reservation_timeout_s
        for lease_id in self._book.unused_since(deadline_s):
            call = self.leases.get(lease_id)
            if call is None:
                continue  # its application failed with the lease before it
            self._abort(call)
            self._lose(call, f"nobody used its grant for {self.settings.reservation_timeout_s:g} s")

    def _note_idleness(self, application: Application) -> None:
        self._idle_applications.pop(application.application_id, None)
        if application.open and application.unfinished_calls == 0:
            self._idle_applications[application.application_id] = self.now_s

    def _close_idle_applications(self) -> None:
        deadline_s = self.now_s - self.settings.open_idle_s
        for application_id in leading(self._idle_applications, deadline_s):
            application = self.applications[application_id]
            application.open = False
            self._complete_if_ended(application)

    def _refuse_without_engine(self) -> None:
        if self.replicas or self.ready_calls == 0:
            self._engineless_since_s = None
        elif self._engineless_since_s is None:
            self._engineless_since_s = self.now_s
        elif self.now_s - self._engineless_since_s >= self.settings.engine_wait_s:
            self._refuse_waiting_calls(f"no engine for {self.settings.engine_wait_s:g} s")

    def _refuse_waiting_calls(self, message: str) -> None:
        while (key := self.policy.head()) is not None:
            application = self.applications[key.application_id]
            self._refuse_call(application, application.calls[key.call_id], Refusal.NO_ENGINE, message)

    def _find(self, application_id: str, call_id: str) -> tuple[Application | None, Call | None]:
        application = self.applications.get(application_id)
        return application, None if application is None else application.calls.get(call_id)
