"""The engines under test, and a caller that holds a lease for each call."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from cluster.engine import CURRENT_LEASE, ActiveLease, Engine
from cluster.engines import SimulatedSettings, VllmSettings, create_engine
from cluster.models import TINY, prepare_model
from scheduler.types import EngineLimits

MODEL = "tiny"
BLOCKS, BLOCK_TOKENS, MAX_MODEL_LEN, MAX_SEQUENCES = 127, 32, 2048, 4
TEST_TIMEOUT_S = 60


def simulated_settings() -> SimulatedSettings:
    return SimulatedSettings(
        served_model_name=MODEL,
        time_scale=0,
        block_tokens=BLOCK_TOKENS,
        usable_blocks=BLOCKS,
        max_sequences=MAX_SEQUENCES,
        max_model_len=MAX_MODEL_LEN,
    )


def vllm_settings() -> VllmSettings:
    return VllmSettings(
        model=str(prepare_model(TINY)),
        served_model_name=MODEL,
        dtype="float32",
        block_size=BLOCK_TOKENS,
        num_gpu_blocks=BLOCKS + 1,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_SEQUENCES,
        enforce_eager=True,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
    )


SETTINGS: dict[str, Callable[[], SimulatedSettings | VllmSettings]] = {
    "simulated": simulated_settings,
    "vllm": vllm_settings,
}


@dataclass
class Stream:
    """One request over bare ASGI whose client can leave."""

    task: asyncio.Task[None]
    messages: asyncio.Queue[dict[str, Any]]
    left: asyncio.Event

    async def first_event(self) -> str:
        """The first server-sent event that carries text."""
        while True:
            message = await asyncio.wait_for(self.messages.get(), TEST_TIMEOUT_S)
            if b'"text":' in message.get("body", b""):
                return str(message["body"].decode())

    async def leave(self) -> None:
        self.left.set()
        await asyncio.wait_for(asyncio.wait([self.task]), TEST_TIMEOUT_S)


@dataclass
class Caller:
    """Calls one engine, each call under a lease of its own."""

    engine: Engine
    limits: EngineLimits
    leases: int = 0
    http: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.engine.asgi), base_url="http://engine", timeout=TEST_TIMEOUT_S
        )

    def lease(self, sequences: int = 1, priority: int = 0) -> ActiveLease:
        self.leases += 1
        return ActiveLease(f"lease-{self.leases}", "application", f"call-{self.leases}", priority, sequences)

    async def post(self, path: str, body: Any, lease: ActiveLease | None) -> httpx.Response:
        token = CURRENT_LEASE.set(lease)
        try:
            return await self.http.post(path, json=body)
        finally:
            CURRENT_LEASE.reset(token)

    async def complete(self, lease: ActiveLease | None, **body: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": "once upon", **body}, lease)

    async def chat(self, lease: ActiveLease | None, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "say a word"}]
        return await self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **body}, lease)

    @asynccontextmanager
    async def stream(self, lease: ActiveLease, **body: Any) -> AsyncIterator[Stream]:
        """A streaming completion over bare ASGI, as a replica drives it."""
        content = json.dumps({"model": MODEL, "prompt": "once upon", "stream": True, **body}).encode()
        left = asyncio.Event()
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        requests = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if requests:
                return requests.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.put_nowait(message)

        token = CURRENT_LEASE.set(lease)
        task = asyncio.create_task(self.engine.asgi(_scope("/v1/completions"), receive, send))
        CURRENT_LEASE.reset(token)
        try:
            yield Stream(task, messages, left)
        finally:
            left.set()
            await asyncio.wait([task])

    async def kv_is_free(self) -> None:
        """Wait until no KV memory is in use; fails after a second."""
        await eventually(lambda: self.engine.refresh({}).kv_used_tokens == 0)


def _scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("test", 1),
        "server": ("engine", 80),
    }


async def eventually(question: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until the question is answered yes; fails after `within_s` seconds."""
    async with asyncio.timeout(within_s):
        while not question():  # noqa: ASYNC110 - an engine's counters send no event
            await asyncio.sleep(0.002)


async def watch(work: Awaitable[Any], look: Callable[[], Any], every_s: float = 0.002) -> tuple[Any, list[Any]]:
    """The result of some work, and what `look` saw while it was done."""
    task = asyncio.ensure_future(work)
    seen = []
    while not task.done():
        seen.append(look())
        await asyncio.sleep(every_s)
    return task.result(), seen


@asynccontextmanager
async def started(kind: str) -> AsyncIterator[Caller]:
    """An engine from start to stop; it must leave no process behind, and a second stop changes nothing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tiny model gains nothing by more, and loses under load
    engine = create_engine(SETTINGS[kind]())
    limits = await engine.start()
    caller = Caller(engine, limits)
    try:
        yield caller
    finally:
        await engine.stop()
        await engine.stop()
    assert multiprocessing.active_children() == []
    assert (await caller.complete(caller.lease())).status_code == 503
    with pytest.raises(RuntimeError):
        await engine.check_health()
