"""A small Serve application to try the router on: replicas that tell who they are, and a deployment that asks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ray import serve

from cluster.replica_router import replica_session, router_config

APPLICATION = "router-test"
MEMBER = "Member"


def own_id() -> str:
    unique_id: str = serve.get_replica_context().replica_id.unique_id
    return unique_id


@serve.deployment(
    name=MEMBER,
    num_replicas=2,
    max_ongoing_requests=8,
    ray_actor_options={"num_cpus": 0},
    request_router_config=router_config(),
)
class Member:
    """Knows its name, and how many of its streams run."""

    def __init__(self) -> None:
        self._streams = 0

    async def name(self) -> str:
        return own_id()

    async def slow_name(self) -> str:
        await asyncio.sleep(0.2)
        return own_id()

    async def streams(self) -> int:
        return self._streams

    async def count_forever(self) -> AsyncIterator[int]:
        self._streams += 1
        try:
            number = 0
            while True:
                yield number
                number += 1
                await asyncio.sleep(0.01)
        finally:
            self._streams -= 1


@serve.deployment(name="Parent", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=100)
class Parent:
    """Asks members in the name of one request, so that all its children share a request id."""

    def __init__(self, members: Any) -> None:
        self._members = members

    async def ask(self, names: list[str]) -> list[str]:
        """One child for each name, at once; an empty name leaves the choice to the router."""
        handles = [self._members.options(session_id=replica_session(name) if name else "") for name in names]
        return list(await asyncio.gather(*(handle.slow_name.remote() for handle in handles)))


application = Parent.bind(Member.bind())  # type: ignore[attr-defined]
