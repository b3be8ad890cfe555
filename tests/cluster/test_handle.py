"""The Ray handle: what HTTP offers, for Ray programs; from this process and from inside an actor."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
import ray
from ray import serve

from serve_app.errors import ApiError
from serve_app.peers import Peers
from tests.ray_service import LAST_IN_ORDER, Service, completion, document_call, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

DOCUMENT = {
    "calls": [document_call("a", 5, "one"), {"name": "b", "after": ["a"], "prompt": "More of {{a}}", "max_tokens": 5}]
}
COMPLETIONS = "/v1/completions"


@pytest.fixture
def handle(service: Service) -> Any:
    return serve.get_app_handle("justitia")


async def events_of(handle: Any, application_id: str, after: int = 0) -> list[dict[str, Any]]:
    stream = handle.options(stream=True).application_events.remote(application_id, after)
    return [event async for event in stream]


async def test_an_application_from_its_submission_to_its_end(handle: Any) -> None:
    status = await handle.submit_application.remote(DOCUMENT)
    events = await events_of(handle, status["application_id"])
    ended = await handle.get_application.remote(status["application_id"])
    explained = await handle.explain_application.remote(status["application_id"])
    listed = await handle.list_applications.remote()
    assert [event["event"] for event in events][-2:] == ["application_ended", "application_audited"]
    assert await events_of(handle, status["application_id"], after=3) == events[3:]
    assert (ended["state"], ended["calls_done"]) == ("finished", 2)
    assert explained["why"] == "it has finished"
    assert status["application_id"] in [other["application_id"] for other in listed]


async def test_an_inference_whole_and_as_a_stream(handle: Any) -> None:
    whole = await handle.infer.remote(COMPLETIONS, completion(6))
    stream = handle.options(stream=True).infer_stream.remote(COMPLETIONS, completion(6))
    lines = b"".join([part async for part in stream]).decode().split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "data: [DONE]" in lines
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 6


async def test_cancelling_what_waits(service: Service, handle: Any) -> None:
    async with occupied(service):
        document = {"weight": LAST_IN_ORDER, "calls": [document_call(f"c{i}", 800) for i in range(10)]}
        status = await handle.submit_application.remote(document)
        await service.until(lambda seen: seen["calls_waiting"] == 10 + 4)  # and the occupant's
        waits = await handle.explain_application.remote(status["application_id"])
        await handle.cancel_application.remote(status["application_id"])
        await events_of(handle, status["application_id"])
        ended = await handle.get_application.remote(status["application_id"])
    assert (waits["state"], waits["calls_waiting"]) == ("queued", 10)
    assert ended["state"] == "cancelled"


async def test_a_stream_that_is_cancelled_frees_its_slot(service: Service, handle: Any) -> None:
    stream = handle.options(stream=True).infer_stream.remote(COMPLETIONS, completion(5_000))
    await anext(stream)
    await service.until(lambda seen: seen["calls_running"] == 1)
    stream.cancel()
    await service.until_idle(within_s=5)


async def test_an_answer_that_is_cancelled_frees_its_slot(service: Service, handle: Any) -> None:
    answer = handle.infer.remote(COMPLETIONS, completion(5_000))
    waiting = asyncio.ensure_future(_result(answer))
    await service.until(lambda seen: seen["calls_running"] == 1)
    answer.cancel()
    await service.until_idle(within_s=5)
    with suppress(Exception, asyncio.CancelledError):
        await waiting


async def _result(answer: Any) -> Any:
    return await answer


@pytest.mark.parametrize(
    ("operation", "arguments", "status", "param"),
    [
        ("submit_application", ({"calls": [{"name": "a", "prompt": " "}]},), 400, "calls[0].prompt"),
        ("get_application", ("nobody",), 404, None),
        ("explain_application", ("nobody",), 404, None),
        ("cancel_application", ("nobody",), 404, None),
        ("close_application", ("nobody",), 404, None),
        ("infer", (COMPLETIONS, completion(-1)), 400, "max_tokens"),
        ("infer", ("/v1/nothing", {}), 404, None),
        ("infer", (COMPLETIONS, completion(2, "x" * 100_000)), 400, "prompt"),
        ("infer", (COMPLETIONS, {**completion(2), "model": "gpt-17"}), 404, None),
    ],
)
async def test_a_refusal_crosses_processes_whole(
    handle: Any, operation: str, arguments: tuple[Any, ...], status: int, param: str | None
) -> None:
    with pytest.raises(ApiError) as raised:
        await getattr(handle, operation).remote(*arguments)
    assert (raised.value.status, raised.value.param) == (status, param)
    assert raised.value.body()["error"]["message"]


async def test_a_refused_stream_raises_too(handle: Any) -> None:
    with pytest.raises(ApiError) as raised:
        await anext(handle.options(stream=True).infer_stream.remote(COMPLETIONS, completion(-1)))
    assert (raised.value.status, raised.value.param) == (400, "max_tokens")
    with pytest.raises(ApiError) as raised:
        await events_of(handle, "nobody")
    assert raised.value.status == 404


async def test_an_open_application_with_a_sub_agent(service: Service, handle: Any) -> None:
    begun = await handle.submit_application.remote({"open": True, "application_type": "by-handle", "weight": 2.0})
    name = begun["application_id"]
    known = await handle.get_application.remote(name)
    await handle.infer.remote(COMPLETIONS, completion(2, application_id=name, stage="first"))
    child = {"application_id": f"{name}.child", "parent_application_id": name}
    stream = handle.options(stream=True).infer_stream.remote(COMPLETIONS, completion(2, **child))
    parts = [part async for part in stream]
    await handle.infer.remote(COMPLETIONS, completion(2, application_id=f"{name}.child"))
    await handle.close_application.remote(name)
    events = await events_of(handle, name)
    ended = await handle.get_application.remote(name)
    assert (known["state"], known["application_type"], known["weight"]) == ("queued", "by-handle", 2.0)
    assert parts[-1].endswith(b"[DONE]\n\n")
    assert [event["event"] for event in events].count("call_ended") == 3
    assert (ended["state"], ended["calls_total"]) == ("finished", 3)


@ray.remote(num_cpus=0)
class Agent:
    """A Ray program that is a client of the service."""

    async def work(self) -> tuple[int, str, int]:
        handle = serve.get_app_handle("justitia")
        opened = await handle.submit_application.remote({"open": True})
        answer = await handle.infer.remote(COMPLETIONS, completion(4, application_id=opened["application_id"]))
        await handle.close_application.remote(opened["application_id"])
        application = await handle.submit_application.remote(DOCUMENT)
        events = handle.options(stream=True).application_events.remote(application["application_id"])
        last = [event["event"] async for event in events][-1]
        try:
            await handle.get_application.remote("nobody")
        except ApiError as error:
            return answer["usage"]["completion_tokens"], last, error.status
        return 0, "", 0


async def test_an_actor_can_use_it(service: Service) -> None:
    agent = Agent.remote()
    try:
        assert await asyncio.wait_for(agent.work.remote(), 60) == (4, "application_audited", 404)
    finally:
        ray.kill(agent)


@ray.remote(num_cpus=0)
class Newcomer:
    """A process that has asked no ingress anything yet, as every ingress is at first."""

    async def count_peers(self) -> int:
        return len(await Peers("Ingress", "justitia", "newcomer").all())


async def test_the_first_question_reaches_every_peer(service: Service) -> None:
    """What another ingress holds must not be a 404 only because the view of the ingresses is on its way."""
    newcomer = Newcomer.remote()
    try:
        assert await newcomer.count_peers.remote() == 2
    finally:
        ray.kill(newcomer)
