"""The nine agents on real vLLM with the tiny random model: whatever it says, each ends with an answer of its shape."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest

from serve_app.agents import AGENTS
from serve_app.agents.result import Result
from serve_app.client import AsyncJustitia
from tests.vllm_service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(600)]

ENDS_WITHIN_S = 400.0


async def test_all_nine_end_with_an_answer_and_leave_nothing(service: Service) -> None:
    async with AsyncJustitia(service.url) as client:
        running: dict[str, asyncio.Task[Any]] = {
            name: asyncio.create_task(import_module(f"serve_app.agents.{name}").run(client)) for name in AGENTS
        }
        async with asyncio.timeout(ENDS_WITHIN_S):
            results: dict[str, Result] = {name: await task for name, task in running.items()}
    for name, result in results.items():
        assert result.answer.strip(), name
        assert result.calls, name
        assert all(call.prompt_tokens > 0 and call.finished_s > call.started_s for call in result.calls), name
    found: dict[str, Any] = dict(results)
    assert found["fact_verification"].verdict in ("true", "false", "unclear")
    assert not found["code_checking"].passes, "a random model has repaired a function"
    assert [equation.verdict for equation in found["equation_verification"].equations[:2]] == ["holds", "wrong"]
    assert sum(vote.count for vote in found["self_consistency"].votes) == 5
    service.wait_until_idle(10)
