"""What only vLLM does: OpenAI's whole API through the official client, and the life of its child process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, PermissionDeniedError

from cluster.engine import CURRENT_LEASE, ActiveLease
from cluster.engines import create_engine
from tests.conformance.driver import MODEL, TEST_TIMEOUT_S, Caller, eventually, vllm_settings

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.vllm,
    pytest.mark.parametrize("caller", ["vllm"], indirect=True, scope="session"),
]

CITIES = ["Oslo", "Rome"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
SAY = [{"role": "user", "content": "say a word"}]


class LeasedTransport(httpx.ASGITransport):
    """Sends each request under the lease that the test holds."""

    lease: ActiveLease | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        token = CURRENT_LEASE.set(self.lease)
        try:
            return await super().handle_async_request(request)
        finally:
            CURRENT_LEASE.reset(token)


@pytest_asyncio.fixture(loop_scope="session")
async def transport(caller: Caller) -> LeasedTransport:
    transport = LeasedTransport(caller.engine.asgi)
    transport.lease = caller.lease()
    return transport


@pytest_asyncio.fixture(loop_scope="session")
async def client(transport: LeasedTransport) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(transport=transport, timeout=TEST_TIMEOUT_S)
    async with AsyncOpenAI(api_key="none", base_url="http://engine/v1", http_client=http, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_tools(client: AsyncOpenAI, tool_choice: Any) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=SAY,
        tools=[TOOL],
        tool_choice=tool_choice,
        max_tokens=600,
        seed=3,
        parallel_tool_calls=False,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in CITIES


async def test_tools_on_the_models_own_choice(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=SAY, tools=[TOOL], max_tokens=10)
    assert answer.choices[0].finish_reason in ("length", "stop", "tool_calls")


async def test_structured_output(client: AsyncOpenAI, transport: LeasedTransport) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=SAY,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}},
        max_tokens=600,
        seed=3,
    )
    assert json.loads(answer.choices[0].message.content)["city"] in CITIES
    assert transport.lease is not None
    assert transport.lease.output_tokens == (answer.usage.completion_tokens,)


async def test_a_schema_that_cannot_be_is_a_4xx(caller: Caller) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    response = await caller.chat(caller.lease(), response_format=schema)
    assert 400 <= response.status_code < 500
    assert (await caller.chat(caller.lease(), max_tokens=1)).status_code == 200


async def test_logprobs(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=SAY, logprobs=True, top_logprobs=3, max_tokens=5, extra_body={"ignore_eos": True}
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 5
    assert all(len(token.top_logprobs) >= 3 for token in tokens)


async def test_a_stop_string_ends_an_answer(client: AsyncOpenAI, caller: Caller, transport: Any) -> None:
    first = await client.completions.create(model=MODEL, prompt="go", max_tokens=40, temperature=0)
    stop = first.choices[0].text[5]
    transport.lease = caller.lease()
    second = await client.completions.create(model=MODEL, prompt="go", max_tokens=40, temperature=0, stop=stop)
    assert second.choices[0].finish_reason == "stop"
    assert first.choices[0].text.startswith(second.choices[0].text + stop)
    assert transport.lease.output_tokens == (second.usage.completion_tokens,)


async def test_n_answers_streamed(client: AsyncOpenAI, caller: Caller, transport: Any) -> None:
    transport.lease = caller.lease(3)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=SAY,
        n=3,
        stream=True,
        max_tokens=8,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 24 == sum(transport.lease.output_tokens)


async def test_a_refusal_is_what_the_client_expects(client: AsyncOpenAI, transport: LeasedTransport) -> None:
    transport.lease = None
    with pytest.raises(PermissionDeniedError, match="lease"):
        await client.chat.completions.create(model=MODEL, messages=SAY, stream=True)


async def test_beam_search_beyond_the_lease_is_refused(caller: Caller) -> None:
    response = await caller.complete(caller.lease(2), use_beam_search=True, n=2, max_tokens=8, temperature=0)
    assert response.status_code == 403
    await caller.kv_is_free()


async def test_a_repeated_prompt_is_told_as_cached(caller: Caller) -> None:
    prompt = "The same long words at the start of every question, more than one block of tokens. " * 2
    for _ in range(2):
        lease = caller.lease()
        await caller.complete(lease, prompt=prompt, max_tokens=2)
    assert 64 <= lease.uses[0].cached_tokens < len(prompt)


async def test_a_dead_engine_core_is_told_and_answered_with_503(caller: Caller) -> None:
    engine = create_engine(vllm_settings())
    others = set(multiprocessing.active_children())
    other = Caller(engine, await engine.start())
    (core,) = set(multiprocessing.active_children()) - others
    lease = other.lease()
    running = asyncio.create_task(other.complete(lease, max_tokens=2000, ignore_eos=True))
    await eventually(lambda: sum(engine.refresh({}) and lease.output_tokens) > 0, within_s=TEST_TIMEOUT_S)
    core.kill()
    assert (await running).status_code == 503
    assert (await other.complete(other.lease())).status_code == 503
    with pytest.raises(Exception, match="EngineCore"):
        await engine.check_health()
    await engine.stop()


def children(pid: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            yield int(stat.parent.name)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


STARTED_AND_LEFT = """
import asyncio, sys, time
from cluster.engines import VllmSettings, create_engine

async def main():
    await create_engine(VllmSettings.model_validate_json(sys.argv[1])).start()
    print("started", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_the_engine_core_ends_with_a_killed_parent(caller: Caller, tmp_path: Path) -> None:
    script = tmp_path / "start_and_stay.py"
    script.write_text(STARTED_AND_LEFT)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
        [sys.executable, str(script), vllm_settings().model_dump_json()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert parent.stdout is not None
    try:
        assert await asyncio.to_thread(parent.stdout.readline) == b"started\n"
        cores = list(children(parent.pid))
        assert cores
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    async with asyncio.timeout(10):
        while any(alive(core) for core in cores):  # noqa: ASYNC110 - not our child, so nothing tells its end
            await asyncio.sleep(0.2)
