"""A replica's side of the talk with the scheduler: one loop that pulls, one that reports.

The pull is parked at the scheduler until there are grants, so a replica with room waits there and nothing is bound
to it before. Reports go out at once when a lease starts or ends, and every `REPORT_S` while calls run. Both loops
outlive the scheduler: they go on trying, and introduce the replica to whoever answers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

from cluster.endless import keep_trying
from cluster.engine import Engine
from cluster.leases import LeaseTable
from cluster.messages import Pull, PullReply, Report, ReportReply
from cluster.telemetry import log_event
from scheduler.types import EngineLimits

logger = logging.getLogger("ray.serve")

PULL_WAIT_S = 1.0
REPORT_S = 0.25
IDLE_REPORT_S = 1.0
RETRY_S = 0.2
LEAVE_S = 1.0
MAX_GRANTS = 256


class SchedulerForReplicas(Protocol):
    """What a replica asks of the scheduler."""

    async def pull(self, pull: Pull) -> PullReply: ...

    async def report(self, report: Report) -> ReportReply: ...


class ReplicaAgent:
    """Pulls and reports for one replica, from `start` to `stop`."""

    def __init__(self, replica_id: str, engine: Engine, limits: EngineLimits, scheduler: SchedulerForReplicas) -> None:
        self._replica_id = replica_id
        self._engine = engine
        self._limits = limits
        self._scheduler = scheduler
        self._epoch = 0
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.leases = LeaseTable(self._news.set)

    def start(self) -> None:
        """Begin to pull and to report."""
        self._tasks = [
            asyncio.create_task(keep_trying(self._pull_once, RETRY_S, replica_id=self._replica_id), name="pull"),
            asyncio.create_task(keep_trying(self._report_once, RETRY_S, replica_id=self._replica_id), name="report"),
        ]

    @property
    def alive(self) -> bool:
        """Do both loops still run?"""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """Stop pulling, and take leave of the scheduler if it can be reached."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._scheduler.report(self._report(leaving=True))
        except Exception as error:  # the scheduler may be gone already, and will notice the silence
            log_event(logger, "leave_unheard", replica_id=self._replica_id, error=repr(error))

    async def _pull_once(self) -> None:
        if self._epoch == 0:
            await asyncio.sleep(RETRY_S)  # the first report learns the epoch
            return
        epoch = self._epoch
        reply = await self._scheduler.pull(Pull(self._replica_id, epoch, self._limits, MAX_GRANTS, PULL_WAIT_S))
        self._meet(reply.epoch)
        if reply.epoch == self._epoch:
            await self.leases.apply(reply)
        else:
            await asyncio.sleep(RETRY_S)  # an older scheduler answered; the one of our epoch will

    async def _report_once(self) -> None:
        wait_s = REPORT_S if self.leases.active else IDLE_REPORT_S
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s if self._epoch else 0.0):
                await self._news.wait()
        self._news.clear()
        report = self._report()
        reply = await self._scheduler.report(report)
        self._meet(reply.epoch)
        if reply.epoch < self._epoch:
            await asyncio.sleep(RETRY_S)  # an older scheduler answered, and what it knows is lost with it
        elif reply.accepted:
            self.leases.acknowledge(len(report.facts))
            return
        self._news.set()

    def _meet(self, epoch: int) -> None:
        """Follow the scheduler with the highest epoch; an older one that still answers is ignored."""
        if epoch > self._epoch:
            log_event(logger, "scheduler_met", replica_id=self._replica_id, epoch=epoch)
            self._epoch = epoch
            self.leases.follow(epoch)

    def _report(self, leaving: bool = False) -> Report:
        active = self.leases.active
        counters = self._engine.refresh(active)
        return Report(
            replica_id=self._replica_id,
            epoch=self._epoch,
            served_token_iterations=self.leases.served_token_iterations,
            iterations=counters.iterations,
            preemptions=counters.preemptions,
            kv_used_tokens=counters.kv_used_tokens,
            generated=tuple((lease_id, lease.output_tokens) for lease_id, lease in active.items()),
            facts=self.leases.facts,
            leaving=leaving,
        )
