"""The whole service on real vLLM (the tiny random model): proxy, ingress, scheduler, lease, engine, and back.

Answers are random text; what is tested is that vLLM's own features work through the
stack, that order follows the tags, and that nothing is lost, run twice or left behind.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.vllm_service import MODEL, Service

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(600)]


async def test_forty_streams_of_eight_applications_are_all_answered_in_the_order_of_tags(service: Service) -> None:
    async with service.client() as client:

        async def ask(application: int, call: int) -> tuple[str, int]:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Application {application}, call {call}. " * (2 + application)}],
                max_tokens=12 + 4 * application,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"application_id": f"forty-{application}", "application_type": "test", "ignore_eos": True},
            )
            finish, tokens = "", 0
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].finish_reason:
                    finish = chunk.choices[0].finish_reason
                if chunk.usage:
                    tokens = chunk.usage.completion_tokens
            return finish, tokens

        asked = [(application, call) for application in range(8) for call in range(5)]
        answers = await asyncio.gather(*(ask(*one) for one in asked))
    for (application, _), (finish, tokens) in zip(asked, answers, strict=True):
        assert (finish, tokens) == ("length", 12 + 4 * application)
    service.wait_until_idle(5)
    recording = service.recording()
    granted = recording.grants_of({f"forty-{application}" for application in range(8)})
    assert len(granted) == len({(grant.application_id, grant.call_id) for grant in granted}) == 40
    finished = recording.finishes()
    assert [finished.count(grant.lease_id) for grant in granted] == [1] * 40
    onlooker = recording.watched()
    assert onlooker.contested > 0, "nothing ever waited: the test proves nothing"
    assert onlooker.wrong == []


async def test_tools_schema_n_logprobs_and_stop_strings_are_vllms_own(service: Service) -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Turin?"}]
    tool: Any = {
        "type": "function",
        "function": {
            "name": "weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
                "required": ["unit"],
                "additionalProperties": False,
            },
        },
    }
    schema: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"yes": {"type": "boolean"}},
                "required": ["yes"],
                "additionalProperties": False,
            },
        },
    }
    async with service.client() as client:
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        called = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=[tool], tool_choice=choice, max_tokens=600, seed=3
        )
        assert called.choices[0].message.tool_calls is not None
        function = called.choices[0].message.tool_calls[0].function  # type: ignore[union-attr]
        assert function.name == "weather"
        assert json.loads(function.arguments)["unit"] in ("celsius", "kelvin")

        shaped = await client.chat.completions.create(
            model=MODEL, messages=messages, response_format=schema, max_tokens=600, seed=3
        )
        assert isinstance(json.loads(shaped.choices[0].message.content or "")["yes"], bool)

        several = await client.chat.completions.create(
            model=MODEL, messages=messages, n=3, max_tokens=5, logprobs=True, top_logprobs=2, seed=1
        )
        assert [one.index for one in several.choices] == [0, 1, 2]
        assert several.choices[0].logprobs is not None
        assert all(len(token.top_logprobs) == 2 for token in several.choices[0].logprobs.content or [])

        whole = await client.completions.create(model=MODEL, prompt="abc", max_tokens=40, temperature=0, seed=2)
        text = whole.choices[0].text
        stop = next(character for character in text[3:] if character.isascii() and character.isprintable())
        cut = await client.completions.create(
            model=MODEL, prompt="abc", max_tokens=40, temperature=0, seed=2, stop=[stop]
        )
        assert cut.choices[0].finish_reason == "stop"
        assert cut.choices[0].text == text[: text.index(stop)]


async def test_an_application_runs_with_its_outputs_put_in(service: Service) -> None:
    document = {
        "application_type": "map_reduce",
        "calls": [
            {"name": "one", "prompt": "first", "max_tokens": 6, "ignore_eos": True},
            {"name": "two", "prompt": "second", "max_tokens": 6, "ignore_eos": True},
            {
                "name": "both",
                "after": ["one", "two"],
                "messages": [{"role": "user", "content": "{{one}}|{{two}}"}],
                "max_tokens": 8,
                "ignore_eos": True,
            },
        ],
    }
    async with httpx.AsyncClient(base_url=service.url, timeout=180) as client:
        submitted = await client.post("/v1/applications", json=document)
        assert submitted.status_code == 201, submitted.text
        application_id = submitted.json()["application_id"]
        names = []
        async with client.stream("GET", f"/v1/applications/{application_id}/events") as events:
            async for line in events.aiter_lines():
                if line.startswith("event: "):
                    names.append(line.removeprefix("event: "))
        status = (await client.get(f"/v1/applications/{application_id}")).json()
    assert names[0] == "tag_set"
    assert names[-1] == "application_audited"
    assert status["state"] == "finished"
    assert [call["output_tokens"] for call in status["calls"]] == [6, 6, 8]
    assert status["lag_s"] == pytest.approx(status["completion_s"] - status["gps_completion_s"])
    assert status["completion_s"] <= status["bound_s"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place_at_once(service: Service, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    async with httpx.AsyncClient(base_url=service.url, timeout=180) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        while service.overview()["calls_running"] == 0:  # noqa: ASYNC110 - it is another process's state
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    service.wait_until_idle(6)
    assert service.overview()["kv_held_tokens"] == 0


async def test_what_can_never_fit_is_refused_and_others_run(service: Service) -> None:
    async with service.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=MODEL, prompt="x" * 3000, max_tokens=5)
        assert refused.value.code == "cannot_fit"
        assert refused.value.param == "prompt"
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="another", prompt="x", max_tokens=5)
        answer = await client.completions.create(model=MODEL, prompt="x", max_tokens=5)
    assert answer.usage is not None
    service.wait_until_idle(5)
