"""The examples, with the packages that they are about, through the recorder: what they ask is the DAG that they are.

Each runs against the simulated engine, whose words have no sense; what matters is who asks what after whom.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from cluster.deploy.local import free_port
from scheduler.sim.workload import TraceApplication
from serve_app.cli.main import app as command
from serve_app.cli.record import save
from serve_app.recorder import Recorder
from serve_app.recorder_proxy import RecordingProxy
from tests.ray_service import Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@asynccontextmanager
async def recorded(service: Service) -> AsyncIterator[tuple[str, Recorder]]:
    """A recorder before the service, and where it listens."""
    recorder = Recorder()
    proxy = RecordingProxy(service.url, recorder, monotonic)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(proxy, port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server._serve())
    try:
        while not server.started:  # noqa: ASYNC110 - it has no event for that
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{port}", recorder
    finally:
        server.should_exit = True
        await serving
        await proxy.aclose()


def generations(application: TraceApplication) -> list[int]:
    """How many calls come after none, after those, and so on."""
    depth: dict[str, int] = {}
    for call in application.calls:
        depth[call.name] = 1 + max((depth[name] for name in call.after), default=-1)
    return [count for _, count in sorted(Counter(depth.values()).items())]


@pytest.mark.parametrize(
    ("example", "packages", "application_type", "shape"),
    [
        ("openai_sdk", ["openai"], "summary", [3, 1]),
        ("openai_agents", ["agents"], "debate", [2, 1]),
        ("langgraph_fanout", ["langgraph", "langchain_openai"], "essay", [4, 1]),
        ("dspy_program", ["dspy"], "panel", [3, 1]),
    ],
)
async def test_an_example_is_one_application_of_its_shape(
    service: Service, tmp_path: Path, example: str, packages: list[str], application_type: str, shape: list[int]
) -> None:
    for package in packages:
        pytest.importorskip(package)
    program: Any = importlib.import_module(f"serve_app.examples.{example}")
    async with recorded(service) as (url, recorder):
        text = await program.run(url)
        (application,) = recorder.applications()
        save(recorder, tmp_path / "trace.jsonl")
    assert text
    assert application.application_type == application_type
    assert generations(application) == shape
    assert not recorder.left_out
    assert all(call.prompt_tokens > 0 and call.output_tokens > 0 for call in application.calls)
    simulated = CliRunner().invoke(
        command, ["simulate", "--workload", str(tmp_path / "trace.jsonl"), "--policies", "justitia", "--json"]
    )
    assert simulated.exit_code == 0, simulated.output


async def test_traffic_without_any_hint_is_one_application_of_its_key(service: Service) -> None:
    openai = pytest.importorskip("openai")
    async with recorded(service) as (url, recorder):
        for key in ("sk-one", "sk-two", "sk-one"):
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
                await client.chat.completions.create(
                    model="simulated", messages=[{"role": "user", "content": "Hi"}], max_tokens=3
                )
        applications = recorder.applications()
    assert [len(application.calls) for application in applications] == [2, 1]
    assert len({application.application_id for application in applications}) == 2


async def test_the_ray_example_from_a_driver_and_in_an_actor(service: Service) -> None:
    from serve_app.examples import ray_driver

    haiku, poem = await ray_driver.run()
    assert len(haiku) == 3
    assert all(haiku)
    assert len(poem) == 3
    assert all(poem)
    await service.until_idle()


async def test_an_example_runs_as_it_says(service: Service) -> None:
    arguments = ("-m", "serve_app.examples.openai_sdk", "--url", service.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=os.environ, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, bool(said.strip())) == (0, True)
