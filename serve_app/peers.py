"""The other ingresses: who among them holds an application?

They are few and asked in parallel; one that does not answer in time counts as holding nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from ray import serve

from cluster.live_replicas import live_replicas
from cluster.replica_router import replica_session, watch
from cluster.telemetry import log_event

logger = logging.getLogger("ray.serve")

ANSWER_S = 2.0
VIEW_POLL_S = 0.01


class Peers:
    """Handles to the ingresses of the same Serve application, this one left out."""

    def __init__(self, deployment: str, application: str, own_id: str) -> None:
        self._deployment = deployment
        self._application = application
        self._own_id = own_id
        self._handle: Any = None

    async def all(self) -> list[Any]:
        """A handle to each other ingress."""
        return [self._to(peer_id) for peer_id in sorted(await self._ids())]

    async def holder(self, application_id: str, tenant: str) -> Any | None:
        """A handle to the ingress that holds a tenant's application, if another one does."""
        peers = await self.all()
        questions = (peer.holds_application.remote(application_id, tenant) for peer in peers)
        answers = await asyncio.gather(*(_answer(question) for question in questions))
        return next((peer for peer, holds in zip(peers, answers, strict=True) if holds), None)

    async def learn_sub_agent(self, application_id: str, parent_id: str, tenant: str) -> None:
        """Tell the other ingresses of a sub-agent; one that does not answer in time learns of it another time."""
        told = (peer.note_sub_agent.remote(application_id, parent_id, tenant) for peer in await self.all())
        await asyncio.gather(*(_answer(answer) for answer in told))

    async def applications(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's applications that the other ingresses hold, without their calls."""
        peers = await self.all()
        answers = await asyncio.gather(*(_answer(peer.local_applications.remote(tenant)) for peer in peers))
        return [status for statuses in answers for status in statuses or ()]

    async def predictors(self) -> list[dict[str, Any]]:
        """What predicts in each of the other ingresses that answer in time."""
        answers = await asyncio.gather(*(_answer(peer.local_predictor_status.remote()) for peer in await self.all()))
        return [status for status in answers if status is not None]

    async def rollbacks(self) -> list[bool]:
        """Have the other ingresses go back a version; whether each of those that answer in time did."""
        answers = await asyncio.gather(*(_answer(peer.local_rollback.remote()) for peer in await self.all()))
        return [answer is True for answer in answers]

    async def _ids(self) -> frozenset[str]:
        if self._handle is None:
            self._handle = serve.get_deployment_handle(self._deployment, app_name=self._application)
            watch(self._handle)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return await self._view() - {self._own_id}
        return frozenset()

    async def _view(self) -> frozenset[str]:
        """All ingresses, this one among them; the first view of them comes a moment after the first question."""
        while not (view := live_replicas(self._deployment, self._application)):  # noqa: ASYNC110 - once, and short
            await asyncio.sleep(VIEW_POLL_S)
        return view

    def _to(self, peer_id: str) -> Any:
        return self._handle.options(session_id=replica_session(peer_id), _by_reference=False)


async def _answer(question: Awaitable[Any]) -> Any | None:
    """What a peer answers; None from one that is going away, and holds nothing that could be reached."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question
    except Exception as error:
        log_event(logger, "peer_unreachable", error=repr(error))
        return None
