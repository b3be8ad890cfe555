"""What vLLM's statistics become in the iteration log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from cluster.iteration_log import IterationLog
from cluster.vllm_engine import IterationCounter
from scheduler.types import EngineLimits

pytestmark = pytest.mark.vllm

LIMITS = EngineLimits(usable_blocks=100, block_tokens=32, max_model_len=64, max_sequences=4)


def stats(running: int, prefilling: int = 0, tokens: int = 0, waiting: int = 0, **more: Any) -> Any:
    details = SimpleNamespace(
        num_ctx_requests=prefilling, num_ctx_tokens=tokens, num_generation_requests=running - prefilling, is_dummy=False
    )
    fields = {"kv_cache_usage": 0.5, "num_running_reqs": running, "num_waiting_reqs": waiting}
    return SimpleNamespace(**{**fields, "iteration_details": details, **more})


def logged(tmp_path: Path, records: list[tuple[float, Any]]) -> list[dict[str, Any]]:
    path, now_s = tmp_path / "log.jsonl", [0.0]
    log = IterationLog(path, lambda: now_s[0])
    counter = IterationCounter(log, lambda: now_s[0])
    counter.limits = LIMITS
    for at_s, one in records:
        now_s[0] = at_s
        counter.record(one, None)
    log.close()
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_an_iteration_lasts_from_the_answers_before_it_to_its_own(tmp_path: Path) -> None:
    records = [(1.0, stats(1, 1, 60)), (1.02, stats(3, 2, 90)), (1.05, stats(3)), (1.06, stats(0, waiting=0))]
    lines = logged(tmp_path, records)
    assert [line["duration_s"] for line in lines] == pytest.approx([0.02, 0.03, 0.01])
    assert [(line["sequences"], line["prefilled_tokens"]) for line in lines] == [(3, 90), (3, 0), (0, 0)]
    assert lines[0]["kv_used_tokens"] == 50 * 32


def test_idle_time_is_no_iteration(tmp_path: Path) -> None:
    idle = stats(2)
    idle.num_running_reqs = 0
    lines = logged(tmp_path, [(1.0, stats(2)), (1.1, idle), (9.0, stats(2, 2, 5)), (9.2, stats(2))])
    assert [line["duration_s"] for line in lines] == pytest.approx([0.1, 0.2])


def test_nothing_is_held_back_while_the_engine_rests(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    counter = IterationCounter(IterationLog(path, lambda: 1.0), lambda: 1.0)
    counter.limits = LIMITS
    for one in (stats(1, 1, 60), stats(1), stats(0)):
        assert not path.exists()
        counter.record(one, None)
    assert len(path.read_text().splitlines()) == 2


def test_without_details_nothing_is_written(tmp_path: Path) -> None:
    assert logged(tmp_path, [(1.0, stats(2, iteration_details=None)), (2.0, stats(2, iteration_details=None))]) == []
