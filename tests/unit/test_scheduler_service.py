"""The scheduler behind its messages: what reaches the core, what goes to whom, and what is never lost."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import scheduler_service
from cluster.messages import Collection, LeaseFact, Pull, PullReply, Report, Submission
from cluster.scheduler_service import SchedulerBroken, SchedulerService
from cluster.settings import SchedulerSettings
from scheduler.actions import (
    Action,
    Grant,
    PublishAudit,
    PublishCallEnd,
    PublishCompletion,
    PublishTag,
    Refusal,
    Reject,
)
from scheduler.event_log import replay
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    CallAdopted,
    CallFailed,
    CallFinished,
    CallReady,
    CallRevealed,
    CallStarted,
    CallStopped,
    Event,
)
from scheduler.lifecycle import CallState
from scheduler.types import CallKey
from tests.in_process import eventually
from tests.scheduling import application, call, clean_state, limits


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Talk:
    """A service and everyone who talks to it, with the sequence numbers and marks that they keep."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.service = SchedulerService(SchedulerSettings(check_invariants=True, **settings), self.clock)
        self.sequences: dict[str, int] = {}
        self.collected: dict[str, int] = {}

    @property
    def core(self) -> Any:
        return self.service.core

    async def submit(self, ingress_id: str, *events: Event, live: str = "rs") -> bool:
        self.sequences[ingress_id] = self.sequences.get(ingress_id, 0) + 1
        return (await self.service.submit(self.submission(ingress_id, *events, live=live))).accepted

    def submission(self, ingress_id: str, *events: Event, live: str = "rs") -> Submission:
        return Submission(ingress_id, self.service.epoch, self.sequences[ingress_id], events, frozenset(live))

    async def mail(self, ingress_id: str) -> list[Action]:
        after = self.collected.get(ingress_id, 0)
        reply = await self.service.collect(Collection(ingress_id, self.service.epoch, after, 0.0))
        self.collected[ingress_id] = reply.last
        return list(reply.actions)

    def pull(
        self, replica_id: str = "r", wait_s: float = 1.0, most: int = 10, **engine: int
    ) -> asyncio.Task[PullReply]:
        pull = Pull(replica_id, self.service.epoch, limits(**engine), 10, wait_s)
        return asyncio.create_task(self.service.pull(pull))

    async def parked(self, replica_id: str = "r", **fields: Any) -> asyncio.Task[PullReply]:
        task = self.pull(replica_id, **fields)
        await asyncio.sleep(0)
        return task

    async def report(
        self,
        *facts: LeaseFact,
        replica_id: str = "r",
        served: float = 0.0,
        running: tuple[str, ...] = (),
        leaving: bool = False,
    ) -> None:
        generated = tuple((lease_id, (1,)) for lease_id in running)
        report = Report(replica_id, self.service.epoch, served, 0, 0, 0, generated, facts, leaving)
        assert (await self.service.report(report)).accepted

    async def ready(self, ingress_id: str, name: str = "a", calls: int = 1) -> None:
        """An application whose calls all wait."""
        specs = [call(f"c{number}") for number in range(calls)]
        readies = [CallReady(name, spec.call_id, 10, 10) for spec in specs]
        await self.submit(ingress_id, ApplicationArrived(application(name, *specs)), *readies)

    async def granted(self, replica_id: str = "r") -> Grant:
        """One application with one call that runs on a replica."""
        await self.ready("i")
        reply = await (await self.parked(replica_id))
        await self.report(CallStarted(reply.grants[0].lease_id), replica_id=replica_id)
        return reply.grants[0]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk()
    yield talk
    talk.service.close()


def only(actions: list[Action], kind: type[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


# ---- submissions and mail


async def test_a_repeated_submission_is_applied_once(talk: Talk) -> None:
    await talk.ready("i")
    repeat = talk.submission("i", ApplicationArrived(application("b", call("c"))))
    for _ in range(3):
        assert (await talk.service.submit(repeat)).accepted
    assert list(talk.core.applications) == ["a"]


async def test_a_message_of_another_epoch_changes_nothing(talk: Talk) -> None:
    await talk.ready("i")
    epoch, before = talk.service.epoch, talk.service.overview()
    for other in (epoch - 1, epoch + 1, 0):
        event = ApplicationCancelled("a", "")
        assert not (await talk.service.submit(Submission("i", other, 9, (event,), frozenset()))).accepted
        assert (await talk.service.collect(Collection("i", other, 0, 9.0))).actions == ()
        assert (await talk.service.pull(Pull("r", other, limits(), 5, 9.0))) == PullReply(epoch)
        report = Report("r", other, 99.0, 1, 0, 0, (), (CallFinished("x", 1, (1,)),))
        assert not (await talk.service.report(report)).accepted
    assert talk.service.overview() == before
    assert len(talk.core.replicas) == 0


async def test_each_ingress_hears_of_its_own(talk: Talk) -> None:
    await talk.ready("i", "a")
    await talk.ready("j", "b")
    assert {action.application_id for action in only(await talk.mail("i"), PublishTag)} == {"a"}
    assert {action.application_id for action in only(await talk.mail("j"), PublishTag)} == {"b"}
    reply = await (await talk.parked())
    assert only(await talk.mail("i"), Grant) == [grant for grant in reply.grants if grant.application_id == "a"]
    assert only(await talk.mail("j"), Grant) == [grant for grant in reply.grants if grant.application_id == "b"]


async def test_a_duplicate_id_is_refused_to_the_second_and_does_not_touch_the_first(talk: Talk) -> None:
    await talk.ready("i")
    await talk.mail("i")
    await talk.submit("j", ApplicationArrived(application("a", call("other"))))
    (refused,) = await talk.mail("j")
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.DUPLICATE_ID
    assert await talk.mail("i") == []
    assert talk.service._register.application_owners["a"] == "i"
    reply = await (await talk.parked())
    await talk.report(CallFinished(reply.grants[0].lease_id, 10, (10,)))
    kinds = [type(action) for action in await talk.mail("i")]
    assert kinds == [Grant, PublishCallEnd, PublishCompletion, PublishAudit]
    assert await talk.mail("j") == []


async def test_calls_of_a_shared_application_are_told_to_who_revealed_them(talk: Talk) -> None:
    """And their ends to the one who opened it, too."""
    for ingress_id in ("i", "j"):
        opens = application("open", open=True)
        spec = call(f"of-{ingress_id}")
        await talk.submit(ingress_id, CallRevealed("open", spec, opens), CallReady("open", spec.call_id, 10, 10))
    await talk.submit("j", CallRevealed("open", call("of-i")))
    assert [action.call_id for action in only(await talk.mail("j"), Reject)] == ["of-i"]
    reply = await (await talk.parked())
    assert len(reply.grants) == 2
    for grant in reply.grants:
        await talk.report(CallFinished(grant.lease_id, 10, (10,)))
    for ingress_id, expected in (("i", ["of-i", "of-i", "of-j"]), ("j", ["of-j", "of-j"])):
        calls = [action.call_id for action in await talk.mail(ingress_id) if isinstance(action, Grant | PublishCallEnd)]
        assert calls == expected
    assert talk.service._register.call_owners == {}


async def test_nothing_is_kept_of_what_is_refused(talk: Talk) -> None:
    await (await talk.parked(wait_s=0.0))
    for number in range(50):
        too_large = call("c", p=5000)
        await talk.submit(
            "i",
            ApplicationArrived(application(f"a{number}", too_large)),
            CallRevealed(f"o{number}", too_large, application(f"o{number}", open=True)),
        )
    assert len(only(await talk.mail("i"), Reject)) == 100
    assert talk.service._register.application_owners == {}
    assert talk.service._register.call_owners == {}
    assert talk.service._register.present["i"].applications == set()
    assert talk.service._register.present["i"].calls == set()


async def test_records_of_the_ended_can_be_asked_for(talk: Talk) -> None:
    grant = await talk.granted()
    assert talk.service.explain("a") is not None
    await talk.report(CallFinished(grant.lease_id, 10, (10,)))
    assert talk.service.explain("a") is None
    record = talk.service.record("a")
    assert record is not None
    assert record.outcome == "finished"
    assert record.gps_finish_s is not None
    assert talk.service._register.application_owners == {}
    clean_state(talk.core)


# ---- which replicas get grants


async def test_a_tenants_applications_are_the_newest_of_its_own(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_service, "MOST_LISTED", 2)
    grant = await talk.granted()
    await talk.report(CallFinished(grant.lease_id, 10, (10,)))
    names = ("b", "c", "d")
    await talk.submit("i", *(ApplicationArrived(application(name, call("c", 5, 5))) for name in names))
    known = talk.service.applications_of("default")
    assert [one["application_id"] for one in known.inside] == ["c", "d"]
    assert [record.application_id for record in known.ended] == ["a"]
    nobodys = talk.service.applications_of("acme")
    assert (nobodys.inside, nobodys.ended) == ((), ())


@pytest.mark.parametrize(("views", "granted"), [(("r", "r"), True), (("rs", "s"), False), (("", "r"), True)])
async def test_only_a_replica_that_every_informed_ingress_can_call_gets_grants(
    talk: Talk, views: tuple[str, str], granted: bool
) -> None:
    await talk.submit("j", live=views[1])
    await talk.submit("i", live=views[0])
    await talk.submit("i", ApplicationArrived(application("a", call("c0"))), CallReady("a", "c0", 1, 1), live=views[0])
    reply = await (await talk.parked(wait_s=0.01))
    assert bool(reply.grants) == granted


async def test_a_draining_replica_gets_nothing_and_the_other_one_does(talk: Talk) -> None:
    await talk.submit("i", live="rs")
    draining, staying = await talk.parked("r", wait_s=0.5), await talk.parked("s", wait_s=0.5)
    await talk.submit("i", live="s")
    assert (await draining).grants == ()
    draining = await talk.parked("r", wait_s=0.05)
    await talk.submit("i", ApplicationArrived(application("a", call("c0"))), CallReady("a", "c0", 1, 1), live="s")
    assert len((await staying).grants) == 1
    assert (await draining).grants == ()


async def test_a_replica_that_pulls_before_it_is_known_gets_its_grants_once_it_is(talk: Talk) -> None:
    early = await talk.parked("r")
    await talk.submit("i", ApplicationArrived(application("a", call("c0"))), CallReady("a", "c0", 1, 1), live="")
    assert not early.done()
    await talk.submit("i", live="r")
    assert (await early).grants == ()
    assert len((await (await talk.parked("r"))).grants) == 1


async def test_a_silent_ingress_has_no_say_about_replicas(talk: Talk) -> None:
    await talk.submit("j", live="old")
    talk.clock.now_s += 4.0
    await talk.submit("i", ApplicationArrived(application("a", call("c0"))), CallReady("a", "c0", 1, 1), live="r")
    assert len((await (await talk.parked("r"))).grants) == 1


# ---- pulls


async def test_a_superseded_pull_is_answered_and_the_next_one_gets_the_grant(talk: Talk) -> None:
    await talk.submit("i")
    first = await talk.parked()
    second = await talk.parked()
    assert (await first).grants == ()
    await talk.ready("i")
    assert len((await second).grants) == 1


async def test_a_pull_that_times_out_or_is_cancelled_withdraws_its_offer(talk: Talk) -> None:
    await talk.submit("i")
    assert (await (await talk.parked(wait_s=0.01))).grants == ()
    assert talk.core.replicas["r"].offered_grants == 0
    cancelled = await talk.parked()
    assert talk.core.replicas["r"].offered_grants == 10
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert talk.core.replicas["r"].offered_grants == 0
    await talk.ready("i")
    assert talk.core.leases == {}
    assert len((await (await talk.parked())).grants) == 1


async def test_aborts_and_grants_of_one_moment_all_arrive(talk: Talk) -> None:
    """The end of one application means an abort for r, and for s, the roomier, an abort and a grant."""
    await talk.submit("i")
    sizes = {"r": {"max_sequences": 2}, "s": {"max_sequences": 2, "blocks": 128}}
    await talk.ready("i", "a", calls=4)
    running = {name: (await (await talk.parked(name, **sizes[name]))).grants for name in "rs"}
    for name, grants in running.items():
        await talk.report(*(CallStarted(grant.lease_id) for grant in grants[:1]), replica_id=name)
    pulls = {name: await talk.parked(name, **sizes[name]) for name in "rs"}
    await talk.ready("i", "b")
    assert not any(pull.done() for pull in pulls.values())
    await talk.mail("i")
    await talk.submit("i", ApplicationCancelled("a", "gone"))
    replies = {name: await pull for name, pull in pulls.items()}
    for name, grants in running.items():
        assert sorted(replies[name].aborted_leases) == sorted(grant.lease_id for grant in grants)
    assert only(await talk.mail("i"), Grant) == list(replies["s"].grants)
    assert len(replies["s"].grants) == 1


@pytest.mark.parametrize("seed", range(25))
async def test_no_grant_is_lost_whatever_the_pulls_do(seed: int) -> None:
    """Every grant that an ingress is told of reaches the replica that it names, by a reply to one of its pulls."""
    chance, talk = random.Random(seed), Talk()
    told: set[str] = set()
    pulls: list[asyncio.Task[PullReply]] = []
    await talk.submit("i")
    for step in range(60):
        move = chance.randrange(7)
        if move <= 1:
            pulls.append(await talk.parked(chance.choice("rs"), wait_s=chance.choice([0, 0.001, 1]), max_sequences=3))
        elif move == 2:
            await talk.ready("i", f"a{step}", calls=chance.randrange(1, 4))
        elif move == 3:
            names = list(talk.core.applications)
            if names:
                await talk.submit("i", ApplicationCancelled(chance.choice(names), "gone"))
        elif move == 4 and talk.core.leases:
            lease_id, held = chance.choice(list(talk.core.leases.items()))
            kind = chance.choice([CallStarted(lease_id), CallFinished(lease_id, 1, (1,)), CallStopped(lease_id, 1, ())])
            await talk.report(kind, replica_id=held.replica_id)
        elif move == 5:
            await talk.submit("i", live=chance.choice(["rs", "r", "s"]))
        else:
            await asyncio.sleep(chance.choice([0, 0.002]))
        told |= {grant.lease_id for grant in only(await talk.mail("i"), Grant)}
    await talk.submit("i")
    for name in "rs":
        pulls.append(await talk.parked(name, wait_s=0.0, max_sequences=3))
    replies = await asyncio.gather(*pulls)
    told |= {grant.lease_id for grant in only(await talk.mail("i"), Grant)}
    delivered = [grant.lease_id for reply in replies for grant in reply.grants]
    assert sorted(delivered) == sorted(told)
    talk.service.close()


# ---- reports


async def test_repeated_and_late_reports_count_nothing_twice(talk: Talk) -> None:
    grant = await talk.granted()
    before = talk.core.virtual_time
    for served in (10.0, 10.0, 4.0, 10.0, 16.0, 2.0, 16.0):
        await talk.report(CallStarted(grant.lease_id), served=served, running=(grant.lease_id,))
    assert talk.core.virtual_time - before == pytest.approx(16.0)


async def test_the_first_report_of_a_replica_only_sets_the_marks(talk: Talk) -> None:
    await talk.ready("i")
    await talk.report(served=5000.0, replica_id="s")
    assert talk.core.virtual_time == 0.0


async def test_facts_that_come_twice_or_for_unknown_leases_change_nothing(talk: Talk) -> None:
    grant = await talk.granted()
    end = CallFinished(grant.lease_id, 10, (10,))
    for _ in range(3):
        await talk.report(end, CallFailed("unknown", "x"), CallFailed(grant.lease_id, "late"))
    record = talk.service.record("a")
    assert record is not None
    assert record.outcome == "finished"
    assert len(only(await talk.mail("i"), PublishCallEnd)) == 1


async def test_what_a_lost_replica_still_runs_when_it_comes_back_is_taken_from_it(talk: Talk) -> None:
    grant = await talk.granted()
    talk.clock.now_s += 20.0
    await talk.submit("i")
    talk.service.tick()
    assert talk.core.replicas == {}
    again = (await (await talk.parked("s"))).grants
    assert [other.call_id for other in again] == [grant.call_id]
    pull = await talk.parked("r")
    await talk.report(running=(grant.lease_id, "999-1"), replica_id="r")
    assert (await pull).aborted_leases == (grant.lease_id,)


async def test_an_abort_whose_reply_was_lost_is_sent_again_while_its_call_runs_on(talk: Talk) -> None:
    grant = await talk.granted()
    lost = await talk.parked()
    await talk.submit("i", ApplicationCancelled("a", "gone"))
    assert (await lost).aborted_leases == (grant.lease_id,)
    for _ in range(2):
        pull = await talk.parked()
        await talk.report(running=(grant.lease_id,))
        assert (await pull).aborted_leases == (grant.lease_id,)
    await talk.report(CallStopped(grant.lease_id, 10, (1,)))
    clean_state(talk.core)


async def test_a_call_that_somebody_waits_for_is_not_aborted_when_it_is_reported(talk: Talk) -> None:
    grant = await talk.granted()
    pull = await talk.parked(wait_s=0.01)
    await talk.report(running=(grant.lease_id,))
    assert (await pull).aborted_leases == ()


async def test_the_gauge_of_a_replica_that_is_gone_shows_nothing(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(talk.service._telemetry._kv_used, "set", lambda value, tags: seen.append((value, tags)))
    await talk.report()
    report = Report("r", talk.service.epoch, 0.0, 0, 0, 77, (), ())
    await talk.service.report(report)
    await talk.report(leaving=True)
    assert seen[1] == (77, {"replica": "r"})
    assert seen[-1] == (0, {"replica": "r"})


# ---- what breaks


class Broke(Exception):
    """What a core with a fault in it raises."""


def _break_on(monkeypatch: pytest.MonkeyPatch, talk: Talk, kind: type[Event]) -> None:
    handle = talk.core.handle

    def broken(now_s: float, event: Event) -> list[Action]:
        if isinstance(event, kind):
            raise Broke
        actions: list[Action] = handle(now_s, event)
        return actions

    monkeypatch.setattr(talk.core, "handle", broken)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "event", None) == event]


async def test_a_scheduler_whose_core_raised_takes_nothing_more_and_says_so_once(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ray.serve")
    await talk.submit("i")
    parked = await talk.parked("r", wait_s=0.05)
    _break_on(monkeypatch, talk, ApplicationArrived)
    talk.service.check_health()
    talk.sequences["i"] = 2
    submission = talk.submission("i", ApplicationArrived(application("a", call("c"))))
    with pytest.raises(SchedulerBroken, match=r"ApplicationArrived: Broke\(\)"):
        await talk.service.submit(submission)
    for _ in range(2):  # the retry of the batch is not taken for a repeat of one that was applied
        with pytest.raises(SchedulerBroken):
            await talk.service.submit(submission)
    messages = [
        talk.service.collect(Collection("i", talk.service.epoch, 0, 0.0)),
        talk.service.pull(Pull("r", talk.service.epoch, limits(), 1, 0.0)),
        talk.service.report(Report("r", talk.service.epoch, 0.0, 0, 0, 0, (), ())),
        parked,
    ]
    for message in messages:
        with pytest.raises(SchedulerBroken):
            await message
    for question in (talk.service.tick, talk.service.check_health):
        with pytest.raises(SchedulerBroken):
            question()
    (record,) = logged(caplog, "scheduler_broken")
    assert record.fact == "ApplicationArrived"


async def test_a_broken_invariant_breaks_the_scheduler_too(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk.core, "unfinished_calls", 7)
    with pytest.raises(SchedulerBroken):
        talk.service.tick()
    with pytest.raises(SchedulerBroken):
        talk.service.check_health()


async def test_a_broken_scheduler_leaves_its_successor_the_time_it_had_reached_while_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(state_dir=tmp_path)
    talk.service.tick()
    _break_on(monkeypatch, talk, ApplicationArrived)
    with pytest.raises(SchedulerBroken):
        await talk.ready("i")
    monkeypatch.setattr(talk.core.reference, "virtual_time", float("inf"))
    talk.service.close()
    successor = Talk(state_dir=tmp_path)
    assert successor.core.virtual_time == 0.0
    await successor.ready("i")
    successor.service.close()


async def test_an_event_log_that_cannot_be_written_stops_and_scheduling_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ray.serve")
    talk = Talk(state_dir=tmp_path, event_log=True)
    talk.service._log._file = Path("/dev/full").open("w", encoding="utf-8", buffering=1)  # noqa: ASYNC230, SIM115
    await talk.ready("i")
    assert len((await (await talk.parked())).grants) == 1
    talk.service.close()
    assert len(logged(caplog, "event_log_stopped")) == 1


async def test_a_journal_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ray.serve")
    talk = Talk(state_dir=tmp_path)

    def fail(virtual_time: float) -> None:
        raise sqlite3.OperationalError("disk full")

    save = talk.service._journal.save
    for trouble in range(2):
        monkeypatch.setattr(talk.service._journal, "save", fail)
        for _ in range(3):
            talk.service.tick()
        assert len(logged(caplog, "journal_not_saved")) == trouble + 1
        monkeypatch.setattr(talk.service._journal, "save", save)
        talk.service.tick()
    await talk.ready("i")
    monkeypatch.setattr(talk.service._journal, "save", fail)
    talk.service.close()


# ---- epochs and clocks


def _messages(epoch: int) -> list[tuple[str, Any]]:
    return [
        ("submit", Submission("i", epoch, 1, (), frozenset("r"))),
        ("collect", Collection("i", epoch, 0, 0.0)),
        ("pull", Pull("r", epoch, limits(), 1, 0.0)),
        ("report", Report("r", epoch, 0.0, 0, 0, 0, (), ())),
    ]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("kept", [True, False])
async def test_a_scheduler_started_on_a_clock_that_was_set_back_moves_above_its_predecessor(
    tmp_path: Path, kind: int, kept: bool
) -> None:
    talk = Talk(state_dir=tmp_path if kept else None, policy="fcfs")
    seen = talk.service.epoch + 1000
    method, message = _messages(seen)[kind]
    reply = await getattr(talk.service, method)(message)
    assert reply.epoch == talk.service.epoch == seen + 1
    assert getattr(reply, "accepted", False) is False
    assert talk.core.policy.name == "fcfs"
    await talk.submit("i")
    await talk.ready("i")
    (grant,) = (await (await talk.parked())).grants
    assert (grant.epoch, grant.lease_id) == (seen + 1, f"{seen + 1}-1")
    talk.service.tick()
    talk.service.close()
    if kept:
        assert Talk(state_dir=tmp_path).service.epoch > seen + 1


@pytest.mark.parametrize("kind", range(4))
async def test_the_earlier_of_two_schedulers_side_by_side_stays_below_the_later_one(kind: int) -> None:
    for method, own in _messages(0):
        earlier = Talk()
        epoch = earlier.service.epoch
        await getattr(earlier.service, method)(replace(own, epoch=epoch))
        method, message = _messages(epoch + 1000)[kind]
        assert (await getattr(earlier.service, method)(message)).epoch == earlier.service.epoch == epoch
        earlier.service.close()


async def test_an_earlier_scheduler_that_nobody_spoke_to_stays_below_the_one_that_took_its_journal(
    tmp_path: Path,
) -> None:
    earlier, later = Talk(state_dir=tmp_path), Talk(state_dir=tmp_path)
    epoch = earlier.service.epoch
    for method, message in _messages(later.service.epoch):
        await getattr(earlier.service, method)(message)
    assert earlier.service.epoch == epoch
    earlier.service.close()
    later.service.close()


async def test_the_event_log_of_a_scheduler_that_moved_replays(tmp_path: Path) -> None:
    talk = Talk(state_dir=tmp_path, event_log=True)
    talk.service.tick()
    talk.sequences["i"] = 0
    seen = talk.service.epoch + 1000
    await talk.service.collect(Collection("i", seen, 0, 0.0))
    await talk.ready("i")
    mail = await talk.mail("i")
    talk.service.close()
    log = (tmp_path / f"events-{seen + 1}.jsonl").read_text()
    assert [action for actions in replay(log.splitlines()) for action in actions] == mail != []


# ---- time


async def test_a_silent_replica_is_dropped_and_its_calls_are_granted_elsewhere(talk: Talk) -> None:
    grant = await talk.granted()
    talk.clock.now_s += 14.0
    await talk.submit("i")
    pull = await talk.parked("s")
    talk.service.tick()
    assert "r" in talk.core.replicas
    talk.clock.now_s += 2.0
    await talk.submit("i")
    talk.service.tick()
    (elsewhere,) = (await pull).grants
    assert (elsewhere.replica_id, elsewhere.call_id) == ("s", grant.call_id)
    assert list(talk.core.replicas) == ["s"]


async def test_a_leaving_replica_gives_its_calls_back_at_once(talk: Talk) -> None:
    grant = await talk.granted()
    pull = await talk.parked("s")
    await talk.report(leaving=True)
    assert (await pull).grants[0].call_id == grant.call_id


async def test_a_silent_ingress_loses_its_calls_and_finds_their_ends_should_it_come_back(talk: Talk) -> None:
    grant = await talk.granted()
    await talk.mail("i")
    await talk.submit(
        "i", CallRevealed("open", call("o"), application("open", open=True)), CallReady("open", "o", 1, 1)
    )
    talk.clock.now_s += 16.0
    pull = await talk.parked("r")
    talk.service.tick()
    assert (await pull).aborted_leases == (grant.lease_id,)
    assert talk.core.ready_calls == 0
    await talk.report(CallStopped(grant.lease_id, 10, (4,)))
    assert "a" not in talk.core.applications
    assert talk.service._register.call_owners == {}
    ends = {(end.application_id, end.outcome) for end in only(await talk.mail("i"), PublishCallEnd)}
    assert ends == {("a", "cancelled"), ("open", "cancelled")}
    assert await talk.submit("i", ApplicationArrived(application("b", call("c"))))
    assert [tag.application_id for tag in only(await talk.mail("i"), PublishTag)] == ["b"]


async def revealed(talk: Talk, ingress_id: str, call_id: str) -> bool:
    opens = application("open", open=True)
    return await talk.submit(ingress_id, CallRevealed("open", call(call_id), opens), CallReady("open", call_id, 9, 9))


async def _without_hearing_of(talk: Talk, *present: str) -> None:
    """The ingresses that are not present are given up."""
    talk.clock.now_s += 16.0
    for ingress_id in present:
        await talk.submit(ingress_id)
    talk.service.tick()


async def test_an_open_application_whose_ingress_is_gone_goes_to_the_one_that_goes_on(talk: Talk) -> None:
    await revealed(talk, "i", "of-i")
    await revealed(talk, "j", "of-j")
    assert only(await talk.mail("j"), PublishTag) == []
    await _without_hearing_of(talk, "j")
    await revealed(talk, "j", "later")
    tags = only(await talk.mail("j"), PublishTag)
    assert {tag.application_id for tag in tags} == {"open"}
    await talk.submit("j", ApplicationCancelled("open", "enough"))
    assert len(only(await talk.mail("j"), PublishCompletion)) == 1
    assert talk.service._register.earlier_owners == talk.service._register.application_owners == {}
    back = await talk.mail("i")
    assert [end.call_id for end in only(back, PublishCallEnd)] == ["of-i"]
    assert len(only(back, PublishCompletion)) == 1  # it held the application, and may forget it
    assert talk.service._register.present["i"].applications == talk.service._register.present["i"].calls == set()


async def test_the_mail_of_an_ingress_that_is_gone_does_not_grow_with_what_others_do(talk: Talk) -> None:
    await revealed(talk, "i", "of-i")
    await revealed(talk, "j", "of-j")
    await _without_hearing_of(talk, "j")
    mailbox = talk.service._register.absent["i"].mailbox
    kept = len(mailbox._actions)
    for number in range(50):
        await revealed(talk, "j", f"c{number}")
    assert len(mailbox._actions) == kept
    assert len(only(await talk.mail("j"), PublishTag)) > 10


async def test_an_ingress_that_comes_back_and_goes_on_hears_of_its_application_once(talk: Talk) -> None:
    await revealed(talk, "i", "of-i")
    await _without_hearing_of(talk)
    await talk.mail("i")
    await revealed(talk, "i", "again")
    await talk.submit("i", ApplicationCancelled("open", "enough"))
    mail = await talk.mail("i")
    assert only(mail, PublishTag) != []
    assert len(only(mail, PublishCompletion)) == 1
    assert talk.service._register.earlier_owners == {}


async def test_what_an_ingress_lost_by_its_absence_is_not_cancelled_again_under_another(talk: Talk) -> None:
    """Its names may be in use by others when it is given up a second time."""
    await talk.ready("i", "a")
    await _without_hearing_of(talk)
    assert "a" not in talk.core.applications
    await talk.submit("i")
    await talk.ready("j", "a")
    await _without_hearing_of(talk, "j")
    assert "a" in talk.core.applications


async def test_a_grant_that_nobody_uses_returns_and_is_given_again(talk: Talk) -> None:
    await talk.ready("i")
    (grant,) = (await (await talk.parked())).grants
    talk.clock.now_s += 9.0
    await talk.submit("i")
    talk.service.tick()
    assert list(talk.core.leases) == [grant.lease_id]
    talk.clock.now_s += 2.0
    await talk.submit("i")
    talk.service.tick()
    reply = await (await talk.parked())
    assert reply.aborted_leases == (grant.lease_id,)
    (again,) = (await (await talk.parked())).grants
    assert (again.call_id, again.lease_id != grant.lease_id) == (grant.call_id, True)


async def test_a_wall_clock_jump_expires_nothing_that_was_just_heard(talk: Talk) -> None:
    """The service's clock may step back; what is silent for long is judged by differences."""
    grant = await talk.granted()
    talk.clock.now_s -= 60.0
    talk.service.tick()
    assert list(talk.core.leases) == [grant.lease_id]
    assert talk.core.virtual_time >= 0.0


# ---- a scheduler started anew


async def test_calls_that_run_are_taken_over_even_when_their_end_came_first(talk: Talk) -> None:
    await (await talk.parked(wait_s=0.0))
    await talk.report(CallStarted("1-1"), CallFinished("1-1", 10, (7,)), CallStarted("1-2"))
    specs = (call("c"), call("d"))
    events = [CallAdopted("a", "c", "r", "1-1"), CallReady("a", "c", 10, 10), CallAdopted("a", "d", "r", "1-2")]
    await talk.submit("i", ApplicationArrived(application("a", *specs)), *events)
    states = {name: each.state for name, each in talk.core.applications["a"].calls.items()}
    assert states == {"c": CallState.FINISHED, "d": CallState.RUNNING}
    (end,) = only(await talk.mail("i"), PublishCallEnd)
    assert (end.call_id, end.output_tokens) == ("c", (7,))


async def test_adoption_waits_for_its_replica_but_not_for_ever(talk: Talk) -> None:
    talk.sequences["i"] = 1
    events = (
        ApplicationArrived(application("a", call("c"))),
        CallAdopted("a", "c", "r", "1-1"),
        CallReady("a", "c", 1, 1),
    )
    submitting = asyncio.create_task(talk.service.submit(talk.submission("i", *events)))
    repeating = asyncio.create_task(talk.service.submit(talk.submission("i", *events)))
    await asyncio.sleep(0.06)
    assert not submitting.done()
    await (await talk.parked("r", wait_s=0.0))
    assert (await submitting).accepted
    assert (await repeating).accepted
    assert talk.core.leases["1-1"].key == CallKey("a", "c")
    talk.sequences["i"] = 2
    events = (
        ApplicationArrived(application("b", call("c"))),
        CallAdopted("b", "c", "gone", "1-2"),
        CallReady("b", "c", 1, 1),
    )
    submitting = asyncio.create_task(talk.service.submit(talk.submission("i", *events)))
    await asyncio.sleep(0.06)
    talk.clock.now_s += 6.0
    assert (await submitting).accepted
    assert talk.core.applications["b"].calls["c"].state is CallState.READY


async def test_a_successor_has_a_later_epoch_and_no_smaller_virtual_time(tmp_path: Path) -> None:
    talk = Talk(state_dir=tmp_path)
    grant = await talk.granted()
    await talk.report(served=300.0, running=(grant.lease_id,))
    talk.service.tick()
    reached, epoch = talk.core.virtual_time, talk.service.epoch
    assert reached > 0
    successor = Talk(state_dir=tmp_path)
    assert successor.service.epoch > epoch
    assert successor.core.virtual_time == reached
    await talk.report(served=900.0, running=(grant.lease_id,))
    talk.service.tick()
    talk.service.close()
    successor.service.close()
    assert Talk(state_dir=tmp_path).core.virtual_time == reached


# ---- settings and the log


async def test_settings_change_in_place_and_what_waits_is_put_in_the_new_order(talk: Talk) -> None:
    large, small = call("c", p=500, d=50), call("c", p=10, d=5)
    for name, spec in (("large", large), ("small", small)):
        await talk.submit(
            "i",
            ApplicationArrived(application(name, spec)),
            CallReady(name, "c", spec.prompt_tokens, spec.predicted_output_tokens),
        )
    assert talk.core.policy.head() == CallKey("small", "c")
    talk.service.change_settings(SchedulerSettings(policy="fcfs", check_invariants=True, reservation_timeout_s=99.0))
    assert talk.core.policy.head() == CallKey("large", "c")
    assert talk.core.settings.reservation_timeout_s == 99.0
    assert talk.core.ready_calls == 2
    grants = (await (await talk.parked())).grants
    assert [grant.application_id for grant in grants] == ["large", "small"]


def replayed_actions(directory: Path) -> list[Action]:
    (log,) = directory.glob("events-*.jsonl")
    return [action for actions in replay(log.read_text().splitlines()) for action in actions]


async def test_the_event_log_of_a_live_run_replays_to_the_same_actions(tmp_path: Path) -> None:
    talk = Talk(state_dir=tmp_path, event_log=True)
    seen: list[Action] = []
    for name in "abc":
        await talk.ready("i", name, calls=3)
    pull = await talk.parked(max_sequences=4)
    for grant in (await pull).grants:
        await talk.report(
            CallStarted(grant.lease_id), CallFinished(grant.lease_id, 9, (7,)), served=grant.priority + 1.0
        )
    await talk.submit("i", ApplicationCancelled("c", "gone"))
    talk.service.change_settings(SchedulerSettings(policy="fcfs", clock_rate=2.0))
    talk.clock.now_s += 30.0
    talk.service.tick()
    seen += await talk.mail("i")
    talk.service.close()
    replayed = replayed_actions(tmp_path)
    assert len(seen) > 20
    assert [action for action in replayed if type(action).__name__ != "Abort"] == seen


async def test_a_mailbox_is_waited_at_for_a_second_at_most(talk: Talk) -> None:
    talk.sequences["i"] = 0
    reading = asyncio.create_task(talk.service.collect(Collection("i", talk.service.epoch, 0, 1e9)))
    await asyncio.sleep(0)
    await talk.submit("i", ApplicationArrived(application("a", call("c"))))
    async with asyncio.timeout(0.5):
        assert len((await reading).actions) == 1
    pull = asyncio.create_task(talk.service.pull(Pull("r", talk.service.epoch, limits(), 1, 1e9)))
    await eventually(pull.done, 2.0)
