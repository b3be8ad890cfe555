"""The scheduler as a Serve application of its own: one replica, found again after a restart.

It is a deployment and not a detached actor, so that Serve restarts it when it is killed, `serve deploy` gives it
new code, and `serve shutdown` leaves nothing behind. During a change of code two of them live side by side for
about two seconds; epochs tell them apart. `args` say where its state lives; `user_config` holds what may change
in place (policy, clock, limits), without losing anything that waits or runs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve

from cluster.clock import monotonic_s
from cluster.messages import (
    Collection,
    CollectionReply,
    Pull,
    PullReply,
    Report,
    ReportReply,
    Submission,
    SubmissionReply,
    TenantApplications,
)
from cluster.scheduler_service import SchedulerService
from cluster.settings import load_changed_settings, load_settings
from scheduler.types import ApplicationRecord

logger = logging.getLogger("ray.serve")

APPLICATION = "justitia-scheduler"
DEPLOYMENT = "Scheduler"
TICK_S = 0.25


@serve.deployment(
    name=DEPLOYMENT,
    num_replicas=1,
    max_ongoing_requests=10_000,
    health_check_period_s=1,
    graceful_shutdown_timeout_s=2,
    graceful_shutdown_wait_loop_s=0.5,
    ray_actor_options={"num_cpus": 0},
)
class Scheduler:
    """A thin shell: Serve's calls in, the service's answers out."""

    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._args = settings
        self._service = SchedulerService(load_settings(settings), monotonic_s)
        self._ticking = asyncio.create_task(self._tick_forever())

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take a changed `user_config`. A wrong one is logged and shown in `overview`; the old settings stay.

        Raising would have Serve end this scheduler, and have none until a right one comes.
        """
        try:
            self._service.change_settings(load_changed_settings(self._args, user_config))
        except ValueError as error:
            self._service.refuse_settings(str(error))

    async def submit(self, submission: Submission) -> SubmissionReply:
        """See `SchedulerService.submit`."""
        return await self._service.submit(submission)

    async def collect(self, collection: Collection) -> CollectionReply:
        """See `SchedulerService.collect`."""
        return await self._service.collect(collection)

    async def pull(self, pull: Pull) -> PullReply:
        """See `SchedulerService.pull`."""
        return await self._service.pull(pull)

    async def report(self, report: Report) -> ReportReply:
        """See `SchedulerService.report`."""
        return await self._service.report(report)

    async def epoch(self) -> int:
        """The number of this start of the scheduler."""
        return self._service.epoch

    async def overview(self) -> dict[str, Any]:
        """See `scheduler.explain.overview`."""
        return self._service.overview()

    async def explain(self, application_id: str) -> dict[str, Any] | None:
        """See `scheduler.explain.explain`."""
        return self._service.explain(application_id)

    async def record(self, application_id: str) -> ApplicationRecord | None:
        """What became of an application that ended."""
        return self._service.record(application_id)

    async def applications_of(self, tenant: str) -> TenantApplications:
        """See `SchedulerService.applications_of`."""
        return self._service.applications_of(tenant)

    async def check_health(self) -> None:
        """Fail when the core broke or time limits are no longer looked after: Serve then starts a fresh scheduler."""
        self._service.check_health()
        if self._ticking.done():
            raise RuntimeError("the scheduler's clock task has ended")

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._service.tick()

    async def __del__(self) -> None:
        if not hasattr(self, "_ticking"):
            return  # its settings were wrong: there is nothing to close
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        self._service.close()


def build(args: dict[str, Any]) -> serve.Application:
    """The application that serve_config.yaml names; `args` are `SchedulerSettings`. Raises on a wrong setting."""
    settings = load_settings(args)
    return Scheduler.bind(settings.model_dump(mode="json"))  # type: ignore[attr-defined]
