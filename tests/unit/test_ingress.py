"""The ingress's operations and routes, with everything behind it but Ray.

`Ingress` is a Serve deployment; what is under test is the class in it, made without its constructor, which asks Ray
who it is.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from cluster.messages import CallRequest
from serve_app import cluster_errors, peers
from serve_app.documents import ApplicationStatus
from serve_app.errors import ApiError
from serve_app.inference import ANONYMOUS_APPLICATION
from serve_app.ingress import Ingress
from serve_app.open_applications import OpenApplications
from serve_app.peers import Peers
from serve_app.settings import ServingSettings
from serve_app.sub_agents import Families
from serve_app.tenants import DEFAULT_TENANT
from serve_app.token_counting import ApproximateTokenCounter
from tests.in_process import InProcessSystem, eventually, started

pytestmark = pytest.mark.timeout(30)

CALL = {"name": "c", "prompt": "once upon a time", "max_tokens": 30, "ignore_eos": True}


class Scheduler:
    """The scheduler's questions, asked directly; `silent` ones are not answered."""

    def __init__(self, system: InProcessSystem) -> None:
        self._system = system
        self.silent = False

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any) -> Any:
            if self.silent:
                await asyncio.Event().wait()
            answer = getattr(self._system.service, name)
            return answer(*arguments) if callable(answer) else answer

        return ask


class Passing:
    """Replicas that answer GET, or never do."""

    def __init__(self) -> None:
        self.silent = False
        self.closed = 0

    async def pass_through(self, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        try:
            if self.silent:
                await asyncio.Event().wait()
            yield {"type": "http.response.start", "status": 200, "headers": []}
            yield {"type": "http.response.body", "body": request.path.encode()}
        finally:
            self.closed += 1


class Remote:
    """Another ingress behind a handle; methods named in `silent` never answer, those in `broken` fail."""

    def __init__(self, ingress: Any, silent: str = "", broken: str = "") -> None:
        self._ingress, self._silent, self._broken = ingress, silent, broken
        self._streams = False

    def options(self, stream: bool) -> Remote:
        copy = Remote(self._ingress, self._silent, self._broken)
        copy._streams = stream
        return copy

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ingress, name)

        async def answer(*arguments: Any) -> Any:
            if name == self._silent:
                await asyncio.Event().wait()
            if name == self._broken:
                raise ConnectionError("gone")
            return pickle.loads(pickle.dumps(await method(*arguments)))

        class Method:
            remote = staticmethod(RemoteStream(method) if self._streams else answer)

        return Method


class RemoteStream:
    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, *arguments: Any) -> RemoteStream:
        self._stream = self._method(*arguments)
        return self

    def __aiter__(self) -> Any:
        return self._stream

    def cancel(self) -> None:
        pass


class KnownPeers(Peers):
    """Peers by a list instead of Serve's view."""

    def __init__(self) -> None:
        super().__init__("Ingress", "test", "own")
        self.known: list[Any] = []

    async def all(self) -> list[Any]:
        return self.known


Plain: Any = Ingress.func_or_class.__mro__[1]  # type: ignore[attr-defined]  # the class as it is written


class UnderTest(Plain):
    def __del__(self) -> None:
        """Nobody here awaits the ingress's own."""


def ingress_of(system: InProcessSystem, number: int = 0) -> Any:
    behind = system.ingresses[number]
    ingress: Any = object.__new__(UnderTest)
    ingress._settings = ServingSettings.model_validate({"engine": {"kind": "simulated"}})
    ingress._scheduler = Scheduler(system)
    ingress._replicas = Passing()
    ingress._link, ingress._inference, ingress._runner = behind.link, behind.inference, behind.runner
    ingress._open = OpenApplications(behind.link, 100)
    ingress._peers = KnownPeers()
    ingress._families = Families(ingress._peers, ingress._open.type_of)
    ingress._live_replicas = system.replicas.live
    return ingress


@asynccontextmanager
async def two_ingresses() -> AsyncIterator[tuple[InProcessSystem, Any, Any]]:
    async with started(ingresses=2, engine={"base_s": 0.002}, open_idle_s=5.0) as system:
        first, second = ingress_of(system, 0), ingress_of(system, 1)
        first._peers.known, second._peers.known = [Remote(second)], [Remote(first)]
        yield system, first, second


def get_request(path: str) -> Request:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "server": ("h", 80)}
    return Request(scope, receive)


async def call_by_call(ingress: Any, application_id: str) -> None:
    await ingress.infer("/v1/completions", {"prompt": "p", "max_tokens": 3, "application_id": application_id})


async def all_ended(*runners: Any) -> None:
    await eventually(lambda: all(run.settled for runner in runners for run in runner._runs.values()))


async def test_events_are_streamed_from_whoever_holds_the_application() -> None:
    async with two_ingresses() as (system, first, second):
        await first.submit_application({"application_id": "dag", "calls": [CALL]})
        for ingress in (first, second):
            answer = await ingress._http_events("dag", get_request("/"), DEFAULT_TENANT)
            assert isinstance(answer, StreamingResponse)
            text = "".join([str(part) async for part in answer.body_iterator])
            assert text.startswith("id: 1\nevent: tag_set\ndata: {")
            assert "event: application_audited" in text
            names = [event["event"] async for event in ingress.application_events("dag", 1)]
            assert names[-1] == "application_audited"
        await all_ended(system.ingresses[0].runner)


@pytest.mark.parametrize("application_id", ["open", "nobody", ANONYMOUS_APPLICATION])
async def test_there_are_no_events_of_what_began_with_a_call(application_id: str) -> None:
    async with two_ingresses() as (_, first, second):
        await call_by_call(first, "open")
        for ingress in (first, second):
            with pytest.raises(ApiError) as refused:
                await ingress._http_events(application_id, get_request("/"), DEFAULT_TENANT)
            assert refused.value.status == 404
            with pytest.raises(ApiError) as refused:
                await anext(ingress.application_events(application_id))
            assert refused.value.status == 404
        await first.close_application("open")


async def test_events_of_an_open_application_say_why_there_are_none() -> None:
    async with two_ingresses() as (_, first, _second):
        await call_by_call(first, "open")
        with pytest.raises(ApiError, match="POST /v1/applications began"):
            await first._http_events("open", get_request("/"), DEFAULT_TENANT)
        await first.close_application("open")


async def test_an_open_application_has_the_shape_of_every_other() -> None:
    async with two_ingresses() as (system, first, second):
        await call_by_call(first, "open")
        status = await second.get_application("open")
        assert set(status) == set(ApplicationStatus.model_fields)
        assert (status["application_id"], status["calls"]) == ("open", None)
        await second.close_application("open")
        await eventually(lambda: "open" not in system.core.applications)
        record = await second.get_application("open")
        assert set(record) == set(status)
        assert (record["state"], record["calls_total"], record["calls_done"]) == ("finished", 1, 1)
        explained = await second.explain_application("open")
        assert explained["why"] == "it has finished"
        assert json.dumps(explained)


async def test_the_application_of_requests_without_one_can_be_seen_but_not_ended() -> None:
    async with two_ingresses() as (system, first, second):
        body = {"prompt": "p", "max_tokens": 60, "ignore_eos": True}
        waiting = asyncio.create_task(first.infer("/v1/completions", body))
        await eventually(lambda: ANONYMOUS_APPLICATION in system.core.applications)
        status = await second.get_application(ANONYMOUS_APPLICATION)
        assert (status["application_id"], status["application_type"]) == (ANONYMOUS_APPLICATION, "unknown")
        explained = await first.explain_application(ANONYMOUS_APPLICATION)
        assert explained["calls_waiting"] + explained["calls_running"] == 1
        for operation in (first.cancel_application, first.close_application):
            with pytest.raises(ApiError) as refused:
                await operation(ANONYMOUS_APPLICATION)
            assert (refused.value.status, refused.value.code) == (404, "unknown_application")
        assert (await waiting)["usage"]["completion_tokens"] == 60


@pytest.mark.parametrize("name", ["~anonymous.", "~anonymous.nothex", "~anonymous.0123456789ab0", "~other", "acme/x"])
async def test_other_names_of_the_service_are_nobodys(name: str) -> None:
    async with two_ingresses() as (_, first, _second):
        for operation in (first.get_application, first.explain_application):
            with pytest.raises(ApiError) as refused:
                await operation(name)
            assert refused.value.status == 404


async def test_the_list_has_what_came_call_by_call_while_it_runs_and_after() -> None:
    async with two_ingresses() as (system, first, second):
        await call_by_call(first, "open")
        for ingress in (first, second):
            (status,) = await ingress.list_applications()
            assert status["application_id"] == "open"
            assert set(status) == set(ApplicationStatus.model_fields) - {"calls"}
        assert await second.list_applications("acme") == []
        await second.close_application("open")
        await eventually(lambda: "open" not in system.core.applications)
        assert [one["state"] for one in await second.list_applications()] == ["finished"]
        await call_by_call(first, "open")
        assert [one["state"] for one in await first.list_applications()] == ["running"], "its namesake hides it"
        await first.close_application("open")


async def test_the_list_leaves_out_peers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ANSWER_S", 0.05)
    async with two_ingresses() as (system, first, second):
        await first.submit_application({"application_id": "mine", "calls": [CALL]})
        await second.submit_application({"application_id": "theirs", "calls": [CALL]})
        first._peers.known = [
            Remote(second, silent="local_applications"),
            Remote(second),
            Remote(second, broken="local_applications"),
        ]
        listed = await first.list_applications()
        assert [status["application_id"] for status in listed] == ["mine", "theirs"]
        assert all("calls" not in status for status in listed)
        await all_ended(*(ingress.runner for ingress in system.ingresses))


async def test_a_peer_that_holds_an_application_is_asked_for_it() -> None:
    async with two_ingresses() as (system, first, second):
        await first.submit_application({"application_id": "dag", "calls": [{**CALL, "max_tokens": 400}]})
        assert await first.holds_application("dag")
        assert not await second.holds_application("dag")
        assert (await second.get_application("dag"))["calls"][0]["name"] == "c"
        await second.cancel_application("dag")
        await all_ended(system.ingresses[0].runner)
        assert (await second.get_application("dag"))["state"] == "cancelled"


async def test_models_and_health_without_an_engine_are_no_engine_at_once() -> None:
    async with started() as system:
        ingress = ingress_of(system)
        assert (await ingress._http_models(get_request("/v1/models"))).status_code == 200
        assert (await ingress._http_health(get_request("/health"))).status_code == 200
        ingress._live_replicas = frozenset
        ingress._replicas.silent = True
        for route in (ingress._http_models, ingress._http_health):
            with pytest.raises(ApiError) as refused:
                await asyncio.wait_for(route(get_request("/")), 10.0)
            assert (refused.value.status, refused.value.code) == (503, "no_engine")


async def test_what_does_not_answer_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_errors, "ANSWER_S", 0.02)
    async with started() as system:
        ingress = ingress_of(system)
        ingress._replicas.silent = True
        with pytest.raises(TimeoutError):
            await ingress._http_models(get_request("/v1/models"))
        assert ingress._replicas.closed == 1
        ingress._scheduler.silent = True
        questions = (
            ingress._http_health(get_request("/health")),
            ingress._http_overview(),
            ingress._http_explain("x", DEFAULT_TENANT),
            ingress._http_get("x", DEFAULT_TENANT),
        )
        for question in questions:
            with pytest.raises(TimeoutError):
                await question


async def test_an_ingress_that_stops_gives_up_what_it_holds() -> None:
    async with started(engine={"max_sequences": 1, "base_s": 0.01}) as system:
        ingress = ingress_of(system)
        closed: list[bool] = []
        ingress._counter = ApproximateTokenCounter()
        ingress._counter.close = lambda: closed.append(True)
        await ingress.submit_application({"application_id": "dag", "calls": [{**CALL, "max_tokens": 500}]})
        await eventually(lambda: bool(system.core.leases))
        await Plain.__del__(ingress)
        assert closed == [True]
        assert not ingress._link.alive
        await eventually(lambda: not system.core.applications and not system.core.leases)
        tasks = system.ingresses[0].runner.get("dag").tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_ingress_whose_constructor_failed_can_be_deleted() -> None:
    await Plain.__del__(object.__new__(UnderTest))
