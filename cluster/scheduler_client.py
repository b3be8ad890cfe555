"""The scheduler as ingresses and replicas see it: its Serve handle, as plain async methods.

The handle outlives the scheduler behind it: calls made while Serve starts a fresh one wait or fail, and callers
try again.
"""

from __future__ import annotations

from typing import Any

from ray import serve

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
from cluster.scheduler_actor import APPLICATION, DEPLOYMENT
from scheduler.types import ApplicationRecord


class SchedulerClient:
    """One process's connection to the scheduler."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(_by_reference=False)

    @classmethod
    def connect(cls) -> SchedulerClient:
        """The scheduler of this Ray cluster, which may still be on its way up."""
        return cls(serve.get_deployment_handle(DEPLOYMENT, app_name=APPLICATION, _check_exists=False))

    async def submit(self, submission: Submission) -> SubmissionReply:
        """See `SchedulerService.submit`."""
        reply: SubmissionReply = await self._handle.submit.remote(submission)
        return reply

    async def collect(self, collection: Collection) -> CollectionReply:
        """See `SchedulerService.collect`."""
        reply: CollectionReply = await self._handle.collect.remote(collection)
        return reply

    async def pull(self, pull: Pull) -> PullReply:
        """See `SchedulerService.pull`."""
        reply: PullReply = await self._handle.pull.remote(pull)
        return reply

    async def report(self, report: Report) -> ReportReply:
        """See `SchedulerService.report`."""
        reply: ReportReply = await self._handle.report.remote(report)
        return reply

    async def epoch(self) -> int:
        """The number of the scheduler's present start."""
        number: int = await self._handle.epoch.remote()
        return number

    async def overview(self) -> dict[str, Any]:
        """The state of the whole in a few numbers."""
        answer: dict[str, Any] = await self._handle.overview.remote()
        return answer

    async def explain(self, application_id: str) -> dict[str, Any] | None:
        """Why an application waits or runs; None when it is not in the system."""
        answer: dict[str, Any] | None = await self._handle.explain.remote(application_id)
        return answer

    async def record(self, application_id: str) -> ApplicationRecord | None:
        """What became of an application that ended."""
        answer: ApplicationRecord | None = await self._handle.record.remote(application_id)
        return answer

    async def applications_of(self, tenant: str) -> TenantApplications:
        """See `SchedulerService.applications_of`."""
        answer: TenantApplications = await self._handle.applications_of.remote(tenant)
        return answer
