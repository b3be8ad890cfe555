"""Running the calls of one replica: a lease claimed, the request replayed on the engine, the lease ended.

Laws: nothing is generated without a claimed lease; whatever way a call takes, its lease ends in one fact for the
scheduler, and only after the engine has let go of the request.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cluster.asgi_replay import Answer, replay
from cluster.engine import ActiveLease, Engine
from cluster.leases import LeaseTable
from cluster.messages import CallRequest
from cluster.telemetry import log_event

logger = logging.getLogger("ray.serve")


class CallServer:
    """One engine behind leases."""

    def __init__(self, engine: Engine, leases: LeaseTable) -> None:
        self._engine = engine
        self._leases = leases

    async def serve(self, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        """Run one granted call; yields the answer's ASGI messages. Raises LeaseRefused before the first of them."""
        answer = Answer()
        lease = await self._leases.claim(request, answer.disconnect)
        log_event(
            logger,
            "call_started",
            application_id=request.application_id,
            call_id=request.call_id,
            lease=request.lease_id,
        )
        try:
            async with aclosing(replay(self._engine.asgi, request, answer, lease)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:
            if not answer.complete and not lease.revoked:
                self._leases.fail(
                    lease, f"the engine failed: {type(error).__name__}"
                )  # its text may hold some of the prompt
            raise
        finally:
            self._settle(lease, answer)

    async def pass_through(self, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        """Answer a request that generates nothing, such as the list of models; a generation is refused."""
        async with aclosing(replay(self._engine.asgi, request, Answer())) as messages:
            async for message in messages:
                yield message

    def _settle(self, lease: ActiveLease, answer: Answer) -> None:
        if not answer.complete or lease.revoked:
            self._leases.stopped(lease)
        elif answer.status >= 400:
            self._leases.fail(lease, f"the engine answered {answer.status}")
        else:
            self._leases.finish(lease)
