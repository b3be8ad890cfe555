"""An ingress's side: batches in order and once, mail once, and everything again for a fresh scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster import scheduler_link
from cluster.messages import Collection, CollectionReply, Submission, SubmissionReply
from cluster.scheduler_link import CallRefused, SchedulerLink
from scheduler.actions import Action, Grant, PublishCallEnd, PublishTag, Refusal, Reject
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallAdopted,
    CallCancelled,
    CallFinished,
    CallReady,
    CallRevealed,
    Event,
)
from scheduler.types import CallKey
from tests.in_process import eventually
from tests.scheduling import application, call

KEY = CallKey("a", "c")
GRANT = Grant("r", "a", "c", "1-1", 1, 0)


class Scheduler:
    """Applies each sequence once, as the service does, and fails when told to."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.sequence = 0
        self.applied: list[Event] = []
        self.views: list[frozenset[str]] = []
        self.mail: list[Action] = []
        self.failures: list[str] = []
        self.calls = 0

    async def submit(self, submission: Submission) -> SubmissionReply:
        self.calls += 1
        await asyncio.sleep(0.001)
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise ConnectionError
        if submission.epoch != self.epoch:
            return SubmissionReply(self.epoch, accepted=False)
        if submission.sequence == self.sequence + 1:
            self.sequence += 1
            self.applied += submission.events
            self.views.append(submission.live_replicas)
        if failure == "after":
            raise ConnectionError
        return SubmissionReply(self.epoch, accepted=True)

    async def collect(self, collection: Collection) -> CollectionReply:
        if collection.epoch != self.epoch:
            return CollectionReply(self.epoch, (), 0)
        await asyncio.sleep(0.001)
        return CollectionReply(self.epoch, tuple(self.mail[collection.after :]), len(self.mail))

    def succeed(self) -> None:
        """A fresh scheduler takes this one's place."""
        self.epoch, self.sequence, self.applied, self.mail = self.epoch + 1, 0, [], []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_link, "RETRY_S", 0.01)
    monkeypatch.setattr(scheduler_link, "VIEW_S", 0.02)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
async def link(scheduler: Scheduler) -> AsyncIterator[SchedulerLink]:
    link = SchedulerLink("i", scheduler, lambda: frozenset({"r"}))
    link.start()
    yield link
    async with asyncio.timeout(1.0):
        await link.stop()
    assert not link.alive


def events(count: int, first: int = 0) -> list[ApplicationClosed]:
    return [ApplicationClosed(str(number)) for number in range(first, first + count)]


async def test_events_arrive_in_order_in_few_batches(link: SchedulerLink, scheduler: Scheduler) -> None:
    await eventually(lambda: scheduler.sequence > 0)
    calls = scheduler.calls
    for event in events(500):
        link.tell(event)
    await eventually(lambda: len(scheduler.applied) == 500)
    assert scheduler.applied == events(500)
    assert scheduler.calls - calls < 10


@pytest.mark.parametrize("failure", ["before", "after"])
async def test_an_unanswered_batch_is_applied_once_and_what_was_told_meanwhile_is_not_lost(
    link: SchedulerLink, scheduler: Scheduler, failure: str
) -> None:
    await eventually(lambda: scheduler.sequence > 0)
    scheduler.failures = [failure, "", failure, failure, ""]
    for number in range(30):
        link.tell(*events(2, 2 * number))
        await asyncio.sleep(0.003)
    await eventually(lambda: len(scheduler.applied) >= 60)
    assert scheduler.applied == events(60)


async def test_the_view_of_replicas_is_told_though_nothing_happens(link: SchedulerLink, scheduler: Scheduler) -> None:
    await eventually(lambda: len(scheduler.views) > 3)
    assert set(scheduler.views) == {frozenset({"r"})}


async def test_stopping_in_the_moment_of_news_does_not_hang(scheduler: Scheduler) -> None:
    for ticks in range(30):
        link = SchedulerLink("i", scheduler, frozenset)
        link.start()
        await asyncio.sleep(0.002)
        link.tell(*events(1))
        for _ in range(ticks % 5):
            await asyncio.sleep(0)
        async with asyncio.timeout(1.0):
            await link.stop()


async def test_a_grant_goes_to_whoever_expects_it_and_the_latest_one_counts(link: SchedulerLink) -> None:
    later = Grant("s", "a", "c", "1-2", 1, 0)
    with link.expecting(KEY) as grants:
        link._take(GRANT)
        assert await grants.next() == GRANT
        link._take(GRANT)
        link._take(later)
        assert await grants.next() == later
        waiting = asyncio.create_task(grants.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        link._take(GRANT)
        assert await waiting == GRANT
    assert link._expected == {}


@pytest.mark.parametrize(
    ("actions", "refusal"),
    [
        ([Reject("a", "c", Refusal.BUSY, "full")], Refusal.BUSY),
        ([Reject("a", "c", Refusal.LOST, "x"), PublishCallEnd("a", "c", "failed", "x", 1, ())], Refusal.LOST),
        ([Reject("a", "c", Refusal.NO_ENGINE, "x"), PublishCallEnd("a", "c", "failed", "", 1, ())], Refusal.NO_ENGINE),
        ([PublishCallEnd("a", "c", "cancelled", "why", 1, ())], Refusal.CANCELLED),
        ([PublishCallEnd("a", "c", "failed", "why", 1, ())], Refusal.LOST),
        ([PublishCallEnd("a", "c", "finished", "", 1, ())], Refusal.LOST),
    ],
)
async def test_the_end_of_a_call_ends_the_wait_for_it(
    link: SchedulerLink, actions: list[Action], refusal: Refusal
) -> None:
    with link.expecting(KEY) as grants:
        waiting = asyncio.create_task(grants.next())
        await asyncio.sleep(0)
        for action in actions:
            link._take(action)
        with pytest.raises(CallRefused) as refused:
            await waiting
        assert refused.value.refusal is refusal
        with pytest.raises(CallRefused):
            await grants.next()


async def test_a_grant_that_nobody_wants_any_more_is_used_up(link: SchedulerLink, scheduler: Scheduler) -> None:
    """Its replica was lost between the last byte and the report: the call has its answer."""
    await eventually(lambda: scheduler.sequence > 0)
    link.tell(ApplicationArrived(application("a", call("c", d=7, n=2))), CallReady("a", "c", 11, 6))
    link._take(GRANT)
    link._take(Grant("r", "stranger", "c", "1-2", 1, 0))
    await eventually(lambda: len(scheduler.applied) == 3)
    assert scheduler.applied[-1] == CallFinished("1-1", 11, (6, 6))


async def test_mail_is_taken_once_even_when_a_listener_fails(link: SchedulerLink, scheduler: Scheduler) -> None:
    seen: list[Any] = []

    def listen(action: Action) -> None:
        seen.append(action)
        if len(seen) == 2:
            raise ZeroDivisionError

    link.listen_to_all(listen)
    tags = [PublishTag("a", 0.0, float(number), 1.0, "") for number in range(5)]
    scheduler.mail += tags
    await eventually(lambda: len(seen) == 5)
    await asyncio.sleep(0.05)
    assert seen == tags
    assert link.alive


async def test_a_listener_that_fails_holds_up_nobody_elses_mail(
    link: SchedulerLink, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Action] = []

    def fail(action: Action) -> None:
        raise ZeroDivisionError

    link.listen_to_all(fail)
    link.listen("a", seen.append)
    tags = [PublishTag("a", 0.0, float(number), 1.0, "") for number in range(5)]
    caplog.set_level("INFO", "ray.serve")
    scheduler.mail += tags
    await eventually(lambda: len(seen) == 5)
    assert seen == tags
    names = [record.event for record in caplog.records if hasattr(record, "event")]
    assert names.count("listener_failed") == 5
    assert "scheduler_unreachable" not in names


async def test_leaving_gives_up_what_is_held_and_waits_until_that_is_heard(scheduler: Scheduler) -> None:
    link = SchedulerLink("i", scheduler, frozenset)
    link.start()
    await eventually(lambda: scheduler.sequence > 0)
    opened = application("open", open=True)
    link.tell(ApplicationArrived(application("a", call("c"))), CallRevealed("open", call("d"), opened))
    await eventually(lambda: len(scheduler.applied) == 2)
    scheduler.failures = ["before", "after"]
    await asyncio.gather(link.leave(), link.leave())
    await link.leave()
    assert not link.alive
    reason = "its ingress stops"
    assert scheduler.applied[2:] == [ApplicationCancelled("a", reason), CallCancelled("open", "d", reason)]


async def test_leaving_waits_for_an_absent_scheduler_no_longer_than_it_must(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_link, "LEAVE_S", 0.05)
    link = SchedulerLink("i", scheduler, frozenset)
    await link.leave()  # never started
    link.start()
    scheduler.failures = ["before"] * 1000
    link.tell(ApplicationArrived(application("a", call("c"))))
    async with asyncio.timeout(0.5):
        await link.leave()
    assert not link.alive
    assert scheduler.applied == []


async def test_listeners_hear_of_their_application_only(link: SchedulerLink) -> None:
    seen: list[Action] = []
    link.listen("a", seen.append)
    link._take(PublishTag("b", 0.0, 1.0, 1.0, ""))
    link._take(GRANT)
    link.unlisten("a")
    link.unlisten("a")
    link._take(GRANT)
    assert seen == [GRANT]


async def test_a_fresh_scheduler_hears_of_all_that_is_held_and_of_nothing_twice(
    link: SchedulerLink, scheduler: Scheduler
) -> None:
    successions: list[int] = []
    link.listen_to_succession(lambda: successions.append(1))
    link.tell(ApplicationArrived(application("a", call("c"), call("d"))), CallReady("a", "c", 11, 6))
    await eventually(lambda: len(scheduler.applied) == 2)
    met = len(successions)
    with link.expecting(KEY):
        link._take(GRANT)
        scheduler.failures = ["before"] * 3
        scheduler.succeed()
        link.tell(CallReady("a", "d", 3, 3), ApplicationClosed("of another ingress"))
        await eventually(lambda: len(scheduler.applied) >= 5)
    kinds = [type(event).__name__ for event in scheduler.applied]
    assert kinds == ["ApplicationArrived", "CallAdopted", "CallReady", "CallReady", "ApplicationClosed"]
    assert scheduler.applied[1] == CallAdopted("a", "c", "r", "1-1")
    assert len(successions) == met + 1


async def test_an_older_scheduler_is_not_followed(link: SchedulerLink, scheduler: Scheduler) -> None:
    scheduler.epoch = 5
    await eventually(lambda: link._epoch == 5)
    scheduler.epoch = 4
    calls = scheduler.calls
    link.tell(*events(1))
    await asyncio.sleep(0.1)
    assert link._epoch == 5
    assert scheduler.calls - calls < 15
    scheduler.epoch = 5
    await eventually(lambda: scheduler.applied[-1:] == events(1))
