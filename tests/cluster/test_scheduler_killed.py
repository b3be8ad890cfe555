"""The scheduler dies in the middle of everything: nothing is lost, nothing runs twice, V does not fall."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from ray import serve

from cluster.scheduler_actor import DEPLOYMENT as SCHEDULER
from tests.ray_service import Service, completion, document_call

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

APPLICATIONS = 20


def document(number: int) -> dict[str, Any]:
    """Two calls at once and one that joins them, some 0.4 s each."""
    return {
        "application_id": f"survivor-{number}",
        "calls": [
            document_call("left", 60, f"left {number}"),
            document_call("right", 60, f"right {number}"),
            document_call("both", 60, "{{left}} {{right}}", after=["left", "right"]),
        ],
    }


async def outcome(client: httpx.AsyncClient, application_id: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/applications/{application_id}/events")
    assert answer.status_code == 200
    return dict((await client.get(f"/v1/applications/{application_id}")).json())


async def kill_scheduler(service: Service) -> float:
    """kill -9; gives V as the journal had it."""
    (replica_id,) = service.actors(SCHEDULER)
    virtual_time = service.virtual_time()
    service.kill(SCHEDULER, replica_id)
    return virtual_time


@pytest.mark.timeout(120)
async def test_twenty_applications_survive_two_schedulers(service: Service) -> None:
    before = await service.overview()
    names = [f"survivor-{number}" for number in range(APPLICATIONS)]
    async with service.async_http() as client:
        stream = asyncio.create_task(client.post("/v1/completions", json=completion(2_000, stream=True)))
        accepted = await asyncio.gather(
            *(client.post("/v1/applications", json=document(number)) for number in range(APPLICATIONS))
        )
        assert {answer.status_code for answer in accepted} == {201}
        following = [asyncio.create_task(outcome(client, name)) for name in names]

        saved = []
        for epochs_before in (before["epoch"], None):
            seen = await service.until(lambda seen: seen["calls_running"] > 2 and seen["calls_waiting"] > 2)
            saved.append(await kill_scheduler(service))
            killed_s = time.monotonic()
            seen = await service.until(lambda now, old=seen["epoch"]: now["epoch"] > old, within_s=30)  # type: ignore[misc]
            print(f"\nback after {time.monotonic() - killed_s:.1f} s, epoch {epochs_before} -> {seen['epoch']}")
            assert seen["virtual_time"] >= saved[-1]
        during = asyncio.create_task(client.post("/v1/completions", json=completion(3)))

        statuses = await asyncio.wait_for(asyncio.gather(*following), 60)
        assert [status["state"] for status in statuses] == ["finished"] * APPLICATIONS
        assert all(len(call["outputs"][0].split()) == 60 for status in statuses for call in status["calls"])
        assert (await stream).text.count('"text"') == 2_000
        assert (await during).status_code == 200

    begun = Counter(
        (record["application_id"], record["call_id"])
        for record in service.log_events("EngineReplica", "call_started")
        if record["application_id"] in names
    )
    assert begun == {(name, call): 1 for name in names for call in ("left", "right", "both")}
    after = await service.until_clean()
    assert sorted(after["replicas"]) == sorted(before["replicas"])
    assert after["virtual_time"] >= saved[1] >= saved[0] >= 0
    assert service.virtual_time() >= saved[1]


@pytest.mark.timeout(90)
async def test_requests_that_come_while_it_is_away_are_answered(service: Service) -> None:
    """Through HTTP and through a handle that was there before."""
    handle = serve.get_app_handle("justitia")
    await handle.infer.remote("/v1/completions", completion(2))
    epoch = (await service.overview())["epoch"]
    await kill_scheduler(service)
    async with service.async_http() as client:
        calls = [client.post("/v1/completions", json=completion(5, f"{i}")) for i in range(12)]
        applications = [
            client.post("/v1/applications", json={**document(i), "application_id": f"late-{i}"}) for i in range(3)
        ]
        answers = await asyncio.wait_for(asyncio.gather(*calls, *applications), 40)
        assert [answer.status_code for answer in answers] == [200] * 12 + [201] * 3
        assert (await handle.infer.remote("/v1/completions", completion(2)))["usage"]["completion_tokens"] == 2
        assert {(await outcome(client, f"late-{i}"))["state"] for i in range(3)} == {"finished"}
    assert (await service.until_clean())["epoch"] > epoch
