"""The nine agents on the service with the simulated engine, whose answers are made-up words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
from typer.testing import CliRunner

from serve_app.agents import AGENTS, household_task, map_reduce_summarization
from serve_app.agents.result import Result
from serve_app.cli.main import app
from serve_app.client import AsyncJustitia
from tests.ray_service import SLOTS, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


def start_all(client: AsyncJustitia, names: Sequence[str] = AGENTS) -> dict[str, asyncio.Task[Any]]:
    return {name: asyncio.create_task(import_module(f"serve_app.agents.{name}").run(client)) for name in names}


async def test_all_nine_finish_at_once_and_leave_nothing(service: Service) -> None:
    async with AsyncJustitia(service.url) as client:
        running = start_all(client)
        async with asyncio.timeout(120):
            results: dict[str, Result] = {name: await task for name, task in running.items()}
        listed = {status["application_type"]: status for status in await client.list()}
    for name, result in results.items():
        assert result.answer.strip(), name
        assert result.calls, name
        for call in result.calls:
            assert call.prompt_tokens > 0, (name, call)
            assert call.output_tokens > 0, (name, call)
            assert 0 <= call.started_s < call.finished_s, (name, call)
    assert results["household_task"].steps[-1].observation  # type: ignore[attr-defined]
    for name in ("map_reduce_summarization", "document_merging", "self_consistency"):
        assert listed[name]["state"] == "finished"
    await service.until_clean()


async def test_calls_wait_for_those_that_they_come_after(service: Service) -> None:
    async with AsyncJustitia(service.url) as client:
        summary = await map_reduce_summarization.run(client)
        attempt = await household_task.run(client)
    for calls in (summary.calls, attempt.calls):
        ended_s = {call.name: call.finished_s for call in calls}
        for call in calls:
            assert all(ended_s[before] <= call.started_s for before in call.after), call
    maps = summary.calls[: summary.parts]
    assert max(call.started_s for call in maps) < min(call.finished_s for call in maps), "one after another"


async def test_agents_that_are_cancelled_leave_nothing(service: Service) -> None:
    async with AsyncJustitia(service.url) as client:
        before = {status["application_id"] for status in await client.list()}
        running = start_all(client)
        await service.until(lambda seen: seen["calls_running"] >= SLOTS)
        for task in running.values():
            task.cancel()
        ends = await asyncio.gather(*running.values(), return_exceptions=True)
        cancelled = {name for name, end in zip(running, ends, strict=True) if isinstance(end, asyncio.CancelledError)}
        assert cancelled
        await service.until_clean()
        begun = [status for status in await client.list() if status["application_id"] not in before]
    states = {status["application_type"]: status["state"] for status in begun}
    assert {states[name] for name in cancelled if name in states} == {"cancelled"}, states
    assert cancelled & set(states)


async def test_an_agent_from_the_shell(service: Service) -> None:
    arguments = ["agent", "fact_verification", "Whales are fish.", "--json", "--url", service.url]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["verdict"] in ("true", "false", "unclear")
    await service.until_clean()
