"""`user_config` changes while everything runs: nothing is lost, no process is another one afterwards."""

from __future__ import annotations

import asyncio

import pytest

from cluster.deploy.local import DeployFailed
from cluster.replica import DEPLOYMENT as REPLICA
from cluster.scheduler_actor import DEPLOYMENT as SCHEDULER
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

    grants = service.recording(epoch).grants
    order = [grant.application_id for grant in grants if grant.application_id.startswith("keep-")]
    assert len(order) == 12


async def test_a_wrong_setting_loses_nothing(service: Service) -> None:
    """The deployment fails and says why. Serve ends a scheduler that refuses its settings, so until right ones come
    new requests are told to come again; what waits goes on waiting, and is answered then."""
    async with service.async_http() as client, occupied(service, rounds=2):
        calls = [
            asyncio.create_task(client.post("/v1/completions", json=completion(5, application_id=f"wrong-{i}")))
            for i in range(12)
        ]
        await service.until(lambda seen: seen["calls_waiting"] >= 12)
        with pytest.raises(DeployFailed, match="policy"):
            async with service.changed({"policy": "nonsense"}):
                pass
        meanwhile = await client.get("/v1/scheduler")
        async with service.changed({}):
            await service.until(lambda seen: len(seen["replicas"]) == 2, within_s=30)
        answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert {answer.status_code for answer in answers} == {200}
    assert meanwhile.status_code in (200, 503)
