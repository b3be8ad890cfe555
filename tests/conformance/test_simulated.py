"""What only the simulated engine does: it keeps what it was asked, and says the same again."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from cluster.engine import CURRENT_LEASE
from cluster.engines import SimulatedSettings
from cluster.simulated_engine import SimulatedEngine, approximate_tokens, chat_text
from tests.conformance.driver import MODEL, Caller, eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("caller", ["simulated"], indirect=True, scope="session"),
]


async def test_unknown_fields_reach_the_engine_unchanged(caller: Caller) -> None:
    fields = {"temperature": 0.25, "top_k": 7, "guided": {"deep": [1, None, "é"]}, "max_tokens": 3}
    await caller.complete(caller.lease(), **fields)
    assert isinstance(caller.engine, SimulatedEngine)
    assert caller.engine.last_bodies[-1] == {"model": MODEL, "prompt": "once upon", **fields}


async def text(caller: Caller, **body: Any) -> str:
    return str((await caller.complete(caller.lease(), **body)).json()["choices"][0]["text"])


async def test_text_depends_on_prompt_seed_and_index_alone(caller: Caller) -> None:
    again = [await text(caller, seed=1), await text(caller, seed=1)]
    assert again[0] == again[1]
    assert await text(caller, seed=2) != again[0]
    assert await text(caller, seed=1, prompt="another") != again[0]
    answer = (await caller.complete(caller.lease(2), n=2, seed=1)).json()
    assert answer["choices"][0]["text"] == again[0] != answer["choices"][1]["text"]


async def test_an_answer_has_a_length_of_its_own(caller: Caller) -> None:
    answer = (await caller.chat(caller.lease())).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert 8 <= answer["usage"]["completion_tokens"] <= 64


async def test_min_tokens_lengthens_an_answer(caller: Caller) -> None:
    answer = (await caller.chat(caller.lease(), min_tokens=100, max_tokens=200)).json()
    assert answer["usage"]["completion_tokens"] == 100


async def test_a_stop_string_ends_an_answer(caller: Caller) -> None:
    whole = await text(caller, max_tokens=50, ignore_eos=True)
    stop = whole[40:46]
    lease = caller.lease()
    answer = (await caller.complete(lease, max_tokens=50, ignore_eos=True, stop=["absent", stop])).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == whole[: whole.index(stop)]
    assert lease.output_tokens[0] < 50


async def test_a_stream_says_what_a_whole_answer_says(caller: Caller) -> None:
    body = {"max_tokens": 30, "ignore_eos": True, "stop": "un"}
    whole = await text(caller, **body)
    async with caller.stream(caller.lease(), **body) as stream:
        await stream.task
    sent = b"".join(stream.messages.get_nowait().get("body", b"") for _ in range(stream.messages.qsize()))
    lines = [line.removeprefix("data: ") for line in sent.decode().splitlines() if line]
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == whole


async def test_time_passes_as_the_profile_says(caller: Caller) -> None:
    """Twenty steps of 20 ms: never less than they take at their scale, and less than at four times the scale."""

    async def passed_s(time_scale: float) -> float:
        settings = SimulatedSettings(time_scale=time_scale, base_s=0.02, per_sequence_s=0, per_prefill_token_s=0)
        engine = SimulatedEngine(settings)
        other = Caller(engine, await engine.start())
        begun_s = time.perf_counter()
        await other.complete(other.lease(), model="simulated", max_tokens=20, ignore_eos=True)
        taken_s = time.perf_counter() - begun_s
        await engine.stop()
        return taken_s

    slow_s = await passed_s(2.0)
    assert slow_s >= 20 * 0.02 * 2.0
    assert 20 * 0.02 * 0.5 <= min([await passed_s(0.5) for _ in range(3)]) < slow_s


async def test_stop_ends_what_is_running_with_a_503(caller: Caller) -> None:
    engine = SimulatedEngine(SimulatedSettings())
    other = Caller(engine, await engine.start())
    lease = other.lease()
    running = asyncio.create_task(other.complete(lease, model="simulated", max_tokens=2000, ignore_eos=True))
    await eventually(lambda: sum(lease.output_tokens) > 0)
    await engine.stop()
    response = await running
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert engine.refresh({}).kv_used_tokens == 0
    assert CURRENT_LEASE.get() is None


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("abcd", 1), ("abcde", 2), ("x" * 400, 100)])
async def test_approximate_tokens(caller: Caller, text: str, tokens: int) -> None:
    assert approximate_tokens(text) == tokens


async def test_chat_text_takes_the_text_of_every_kind_of_content(caller: Caller) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "it"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}, {"role": "assistant"}]
    assert chat_text(messages) == "system: be brief\nuser: see  it\nassistant: "
