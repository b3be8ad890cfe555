"""A loop that outlives whoever it talks to: a failure of the scheduler ends no talk with it, only one try."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from cluster.telemetry import log_event

logger = logging.getLogger("ray.serve")


async def keep_trying(once: Callable[[], Awaitable[None]], retry_s: float, **speaker: str) -> NoReturn:
    """Do it again and again, `retry_s` after a failure, until cancelled; `speaker` names who talks, for the log."""
    while True:
        try:
            await once()
        except Exception as error:  # whatever the scheduler, or the way to it, raises
            log_event(logger, "scheduler_unreachable", **speaker, error=repr(error))
            await asyncio.sleep(retry_s)
