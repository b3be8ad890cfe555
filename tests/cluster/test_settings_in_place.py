"""`user_config` changes while everything runs: nothing is lost, no process is another one afterwards."""

from __future__ import annotations

import asyncio

import pytest

from cluster.replica import DEPLOYMENT as REPLICA
from cluster.scheduler_actor import DEPLOYMENT as SCHEDULER
from scheduler.events import CallReady
from tests.ray_service import Service, completion, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

DEPLOYMENTS = (SCHEDULER, REPLICA, "Ingress")


async def test_another_policy_takes_over_the_queue(service: Service) -> None:
    before = [service.actors(name) for name in DEPLOYMENTS]
    epoch = (await service.overview())["epoch"]
    async with service.async_http() as client, occupied(service, rounds=2):
        calls = [
            asyncio.create_task(client.post("/v1/completions", json=completion(5, application_id=f"keep-{i}")))
            for i in range(12)
        ]
        await service.until(lambda seen: seen["calls_waiting"] >= 12)
        async with service.changed({"policy": "fcfs"}):
            seen = await service.until(lambda seen: seen["policy"] == "fcfs", within_s=20)
            assert seen["calls_waiting"] >= 12
            assert seen["epoch"] == epoch
            assert [service.actors(name) for name in DEPLOYMENTS] == before
            answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
            assert {answer.status_code for answer in answers} == {200}
    seen = await service.until(lambda seen: seen["policy"] == "justitia", within_s=20)
    assert seen["epoch"] == epoch
    assert [service.actors(name) for name in DEPLOYMENTS] == before

    recording = service.recording(epoch)
    order = [grant.application_id for grant in recording.grants if grant.application_id.startswith("keep-")]
    became_ready = [
        event.application_id
        for event, _ in recording.steps
        if isinstance(event, CallReady) and event.application_id.startswith("keep-")
    ]
    assert order == became_ready, "first come, first served"


async def test_a_wrong_setting_changes_nothing(service: Service) -> None:
    """It is told in the overview; the scheduler keeps the settings it has, and what waits."""
    before = [service.actors(name) for name in DEPLOYMENTS]
    async with service.async_http() as client, occupied(service, rounds=2):
        calls = [
            asyncio.create_task(client.post("/v1/completions", json=completion(5, application_id=f"wrong-{i}")))
            for i in range(12)
        ]
        await service.until(lambda seen: seen["calls_waiting"] >= 12)
        async with service.changed({"policy": "nonsense"}):
            refused = await service.until(lambda seen: bool(seen["settings_refused"]), within_s=20)
            assert "nonsense" in refused["settings_refused"]
            assert refused["policy"] == "justitia"
            assert refused["calls_waiting"] >= 12
            answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert {answer.status_code for answer in answers} == {200}
    await service.until(lambda seen: not seen["settings_refused"], within_s=20)
    assert [service.actors(name) for name in DEPLOYMENTS] == before
