"""Failures of the cluster behind an ingress, as answers: 503 with a reason and a Retry-After.

Laws: a part of the service that is away, restarts or does not answer in time is never a 500; none of these answers
carries the failure's own text, which may name hosts and processes, and goes to the log. Apart from `errors`, which
knows no Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException

from cluster.live_replicas import ReplicaGone
from cluster.telemetry import log_event
from serve_app.errors import ApiError, respond

logger = logging.getLogger("ray.serve")

ANSWER_S = 5.0
RETRY_AFTER_S = 2

REASONS: dict[type[Exception], str] = {
    RayActorError: "a part of the service was lost, and is being replaced",
    RayServeException: "a part of the service cannot take requests at the moment",
    ReplicaGone: "the replica asked for is gone",
    TimeoutError: "a part of the service did not answer in time",
}

Answer = TypeVar("Answer")


async def within_answer_time(question: Awaitable[Answer]) -> Answer:
    """The answer to a question that another process is asked. Raises TimeoutError after ANSWER_S seconds."""
    async with asyncio.timeout(ANSWER_S):
        return await question


def install_cluster_handlers(app: FastAPI) -> None:
    """Make every failure in REASONS an answer in OpenAI's shape."""
    for kind in REASONS:
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    log_event(logger, "request_failed", path=request.url.path, error=repr(error))
    reason = next(reason for kind, reason in REASONS.items() if isinstance(error, kind))
    return respond(ApiError(503, reason, retry_after_s=RETRY_AFTER_S))
