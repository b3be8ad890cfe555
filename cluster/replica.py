"""An engine replica as a Serve deployment: it runs the calls that it holds leases for, and nothing else.

An ingress sends the whole HTTP request with its lease; the replica replays it on the engine's own ASGI
application and streams the answer's ASGI messages back. A client that leaves closes the stream, which the engine
sees as `http.disconnect`. Whatever way a call takes, its lease ends in one fact for the scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import TypeAdapter
from ray import serve

from cluster.call_server import CallServer
from cluster.engines import EngineSettings, SimulatedSettings, VllmSettings, create_engine
from cluster.messages import CallRequest
from cluster.models import prepare_model
from cluster.replica_agent import ReplicaAgent
from cluster.replica_router import router_config
from cluster.scheduler_client import SchedulerClient

DEPLOYMENT = "EngineReplica"


class Replica:
    """One engine behind leases."""

    async def __init__(self, engine: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        settings = TypeAdapter(EngineSettings).validate_python(engine)
        self.engine = await asyncio.to_thread(lambda: create_engine(_with_local_model(settings)))  # may take a minute
        limits = await self.engine.start()
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._agent = ReplicaAgent(self._replica_id, self.engine, limits, SchedulerClient.connect())
        self._calls = CallServer(self.engine, self._agent.leases)
        self._agent.start()

    async def serve_call(self, request: CallRequest) -> AsyncIterator[dict[str, Any]]:
        """Run one granted call; yields the answer's ASGI messages. Raises LeaseRefused before the first of them."""
        async with aclosing(self._calls.serve(request)) as messages:
            async for message in messages:
                yield message

    async def pass_through(self, request: CallRequest) -> AsyncIterator[dict[str, Any]]:
        """Answer a request that generates nothing, such as the list of models; a generation is refused."""
        async with aclosing(self._calls.pass_through(request)) as messages:
            async for message in messages:
                yield message

    async def check_health(self) -> None:
        """Fail when the engine or the talk with the scheduler has ended."""
        await self.engine.check_health()
        if not self._agent.alive:
            raise RuntimeError("the replica no longer talks to the scheduler")

    async def __del__(self) -> None:
        """Serve awaits it, of a replica whose `__init__` failed too: only what was begun is ended."""
        if hasattr(self, "_agent"):
            await asyncio.shield(self._agent.stop())
        if hasattr(self, "engine"):
            await self.engine.stop()


def _with_local_model(settings: VllmSettings | SimulatedSettings) -> VllmSettings | SimulatedSettings:
    """The model prepared on this machine, served under the name it was asked for."""
    if isinstance(settings, SimulatedSettings):
        return settings
    name = settings.served_model_name or settings.model
    return settings.model_copy(update={"model": str(prepare_model(settings.model)), "served_model_name": name})


def as_deployment(replica: type[Replica]) -> Any:
    """A class of replicas as the Serve deployment that ingresses call."""
    return serve.deployment(
        replica,
        name=DEPLOYMENT,
        max_ongoing_requests=4096,
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=10,
        request_router_config=router_config(),
    )


EngineReplica = as_deployment(Replica)
