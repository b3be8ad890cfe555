"""An engine replica dies while calls run: what had not begun to answer is answered elsewhere, a stream says so."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from cluster.replica import DEPLOYMENT as REPLICA
from tests.ray_service import Service, completion, document_call

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]


async def read_stream(client: httpx.AsyncClient, tokens: int, name: str) -> tuple[list[dict[str, Any]], bool]:
    """The events of a streamed completion, and whether it came to its proper end."""
    events: list[dict[str, Any]] = []
    body = completion(tokens, stream=True, application_id=name)
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return events, True
                if line.startswith("data: "):
                    events.append(json.loads(line.removeprefix("data: ")))
    except httpx.HTTPError:
        pass
    return events, False


async def replica_of(service: Service, application_id: str) -> str:
    """The replica that holds the only call of an application."""
    recording = service.recording((await service.overview())["epoch"])
    return recording.grants_of({application_id})[-1].replica_id


async def replaced(service: Service, victim: str) -> dict[str, Any]:
    """The overview once another replica has taken the place of one that was killed."""
    return await service.until(lambda seen: victim not in seen["replicas"] and len(seen["replicas"]) == 2, 60)


async def test_a_replica_dies(service: Service) -> None:
    document = {
        "application_id": "stays",
        "calls": [
            *(document_call(f"part{i}", 300, f"part {i}") for i in range(2)),
            document_call("whole", 20, "{{part0}} {{part1}}", after=["part0", "part1"]),
        ],
    }
    async with service.async_http() as client:
        streams = [asyncio.create_task(read_stream(client, 2_000, f"stream-{i}")) for i in range(2)]
        await service.until(lambda seen: seen["calls_running"] == 2)
        whole = [asyncio.create_task(client.post("/v1/completions", json=completion(300, f"{i}"))) for i in range(8)]
        accepted = await client.post("/v1/applications", json=document)
        assert accepted.status_code == 201
        await service.until(lambda seen: seen["calls_running"] == 8 and seen["calls_waiting"] > 0)
        before = service.actors(REPLICA)
        places = [await replica_of(service, f"stream-{i}") for i in range(2)]
        victim = places[0]
        service.kill(REPLICA, victim)

        answers = await asyncio.wait_for(asyncio.gather(*whole), 60)
        assert [answer.status_code for answer in answers] == [200] * 8
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [300] * 8
        for place, stream in zip(places, streams, strict=True):
            events, complete = await asyncio.wait_for(stream, 60)
            tokens = sum("error" not in event for event in events)
            if place == victim:
                assert 0 < tokens < 2_000
                assert not complete
                assert "lost" in events[-1]["error"]["message"]
            else:
                assert (tokens, complete) == (2_000, True)
        await client.get("/v1/applications/stays/events")
        status = (await client.get("/v1/applications/stays")).json()
        assert (status["state"], status["calls_done"]) == ("finished", 3)

    after = await replaced(service, victim)
    assert set(after["replicas"]) & set(before) == set(before) - {victim}
    assert after["kv_held_tokens"] == 0
    await service.until_clean()
    await both_replicas_answer(service)


async def both_replicas_answer(service: Service) -> None:
    """The restarted replica takes its share."""
    async with service.async_http() as client:
        calls = [client.post("/v1/completions", json=completion(60, application_id="share")) for _ in range(16)]
        answers = await asyncio.gather(*calls)
    assert {answer.status_code for answer in answers} == {200}
    recording = service.recording((await service.overview())["epoch"])
    assert len({grant.replica_id for grant in recording.grants_of({"share"})}) == 2


async def test_replicas_die_again_and_again(service: Service) -> None:
    """Two more deaths under load, from which nobody loses more than the streams that died."""
    async with service.async_http() as client:
        for place in (0, 1):
            bodies = [completion(200, application_id=f"load-{i % 4}") for i in range(20)]
            calls = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
            await service.until(lambda seen: seen["calls_running"] >= 4)
            victim = sorted(service.actors(REPLICA))[place]
            service.kill(REPLICA, victim)
            answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
            assert {answer.status_code for answer in answers} == {200}
            await replaced(service, victim)
    await service.until_clean()
