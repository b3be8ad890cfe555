"""The contract of `cluster.engine.Engine`, one suite for every engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from scheduler.types import EngineLimits
from tests.conformance.driver import (
    BLOCK_TOKENS,
    BLOCKS,
    MAX_MODEL_LEN,
    MAX_SEQUENCES,
    MODEL,
    Caller,
    eventually,
    watch,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_TOKENS = 900
LONG = {"max_tokens": LONG_TOKENS, "ignore_eos": True}


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_start_tells_what_the_engine_can_hold(caller: Caller) -> None:
    assert caller.limits == EngineLimits(
        usable_blocks=BLOCKS,
        block_tokens=BLOCK_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        max_sequences=MAX_SEQUENCES,
    )


async def test_models_and_health_need_no_lease(caller: Caller) -> None:
    models = await caller.http.get("/v1/models")
    assert [model["id"] for model in models.json()["data"]] == [MODEL]
    assert (await caller.http.get("/health")).status_code == 200
    await caller.engine.check_health()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("operation", ["complete", "chat"])
async def test_without_a_lease_nothing_is_generated(caller: Caller, operation: str, stream: bool) -> None:
    refused = await getattr(caller, operation)(None, stream=stream)
    assert refused.status_code == 403
    assert "lease" in refused.json()["error"]["message"]
    assert (await getattr(caller, operation)(caller.lease(), max_tokens=2)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_lease_for_fewer_sequences_is_refused(caller: Caller, stream: bool) -> None:
    assert (await caller.complete(caller.lease(2), n=3, stream=stream)).status_code == 403
    assert (await caller.complete(caller.lease(1), prompt=["a", "b"], stream=stream)).status_code == 403
    await caller.kv_is_free()


async def test_a_revoked_lease_is_refused(caller: Caller) -> None:
    lease = caller.lease()
    lease.revoked = True
    assert (await caller.complete(lease)).status_code == 403


async def test_a_lease_is_good_for_one_generation(caller: Caller) -> None:
    lease = caller.lease()
    assert (await caller.complete(lease, max_tokens=2)).status_code == 200
    assert (await caller.complete(lease, max_tokens=2)).status_code == 403


@pytest.mark.parametrize("operation", ["complete", "chat"])
@pytest.mark.parametrize("sequences", [1, 3])
async def test_the_lease_counts_what_usage_reports(caller: Caller, operation: str, sequences: int) -> None:
    lease = caller.lease(sequences)
    answer = (await getattr(caller, operation)(lease, n=sequences, max_tokens=20, ignore_eos=True)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(sequences))
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert lease.output_tokens == (20,) * sequences
    assert answer["usage"]["completion_tokens"] == 20 * sequences
    assert answer["usage"]["prompt_tokens"] == lease.prompt_tokens > 0
    await caller.kv_is_free()


@pytest.mark.parametrize("operation", ["complete", "chat"])
@pytest.mark.parametrize("sequences", [1, 3])
async def test_a_stream_counts_the_same(caller: Caller, operation: str, sequences: int) -> None:
    lease = caller.lease(sequences)
    response = await getattr(caller, operation)(
        lease,
        n=sequences,
        max_tokens=20,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(response.text)
    assert lease.output_tokens == (20,) * sequences
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 20 * sequences
    assert last["usage"]["prompt_tokens"] == lease.prompt_tokens > 0
    ends = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(choice["index"] for choice in ends) == list(range(sequences))


async def test_several_prompts_run_under_one_lease(caller: Caller) -> None:
    lease = caller.lease(2)
    answer = (await caller.complete(lease, prompt=["first", "the second prompt"], max_tokens=5)).json()
    assert len(answer["choices"]) == 2
    assert sum(use.prompt_tokens for use in lease.uses) == answer["usage"]["prompt_tokens"]
    assert sum(lease.output_tokens) == answer["usage"]["completion_tokens"]


async def test_token_ids_are_a_prompt(caller: Caller) -> None:
    lease = caller.lease()
    answer = (await caller.complete(lease, prompt=[10, 11, 12, 13, 14], max_tokens=3)).json()
    assert answer["usage"]["prompt_tokens"] == lease.prompt_tokens == 5


async def test_an_answer_ends_where_the_model_ends(caller: Caller) -> None:
    lease = caller.lease()
    body = {"prompt": [7] * (MAX_MODEL_LEN - 10), "max_tokens": 100, "ignore_eos": True}
    answer = (await caller.complete(lease, **body)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert lease.output_tokens == (10,)


@pytest.mark.parametrize("sequences", [1, 3])
async def test_refresh_follows_a_long_answer(caller: Caller, sequences: int) -> None:
    lease = caller.lease(sequences)
    before = caller.engine.refresh({})

    def look() -> tuple[int, int]:
        counters = caller.engine.refresh({lease.lease_id: lease})
        return min(lease.output_tokens, default=0), counters.kv_used_tokens

    response, seen = await watch(caller.complete(lease, n=sequences, **LONG), look)
    assert response.status_code == 200
    tokens = [made for made, _ in seen]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) > 3, "output tokens must grow while the answer is made"
    assert max(used for _, used in seen) >= sequences * max(tokens) * 0.5
    assert lease.output_tokens == (LONG_TOKENS,) * sequences
    await caller.kv_is_free()
    after = caller.engine.refresh({})
    assert after.iterations - before.iterations >= LONG_TOKENS
    assert after.preemptions == before.preemptions


async def test_preemptions_are_counted_and_lose_nothing(caller: Caller) -> None:
    """Four sequences that outgrow the pool together: the last in order gives way and is made again."""
    before = caller.engine.refresh({})
    tokens = caller.limits.pool_tokens // 4 + 2 * BLOCK_TOKENS
    lease = caller.lease(4)
    response = await caller.complete(lease, n=4, max_tokens=tokens, ignore_eos=True)
    assert response.json()["usage"]["completion_tokens"] == 4 * tokens
    assert lease.output_tokens == (tokens,) * 4
    assert caller.engine.refresh({}).preemptions > before.preemptions
    await caller.kv_is_free()


async def test_a_client_that_leaves_stops_its_generation(caller: Caller) -> None:
    lease = caller.lease()
    async with caller.stream(lease, **LONG) as stream:
        await stream.first_event()
        assert caller.engine.refresh({lease.lease_id: lease}).kv_used_tokens > 0
        await stream.leave()
    await caller.kv_is_free()
    made = lease.output_tokens
    assert 0 < made[0] < LONG_TOKENS
    _, seen = await watch(
        caller.complete(caller.lease(), max_tokens=64, ignore_eos=True),
        lambda: caller.engine.refresh({}).kv_used_tokens,
    )
    assert max(seen) <= 4 * BLOCK_TOKENS, "the memory of the call that was left is still in use"
    assert lease.output_tokens == made


async def test_a_client_that_leaves_before_an_answer_stops_its_generation(caller: Caller) -> None:
    lease = caller.lease()
    async with caller.stream(lease, stream=False, **LONG) as request:
        await eventually(lambda: caller.engine.refresh({lease.lease_id: lease}).kv_used_tokens > 0)
        await request.leave()
    await caller.kv_is_free()
    assert sum(lease.output_tokens) < LONG_TOKENS


async def fill(caller: Caller) -> asyncio.Task[httpx.Response]:
    """A long call that has the whole engine to itself, from the moment its last sequence runs."""
    lease = caller.lease(MAX_SEQUENCES)
    running = asyncio.create_task(caller.complete(lease, n=MAX_SEQUENCES, **LONG))

    def all_run() -> bool:
        caller.engine.refresh({lease.lease_id: lease})
        return min(lease.output_tokens, default=0) > 0

    await eventually(all_run, within_s=10)
    return running


async def test_waiting_calls_start_in_priority_order(caller: Caller) -> None:
    """Every call fills the engine, so calls run one after the other; the lowest number is first."""
    ended: list[int] = []

    async def call(priority: int) -> None:
        body = {"n": MAX_SEQUENCES, "max_tokens": 60, "ignore_eos": True}
        assert (await caller.complete(caller.lease(MAX_SEQUENCES, priority), **body)).status_code == 200
        ended.append(priority)

    running = await fill(caller)
    await asyncio.gather(running, *(call(priority) for priority in (30, -7, 2**40, 20)))
    assert ended == [-7, 20, 30, 2**40]


async def test_a_clients_own_priority_has_no_effect(caller: Caller) -> None:
    ended: list[int] = []

    async def call(lease_priority: int, body_priority: int) -> None:
        body = {"n": MAX_SEQUENCES, "max_tokens": 60, "ignore_eos": True, "priority": body_priority}
        await caller.complete(caller.lease(MAX_SEQUENCES, lease_priority), **body)
        ended.append(lease_priority)

    running = await fill(caller)
    await asyncio.gather(running, call(2, -100), call(1, 100))
    assert ended == [1, 2]


BAD_BODIES: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt": None},
    "an empty list of prompts": {"prompt": []},
    "a temperature that is no number or a limit that is none": {"temperature": "hot", "max_tokens": "many"},
    "a negative limit": {"max_tokens": -1},
    "a limit beyond the model": {"max_tokens": MAX_MODEL_LEN + 1},
    "a prompt beyond the model": {"prompt": "word " * 10 * MAX_MODEL_LEN},
    "a prompt that leaves no room": {"prompt": [7] * MAX_MODEL_LEN, "max_tokens": 1},
    "no sequences": {"n": 0},
    "too many sequences": {"n": 10**6},
    "another model": {"model": "somebody-else"},
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_mistake_is_a_4xx_in_openais_shape(caller: Caller, body: dict[str, Any], stream: bool) -> None:
    response = await caller.complete(caller.lease(), stream=stream, **body)
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert error["message"]
    assert error["type"]
    assert (await caller.complete(caller.lease(), max_tokens=1)).status_code == 200


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/v1/completions", 405)])
async def test_a_path_or_method_that_is_not_there_is_a_4xx(caller: Caller, path: str, status: int) -> None:
    response = await caller.http.get(path)
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"{{", b"[]", b"3", b"\xff\xfe"])
async def test_a_body_that_is_no_object_is_a_4xx(caller: Caller, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await caller.http.post("/v1/completions", content=content, headers=headers)
    assert 400 <= response.status_code < 500
    assert response.json()["error"]["message"]


async def test_many_calls_at_once_are_counted_apart(caller: Caller) -> None:
    async def call(tokens: int) -> None:
        lease = caller.lease()
        answer = (await caller.complete(lease, prompt="p" * tokens, max_tokens=tokens, ignore_eos=True)).json()
        assert lease.output_tokens == (tokens,) == (answer["usage"]["completion_tokens"],)
        assert lease.prompt_tokens == answer["usage"]["prompt_tokens"]

    await asyncio.gather(*(call(tokens) for tokens in range(1, 40)))
    await caller.kv_is_free()


async def test_one_request_id_for_two_calls_is_counted_apart(caller: Caller) -> None:
    leases = [caller.lease(), caller.lease()]
    caller.http.headers["x-request-id"] = "the-same"
    try:
        first = asyncio.create_task(caller.complete(leases[0], max_tokens=300, ignore_eos=True))
        second = asyncio.create_task(caller.complete(leases[1], max_tokens=100, ignore_eos=True))
        await watch(asyncio.gather(first, second), lambda: caller.engine.refresh({}))
    finally:
        del caller.http.headers["x-request-id"]
    assert [lease.output_tokens for lease in leases] == [(300,), (100,)]
