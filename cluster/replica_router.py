"""Calling exactly the replica that was granted: the one file that touches Serve's private routing hooks.

A handle with `session_id = replica_session(id)` reaches that replica or fails with ReplicaGone; any other request
is routed as Serve routes by default. The override of `_choose_replica_for_request` mirrors Serve's own
CapacityQueueRouter (Ray 2.60) and passes by the matching of requests by id, which hangs when children of one
request share their parent's. Tested at each upgrade of Ray by `tests/cluster/test_replica_router.py`.

Serve sends this module by value to wherever a router is made, so it keeps no state (`live_replicas` does).
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, RunningReplica

from cluster.live_replicas import ReplicaGone, note_live

_SESSION_PREFIX = "justitia-replica:"
VIEW_WAIT_S = 5.0
FULL_RETRY_S = 0.02


class NamedReplicaRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]  # Ray is untyped
    """Serve's default routing, and a way to name one replica."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Keep the view of this process up to date."""
        super().update_replicas(replicas)
        note_live(self._deployment_id, frozenset(replica.replica_id.unique_id for replica in replicas))

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        session = pending_request.metadata.session_id
        if not session.startswith(_SESSION_PREFIX):
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if is_retry:
            await asyncio.sleep(FULL_RETRY_S)  # the replica was at its limit of ongoing requests
        return await self._wait_for(session.removeprefix(_SESSION_PREFIX))

    async def _wait_for(self, name: str) -> RunningReplica:
        """A replica may pull before routers know it, so the view is given a moment."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + VIEW_WAIT_S
        while loop.time() < deadline_s:
            for replica_id, replica in self._replicas.items():
                if replica_id.unique_id == name:
                    return replica
            self._replicas_updated_event.clear()
            try:
                await asyncio.wait_for(self._replicas_updated_event.wait(), deadline_s - loop.time())
            except TimeoutError:
                break
        raise ReplicaGone(f"replica {name} cannot be called")


def replica_session(replica_id: str) -> str:
    """The `session_id` option that makes a handle call this replica."""
    return _SESSION_PREFIX + replica_id


def router_config() -> RequestRouterConfig:
    """For `@serve.deployment(request_router_config=...)`."""
    return RequestRouterConfig(request_router_class=f"{__name__}:{NamedReplicaRouter.__name__}")


def watch(handle: Any) -> None:
    """Let a handle learn its replicas before it is first called."""
    handle._init_router()
