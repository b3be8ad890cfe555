"""Whole applications over HTTP: submitted, followed, explained, cancelled, from whichever ingress answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.ray_service import LAST_IN_ORDER, Service, completion, document_call, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

MAP_REDUCE: dict[str, Any] = {
    "application_type": "map_reduce_summarization",
    "calls": [
        document_call("part1", 10, "Summarize one"),
        document_call("part2", 10, "Summarize two", n=2),
        {
            "name": "whole",
            "after": ["part1", "part2"],
            "messages": [{"role": "user", "content": "Join these:\n{{part1}}\n{{part2}}"}],
            "max_tokens": 12,
        },
    ],
}


async def submit(client: httpx.AsyncClient, document: dict[str, Any]) -> str:
    answer = await client.post("/v1/applications", json=document)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["application_id"])


async def events_of(client: httpx.AsyncClient, application_id: str, **headers: str) -> list[dict[str, Any]]:
    """All events of an application, to the end of the stream."""
    answer = await client.get(f"/v1/applications/{application_id}/events", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]


async def ended(client: httpx.AsyncClient, application_id: str) -> dict[str, Any]:
    """The status of an application once it has ended."""
    await events_of(client, application_id)
    answer = await client.get(f"/v1/applications/{application_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_dag_passes_outputs_on_and_ends_with_its_numbers(service: Service) -> None:
    async with service.async_http() as client:
        status = await ended(client, await submit(client, MAP_REDUCE))
    assert status["state"] == "finished"
    assert (status["calls_total"], status["calls_done"], status["error"]) == (3, 3, None)
    part1, part2, whole = status["calls"]
    assert [len(call["outputs"]) for call in (part1, part2, whole)] == [1, 2, 1]
    joined = len("user: Join these:\n\n") + sum(len(text) for text in part1["outputs"] + part2["outputs"])
    assert whole["prompt_tokens"] >= joined // 4  # the simulated tokenizer has a token each four characters
    assert (part1["output_tokens"], part2["output_tokens"]) == (10, 20)
    assert 0 < status["completion_s"] < 20
    assert status["lag_s"] == pytest.approx(status["completion_s"] - status["gps_completion_s"])
    assert status["true_cost"] > 0


async def test_an_application_is_found_through_every_ingress(service: Service) -> None:
    async with service.async_http() as client:
        application_id = await submit(client, MAP_REDUCE)
        await ended(client, application_id)
        path = f"/v1/applications/{application_id}"
        answers = [await client.get(path) for _ in range(16)]
        histories = [await events_of(client, application_id) for _ in range(4)]
        listings = [(await client.get("/v1/applications")).json()["data"] for _ in range(4)]
    assert all(answer.json() == answers[0].json() for answer in answers)
    assert all(history == histories[0] for history in histories)
    for listing in listings:
        assert [status["state"] for status in listing if status["application_id"] == application_id] == ["finished"]
    requests = {answer.headers["x-request-id"] for answer in answers}
    logs = service.logs("Ingress").values()
    assert sum(any(record.get("request_id") in requests for record in log) for log in logs) == 2


async def test_events_tell_the_story_and_resume(service: Service) -> None:
    async with service.async_http() as client:
        application_id = await submit(client, MAP_REDUCE)
        events = await events_of(client, application_id)
        rest = await events_of(client, application_id, **{"last-event-id": "4"})
        wrong = await client.get(f"/v1/applications/{application_id}/events", headers={"last-event-id": "x"})
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert rest == events[4:]
    names = Counter(event["event"] for event in events)
    assert names["call_granted"] == names["call_ended"] == 3
    assert events[0]["event"] == "tag_set"
    assert [event["event"] for event in events[-2:]] == ["application_ended", "application_audited"]
    granted = [event["call"] for event in events if event["event"] == "call_granted"]
    assert granted[-1] == "whole"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "Last-Event-ID")


async def test_explain_names_what_is_ahead_while_it_waits(service: Service) -> None:
    async with service.async_http() as client, occupied(service) as occupant:
        calls = [document_call(f"c{index}", 800, n=4) for index in range(20)]
        application_id = await submit(client, {"weight": LAST_IN_ORDER, "calls": calls})
        path = f"/v1/applications/{application_id}"
        await service.until(lambda seen: seen["calls_waiting"] == 20 + 4)  # and the occupant's
        waits = (await client.get(f"{path}/explain")).json()
        queued = (await client.get(path)).json()
        cancelled = await client.delete(path)
        left = await ended(client, application_id)
        gone = (await client.get(f"{path}/explain")).json()
    assert waits["state"] == queued["state"] == "queued"
    assert occupant in [other["application_id"] for other in waits["ahead"]]
    assert "come before it" in waits["why"]
    assert waits["finish_tag"] > waits["start_tag"] >= 0
    assert (waits["calls_waiting"], waits["calls_running"]) == (20, 0)
    assert cancelled.status_code == 200
    assert (left["state"], left["calls_done"]) == ("cancelled", 0)
    assert gone["state"] == "cancelled"


async def test_cancelling_frees_what_runs_at_once(service: Service) -> None:
    async with service.async_http() as client:
        calls = [document_call(f"c{index}", 2000) for index in range(20)]
        application_id = await submit(client, {"calls": calls})
        await service.until(lambda seen: seen["calls_running"] == 8)
        assert (await client.delete(f"/v1/applications/{application_id}")).status_code == 200
        await service.until_idle(within_s=5)
        status = await ended(client, application_id)
        again = await client.delete(f"/v1/applications/{application_id}")
    assert status["state"] == "cancelled"
    assert {call["state"] for call in status["calls"]} == {"cancelled"}
    assert all((call["output_tokens"] or 0) < 2000 for call in status["calls"])
    assert again.json()["state"] == "cancelled"


async def test_one_id_is_given_once_whichever_ingress_is_asked(service: Service) -> None:
    """Both ingresses are asked at the same moment; ten times, so that both orders happen."""
    async with service.async_http() as client:
        for attempt in range(5):
            document = {"application_id": f"twin-{attempt}", "calls": [document_call("c", 40)]}
            answers = await asyncio.gather(*(client.post("/v1/applications", json=document) for _ in range(6)))
            assert Counter(answer.status_code for answer in answers) == {201: 1, 409: 5}
            refused = next(answer for answer in answers if answer.status_code == 409)
            assert refused.json()["error"]["param"] == "application_id"
            assert refused.headers["x-should-retry"] == "false"
            first = await ended(client, f"twin-{attempt}")
            assert (first["state"], first["calls_done"]) == ("finished", 1)
            later = await client.post("/v1/applications", json=document)
            assert later.status_code == 409


async def test_an_open_application_is_closed_and_then_takes_no_more(service: Service) -> None:
    async with service.async_http() as client:
        name = "call-by-call"
        stream = asyncio.create_task(client.post("/v1/completions", json=completion(150, application_id=name)))
        await service.until(lambda seen: seen["calls_running"] == 1)
        status = (await client.get(f"/v1/applications/{name}")).json()
        closed = await client.post(f"/v1/applications/{name}/close")
        late = await _until_refused(client, name)
        assert (await stream).status_code == 200
        await service.until_idle()
        record = (await client.get(f"/v1/applications/{name}")).json()
    assert (status["application_id"], status["state"]) == (name, "running")
    assert closed.status_code == 200
    assert (late.status_code, late.json()["error"]["code"]) == (409, "application_closed")
    assert (record["state"], record["calls_total"]) == ("finished", 1)


async def _until_refused(client: httpx.AsyncClient, application_id: str) -> httpx.Response:
    """The closing is on its way to the scheduler while a call may come through the other ingress."""
    answers = [await client.post("/v1/completions", json=completion(1, application_id=application_id)) for _ in "123"]
    return answers[-1]


async def test_cancelling_an_open_application_ends_its_streams_with_an_error(service: Service) -> None:
    async with service.async_http() as client:
        body = completion(5_000, application_id="stopped", stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line async for line in answer.aiter_lines() if line)
            assert "error" not in json.loads((await anext(lines)).removeprefix("data: "))
            assert (await client.delete("/v1/applications/stopped")).status_code == 200
            *_, last = [line async for line in lines]
        await service.until_idle(within_s=5)
    error = json.loads(last.removeprefix("data: "))["error"]
    assert "stopped before its end" in error["message"]


async def test_an_idle_open_application_ends_by_itself(service: Service) -> None:
    async with service.async_http() as client:
        await client.post("/v1/completions", json=completion(2, application_id="short-visit"))
        await service.until_clean()
        record = (await client.get("/v1/applications/short-visit")).json()
        listed = (await client.get("/v1/applications")).json()["data"]
    assert record["state"] == "finished"
    assert [one["state"] for one in listed if one["application_id"] == "short-visit"] == ["finished"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("application_id", ["nobody", "..%2Fx", "%00", "%F0%9F%92%A5", "a%20b", "x" * 5000, "%2e%2e"])
async def test_an_unknown_id_is_a_404_however_odd(service: Service, method: str, application_id: str) -> None:
    async with service.async_http() as client:
        for path in (f"/v1/applications/{application_id}", f"/v1/applications/{application_id}/explain"):
            answer = await client.request(method, path)
            expected = 405 if path.endswith("explain") and method == "DELETE" else 404
            assert answer.status_code in (expected, 404), answer.text
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_failed_call_fails_its_application_and_says_which(service: Service) -> None:
    async with service.async_http() as client:
        bad = document_call("bad", 3, ignore_eos="perhaps")  # a field that only the engine understands
        calls = [document_call("good", 3), bad, document_call("later", 3, after=["bad"])]
        status = await ended(client, await submit(client, {"calls": calls}))
    assert status["state"] == "failed"
    assert "ignore_eos" in status["error"]
    assert next(call for call in status["calls"] if call["name"] == "later")["state"] == "cancelled"
