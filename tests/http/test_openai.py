"""OpenAI's API over real sockets: what a client of it sends and gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import openai
import pytest

from scheduler.types import CallKey
from tests.ray_service import MODEL, SLOTS, Service, completion, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

MESSAGES: Any = [{"role": "user", "content": "Name three uses of a lighthouse."}]


async def test_chat_has_n_choices_and_their_usage(service: Service) -> None:
    async with service.openai() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content for choice in answer.choices)
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10


async def test_a_streamed_chat_says_what_the_whole_one_says(service: Service) -> None:
    async with service.openai() as client:
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, seed=7)
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=2, seed=7, stream=True, stream_options={"include_usage": True}
        )
        texts = {0: "", 1: ""}
        usage, reasons = None, []
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
    assert [texts[0], texts[1]] == [choice.message.content for choice in whole.choices]
    assert len(reasons) == 2
    assert usage == whole.usage


async def test_a_completion_answers_every_prompt_and_choice(service: Service) -> None:
    async with service.openai() as client:
        whole = await client.completions.create(model=MODEL, prompt=["one", "two"], n=2, max_tokens=6)
        stream = await client.completions.create(model=MODEL, prompt=["one", "two"], n=2, max_tokens=6, stream=True)
        said = dict.fromkeys(range(4), "")
        async for chunk in stream:
            for choice in chunk.choices:
                said[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == list(said.values())


async def test_fields_of_the_engine_reach_it_and_unknown_ones_pass(service: Service) -> None:
    """`ignore_eos` and `stop` change the answer, so they arrived; `foo` is nobody's and harms nothing."""
    async with service.openai() as client:
        fields = {"ignore_eos": True, "repetition_penalty": 1.3, "foo": {"bar": [1]}}
        long = await client.completions.create(model=MODEL, prompt="long", max_tokens=90, extra_body=fields)
        first_word = long.choices[0].text.split()[0]
        stopped = await client.completions.create(
            model=MODEL, prompt="long", max_tokens=90, stop=[first_word], extra_body=fields
        )
        seeded = await client.completions.create(model=MODEL, prompt="long", max_tokens=90, seed=7, extra_body=fields)
    assert long.usage is not None
    assert long.usage.completion_tokens == 90
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == ""
    assert seeded.choices[0].text != long.choices[0].text


@pytest.mark.parametrize(
    ("headers", "fields", "application_id"),
    [
        ({"X-Application-Id": "by-header"}, {}, "by-header"),
        ({"X-Application-Id": "by-header"}, {"application_id": "by-body"}, "by-body"),
        ({}, {"metadata": {"application_id": "by-metadata"}}, "by-metadata"),
        ({}, {}, "~anonymous"),
    ],
)
async def test_headers_name_the_application_and_the_call(
    service: Service, headers: dict[str, str], fields: dict[str, Any], application_id: str
) -> None:
    async with service.async_http() as client:
        answers = [
            await client.post("/v1/completions", json=completion(2, **fields, stream=stream), headers=headers)
            for stream in (False, True)
        ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.headers["x-application-id"] for answer in answers} == {application_id}
    assert len({answer.headers["x-call-id"] for answer in answers}) == 2


async def test_session_ids_of_agents_name_an_application(service: Service) -> None:
    async with service.async_http() as client:
        answers = [
            await client.post("/v1/completions", json=completion(2), headers={name: "a b/c"})
            for name in ("session-id", "x-session-id", "x-claude-code-session-id")
        ]
    assert len({answer.headers["x-application-id"] for answer in answers}) == 1


async def test_models_and_health(service: Service) -> None:
    async with service.async_http() as client, service.openai() as sdk:
        assert [model.id async for model in sdk.models.list()] == [MODEL]
        assert (await client.get("/health")).status_code == 200


async def test_an_unknown_model_is_the_engines_404(service: Service) -> None:
    async with service.openai() as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="gpt-17", prompt="hello")


async def _stream_text(client: openai.AsyncOpenAI, application_id: str, number: int) -> tuple[str, str]:
    """The call id and the text of one streamed chat of 20 tokens."""
    async with client.chat.completions.with_streaming_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{application_id} {number}"}],
        max_tokens=20,
        stream=True,
        extra_body={"ignore_eos": True, "application_id": application_id},
    ) as response:
        call_id = response.headers["x-call-id"]
        text = ""
        async for chunk in await response.parse():
            text += chunk.choices[0].delta.content or ""
    return call_id, text


async def test_forty_streams_of_eight_applications(service: Service) -> None:
    """All are answered, each call runs once, never more at a time than there are slots, in the order of tags."""
    applications = {f"crowd-{index}" for index in range(8)}
    async with service.openai() as client:
        streams = [_stream_text(client, name, number) for number in range(5) for name in sorted(applications)]
        answers = await asyncio.gather(*streams)
    assert len({call_id for call_id, _ in answers}) == 40
    assert all(len(text.split()) == 20 for _, text in answers)

    await service.until_idle()
    recording = service.recording((await service.overview())["epoch"])
    grants = recording.grants_of(applications)
    assert {CallKey(grant.application_id, grant.call_id) for grant in grants} == {
        CallKey(name, call_id) for name, (call_id, _) in zip(sorted(applications) * 5, answers, strict=True)
    }
    finishes = Counter(recording.finishes())
    assert len(grants) == 40
    assert [finishes[grant.lease_id] for grant in grants] == [1] * 40
    assert len({grant.replica_id for grant in grants}) == 2
    onlooker = recording.watched()
    assert onlooker.wrong == []
    assert onlooker.contested >= 20


async def test_the_queue_is_in_the_scheduler_and_holds_the_rest(service: Service) -> None:
    """Never more in flight than there are slots; the rest waits where its order can still change."""
    async with service.async_http() as client, occupied(service, rounds=1):
        calls = [
            asyncio.create_task(client.post("/v1/completions", json=completion(5, application_id=f"queue-{index}")))
            for index in range(30)
        ]
        seen = await service.until(lambda seen: seen["calls_waiting"] == 30)
        assert seen["calls_running"] == 2
        most = 0
        while not all(call.done() for call in calls):
            seen = await service.overview()
            most = max(most, seen["calls_running"])
        assert most <= 2 * SLOTS
        assert all(call.result().status_code == 200 for call in calls)
