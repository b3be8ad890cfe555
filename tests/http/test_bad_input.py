"""What a client must not send: a 4xx in OpenAI's shape that names the field, nothing queued, nobody disturbed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.ray_service import MAX_BODY_BYTES, MAX_MODEL_LEN, MODEL, Service, completion, document_call

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

APPLICATIONS, CHAT, COMPLETIONS = "/v1/applications", "/v1/chat/completions", "/v1/completions"
TOO_LONG = "x" * 4 * (MAX_MODEL_LEN + 500)


def calls(*documents: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"calls": list(documents), **fields}


def call(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"name": name, "prompt": "Go on", "max_tokens": 2, **fields}


def chain_with_a_back_edge(length: int) -> dict[str, Any]:
    links = [call(f"c{index}", after=[f"c{(index or length) - 1}"]) for index in range(length)]
    return calls(*links)


BAD: dict[str, tuple[str, Any, str | None]] = {
    # what is wrong: path, body, the field that the answer names
    "a cycle": (APPLICATIONS, calls(call("a", after=["b"]), call("b", after=["a"])), "calls[0].after"),
    "a long cycle": (APPLICATIONS, chain_with_a_back_edge(5000), "calls[0].after"),
    "a call after itself": (APPLICATIONS, calls(call("a", after=["a"])), "calls[0].after[0]"),
    "a call after nobody": (APPLICATIONS, calls(call("a"), call("b", after=["z"])), "calls[1].after[0]"),
    "a reference to nobody": (APPLICATIONS, calls(call("a", prompt="{{z}}")), "calls[0].prompt"),
    "a reference that does not wait": (APPLICATIONS, calls(call("a"), call("b", prompt="{{a}}")), "calls[1].prompt"),
    "a name twice": (APPLICATIONS, calls(call("a"), call("a")), "calls[1].name"),
    "no calls": (APPLICATIONS, {"calls": []}, "calls"),
    "an open document with calls": (APPLICATIONS, {"open": True, "calls": [call()]}, "calls"),
    "a whole part": (APPLICATIONS, calls(call(), parent_application_id="p"), "parent_application_id"),
    "an empty prompt among five": (
        APPLICATIONS,
        calls(*(call(f"c{i}", prompt=" " if i == 3 else "x") for i in range(5))),
        "calls[3].prompt",
    ),
    "no prompt at all": (APPLICATIONS, calls({"name": "a"}), "calls[0].prompt"),
    "empty messages": (APPLICATIONS, calls({"name": "a", "messages": []}), "calls[0].messages"),
    "weight NaN": (APPLICATIONS, calls(call(), weight=float("nan")), "weight"),
    "weight 1e309": (APPLICATIONS, b'{"weight": 1e309, "calls": [{"name": "a", "prompt": "x"}]}', "weight"),
    "weight true": (APPLICATIONS, calls(call(), weight=True), "weight"),
    "weight 0": (APPLICATIONS, calls(call(), weight=0), "weight"),
    "max_tokens -5 in a document": (APPLICATIONS, calls(call(max_tokens=-5)), "calls[0].max_tokens"),
    "n 1000000000 in a document": (APPLICATIONS, calls(call(n=10**9)), "calls[0].n"),
    "min_tokens 2**63 in a document": (APPLICATIONS, calls(call(min_tokens=2**63)), "calls[0].min_tokens"),
    "an unknown number 1e309": (APPLICATIONS, calls(call(foo={"bar": [float("inf")]})), "calls[0].foo.bar[0]"),
    "a stream in a document": (APPLICATIONS, calls(call(stream=True)), "calls[0].stream"),
    "a field that no document has": (APPLICATIONS, calls(call(), priority=1), "priority"),
    "too long a prompt in a document": (APPLICATIONS, calls(call("a"), call("b", prompt=TOO_LONG)), "calls[1].prompt"),
    "ids: empty": (APPLICATIONS, calls(call(), application_id=""), "application_id"),
    "ids: a path": (APPLICATIONS, calls(call(), application_id="../x"), "application_id"),
    "ids: a megabyte": (APPLICATIONS, calls(call(), application_id="x" * 10**6), "application_id"),
    "ids: a number": (APPLICATIONS, calls(call(), application_id=7), "application_id"),
    "ids: an odd one in a call": (COMPLETIONS, completion(2, application_id="../x"), "application_id"),
    "an empty text": (COMPLETIONS, completion(2, ""), "prompt"),
    "a blank text": (COMPLETIONS, completion(2, "   "), "prompt"),
    "an empty list": (COMPLETIONS, {"prompt": []}, "prompt"),
    "no text": (COMPLETIONS, {"prompt": None}, "prompt"),
    "an empty text among five": (COMPLETIONS, {"prompt": ["a", "b", "c", "", "e"]}, "prompt[3]"),
    "token ids below 0": (COMPLETIONS, {"prompt": [1, -2]}, "prompt"),
    "half a surrogate pair": (COMPLETIONS, b'{"prompt": "a\\ud800"}', "prompt"),
    "no messages": (CHAT, {"messages": []}, "messages"),
    "messages without text": (CHAT, {"messages": [{"role": "user", "content": " "}]}, "messages"),
    "messages null": (CHAT, {"messages": None}, "messages"),
    "a message without role": (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
    "too long a prompt": (COMPLETIONS, completion(2, TOO_LONG), "prompt"),
    "too long a chat": (CHAT, {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages"),
    "max_tokens 2**63": (COMPLETIONS, completion(2**63), "max_tokens"),
    "max_tokens -5": (COMPLETIONS, completion(-5), "max_tokens"),
    "max_tokens 0": (COMPLETIONS, completion(0), "max_tokens"),
    "max_tokens 1.5": (COMPLETIONS, {"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
    "max_tokens true": (COMPLETIONS, {"prompt": "x", "max_tokens": True}, "max_tokens"),
    "max_tokens beyond the model": (COMPLETIONS, completion(MAX_MODEL_LEN + 1), "max_tokens"),
    "max_tokens beyond the model in a document": (
        APPLICATIONS,
        calls(call(), call("b", max_tokens=MAX_MODEL_LEN + 1)),
        "calls[1].max_tokens",
    ),
    "seed -1e30": (COMPLETIONS, completion(2, seed=-1e30), "seed"),
    "n 1000000000": (COMPLETIONS, completion(2, n=10**9), "n"),
    "n 128 of 200 prompts": (COMPLETIONS, {"prompt": ["x"] * 200, "n": 128}, "prompt"),
    "temperature NaN": (COMPLETIONS, completion(2, temperature=float("nan")), "temperature"),
    "top_p 1e309": (COMPLETIONS, b'{"prompt": "x", "top_p": 1e309}', "top_p"),
    "an unknown number 10**400": (COMPLETIONS, completion(2, foo=[10**400]), "foo[0]"),
    "beam search": (COMPLETIONS, completion(2, use_beam_search=True), "use_beam_search"),
    "stream 1": (COMPLETIONS, completion(2, stream=1), "stream"),
    "no JSON": (COMPLETIONS, b"{", None),
    "a list": (CHAT, b"[]", None),
    "no body": (APPLICATIONS, b"", None),
    "no UTF-8": (CHAT, b'{"a": "\xff\xfe"}', None),
    "nested too deeply": (CHAT, b"[" * 100_000, None),
    "a number of 10,000 digits": (CHAT, b'{"seed": ' + b"9" * 10_000 + b"}", None),
}


def as_bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def assert_refused(answer: httpx.Response, what: str, param: str | None) -> None:
    assert 400 <= answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[:300]}"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, what
    assert error["message"], what
    assert len(error["message"]) <= 2_000, what
    assert error["param"] == param, f"{what}: {error}"


async def test_bad_input_is_refused_and_disturbs_nobody(service: Service) -> None:
    """While another client's stream goes on, and the reference knows nothing of it."""
    async with service.async_http() as client, service.openai() as sdk:
        bystander = asyncio.create_task(_tokens_of_a_stream(sdk, 600))
        await service.until(lambda seen: seen["calls_running"] == 1)
        for what, (path, body, param) in BAD.items():
            answer = await client.post(path, content=as_bytes(body), headers={"content-type": "application/json"})
            assert_refused(answer, what, param)
        seen = await service.overview()
        assert seen["calls_waiting"] == 0
        assert seen["calls_running"] <= 1
        assert seen["applications"] <= 2  # the bystander's, and the one that was told of too long an answer
        assert await bystander == 600
        listed = (await client.get(APPLICATIONS)).json()["data"]
    active = [one["application_id"] for one in listed if one["state"] in ("queued", "running")]
    assert [one for one in active if not one.startswith("~anonymous")] == [], "but for the bystander's"
    after = await service.until_clean()
    assert after["active_weight"] == 0


async def _tokens_of_a_stream(client: openai.AsyncOpenAI, tokens: int) -> int:
    stream = await client.completions.create(
        model=MODEL, prompt="Go on", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    return len([chunk async for chunk in stream if chunk.choices[0].text])


async def test_a_prompt_that_cannot_fit_blocks_nobody(service: Service) -> None:
    """Refused at submit with the limit, and those behind it run."""
    async with service.async_http() as client:
        bodies = [completion(2, TOO_LONG, application_id="giant"), *(completion(5, "x" * 200) for _ in range(2))]
        answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))
    assert [answer.status_code for answer in answers] == [400, 200, 200]
    error = answers[0].json()["error"]
    assert error["code"] == "cannot_fit"
    assert str(MAX_MODEL_LEN - 1) in error["message"]


async def test_an_answer_is_clipped_to_the_room_its_prompt_leaves(service: Service) -> None:
    prompt = "x" * 4 * (MAX_MODEL_LEN - 10)
    async with service.async_http() as client:
        answer = await client.post(COMPLETIONS, json=completion(500, prompt))
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 10


async def test_a_body_too_large_is_refused(service: Service) -> None:
    body = b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'
    async with service.async_http() as client:
        for path in (COMPLETIONS, APPLICATIONS):
            answer = await client.post(path, content=body)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v2/completions", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/applications", 405),
        ("DELETE", "/v1/scheduler", 405),
        ("GET", "/v1/applications/x/events", 404),
        ("POST", "/v1/applications/x/close", 404),
    ],
)
async def test_unknown_paths_and_methods(service: Service, method: str, path: str, status: int) -> None:
    async with service.async_http() as client:
        answer = await client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_long_chain_is_no_problem(service: Service) -> None:
    """5,000 calls in a row are accepted, and gone when they are cancelled."""
    links = [document_call(f"c{i}", 2, after=[f"c{i - 1}"] if i else []) for i in range(5_000)]
    async with service.async_http() as client:
        accepted = await client.post(APPLICATIONS, json=calls(*links))
        assert accepted.status_code == 201
        await client.delete(f"/v1/applications/{accepted.json()['application_id']}")
        await service.until_clean()
