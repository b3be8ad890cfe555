"""A replica's side: pulls, reports, and the scheduler's coming and going."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster import replica_agent
from cluster.engine import EngineCounters
from cluster.messages import CallRequest, Pull, PullReply, Report, ReportReply
from cluster.replica_agent import ReplicaAgent
from scheduler.actions import Grant
from scheduler.events import CallFinished, CallStarted
from tests.in_process import eventually
from tests.scheduling import limits


class Engine:
    def refresh(self, leases: object) -> EngineCounters:
        return EngineCounters(iterations=5, preemptions=2, kv_used_tokens=64)


class Scheduler:
    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.away = False
        self.pulls: list[Pull] = []
        self.reports: list[Report] = []
        self.replies: asyncio.Queue[PullReply] = asyncio.Queue()

    async def pull(self, pull: Pull) -> PullReply:
        self.pulls.append(pull)
        if self.away:
            raise ConnectionError
        if pull.epoch != self.epoch:
            await asyncio.sleep(0.001)
            return PullReply(self.epoch)
        return await self.replies.get()

    async def report(self, report: Report) -> ReportReply:
        self.reports.append(report)
        await asyncio.sleep(0.001)
        if self.away:
            raise ConnectionError
        return ReportReply(self.epoch, report.epoch == self.epoch)

    def grant(self, lease_id: str) -> None:
        self.replies.put_nowait(PullReply(self.epoch, (Grant("r", "a", lease_id, lease_id, self.epoch, 0),)))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_agent, "RETRY_S", 0.01)
    monkeypatch.setattr(replica_agent, "IDLE_REPORT_S", 0.05)
    monkeypatch.setattr(replica_agent, "LEAVE_S", 0.1)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
async def agent(scheduler: Scheduler) -> AsyncIterator[ReplicaAgent]:
    agent = ReplicaAgent("r", Engine(), limits(), scheduler)  # type: ignore[arg-type]
    agent.start()
    yield agent
    async with asyncio.timeout(1.0):
        await agent.stop()
    assert not agent.alive


def request(lease_id: str) -> CallRequest:
    return CallRequest(lease_id, "a", lease_id, 2, "POST", "/", b"", (), b"")


async def test_a_grant_is_pulled_and_its_life_reported_at_once(agent: ReplicaAgent, scheduler: Scheduler) -> None:
    scheduler.grant("1-1")
    lease = await agent.leases.claim(request("1-1"), lambda: None)
    lease.begin(10, 1).output_tokens[0] = 3
    await eventually(lambda: any(CallStarted("1-1") in report.facts for report in scheduler.reports), 0.2)
    lease.uses[0].output_tokens[0] = 4
    agent.leases.finish(lease)
    await eventually(lambda: CallFinished("1-1", 10, (4,)) in scheduler.reports[-1].facts, 0.2)
    last = scheduler.reports[-1]
    assert (last.iterations, last.preemptions, last.kv_used_tokens) == (5, 2, 64)
    assert last.served_token_iterations == 4 * 10 + 10
    await eventually(lambda: agent.leases.facts == ())


async def test_progress_of_running_calls_is_reported(agent: ReplicaAgent, scheduler: Scheduler) -> None:
    scheduler.grant("1-1")
    lease = await agent.leases.claim(request("1-1"), lambda: None)
    lease.begin(10, 2).output_tokens[:] = [3, 5]
    await eventually(lambda: scheduler.reports[-1].generated == (("1-1", (3, 5)),), 1.0)


async def test_facts_are_repeated_until_they_arrived(agent: ReplicaAgent, scheduler: Scheduler) -> None:
    scheduler.grant("1-1")
    lease = await agent.leases.claim(request("1-1"), lambda: None)
    scheduler.away = True
    agent.leases.finish(lease)
    seen = len(scheduler.reports)
    await eventually(lambda: len(scheduler.reports) > seen + 2)
    assert CallFinished("1-1", 0, ()) in agent.leases.facts
    scheduler.away = False
    await eventually(lambda: agent.leases.facts == ())
    assert CallFinished("1-1", 0, ()) in scheduler.reports[-1].facts


async def test_a_fresh_scheduler_is_followed_and_told_of_ends_that_the_earlier_one_knew(
    agent: ReplicaAgent, scheduler: Scheduler
) -> None:
    scheduler.grant("1-1")
    lease = await agent.leases.claim(request("1-1"), lambda: None)
    agent.leases.finish(lease)
    await eventually(lambda: agent.leases.facts == ())
    scheduler.epoch = 2
    scheduler.replies.put_nowait(PullReply(2))
    await eventually(lambda: scheduler.pulls[-1].epoch == 2)
    of_second = [report for report in scheduler.reports if report.epoch == 2]
    await eventually(lambda: agent.leases.facts == ())
    assert any(CallFinished("1-1", 0, ()) in r.facts for r in scheduler.reports if r.epoch == 2), of_second


async def test_an_older_scheduler_is_neither_followed_nor_hammered(agent: ReplicaAgent, scheduler: Scheduler) -> None:
    scheduler.epoch = 5
    scheduler.replies.put_nowait(PullReply(5))
    await eventually(lambda: bool(scheduler.pulls) and scheduler.pulls[-1].epoch == 5)
    scheduler.epoch = 4
    scheduler.replies.put_nowait(PullReply(4, (Grant("r", "a", "c", "4-1", 4, 0),)))
    await asyncio.sleep(0.02)
    pulls, reports = len(scheduler.pulls), len(scheduler.reports)
    await asyncio.sleep(0.1)
    assert len(scheduler.pulls) - pulls < 20
    assert len(scheduler.reports) - reports < 20
    assert agent._epoch == 5
    assert agent.leases._granted == {}


async def test_a_stopped_replica_takes_its_leave(scheduler: Scheduler) -> None:
    for moment in range(10):
        agent = ReplicaAgent("r", Engine(), limits(), scheduler)  # type: ignore[arg-type]
        agent.start()
        await asyncio.sleep(0.02)
        agent._news.set()
        for _ in range(moment % 4):
            await asyncio.sleep(0)
        async with asyncio.timeout(1.0):
            await agent.stop()
        assert scheduler.reports[-1].leaving
    scheduler.away = True
    agent = ReplicaAgent("r", Engine(), limits(), scheduler)  # type: ignore[arg-type]
    agent.start()
    async with asyncio.timeout(1.0):
        await agent.stop()
