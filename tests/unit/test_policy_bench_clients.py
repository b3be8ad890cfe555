"""The clients of `justitia bench policies`, on a service that answers as the real one, or does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serve_app.policy_bench import replay as replay_module
from serve_app.policy_bench.replay import Outcome, replay
from tests.bench_traffic import RULE, application


class Service:
    """Answers as the service does, and can be made to fail."""

    def __init__(
        self, *, refuse: str = "", lengthen: str = "", hang: str = "", event: str = "", status: Any = None
    ) -> None:
        self.refuse, self.lengthen, self.hang, self.odd_event, self.odd_status = refuse, lengthen, hang, event, status
        self.documents: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.failing, self.hanging = 0, ""
        self.app = Starlette(
            routes=[
                Route("/v1/applications", self.submit, methods=["POST"]),
                Route("/v1/applications/{name}/events", self.events),
                Route("/v1/applications/{name}", self.status),
            ]
        )

    async def submit(self, request: Request) -> Response:
        document = await request.json()
        name = document["application_id"]
        if name == self.refuse:
            return JSONResponse({"error": {"message": "busy"}}, 429)
        self.documents[name] = document
        return JSONResponse({"application_id": name}, 201)

    async def events(self, request: Request) -> Response:
        name = request.path_params["name"]

        async def lines() -> AsyncIterator[str]:
            if name == self.hang:
                await asyncio.sleep(3600)
            if name == "b" and self.odd_event:
                yield f"data: {self.odd_event}\n\n"
            yield 'event: tag_set\ndata: {"event": "tag_set"}\n\n'
            yield 'event: application_ended\ndata: {"event": "application_ended"}\n\n'

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def status(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.asked.append(name)
        if name == self.hanging:
            await asyncio.sleep(3600)
        if name == "b" and self.failing:
            self.failing -= 1
            return JSONResponse({"error": {"message": "not now"}}, 503)
        if name == "b" and self.odd_status is not None:
            return JSONResponse(self.odd_status)
        document = self.documents[name]
        more = 1 if name == self.lengthen else 0
        calls = [
            {
                "name": asked["name"],
                "prompt_tokens": len(asked["prompt"]),
                "output_tokens": asked["min_tokens"] + 1 + more,
            }
            for asked in document["calls"]
        ]
        known = {"state": "finished", "gps_completion_s": 2.5, "bound_s": 3.5, "predicted_cost": 70.0}
        return JSONResponse({"application_id": name, "calls": calls, **known})


async def outcomes_of(service: Service, limit_s: float = 30.0) -> tuple[dict[str, Outcome], list[str]]:
    ended: list[str] = []
    traces = [application("a"), application("b", 0.05)]
    transport = httpx.ASGITransport(service.app)
    outcomes = await replay("http://service", traces, RULE, limit_s, ended.append, transport)
    return {one.application_id: one for one in outcomes}, ended


async def test_clients_send_at_their_moments_and_keep_what_the_service_says() -> None:
    outcomes, ended = await outcomes_of(Service())
    assert sorted(ended) == ["a", "b"]
    late = outcomes["b"]
    assert late.error is None
    assert late.sent_s is not None
    assert late.finish_s is not None
    assert 0.05 <= late.sent_s <= late.finish_s
    assert late.gps_finish_s == pytest.approx(late.sent_s + 2.5)
    assert late.bound_s == pytest.approx(late.sent_s + 3.5)
    assert late.predicted_cost == 70.0


@pytest.mark.parametrize(
    ("service", "error"),
    [
        (Service(refuse="b"), "refused (429): busy"),
        (Service(lengthen="b"), "call x has (40, 9) prompt and output tokens instead of (40, 8)"),
        (Service(event="<html>"), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (Service(event="[]"), "AttributeError: 'list' object has no attribute 'get'"),
        (Service(status={"state": "finished", "gps_completion_s": 1}), "its status cannot be read: KeyError('calls')"),
        (Service(status=5), "its status is unknown: TypeError"),
    ],
)
async def test_what_went_wrong_with_one_is_kept_and_stops_no_other(
    service: Service, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "AUDIT_WAIT_S", 1.0)
    outcomes, ended = await outcomes_of(service)
    assert outcomes["b"].error == error
    assert outcomes["a"].error is None
    assert outcomes["a"].finish_s is not None
    assert sorted(ended) == ["a", "b"]


async def test_a_status_that_cannot_be_had_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "POLL_S", 0.01)
    service = Service()
    service.failing = 2
    outcomes, _ = await outcomes_of(service)
    assert service.asked.count("b") == 3
    assert outcomes["b"].error is None
    assert outcomes["b"].gps_finish_s is not None


async def test_a_lost_answer_is_no_error_of_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(httpx.ASGITransport):
        lost = 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "GET" and request.url.path.endswith("/b") and not self.lost:
                self.lost += 1
                raise httpx.ReadError("gone", request=request)
            return await super().handle_async_request(request)

    monkeypatch.setattr(replay_module, "POLL_S", 0.01)
    transport = Losing(Service().app)
    (outcome,) = await replay("http://service", [application("b")], RULE, 30.0, lambda _: None, transport)
    assert (transport.lost, outcome.error) == (1, None)


async def test_a_status_that_hangs_holds_up_no_other_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "AUDIT_WAIT_S", 1.5)
    service = Service()
    service.hanging = "a"
    async with asyncio.timeout(20):
        outcomes, _ = await outcomes_of(service)
    assert outcomes["a"].error == "it is unknown"
    assert outcomes["a"].finish_s is None
    assert outcomes["b"].error is None
    assert outcomes["b"].gps_finish_s is not None


async def test_nothing_is_waited_for_longer_than_the_limit() -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(3600)
            raise AssertionError

    async with asyncio.timeout(20):
        (outcome,) = await replay("http://service", [application("a")], RULE, 0.3, lambda _: None, Silent())
    assert outcome.finish_s is None
    assert outcome.error == "it had not ended when the time was over"
