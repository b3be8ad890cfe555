"""The private routing hooks of Serve that we stand on; to be run at each upgrade of Ray."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from ray import serve

from cluster.live_replicas import ReplicaGone, live_replicas
from cluster.replica_router import VIEW_WAIT_S, replica_session
from tests.cluster import router_app
from tests.ray_service import Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(scope="module")
def deployed(service: Service) -> Iterator[None]:
    serve.run(router_app.application, name=router_app.APPLICATION, route_prefix=None)
    yield
    serve.delete(router_app.APPLICATION)


@pytest.fixture
def members(deployed: None) -> Any:
    return serve.get_deployment_handle(router_app.MEMBER, app_name=router_app.APPLICATION)


@pytest.fixture
def parent(deployed: None) -> Any:
    return serve.get_app_handle(router_app.APPLICATION)


def ids(service: Service) -> list[str]:
    return sorted(service.actors(router_app.MEMBER))


async def test_a_named_replica_is_reached_and_no_other(service: Service, members: Any) -> None:
    assert len(ids(service)) == 2
    for name in ids(service):
        handle = members.options(session_id=replica_session(name))
        assert {await handle.name.remote() for _ in range(20)} == {name}
        assert set(await asyncio.gather(*(handle.slow_name.remote() for _ in range(8)))) == {name}


async def test_a_replica_at_its_limit_is_waited_for(service: Service, members: Any) -> None:
    """Eight run at a time; the others come when there is room, to the same replica."""
    name = ids(service)[0]
    handle = members.options(session_id=replica_session(name))
    answers = await asyncio.wait_for(asyncio.gather(*(handle.slow_name.remote() for _ in range(20))), 20)
    assert answers == [name] * 20


async def test_an_unknown_name_is_given_up_after_a_wait(members: Any) -> None:
    began_s = time.monotonic()
    with pytest.raises(ReplicaGone, match="nobody"):
        await members.options(session_id=replica_session("nobody")).name.remote()
    assert VIEW_WAIT_S - 0.5 < time.monotonic() - began_s < VIEW_WAIT_S + 20


async def test_without_a_name_all_replicas_share_the_work(service: Service, members: Any) -> None:
    counts = Counter(await asyncio.gather(*(members.slow_name.remote() for _ in range(12))))
    assert sorted(counts) == ids(service)


async def test_children_of_one_request_each_get_their_own(service: Service, parent: Any) -> None:
    """With Serve's matching of requests by id, such a fan-out hangs."""
    names = ids(service) * 6
    assert await asyncio.wait_for(parent.ask.remote(names), 20) == names
    mixed = await asyncio.wait_for(parent.ask.remote([names[0], "", names[1], ""] * 3), 20)
    assert (mixed[0], mixed[2]) == (names[0], names[1])


async def test_the_view_of_a_process_holds_the_callable_replicas(service: Service, members: Any) -> None:
    await members.name.remote()
    assert live_replicas(router_app.MEMBER, router_app.APPLICATION) == frozenset(ids(service))


async def test_a_cancelled_stream_stops_at_the_replica(service: Service, members: Any) -> None:
    """Dropping a stream's generator does not, so callers cancel it; here as `ServeReplicas` does."""
    name = ids(service)[0]
    handle = members.options(session_id=replica_session(name))

    async def numbers() -> Any:
        stream = handle.options(stream=True, _by_reference=False).count_forever.remote()
        try:
            async for number in stream:
                yield number
        finally:
            stream.cancel()

    async with aclosing(numbers()) as counting:
        assert [await anext(counting) for _ in range(3)] == [0, 1, 2]
        assert await handle.streams.remote() == 1
    deadline_s = time.monotonic() + 20
    while await handle.streams.remote():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
