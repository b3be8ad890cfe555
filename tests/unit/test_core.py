"""The core, one event at a time; `tests/property/test_scheduler_machine.py` mixes them."""

import pytest

from scheduler.actions import (
    Abort,
    Grant,
    PublishAudit,
    PublishCallEnd,
    PublishCompletion,
    PublishTag,
    Refusal,
    Reject,
)
from scheduler.core import SchedulerCore
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallAdopted,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallLost,
    CallReady,
    CallRevealed,
    CallStarted,
    CallStopped,
    CapacityOffered,
    OfferWithdrawn,
    ProgressReported,
    ReplicaJoined,
    ReplicaLeft,
    Resumption,
    SettingsChanged,
    TimePassed,
)
from scheduler.invariants import InvariantBroken, check
from scheduler.policies import create_policy
from scheduler.settings import ClockMode, CoreSettings
from scheduler.types import ApplicationRecord, CallKey
from tests.scheduling import Bench, application, call, clean_state, limits


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.join()
    return made


def running(bench: Bench, application_id: str = "a", call_id: str = "c") -> Grant:
    """The grant of a call that is made ready and started."""
    bench.ready(application_id, call(call_id))
    (grant,) = bench.latest(Grant) or bench.offer()
    assert (grant.application_id, grant.call_id) == (application_id, call_id)
    bench.start(grant)
    return grant


def the_record(bench: Bench) -> ApplicationRecord:
    (action,) = bench.all(PublishCompletion)
    return action.record


def outcomes(bench: Bench) -> dict[str, str]:
    return {action.call_id: action.outcome for action in bench.all(PublishCallEnd)}


# ---- a life without trouble


def test_from_arrival_to_audit(bench: Bench) -> None:
    bench.now_s = 100.0
    bench.arrive("a", call("x"), call("y", after=["x"]), application_type="t", tenant="d", weight=2.0)
    assert bench.latest(PublishTag) == [PublishTag("a", 0.0, 155.0, 310.0, "arrival")]
    bench.ready("a", call("y"))
    bench.ready("a", call("x"))
    (grant,) = bench.offer()
    assert grant == Grant("r", "a", "x", "1-1", 1, 155)
    bench.start(grant)
    bench.serve(155.0, after_s=1.0)
    bench.finish(grant)
    assert bench.latest(PublishCallEnd) == [PublishCallEnd("a", "x", "finished", "", 10, (10,))]
    (grant,) = bench.offer(grants=5)
    bench.serve(155.0, after_s=1.0)
    bench.finish(grant)
    assert the_record(bench) == ApplicationRecord(
        application_id="a",
        application_type="t",
        tenant="d",
        weight=2.0,
        outcome="finished",
        arrival_s=100.0,
        finish_s=102.0,
        predicted_cost=310.0,
        true_cost=310.0,
        finish_tag=155.0,
        calls=2,
        gps_finish_s=None,
    )
    (audit,) = bench.all(PublishAudit)
    assert (audit.record.gps_finish_s, audit.record.lag_s, audit.record.bound_s) == (102.0, 0.0, 102.0 + 3 * 1.0)
    clean_state(bench.core)


def test_a_core_continues_virtual_time_and_marks_its_grants_with_its_epoch() -> None:
    core = SchedulerCore(CoreSettings(), create_policy("fcfs"), epoch=9, virtual_time=500.0)
    core.handle(0.0, ReplicaJoined("r", limits()))
    (tag,) = core.handle(0.0, ApplicationArrived(application("a", call())))
    assert isinstance(tag, PublishTag)
    assert (tag.start_tag, tag.finish_tag) == (500.0, 655.0)
    core.handle(0.0, CallReady("a", "c", 10, 10))
    (grant,) = core.handle(0.0, CapacityOffered("r", 1))
    assert isinstance(grant, Grant)
    assert (grant.epoch, grant.lease_id) == (9, "9-1")


# ---- messages that say nothing


@pytest.mark.parametrize(
    "event",
    [
        CallAdopted("nobody", "c", "r", "0-1"),
        CallAdopted("a", "nobody", "r", "0-1"),
        CallAdopted("a", "c", "nobody", "0-1"),
    ],
)
def test_a_run_that_cannot_be_taken_back_is_stopped(bench: Bench, event: CallAdopted) -> None:
    bench.arrive("a", call())
    assert bench.handle(event) == [Abort(event.replica_id, "0-1")]
    assert bench.core.leases == {}


def test_a_run_of_a_call_that_was_granted_elsewhere_is_stopped(bench: Bench) -> None:
    bench.arrive_ready("a", call())
    (grant,) = bench.offer()
    assert bench.handle(CallAdopted("a", "c", "r", "0-1")) == [Abort("r", "0-1")]
    assert list(bench.core.leases) == [grant.lease_id]


@pytest.mark.parametrize(
    "event",
    [
        CallReady("nobody", "c", 1, 1),
        CallReady("a", "nobody", 1, 1),
        ApplicationClosed("nobody"),
        ApplicationCancelled("nobody", ""),
        CallCancelled("a", "nobody", ""),
        CallCancelled("nobody", "c", ""),
        ReplicaJoined("r", limits(blocks=1)),
        ReplicaLeft("nobody", ""),
        ProgressReported("nobody", 100.0, 1, 0),
        ProgressReported("r", 0.0, 0, 0, (("nobody", (3,)),)),
        CapacityOffered("nobody", 3),
        OfferWithdrawn("nobody"),
        CallStarted("nobody"),
        CallFinished("nobody", 1, (1,)),
        CallStopped("nobody", 1, (1,)),
        CallFailed("nobody", ""),
        CallLost("nobody", ""),
    ],
)
def test_strangers_and_repetitions_change_nothing(bench: Bench, event: object) -> None:
    bench.arrive("a", call())
    before = (bench.core.virtual_time, bench.core.pool_tokens, bench.app("a").finish_tag)
    assert bench.handle(event) == []  # type: ignore[arg-type]
    assert (bench.core.virtual_time, bench.core.pool_tokens, bench.app("a").finish_tag) == before
    assert running(bench).call_id == "c"


def test_a_prompt_is_announced_once(bench: Bench) -> None:
    bench.arrive("a", call())
    bench.handle(CallReady("a", "c", 20, 99999))
    assert bench.state_of("a", "c").predicted_output_tokens == 160, "cut to the most it may make"
    assert bench.handle(CallReady("a", "c", 1, 1)) == []
    assert bench.state_of("a", "c").prompt_tokens == 20
    (grant,) = bench.offer()
    assert bench.handle(CallReady("a", "c", 1, 1)) == []
    bench.start(grant)
    assert bench.handle(CallStarted(grant.lease_id)) == []


# ---- refusals


def test_what_is_refused_leaves_no_trace(bench: Bench) -> None:
    bench.arrive("a", call())
    tag = bench.app("a").finish_tag
    (refused,) = bench.arrive("a", call())
    assert refused == Reject("a", None, Refusal.DUPLICATE_ID, "application 'a' is already running")
    (refused,) = bench.arrive("huge", call(p=5000))
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.CANNOT_FIT
    (refused,) = bench.handle(CallRevealed("a", call("d")))
    assert isinstance(refused, Reject)
    assert (refused.call_id, refused.refusal) == ("d", Refusal.APPLICATION_CLOSED)
    assert (bench.app("a").finish_tag, bench.core.unfinished_calls, len(bench.core.reference)) == (tag, 1, 1)


def test_a_prompt_that_grew_too_large_fails_its_application_and_blocks_nobody(bench: Bench) -> None:
    """When the true prompt is known only as the call becomes ready."""
    bench.arrive("a", call("x"), call("y", after=["x"]))
    bench.arrive_ready("b", call())
    bench.handle(CallReady("a", "x", 5000, 10))
    assert [g.application_id for g in bench.offer()] == ["b"]
    assert [r.refusal for r in bench.latest(Reject)] == [Refusal.CANNOT_FIT]
    assert outcomes(bench) == {"x": "failed", "y": "cancelled"}
    assert the_record(bench).outcome == "failed"


def test_without_an_engine_calls_wait_a_while_and_then_hear_why() -> None:
    bench = Bench(engine_wait_s=30)
    bench.arrive_ready("a", call())
    bench.handle(TimePassed())
    bench.handle(TimePassed(), after_s=29.0)
    assert bench.all(Reject) == []
    bench.arrive_ready("b", call())
    bench.handle(TimePassed(), after_s=1.0)
    assert [(r.application_id, r.refusal, r.message) for r in bench.all(Reject)] == [
        ("a", Refusal.NO_ENGINE, "no engine for 30 s"),
        ("b", Refusal.NO_ENGINE, "no engine for 30 s"),
    ]
    clean_state(bench.core)
    bench.handle(TimePassed())
    bench.arrive_ready("c", call())
    bench.handle(TimePassed())
    assert len(bench.all(Reject)) == 2, "the wait begins anew"


def test_an_engine_that_came_and_went_starts_the_wait_anew() -> None:
    bench = Bench(engine_wait_s=30)
    bench.arrive_ready("a", call())
    bench.handle(TimePassed())
    bench.now_s = 29.0
    bench.join()
    bench.handle(ReplicaLeft("r", "gone"))
    bench.handle(TimePassed(), after_s=1.0)
    assert bench.all(Reject) == []
    bench.handle(TimePassed(), after_s=30.0)
    assert len(bench.all(Reject)) == 1


# ---- cancels at every stage


def test_cancelling_an_application_reaches_every_stage(bench: Bench) -> None:
    calls = [call(name) for name in ("running", "granted", "ready")]
    bench.arrive("a", *calls, call("blocked", after=["running"]))
    running(bench, "a", "running")
    bench.ready("a", call("granted"))
    (granted,) = bench.offer()
    bench.ready("a", call("ready"))
    bench.handle(ApplicationCancelled("a", "the client left"))
    assert bench.latest(Abort) == [Abort("r", "1-1"), Abort("r", granted.lease_id)]
    assert outcomes(bench) == {"granted": "cancelled", "ready": "cancelled", "blocked": "cancelled"}
    assert bench.all(PublishCompletion) == [], "a call that runs keeps its memory until the engine lets go"
    assert set(bench.core.leases) == {"1-1"}
    bench.handle(ApplicationCancelled("a", "again"))
    assert bench.last == []
    bench.handle(CallStopped("1-1", 10, (4,)))
    record = the_record(bench)
    assert (record.outcome, record.true_cost, record.calls) == ("cancelled", 50.0, 4)
    clean_state(bench.core)


@pytest.mark.parametrize(
    "end",
    [CallFinished("1-1", 10, (4,)), CallStopped("1-1", 10, (4,)), CallFailed("1-1", "x"), CallLost("1-1", "x")],
)
def test_a_stopping_call_is_cancelled_whatever_the_engine_says(bench: Bench, end: object) -> None:
    bench.arrive("a", call())
    grant = running(bench)
    bench.handle(ProgressReported("r", 50.0, 4, 20, ((grant.lease_id, (4,)),)))
    bench.handle(CallCancelled("a", "c", "not needed"))
    assert bench.handle(CallStarted(grant.lease_id)) == []
    assert bench.handle(CallCancelled("a", "c", "again")) == []
    assert bench.handle(CallAdopted("a", "c", "r", "0-5")) == [Abort("r", "0-5")]
    bench.handle(end)  # type: ignore[arg-type]
    assert outcomes(bench) == {"c": "cancelled"}
    assert the_record(bench).true_cost == 50.0
    clean_state(bench.core)


def test_a_cancelled_call_takes_those_after_it_along(bench: Bench) -> None:
    bench.arrive("a", call("x"), call("y", after=["x"]), call("z", after=["y"]), call("w", after=["y", "x"]), call("o"))
    bench.handle(CallCancelled("a", "x", "no"))
    assert outcomes(bench) == dict.fromkeys("xyzw", "cancelled")
    assert bench.state_of("a", "z").end_reason == "x has no answer"
    grant = running(bench, "a", "o")
    bench.finish(grant)
    clean_state(bench.core)


def test_a_cancelled_call_lowers_a_tag_that_followed_it(bench: Bench) -> None:
    bench.arrive("a", call("x"), open=True, predicted_cost=100.0)
    bench.handle(CallRevealed("a", call("y")))
    assert bench.app("a").finish_tag == 310.0
    bench.handle(CallCancelled("a", "y", "no"))
    assert bench.latest(PublishTag) == [PublishTag("a", 0.0, 155.0, 155.0, "less work is left")]


def test_a_stop_that_nobody_asked_for_is_a_cancel(bench: Bench) -> None:
    bench.arrive("a", call())
    bench.ready("a", call())
    (grant,) = bench.offer()
    bench.handle(CallStopped(grant.lease_id, 0, ()))
    assert bench.latest(PublishCallEnd) == [PublishCallEnd("a", "c", "cancelled", "", 10, ())]
    assert the_record(bench).true_cost == 0.0


# ---- failures and losses


def test_a_failed_call_fails_its_application(bench: Bench) -> None:
    bench.arrive("a", call("x"), call("y"), call("z", after=["x"]))
    grant = running(bench, "a", "x")
    other = running(bench, "a", "y")
    bench.handle(CallFailed(grant.lease_id, "bad request"))
    assert bench.latest(Abort) == [Abort("r", other.lease_id)]
    bench.handle(CallStopped(other.lease_id, 10, (1,)))
    assert the_record(bench).outcome == "failed"
    assert outcomes(bench) == {"x": "failed", "y": "cancelled", "z": "cancelled"}
    clean_state(bench.core)


def test_an_open_application_survives_a_failed_call(bench: Bench) -> None:
    bench.arrive("a", call("x"), call("y"), open=True)
    bench.handle(CallFailed(running(bench, "a", "x").lease_id, "bad request"))
    bench.finish(running(bench, "a", "y"))
    bench.handle(ApplicationClosed("a"))
    assert the_record(bench).outcome == "finished"
    assert outcomes(bench) == {"x": "failed", "y": "finished"}


def test_a_lost_call_is_tried_a_bounded_number_of_times() -> None:
    bench = Bench(max_attempts=3)
    bench.arrive_ready("a", call("x"), call("y", after=["x"]))
    for attempt in range(3):
        bench.join(f"r{attempt}")
        (grant,) = bench.offer(f"r{attempt}")
        bench.start(grant)
        bench.handle(ReplicaLeft(f"r{attempt}", "it died"))
    assert [(r.refusal, r.message) for r in bench.all(Reject)] == [
        (Refusal.LOST, "lost 3 times, the last time: it died")
    ]
    assert the_record(bench).outcome == "failed"
    clean_state(bench.core)


def test_a_call_that_was_lost_begins_again_with_nothing_made(bench: Bench) -> None:
    bench.arrive("a", call())
    grant = running(bench)
    bench.handle(ProgressReported("r", 50.0, 4, 16, ((grant.lease_id, (4,)),)))
    assert bench.core.replicas["r"].held_tokens == 14
    bench.handle(CallLost(grant.lease_id, "evicted"))
    assert bench.app("a").served_cost == 0.0
    assert len(bench.offer()) == 1
    assert bench.core.replicas["r"].held_tokens == 10


def test_a_replica_that_leaves_takes_stopping_calls_and_siblings_with_it() -> None:
    bench = Bench(max_attempts=1)
    bench.join()
    bench.arrive("a", call("x"), call("y"), call("z"))
    for name in "xyz":
        running(bench, "a", name)
    bench.handle(CallCancelled("a", "z", "no"))
    bench.handle(ReplicaLeft("r", "it died"))
    assert outcomes(bench) == {"x": "failed", "y": "cancelled", "z": "cancelled"}
    assert bench.core.replicas == {}
    clean_state(bench.core)


def test_a_replica_that_leaves_with_grants_of_one_application_ends_it_once() -> None:
    bench = Bench(max_attempts=1)
    bench.join()
    bench.arrive_ready("a", call("x"), call("y"))
    assert len(bench.offer(grants=2)) == 2
    bench.handle(ReplicaLeft("r", "it died"))
    assert outcomes(bench) == {"x": "failed", "y": "cancelled"}
    assert the_record(bench).outcome == "failed"
    clean_state(bench.core)


def test_a_grant_that_nobody_uses_comes_back() -> None:
    bench = Bench(reservation_timeout_s=10)
    bench.join()
    bench.arrive_ready("a", call())
    (grant,) = bench.offer()
    bench.handle(TimePassed(), after_s=9.0)
    assert bench.last == []
    bench.handle(TimePassed(), after_s=1.0)
    assert bench.latest(Abort) == [Abort("r", grant.lease_id)]
    assert bench.core.ready_calls == 1
    assert bench.handle(CallStarted(grant.lease_id)) == [], "too late"
    bench.start(*bench.offer())
    bench.handle(TimePassed(), after_s=100.0)
    assert bench.last == [], "a lease in use does not run out"


def test_grants_that_run_out_together_may_end_their_application() -> None:
    bench = Bench(reservation_timeout_s=10, max_attempts=1)
    bench.join()
    bench.arrive_ready("a", call("x"), call("y"))
    assert len(bench.offer(grants=2)) == 2
    bench.handle(TimePassed(), after_s=10.0)
    assert outcomes(bench) == {"x": "failed", "y": "cancelled"}
    assert bench.latest(Abort) == [Abort("r", "1-1"), Abort("r", "1-2")]
    clean_state(bench.core)


# ---- open applications


def test_an_open_application_waits_for_calls_and_then_ends_by_itself() -> None:
    bench = Bench(open_idle_s=60)
    bench.join()
    bench.handle(CallRevealed("a", call("x"), application("a", open=True)))
    bench.handle(TimePassed(), after_s=1000.0)
    bench.finish(running(bench, "a", "x"))
    bench.handle(TimePassed(), after_s=59.0)
    bench.handle(CallRevealed("a", call("y"), application("a", open=True)))
    bench.finish(running(bench, "a", "y"))
    bench.handle(TimePassed(), after_s=59.0)
    assert bench.all(PublishCompletion) == []
    bench.handle(TimePassed(), after_s=1.0)
    record = the_record(bench)
    assert (record.outcome, record.calls, record.finish_s, record.bound_violated) == ("finished", 2, 1059.0, False)
    clean_state(bench.core)


def test_an_open_application_that_never_asks_ends_too() -> None:
    bench = Bench(open_idle_s=60)
    bench.arrive("a", open=True)
    bench.handle(TimePassed(), after_s=60.0)
    assert the_record(bench).true_cost == 0.0
    clean_state(bench.core)


def test_an_open_application_whose_last_calls_were_cancelled_is_idle() -> None:
    bench = Bench(open_idle_s=60)
    bench.arrive("a", call("x"), call("y", after=["x"]), open=True)
    bench.handle(CallCancelled("a", "x", "no"))
    bench.handle(TimePassed(), after_s=60.0)
    assert the_record(bench).calls == 2
    clean_state(bench.core)


def test_a_closed_application_ends_with_its_last_call(bench: Bench) -> None:
    bench.arrive("a", call("x"), open=True)
    grant = running(bench, "a", "x")
    bench.handle(ApplicationClosed("a"))
    assert bench.all(PublishCompletion) == []
    bench.finish(grant)
    assert the_record(bench).outcome == "finished"


# ---- recovery


def test_an_application_comes_back_with_its_tag_and_its_running_call(bench: Bench) -> None:
    bench.now_s = 50.0
    bench.handle(ApplicationArrived(application("a", call("x"), call("y")), Resumption(7.0, 20.0, 155.0)))
    assert bench.latest(PublishTag)[0].finish_tag == 7.0 + 155.0 + 310.0
    bench.ready("a", call("y"))
    bench.handle(CallAdopted("a", "x", "r", "0-9"))
    bench.handle(CallAdopted("a", "y", "r", "0-8"))
    assert bench.handle(CallAdopted("a", "y", "r", "0-8")) == []
    assert bench.core.ready_calls == 0
    assert set(bench.core.leases) == {"0-8", "0-9"}
    assert bench.offer(grants=9) == []
    for lease_id in ("0-8", "0-9"):
        bench.handle(CallFinished(lease_id, 10, (10,)))
    record = the_record(bench)
    assert (record.arrival_s, record.true_cost, record.finish_tag) == (30.0, 465.0, 472.0)
    clean_state(bench.core)


def test_a_call_that_runs_already_under_another_lease_is_not_adopted(bench: Bench) -> None:
    bench.arrive("a", call())
    grant = running(bench)
    assert bench.handle(CallAdopted("a", "c", "r", "0-9")) == [Abort("r", "0-9")]
    assert set(bench.core.leases) == {grant.lease_id}


def test_adopted_calls_that_are_lost_have_places_of_their_own(bench: Bench) -> None:
    bench.arrive("a", call("x"), call("y"))
    for lease_id, name in (("0-1", "y"), ("0-2", "x")):
        bench.handle(CallAdopted("a", name, "r", lease_id))
    for lease_id in ("0-2", "0-1"):
        bench.handle(CallLost(lease_id, "gone"))
    assert [grant.call_id for grant in bench.offer(grants=2)] == ["y", "x"]


# ---- capacity


def test_an_offer_is_used_once(bench: Bench) -> None:
    bench.arrive_ready("a", *[call(str(i)) for i in range(6)])
    assert len(bench.offer(grants=2)) == 2
    assert bench.core.replicas["r"].offered_grants == 0
    bench.handle(TimePassed())
    assert bench.last == []
    assert len(bench.offer(grants=3)) == 3
    assert bench.offer(grants=0) == []


def test_a_withdrawn_offer_is_not_used(bench: Bench) -> None:
    bench.offer()
    bench.handle(OfferWithdrawn("r"))
    bench.arrive_ready("a", call())
    assert bench.all(Grant) == []


def test_the_replica_with_most_free_memory_is_taken() -> None:
    bench = Bench()
    bench.join("a", blocks=32)
    bench.join("z", blocks=64)
    bench.join("silent", blocks=640)
    bench.offer("a", 4)
    bench.offer("z", 4)
    bench.arrive_ready("a", call())
    bench.arrive_ready("b", call(p=600))
    assert [(g.application_id, g.replica_id) for g in bench.all(Grant)] == [("a", "z")]
    assert [g.replica_id for g in bench.offer("z")] == ["z"]


def test_a_head_that_does_not_fit_makes_those_behind_it_wait() -> None:
    bench = Bench("fcfs")
    bench.join()
    bench.arrive_ready("first", call(p=500, d=10))
    (grant,) = bench.offer()
    bench.start(grant)
    bench.arrive_ready("large", call(p=600, d=10))
    bench.arrive_ready("small", call())
    assert bench.offer(grants=9) == []
    bench.finish(grant, 500)
    assert [g.application_id for g in bench.latest(Grant)] == ["large", "small"]


def test_memory_that_the_engine_still_holds_counts(bench: Bench) -> None:
    bench.arrive("a", call("x"), call("y"))
    grant = running(bench, "a", "x")
    bench.handle(ProgressReported("r", 11.0, 1, 1000, ((grant.lease_id, (1,)),)))
    bench.ready("a", call("y"))
    assert bench.offer() == []
    bench.handle(ProgressReported("r", 11.0, 1, 16, ((grant.lease_id, (2,)),)))
    assert [g.call_id for g in bench.latest(Grant)] == ["y"]


# ---- clocks


@pytest.mark.parametrize(
    ("clock", "rate", "expected"),
    [
        (ClockMode.SERVICE, 1.0, 300.0),
        (ClockMode.SERVICE, 1.5, 450.0),
        (ClockMode.ITERATION, 1.0, 3 * 1024.0),
        (ClockMode.ITERATION, 0.5, 1.5 * 1024.0),
        (ClockMode.CAPACITY, 1.0, 2.0 * 0.25 * 1024.0),
        (ClockMode.CAPACITY, 2.0, 4.0 * 0.25 * 1024.0),
    ],
)
def test_what_moves_virtual_time(clock: ClockMode, rate: float, expected: float) -> None:
    bench = Bench(clock=clock, clock_rate=rate, nominal_iterations_per_s=0.25)
    bench.join()
    bench.arrive("a", call(p=900, d=100))
    bench.arrive("b", call(p=900, d=100), weight=3.0)
    bench.serve(300.0, iterations=3, after_s=2.0)
    assert bench.core.virtual_time == expected / 4.0


def test_the_reference_finishes_within_the_time_of_its_applications(bench: Bench) -> None:
    """An hour without service before the arrival is no part of anybody's fair share."""
    bench.arrive("first", call())
    bench.finish(running(bench, "first"))
    bench.now_s = 3600.0
    bench.arrive("a", call())
    grant = running(bench)
    bench.serve(310.0, after_s=2.0)
    bench.finish(grant)
    assert bench.all(PublishAudit)[-1].record.gps_finish_s == 3601.0


def test_the_reference_follows_virtual_time_and_not_the_real_end(bench: Bench) -> None:
    """A pampered application stays in the reference until its fair finish, then its lag is known."""
    bench.arrive("mouse", call(p=0, d=4))
    bench.arrive("other", call())
    grant = running(bench, "other")
    bench.serve(155.0, after_s=1.0)
    bench.finish(grant)
    assert bench.core.reference.active_weight == 1.0
    assert bench.all(PublishAudit) == []
    bench.handle(CallReady("mouse", "c", 0, 4))
    assert len(bench.core.reference) == 1
    bench.serve(10.0, after_s=1.0)
    (audit,) = bench.all(PublishAudit)
    assert audit.record.application_id == "other"
    assert audit.record.lag_s == -1.0


def test_the_longest_call_of_a_busy_period_is_forgotten_after_it(bench: Bench) -> None:
    bench.arrive("slow", call())
    grant = running(bench, "slow")
    bench.now_s = 100.0
    bench.arrive("quick", call())
    bench.finish(grant)
    grant = running(bench, "quick")
    bench.now_s = 101.0
    assert bench.core.audit._longest_calls.since(0.0) == 100.0
    bench.finish(grant)
    assert bench.core.audit._longest_calls.since(0.0) == 1.0


def test_an_early_end_leaves_the_reference_at_the_true_cost(bench: Bench) -> None:
    bench.arrive("early", call(p=10, d=100))
    bench.arrive("late", call(p=10, d=100))
    grant = running(bench, "early")
    bench.serve(200.0, after_s=1.0)
    bench.finish(grant, 10, (10,))
    assert the_record(bench).finish_tag == 155.0
    assert bench.core.virtual_time == 100.0
    assert bench.all(PublishAudit) == []
    bench.serve(110.0, after_s=1.0)
    (audit,) = bench.all(PublishAudit)
    assert (audit.record.gps_finish_s, audit.record.lag_s) == (2.0, -1.0)


def test_an_early_end_that_virtual_time_has_passed_leaves_at_once(bench: Bench) -> None:
    bench.arrive("early", call(p=10, d=100))
    bench.arrive("late", call(p=10, d=100))
    grant = running(bench, "early")
    bench.serve(400.0, after_s=1.0)
    bench.finish(grant, 10, (10,))
    (audit,) = bench.all(PublishAudit)
    assert (audit.record.finish_tag, audit.record.gps_finish_s) == (155.0, 0.775)
    assert bench.core.reference.active_weight == 1.0


def test_an_elephant_announced_as_a_mouse_does_not_hold_the_front(bench: Bench) -> None:
    bench.arrive("liar", call("x", 10, 1, most=500), call("y", 10, 1, most=500))
    bench.ready("liar", call("x", 10, 1))
    (grant,) = bench.offer()
    bench.start(grant)
    bench.ready("liar", call("y", 10, 1))
    bench.arrive_ready("honest", call())
    assert bench.core.policy.head() == ("liar", "y")
    bench.handle(ProgressReported("r", 0.0, 40, 64, ((grant.lease_id, (40,)),)))
    (tag,) = bench.latest(PublishTag)
    assert tag.reason == "call x outlives its prediction"
    assert tag.finish_tag == (10 * 60 + 60 * 61 / 2) + 11
    assert bench.core.policy.head() == ("honest", "c")


def test_an_application_that_reveals_work_after_idling_gains_no_credit(bench: Bench) -> None:
    bench.arrive("idle", open=True)
    bench.arrive("busy", call(p=10, d=50))
    bench.serve(1000.0, after_s=1.0)
    assert bench.core.virtual_time == 1000.0
    bench.arrive("fresh", call(p=10, d=9))
    bench.handle(CallRevealed("idle", call(p=10, d=10)))
    assert bench.app("idle").finish_tag == 1155.0
    assert bench.app("idle").gps_finish_s is None
    assert bench.app("fresh").finish_tag < bench.app("idle").finish_tag


# ---- settings while it runs


def test_another_policy_takes_over_those_who_wait(bench: Bench) -> None:
    bench.arrive_ready("large", call(d=50))
    bench.arrive_ready("small", call(d=5))
    bench.arrive("blocked", call())
    assert bench.core.policy.head() == ("small", "c")
    bench.handle(SettingsChanged(CoreSettings(watermark=0.5, max_applications=1), "fcfs"))
    assert bench.core.policy.head() == ("large", "c")
    assert bench.core.replicas["r"].admissible_tokens == 512
    assert isinstance(bench.arrive("more", call())[0], Reject)
    policy = bench.core.policy
    bench.handle(SettingsChanged(CoreSettings(), "fcfs"))
    assert bench.core.policy is policy
    assert [g.application_id for g in bench.offer(grants=3)] == ["large", "small"]


# ---- the laws are looked at


def spoiled_count(core: SchedulerCore) -> None:
    core.unfinished_calls += 1


def spoiled_queue(core: SchedulerCore) -> None:
    core.policy.remove(CallKey("a", "y"))


def spoiled_lease(core: SchedulerCore) -> None:
    for lease_id in list(core.replicas["r"].holdings):
        core.replicas["r"].strike(lease_id)


def spoiled_tag(core: SchedulerCore) -> None:
    core.applications["a"].finish_tag *= 2


def spoiled_reference(core: SchedulerCore) -> None:
    core.reference.remove(1)


def spoiled_history(core: SchedulerCore) -> None:
    core.applications["a"].calls["x"].history.insert(0, "finished")  # type: ignore[arg-type]


def spoiled_offer(core: SchedulerCore) -> None:
    core.replicas["r"].offered_grants = 1


def spoiled_debt(core: SchedulerCore) -> None:
    core.replicas["r"].offered_grants = -1


@pytest.mark.parametrize(
    ("spoil", "law"),
    [
        (spoiled_count, "unfinished calls are counted"),
        (spoiled_queue, "the queue holds the ready calls"),
        (spoiled_lease, "a lease is in one ledger"),
        (spoiled_tag, "a tag is start"),
        (spoiled_reference, "in the reference while V < F"),
        (spoiled_history, "a call moves by the table"),
        (spoiled_offer, "no replica that fits stands open"),
        (spoiled_debt, "offers are never negative"),
    ],
)
def test_a_broken_law_is_named(bench: Bench, spoil: object, law: str) -> None:
    bench.arrive("a", call("x"), call("y"))
    running(bench, "a", "x")
    bench.ready("a", call("y"))
    check(bench.core)
    spoil(bench.core)  # type: ignore[operator]
    with pytest.raises(InvariantBroken, match=law):
        check(bench.core)
