"""Two tenants and two ingresses behind the real routes, with everything but Ray: who sees what, and who waits.

Serve gives a route its ingress; here a name in the replica's context says which.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from scheduler.actions import Action, Grant
from scheduler.events import ApplicationArrived, CallRevealed
from serve_app import ingress as ingress_module
from serve_app.errors import ApiError
from serve_app.inference import ANONYMOUS_APPLICATION
from serve_app.tenants import ApiKeys, digested_keys, key_group, scoped_id
from tests.in_process import InProcessSystem, eventually, started
from tests.unit.test_ingress import Remote, ingress_of

pytestmark = pytest.mark.timeout(60)

KEYS = {"sk-acme": "acme", "sk-bolt": "bolt", "sk-old": "default"}
CALL = {"name": "c", "prompt": "once upon a time", "max_tokens": 30, "ignore_eos": True}
LONG = {**CALL, "max_tokens": 4000}
ENGINE = {"base_s": 0.002}


class Clients:
    """HTTP clients of two ingresses, for each key."""

    def __init__(self, system: InProcessSystem, ingresses: list[Any], context: SimpleNamespace) -> None:
        self.system = system
        self.ingresses = ingresses
        self._context = context

    async def ask(
        self,
        key: str | None,
        method: str,
        path: str,
        body: object = None,
        number: int = 0,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Ask one of the two ingresses; one question at a time, since they share a process."""
        self._context.servable_object = self.ingresses[number]
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=_transport(), base_url="http://service") as client:
            return await client.request(
                method, path, json=body, headers={**authorization, **(headers or {})}, timeout=30
            )

    async def ask_both(self, key: str, method: str, path: str, body: object = None) -> list[httpx.Response]:
        return [await self.ask(key, method, path, body, number) for number in (0, 1)]


def _transport() -> Any:
    return httpx.ASGITransport(ingress_module.http)


def _sdk(key: str) -> openai.AsyncOpenAI:
    http_client: Any = httpx.AsyncClient(transport=_transport())
    return openai.AsyncOpenAI(base_url="http://service/v1", api_key=key, max_retries=0, http_client=http_client)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    context = SimpleNamespace(servable_object=None)
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    return context


@asynccontextmanager
async def clients(context: SimpleNamespace, **settings: Any) -> AsyncIterator[Clients]:
    async with started(ingresses=2, **{"engine": ENGINE, "open_idle_s": 5.0, **settings}) as system:
        ingresses = [ingress_of(system, number) for number in (0, 1)]
        for ingress, other in (ingresses, reversed(ingresses)):
            ingress._peers.known = [Remote(other)]
            ingress._keys = ApiKeys(digested_keys(KEYS, "keys"))
        yield Clients(system, ingresses, context)


async def all_ended(system: InProcessSystem) -> None:
    runs = [run for ingress in system.ingresses for run in ingress.runner._runs.values()]
    await eventually(lambda: all(run.settled for run in runs))


PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("POST", "/v1/applications"),
    ("GET", "/v1/applications"),
    ("GET", "/v1/applications/x"),
    ("GET", "/v1/applications/x/events"),
    ("GET", "/v1/applications/x/explain"),
    ("POST", "/v1/applications/x/close"),
    ("DELETE", "/v1/applications/x"),
    ("GET", "/v1/scheduler"),
    ("GET", "/v1/predictor"),
    ("POST", "/v1/predictor/rollback"),
    ("GET", "/v1/nothing"),
    ("PUT", "/v1/models"),
]


def test_the_list_of_paths_is_whole() -> None:
    documented = ingress_module.http.openapi()["paths"]
    known = {(method, path.replace("/x", "/{application_id}")) for method, path in PATHS} | {("GET", "/health")}
    assert {(method.upper(), path) for path, operations in documented.items() for method in operations} <= known


async def test_without_a_known_key_there_is_nothing_but_health(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        for method, path in PATHS:
            for key in (None, "sk-nobody", ""):
                answer = await asked.ask(key, method, path, {"prompt": "p"})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (401, "invalid_api_key"), path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "nobody" not in answer.text
        assert (await asked.ask(None, "GET", "/health")).status_code == 200
        assert (await asked.ask("sk-acme", "GET", "/v1/models")).status_code == 200
        assert (await asked.ask("sk-acme", "GET", "/v1/scheduler")).status_code == 200
        assert asked.system.core.applications == {}


async def test_one_id_is_an_application_of_each_tenant(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        document = {"application_id": "same", "calls": [CALL]}
        for key, tenant in KEYS.items():
            status = (await asked.ask(key, "POST", "/v1/applications", document)).json()
            assert (status["application_id"], status["tenant"]) == ("same", tenant)
            again = await asked.ask_both(key, "POST", "/v1/applications", document)
            assert [answer.status_code for answer in again] == [409, 409]
            assert "application 'same' exists already" in again[0].text
        assert set(asked.system.core.applications) == {"same", "acme/same", "bolt/same"}
        specs = {name: application.spec.tenant for name, application in asked.system.core.applications.items()}
        assert specs == {"same": "default", "acme/same": "acme", "bolt/same": "bolt"}
        await all_ended(asked.system)
        for key, tenant in KEYS.items():
            for answer in await asked.ask_both(key, "GET", "/v1/applications/same"):
                status = answer.json()
                assert (status["application_id"], status["tenant"], status["state"]) == ("same", tenant, "finished")
            for answer in await asked.ask_both(key, "GET", "/v1/applications"):
                assert [(one["application_id"], one["tenant"]) for one in answer.json()["data"]] == [("same", tenant)]


@pytest.mark.parametrize("whole", [True, False], ids=["submitted whole", "call by call"])
async def test_what_is_anothers_is_as_unknown_as_what_never_was(context: SimpleNamespace, whole: bool) -> None:
    async with clients(context, engine={"base_s": 0.01}) as asked:
        calling = None
        if whole:
            document = {"application_id": "secret", "calls": [LONG]}
            assert (await asked.ask("sk-acme", "POST", "/v1/applications", document)).status_code == 201
        else:
            body = {"prompt": "p", "max_tokens": 4000, "ignore_eos": True, "application_id": "secret"}
            calling = asyncio.create_task(asked.ask("sk-acme", "POST", "/v1/completions", body))
        await eventually(lambda: "acme/secret" in asked.system.core.applications)
        for key in ("sk-bolt", "sk-old"):
            for name in ("secret", "acme/secret", "acme%2Fsecret", "acme%252Fsecret"):
                for method, action in (
                    ("GET", ""),
                    ("GET", "/events"),
                    ("GET", "/explain"),
                    ("POST", "/close"),
                    ("DELETE", ""),
                ):
                    for answer in await asked.ask_both(key, method, f"/v1/applications/{name}{action}"):
                        assert answer.status_code == 404, (name, action)
                        assert "acme" not in answer.text or "acme" in name
            for answer in await asked.ask_both(key, "GET", "/v1/applications"):
                assert answer.json() == {"data": []}
        application = asked.system.core.applications["acme/secret"]
        assert (application.cancellation, application.ended) == (None, False)
        assert application.open is not whole
        for answer in await asked.ask_both("sk-acme", "GET", "/v1/applications/secret"):
            assert (answer.json()["application_id"], answer.json()["tenant"]) == ("secret", "acme")
        assert (await asked.ask("sk-acme", "DELETE", "/v1/applications/secret", number=1)).status_code == 200
        await eventually(lambda: not asked.system.core.applications)
        if calling is not None:
            await asyncio.gather(calling, return_exceptions=True)
        await all_ended(asked.system)


async def test_nobody_joins_anothers_application(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        body = {"prompt": "p", "max_tokens": 3}
        for key in KEYS:
            for fields, headers in (
                ({"application_id": "talk"}, {}),
                ({}, {"X-Application-Id": "talk"}),
                ({}, {"session-id": "acme/talk"}),
            ):
                answer = await asked.ask(key, "POST", "/v1/completions", {**body, **fields}, headers=headers)
                assert answer.status_code == 200
                if "session-id" not in headers:
                    assert answer.headers["x-application-id"] == "talk"
                else:
                    assert "/" not in answer.headers["x-application-id"]
        talks = {name: app for name, app in asked.system.core.applications.items() if name.endswith("talk")}
        assert {name: app.call_count for name, app in talks.items()} == {"talk": 2, "acme/talk": 2, "bolt/talk": 2}
        for key in KEYS:
            assert (await asked.ask(key, "POST", "/v1/applications/talk/close")).status_code == 200
        await eventually(lambda: not any(name.endswith("talk") for name in asked.system.core.applications))
        record = (await asked.ask("sk-acme", "GET", "/v1/applications/talk")).json()
        explained = (await asked.ask("sk-acme", "GET", "/v1/applications/talk/explain")).json()
        assert (record["application_id"], record["tenant"], record["calls_total"]) == ("talk", "acme", 2)
        assert (explained["application_id"], explained["why"]) == ("talk", "it has finished")


async def test_calls_without_an_application_share_one_for_each_key(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        names = {}
        for key in KEYS:
            for number in (0, 1):
                answer = await asked.ask(key, "POST", "/v1/completions", {"prompt": "p", "max_tokens": 3}, number)
                assert answer.headers["x-application-id"] == names.setdefault(key, answer.headers["x-application-id"])
            assert names[key].startswith("~anonymous")
            path = f"/v1/applications/{names[key]}"
            assert (await asked.ask(key, "GET", path)).json()["application_id"] == names[key]
            assert (await asked.ask(key, "DELETE", path)).status_code == 404
        others = asked.ask("sk-bolt", "GET", f"/v1/applications/{names['sk-acme']}")
        assert (await others).status_code == 404
        assert len(set(names.values())) == len(KEYS)
        assert not any(key in name for key, name in names.items() if key)
        applications = asked.system.core.applications
        assert [app.call_count for app in applications.values()] == [2] * len(KEYS)


async def test_refusals_name_the_bare_id(context: SimpleNamespace) -> None:
    async with clients(context, engine={"base_s": 0.01}) as asked:
        ask = asked.ask
        await ask("sk-acme", "POST", "/v1/applications", {"application_id": "whole", "calls": [LONG]})
        body = {"prompt": "p", "max_tokens": 3, "application_id": "whole"}
        joined = await ask("sk-acme", "POST", "/v1/completions", body, number=1)
        assert (joined.status_code, joined.json()["error"]["message"]) == (
            409,
            "application 'whole' takes no more calls",
        )
        asked.ingresses[1]._peers.known = []  # as while a peer does not answer
        twin = await ask("sk-acme", "POST", "/v1/applications", {"application_id": "whole", "calls": [CALL]}, number=1)
        assert (twin.status_code, twin.json()["error"]["message"]) == (409, "application 'whole' is already running")
        unknown = await ask("sk-acme", "GET", "/v1/applications/other")
        assert unknown.json()["error"]["message"] == "no application 'other'"
        await ask("sk-acme", "DELETE", "/v1/applications/whole")
        await all_ended(asked.system)


async def test_a_tenant_in_the_body_counts_for_nothing(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        refused = await asked.ask("sk-acme", "POST", "/v1/applications", {"tenant": "bolt", "calls": [CALL]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant")
        body = {"prompt": "p", "max_tokens": 3, "tenant": "bolt", "metadata": {"tenant": "bolt"}}
        assert (
            await asked.ask("sk-acme", "POST", "/v1/completions", body, headers={"X-Tenant": "bolt"})
        ).status_code == 200
        assert list(asked.system.core.applications) == [f"acme/{ANONYMOUS_APPLICATION}.{key_group('Bearer sk-acme')}"]


async def test_explain_names_only_the_tenants_own(context: SimpleNamespace) -> None:
    async with clients(context, engine={"base_s": 0.01, "max_sequences": 1}) as asked:
        for key, name in (("sk-acme", "runs"), ("sk-bolt", "competitor"), ("sk-acme", "mine"), ("sk-acme", "last")):
            calls = [{**LONG, "max_tokens": {"runs": 4000, "competitor": 50, "mine": 100, "last": 3000}[name]}]
            await asked.ask(key, "POST", "/v1/applications", {"application_id": name, "calls": calls})
            await eventually(lambda: bool(asked.system.core.leases))
        for answer in await asked.ask_both("sk-acme", "GET", "/v1/applications/last/explain"):
            explained = answer.json()
            assert (explained["application_id"], explained["tenant"]) == ("last", "acme")
            assert [one["application_id"] for one in explained["ahead"]][:1] == ["mine"]
            assert "competitor" not in answer.text
            assert "bolt" not in answer.text
            assert "/" not in explained["why"]
        alone = (await asked.ask("sk-acme", "GET", "/v1/applications/mine/explain")).json()
        assert alone["why"].endswith("has another tenant's application go first")
        assert alone["first"] is None
        first = (await asked.ask("sk-bolt", "GET", "/v1/applications/competitor/explain")).json()
        assert first["first"] == "competitor"
        for key, name in (("sk-acme", "runs"), ("sk-acme", "mine"), ("sk-acme", "last"), ("sk-bolt", "competitor")):
            await asked.ask(key, "DELETE", f"/v1/applications/{name}")
        await all_ended(asked.system)


async def test_under_a_policy_without_tags_the_first_is_named_by_its_bare_id(context: SimpleNamespace) -> None:
    async with clients(context, engine={"base_s": 0.01, "max_sequences": 1}, policy="fcfs") as asked:
        for name in ("runs", "next", "last"):
            await asked.ask("sk-acme", "POST", "/v1/applications", {"application_id": name, "calls": [LONG]})
            await eventually(lambda: bool(asked.system.core.leases))
        explained = (await asked.ask("sk-acme", "GET", "/v1/applications/last/explain")).json()
        assert explained["why"].endswith("has application next go first")
        assert explained["first"] == "next"
        for name in ("runs", "next", "last"):
            await asked.ask("sk-acme", "DELETE", f"/v1/applications/{name}")
        await all_ended(asked.system)


@pytest.mark.parametrize(("tenant", "earliest", "latest"), [("bolt", 0, 3), ("acme", 20, 40)])
async def test_a_flood_of_one_tenant_does_not_hold_up_another(tenant: str, earliest: int, latest: int) -> None:
    """Forty applications wait when the single one comes; of the same tenant it has most of them before it."""
    async with started(engine={"max_sequences": 1, **ENGINE}) as system:
        ingress = ingress_of(system)
        granted: list[str] = []
        ingress._link.listen_to_all(lambda action: granted.extend(_granted(action)))
        short = {**CALL, "max_tokens": 8}
        for number in range(40):
            await ingress.submit_application({"application_id": f"flood{number}", "calls": [short]}, tenant="acme")
        single = scoped_id(tenant, "single")
        before = len(granted)
        await ingress.submit_application({"application_id": "single", "calls": [short]}, tenant=tenant)
        await eventually(lambda: single in granted)
        assert before < 10
        assert earliest <= granted.index(single) - before <= latest
        await all_ended(system)


def _granted(action: Action) -> list[str]:
    return [action.application_id] if isinstance(action, Grant) else []


async def test_the_openai_sdk_is_its_keys_tenant(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        context.servable_object = asked.ingresses[0]
        for key, expected in (("sk-acme", "acme/sdk"), ("sk-bolt", "bolt/sdk")):
            async with _sdk(key) as client:
                answer = await client.completions.create(
                    model="simulated", prompt="p", max_tokens=3, extra_body={"application_id": "sdk"}
                )
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 3
                assert expected in asked.system.core.applications
        async with _sdk("sk-nobody") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
            assert (caught.value.code, caught.value.type) == ("invalid_api_key", "invalid_request_error")


async def test_on_the_handle_the_caller_names_the_tenant(context: SimpleNamespace) -> None:
    async with clients(context) as asked:
        first, second = asked.ingresses
        status = await first.submit_application({"application_id": "dag", "calls": [CALL]}, tenant="acme")
        assert (status["application_id"], status["tenant"]) == ("dag", "acme")
        events = [event["event"] async for event in second.application_events("dag", tenant="acme")]
        assert events[-1] == "application_audited"
        assert (await second.get_application("dag", tenant="acme"))["state"] == "finished"
        assert [one["application_id"] for one in await second.list_applications(tenant="acme")] == ["dag"]
        assert await second.list_applications() == []
        body = {"prompt": "p", "max_tokens": 3, "application_id": "talk"}
        await first.infer("/v1/completions", body, tenant="acme")
        parts = [part async for part in first.infer_stream("/v1/completions", body, tenant="acme")]
        assert b"[DONE]" in b"".join(parts)
        assert asked.system.core.applications["acme/talk"].call_count == 2
        for operation in (
            first.get_application,
            first.explain_application,
            first.cancel_application,
            first.close_application,
        ):
            for name, tenant in (("dag", "default"), ("acme/dag", "default"), ("talk", "bolt")):
                with pytest.raises(ApiError) as caught:
                    await operation(name, tenant=tenant)
                assert caught.value.status == 404
            with pytest.raises(ApiError) as caught:
                await operation("dag", tenant="a/b")
            assert (caught.value.status, caught.value.param) == (400, "tenant")
        for submitted in ({"calls": [CALL]}, {"application_id": "x", "calls": [CALL]}):
            with pytest.raises(ApiError) as caught:
                await first.submit_application(submitted, tenant="a/b")
            assert (caught.value.status, caught.value.param) == (400, "tenant")
        await second.close_application("talk", tenant="acme")
        await eventually(lambda: not asked.system.core.applications)


async def test_keys_stay_in_the_ingress(
    context: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in what a replica gets, the scheduler is told, its event log keeps, or any line of the log."""
    caplog.set_level(logging.DEBUG)
    async with clients(context, state_dir=tmp_path, event_log=True) as asked:
        told: list[object] = []
        tell = asked.ingresses[0]._link.tell

        def telling(*events: Any) -> None:
            told.extend(events)
            tell(*events)

        asked.ingresses[0]._link.tell = telling
        requests: list[object] = []
        serve_call = asked.system.replicas.serve_call

        def noting(replica_id: str, request: Any) -> Any:
            requests.append(request)
            return serve_call(replica_id, request)

        asked.system.replicas.serve_call = noting  # type: ignore[method-assign]
        await asked.ask("sk-acme", "POST", "/v1/completions", {"prompt": "p", "max_tokens": 3})
        await asked.ask("sk-nobody", "POST", "/v1/completions", {"prompt": "p", "max_tokens": 3})
        await asked.ask("sk-acme", "POST", "/v1/applications", {"calls": [CALL]})
        await all_ended(asked.system)
        assert len(requests) == 2
        assert any(isinstance(event, CallRevealed) for event in told)
        assert any(isinstance(event, ApplicationArrived) for event in told)
        logged = "".join(json.dumps(vars(record), default=repr) for record in caplog.records)
        files = "".join(path.read_bytes().decode("latin-1") for path in tmp_path.iterdir())  # noqa: ASYNC240 - small
        assert "acme" in logged
        assert "acme" in files
        for place in (repr(requests), repr(told), logged, files):
            assert "sk-" not in place
            assert "authorization" not in place.lower()


async def test_an_ingress_looks_at_its_key_file_when_its_health_is_checked(
    context: SimpleNamespace, tmp_path: Path
) -> None:
    async with clients(context) as asked:
        path = tmp_path / "keys.json"
        path.write_text(json.dumps({"sk-first": "acme"}))
        asked.ingresses[0]._keys = ApiKeys({}, path)
        assert (await asked.ask("sk-second", "GET", "/v1/scheduler")).status_code == 401
        path.write_text(json.dumps({"sk-second": "acme"}))
        await asked.ingresses[0].check_health()
        assert (await asked.ask("sk-second", "GET", "/v1/scheduler")).status_code == 200
        assert (await asked.ask("sk-first", "GET", "/v1/scheduler")).status_code == 401
