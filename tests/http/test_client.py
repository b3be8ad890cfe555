"""The public client against a running service: open applications, whole ones, refusals, sub-agents, endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from serve_app.client import AsyncJustitia, Justitia, JustitiaError, JustitiaUnreachable
from tests.ray_service import MODEL, Service, completion, document_call, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

DIAMOND = {
    "application_type": "diamond",
    "calls": [
        document_call("a", 5, "one"),
        {"name": "b", "after": ["a"], "prompt": "More of {{a}}", "max_tokens": 5},
        {"name": "c", "after": ["a"], "prompt": "Less of {{a}}", "max_tokens": 5},
        {"name": "d", "after": ["b", "c"], "prompt": "{{b}} and {{c}}", "max_tokens": 5},
    ],
}


def client_of(service: Service, **settings: Any) -> AsyncJustitia:
    return AsyncJustitia(service.url, **settings)


async def test_an_open_application_from_its_beginning_to_its_end(service: Service) -> None:
    async with client_of(service) as client:
        async with client.application("chain", weight=3.0, deadline_s=60.0) as app:
            begun = await client.get(app.id)
            first = await app.chat("Name a colour.", stage="name", max_tokens=5, ignore_eos=True)
            both = await app.complete("Two:", stage="both", max_tokens=4, n=2, after=[first], ignore_eos=True)
        await service.until_idle()
        ended = await client.get(app.id)
        async with aclosing(client.events(app.id)) as events:
            names = [event["event"] async for event in events]
    assert (begun["state"], begun["application_type"], begun["weight"]) == ("queued", "chain", 3.0)
    assert (ended["state"], ended["calls_total"], ended["weight"]) == ("finished", 2, 3.0)
    assert (first.output_tokens, first.finish_reason, len(first.text.split())) == (5, "length", 5)
    assert (both.output_tokens, len(both.texts)) == (8, 2)
    assert [(call.name, call.stage, call.after) for call in app.calls] == [
        ("name-1", "name", ()),
        ("both-1", "both", ("name-1",)),
    ]
    assert 0 <= app.calls[0].started_s <= app.calls[0].finished_s <= app.calls[1].started_s
    assert names[0] == "tag_set"
    assert names.count("call_ended") == 2
    assert names[-2:] == ["application_ended", "application_audited"]


async def test_its_calls_through_openais_client_and_as_a_stream(service: Service) -> None:
    async with client_of(service) as client, client.application("mixed") as app:
        sdk = app.openai()
        async with sdk:
            answer = await sdk.chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=3
            )
        assert answer.headers["x-application-id"] == app.id
        pieces = [piece async for piece in app.stream("Hi", max_tokens=6, ignore_eos=True)]
        whole = await app.chat("Hi", max_tokens=6, ignore_eos=True)
    assert len(pieces) > 1
    assert "".join(pieces) == whole.text
    assert [call.output_tokens for call in app.calls] == [6, 6]


async def test_a_whole_application_and_its_events(service: Service) -> None:
    async with client_of(service) as client:
        submitted = await client.submit(DIAMOND)
        status = await submitted.wait()
        async with aclosing(submitted.events()) as stream:
            events = [event async for event in stream]
        async with aclosing(submitted.events(after=3)) as stream:
            later = [event async for event in stream]
        explained = await submitted.explain()
        listed = await client.list()
        overview = await client.scheduler()
    assert status["state"] == "finished"
    assert all(call["outputs"] for call in status["calls"])
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert later == events[3:]
    assert explained["why"] == "it has finished"
    assert submitted.id in [other["application_id"] for other in listed]
    assert overview["policy"] == "justitia"


@asynccontextmanager
async def breaking_lines(service: Service, after_bytes: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A way to the service on which every connection breaks after so many bytes of answers; how many did."""
    there, broken = httpx.URL(service.url), [0]

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(there.host, there.port)
        asking = asyncio.create_task(_copy(reader, inner_writer))
        if await _copy(inner_reader, writer, after_bytes):
            broken[0] += 1
        asking.cancel()
        for stream in (writer, inner_writer):
            stream.transport.abort()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", broken


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, most_bytes: int = 2**40) -> bool:
    """Until the source ends; True when it was cut short."""
    while part := await source.read(min(most_bytes, 65_536)):
        target.write(part)
        await target.drain()
        most_bytes -= len(part)
        if most_bytes <= 0:
            return True
    return False


async def test_events_survive_a_line_that_breaks(service: Service) -> None:
    async with client_of(service) as client, breaking_lines(service, after_bytes=900) as (url, broken):
        submitted = await client.submit(DIAMOND)
        await submitted.wait()
        async with AsyncJustitia(url) as shaky, aclosing(shaky.events(submitted.id)) as stream:
            received = [event async for event in stream]
        async with aclosing(submitted.events()) as stream:
            assert received == [event async for event in stream]
    assert broken[0] >= 2


async def test_leaving_with_an_exception_cancels(service: Service) -> None:
    async with client_of(service) as client:
        with suppress(ZeroDivisionError):
            async with client.application("failing") as app:
                await app.chat("Hi", max_tokens=2)
                raise ZeroDivisionError
        await service.until_idle()
        assert (await client.get(app.id))["state"] == "cancelled"


async def test_a_cancelled_program_leaves_nothing_behind(service: Service) -> None:
    async with client_of(service) as client:
        begun = asyncio.Event()
        names: list[str] = []

        async def program() -> None:
            async with client.application("cancelled") as app:
                names.append(app.id)
                begun.set()
                await asyncio.gather(*(app.chat(f"{i}", max_tokens=5_000, ignore_eos=True) for i in range(3)))

        task = asyncio.create_task(program())
        await begun.wait()
        await service.until(lambda seen: seen["calls_running"] == 3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await service.until_idle(within_s=5)
        assert (await client.get(names[0]))["state"] == "cancelled"


async def test_a_submission_that_is_cancelled_leaves_nothing_behind(service: Service) -> None:
    """At whatever moment: before the service has heard of it, while it answers, after it has."""
    calls = [document_call(f"c{number}", 5_000) for number in range(3)]
    async with client_of(service) as client:
        for wait_s in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064):
            submission = asyncio.create_task(client.submit({"application_type": "taken-back", "calls": calls}))
            await asyncio.sleep(wait_s)
            submission.cancel()
            with suppress(asyncio.CancelledError):
                await (await submission).cancel()
        await service.until_idle(within_s=5)
        states = [each["state"] for each in await client.list() if each["application_type"] == "taken-back"]
    assert set(states) <= {"cancelled"}, states


async def test_sub_agents_are_a_part_of_their_root(service: Service) -> None:
    async def agent(client: AsyncJustitia) -> str:
        async with client.application("helper") as inner:
            await inner.chat("Hi", stage="help", max_tokens=2)
        return inner.id

    async with client_of(service) as client:
        async with client.application("root") as app, app.child("asked") as child:
            await child.chat("Hi", max_tokens=2)
            helpers = await asyncio.gather(agent(client), agent(client))
            await app.chat("Still open", max_tokens=2)
        await service.until_idle()
        ended = await client.get(app.id)
    assert {child.id, *helpers} == {app.id}
    assert len(app.calls) == 4
    assert (ended["state"], ended["calls_total"], ended["application_type"]) == ("finished", 4, "root")


async def test_names_of_sub_agents_are_folded_by_the_service(service: Service) -> None:
    """By body and by header, over two generations, at whichever ingress, before and after the parent is named again."""
    async with service.async_http() as client:
        statement = {"open": True, "application_id": "fold", "application_type": "folded"}
        assert (await client.post("/v1/applications", json=statement)).status_code == 201
        part = {"open": True, "application_id": "fold.doc", "parent_application_id": "fold"}
        said = [(await client.post("/v1/applications", json=part)).json()["application_id"]]
        requests: list[tuple[dict[str, Any], dict[str, str]]] = [
            ({"application_id": "fold.a", "parent_application_id": "fold"}, {}),
            ({}, {"X-Application-Id": "fold.a.b", "X-Parent-Application-Id": "fold.a"}),
            ({"application_id": "fold.a.b"}, {}),
            ({"application_id": "fold.doc"}, {}),
            ({"parent_application_id": "fold"}, {}),
        ]
        for fields, headers in requests * 2:
            answer = await client.post("/v1/completions", json=completion(2, **fields), headers=headers)
            said.append(answer.headers["x-application-id"])
        closed = await client.post("/v1/applications/fold/close")
        await service.until_idle()
        ended = (await client.get("/v1/applications/fold")).json()
        nobody = await client.delete("/v1/applications/fold.a")
    assert set(said) == {"fold"}
    assert closed.status_code == 200
    assert ended["calls_total"] == 10
    assert nobody.status_code == 404


async def test_refusals_name_the_field(service: Service) -> None:
    async with client_of(service, max_retries=0) as client:
        with pytest.raises(JustitiaError) as refused:
            await client.submit({"calls": [{"name": "a", "prompt": " "}]})
        assert (refused.value.status, refused.value.param) == (400, "calls[0].prompt")
        with pytest.raises(JustitiaError) as refused:
            await client.get("nobody")
        assert (refused.value.status, refused.value.code) == (404, "unknown_application")
        async with client.application("twin", application_id="client-twin"):
            with pytest.raises(JustitiaError) as refused:
                async with client.application("twin", application_id="client-twin"):
                    pytest.fail("two of one name")
            assert (refused.value.status, refused.value.param) == (409, "application_id")
        with pytest.raises(JustitiaError) as refused:
            async with client.application("bad type"):
                pytest.fail("a type with a space")
        assert (refused.value.status, refused.value.param) == (400, "application_type")
    async with AsyncJustitia("http://127.0.0.1:9", max_retries=0) as nobody:
        with pytest.raises(JustitiaUnreachable):
            await nobody.scheduler()


async def test_an_open_application_that_waits_can_be_cancelled(service: Service) -> None:
    async with client_of(service) as client, occupied(service), client.application("waiting", weight=0.01) as app:
        call = asyncio.create_task(app.chat("Hi", max_tokens=2))
        await service.until(lambda seen: seen["calls_waiting"] >= 5)
        explained = await client.explain(app.id)
        await client.cancel(app.id)
        with pytest.raises(JustitiaError) as refused:
            await call
    assert explained["calls_waiting"] == 1
    assert refused.value.status == 499


async def test_an_idle_one_ends_like_any_other(service: Service) -> None:
    async with client_of(service) as client, client.application("idle") as app:
        await service.until_clean()
        assert (await client.get(app.id))["state"] == "finished"


async def test_the_same_without_async(service: Service) -> None:
    def program() -> tuple[Any, ...]:
        with Justitia(service.url) as client:
            with client.application("plain") as app:
                first = app.chat("Hi", stage="say", max_tokens=6, ignore_eos=True)
                streamed = "".join(app.stream("Hi", max_tokens=6, ignore_eos=True))
                with client.application("inner") as inner:
                    inner.complete("Hi", max_tokens=2)
                for _ in app.stream("Hi", max_tokens=5_000, ignore_eos=True):
                    break
                with app.openai() as sdk:
                    models = [model.id for model in sdk.models.list()]
            submitted = client.submit(DIAMOND)
            status = submitted.wait()
            events = [event["event"] for event in submitted.events()]
            with pytest.raises(JustitiaError):
                client.get("nobody")
            return first.text == streamed, inner.id == app.id, models, status["state"], events[-1]

    said = await asyncio.to_thread(program)
    assert said == (True, True, [MODEL], "finished", "application_audited")
    await service.until_idle()
