"""Tenants over real sockets: the shared service, for the time of these tests with a file of API keys.

What two tenants can see of each other is in `tests/unit/test_tenants_in_process.py`; here it is that Serve, its proxy
and several processes keep to it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from ray import serve

from cluster.deploy.local import deploy
from scheduler.actions import Grant
from scheduler.events import ApplicationArrived
from tests.ray_service import GONE_WITHIN_S, MODEL, POLL_S, Recording, Service, completion, document_call

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

KEYS = {"sk-of-acme": "acme", "sk-of-bolt": "bolt"}
FLOOD = 40


class KeyedService(Service):
    """The service as it is asked with one of the keys."""

    def async_http(self, timeout_s: float = 60.0, key: str = "sk-of-acme") -> httpx.AsyncClient:
        client = super().async_http(timeout_s)
        client.headers["Authorization"] = f"Bearer {key}"
        return client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keyed(service: Service, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KeyedService]:
    """The service where only these keys are known."""
    path: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps(KEYS))  # noqa: ASYNC240 - small, and nothing else runs
    config = copy.deepcopy(service.config)
    config["applications"][1]["args"]["ingress"]["api_keys_file"] = str(path)
    await _deployed(service, config)
    yield KeyedService(service.url, config, service.state_dir, service.ray_dir)
    await _deployed(service, service.config)
    await service.until(lambda seen: len(seen["replicas"]) == 2)


async def _deployed(service: Service, config: dict[str, Any]) -> None:
    """Deploy, and wait until what served before is gone."""
    before = {*service.actors("EngineReplica"), *service.actors("Ingress")}
    await asyncio.to_thread(deploy, config)
    deadline_s = time.monotonic() + 2 * GONE_WITHIN_S
    while before & {*service.actors("EngineReplica"), *service.actors("Ingress")}:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(POLL_S)


async def test_every_path_but_health_needs_a_known_key(keyed: KeyedService) -> None:
    paths = ["/v1/models", "/v1/applications", "/v1/applications/x", "/v1/scheduler", "/v1/nothing", "/%76%31/models"]
    async with httpx.AsyncClient(base_url=keyed.url, timeout=60) as client:
        for path in paths:
            for headers in ({}, {"Authorization": "Bearer sk-of-nobody"}, {"X-Tenant": "acme"}):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
        posted = await client.post("/v1/completions", json=completion(3))
        assert posted.status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_the_openai_sdk_sends_its_key(keyed: KeyedService) -> None:
    def sdk(key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{keyed.url}/v1", api_key=key, max_retries=0, timeout=60)

    async with sdk("sk-of-acme") as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        stream = await client.completions.create(model=MODEL, prompt="p", max_tokens=4, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream])
    async with sdk("unused") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.completions.create(model=MODEL, prompt="p", max_tokens=4)


async def test_ids_are_private_to_a_tenant(keyed: KeyedService) -> None:
    document = {"application_id": "same", "calls": [document_call("c", 5)]}
    async with keyed.async_http() as acme, keyed.async_http(key="sk-of-bolt") as bolt:
        assert (await acme.post("/v1/applications", json=document)).status_code == 201
        assert {(await bolt.get("/v1/applications/same")).status_code for _ in range(6)} == {404}
        assert {(await bolt.delete("/v1/applications/same")).status_code for _ in range(6)} == {404}
        assert (await bolt.post("/v1/applications", json=document)).status_code == 201
        for client, tenant in ((acme, "acme"), (bolt, "bolt")):
            assert {(await client.post("/v1/applications", json=document)).status_code for _ in range(4)} == {409}
            assert "application_audited" in (await client.get("/v1/applications/same/events")).text
            for _ in range(4):
                status = (await client.get("/v1/applications/same")).json()
                assert (status["application_id"], status["tenant"], status["state"]) == ("same", tenant, "finished")
                listed = (await client.get("/v1/applications")).json()["data"]
                assert {one["tenant"] for one in listed} == {tenant}
                assert [name for name in map(itemgetter("application_id"), listed) if name[0] != "~"] == ["same"]
        handle = serve.get_app_handle("justitia")
        assert (await handle.get_application.remote("same", tenant="acme"))["tenant"] == "acme"
        listed = [one["application_id"] for one in await handle.list_applications.remote(tenant="bolt")]
        assert [name for name in listed if name[0] != "~"] == ["same"]
        assert "same" not in [one["application_id"] for one in await handle.list_applications.remote()]


async def test_a_flood_of_one_tenant_does_not_hold_up_another(keyed: KeyedService) -> None:
    """The other's single application is granted after a few of the forty; the recording shows it."""
    calls = [document_call("c", 60, n=4)]  # one call takes all slots of a replica
    async with keyed.async_http() as acme, keyed.async_http(key="sk-of-bolt") as bolt:
        documents = [{"application_id": f"flood-{number}", "calls": calls} for number in range(FLOOD)]
        answers = await asyncio.gather(*(acme.post("/v1/applications", json=document) for document in documents))
        assert {answer.status_code for answer in answers} == {201}
        assert (
            await bolt.post("/v1/applications", json={"application_id": "single", "calls": calls})
        ).status_code == 201
        explained = (await bolt.get("/v1/applications/single/explain")).text
        assert "flood" not in explained
        assert "application_audited" in (await bolt.get("/v1/applications/single/events")).text
        ends = [await acme.get(f"/v1/applications/flood-{number}/events") for number in range(FLOOD)]
        assert all("application_audited" in end.text for end in ends)
    await keyed.until_clean()
    before, after = _floods_granted(keyed.recording(keyed.epochs()[-1]), "bolt/single")
    assert before <= 4
    assert after >= 20


def _floods_granted(recording: Recording, application_id: str) -> tuple[int, int]:
    """Grants of other applications while this one waited, and after it."""
    arrived = next(
        number
        for number, (event, _) in enumerate(recording.steps)
        if isinstance(event, ApplicationArrived) and event.application.application_id == application_id
    )
    later = [action for _, actions in recording.steps[arrived:] for action in actions if isinstance(action, Grant)]
    place = next(number for number, grant in enumerate(later) if grant.application_id == application_id)
    return place, len(later) - place - 1
