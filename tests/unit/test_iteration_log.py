"""The iteration log of an engine: what is kept, how much, and that a failure stays its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.engine import CURRENT_LEASE, ActiveLease
from cluster.engines import SimulatedSettings, VllmSettings
from cluster.iteration_log import KEPT_LINES, MAX_LINES_PER_S, IterationLog
from cluster.simulated_engine import SimulatedEngine, approximate_tokens
from scheduler.sim.calibration import read_iterations


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_lines_reach_the_file_in_bundles_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = IterationLog(path, Clock())
    for number in range(KEPT_LINES - 1):
        log.write(0.1, number, 0, 16)
    assert lines(path) == []
    log.write(0.25, 7, 30, 64)
    assert len(lines(path)) == KEPT_LINES
    assert lines(path)[-1] == {"duration_s": 0.25, "sequences": 7, "prefilled_tokens": 30, "kv_used_tokens": 64}
    log.write(0.1, 1, 1, 1)
    log.close()
    log.close()
    log.write(0.1, 1, 1, 1)
    assert len(lines(path)) == KEPT_LINES + 1


def test_a_second_has_a_bounded_number_of_lines(tmp_path: Path) -> None:
    path, clock = tmp_path / "log.jsonl", Clock()
    log = IterationLog(path, clock)
    for second in range(3):
        clock.now_s = 100.0 + second
        for _ in range(3 * MAX_LINES_PER_S):
            log.write(0.001, second, 0, 0)
    log.close()
    assert len(lines(path)) == 3 * MAX_LINES_PER_S
    assert {line["sequences"] for line in lines(path)} == {0, 1, 2}


def test_a_slow_engine_has_its_lines_written_each_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "log.jsonl", Clock()
    log = IterationLog(path, clock)
    log.write(1.0, 1, 0, 0)
    clock.now_s += 1.5
    log.write(1.0, 2, 0, 0)
    assert [line["sequences"] for line in lines(path)] == [1]


def test_lines_reach_the_file_when_the_engine_rests(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = IterationLog(path, Clock())
    log.flush()
    assert not path.exists()
    log.write(0.1, 1, 0, 16)
    log.flush()
    log.flush()
    assert len(lines(path)) == 1


def test_two_engines_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logs = [IterationLog(path, Clock()) for _ in range(2)]
    for number in range(3 * KEPT_LINES):
        logs[number % 2].write(0.1, number, 0, 0)
    for log in logs:
        log.close()
    assert sorted(line["sequences"] for line in lines(path)) == list(range(3 * KEPT_LINES))


def test_a_file_that_cannot_be_written_ends_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ray.serve")
    log = IterationLog(tmp_path / "missing" / "log.jsonl", Clock())
    for _ in range(3 * KEPT_LINES):
        log.write(0.1, 1, 0, 0)
    log.close()
    assert sum("iteration_log_stopped" in record.getMessage() for record in caplog.records) == 1


def test_without_a_path_nothing_is_kept() -> None:
    log = IterationLog(None, Clock())
    for _ in range(3 * KEPT_LINES):
        log.write(0.1, 1, 0, 0)
    log.close()


def test_it_is_off_by_default_and_no_part_of_a_profile(tmp_path: Path) -> None:
    assert SimulatedSettings().iteration_log is None
    assert VllmSettings(model="m").iteration_log is None
    logged = SimulatedSettings.model_validate({"iteration_log": str(tmp_path / "log.jsonl")})
    assert logged.iteration_log == tmp_path / "log.jsonl"
    assert logged.profile == SimulatedSettings().profile
    assert SimulatedSettings.model_validate(logged.model_dump()) == logged


async def test_the_simulated_engine_logs_what_it_does(tmp_path: Path) -> None:
    """Two calls at once, with a clock that goes on by a tenth of a second whenever it is asked."""
    path = tmp_path / "log.jsonl"
    ticks = itertools.count()
    settings = SimulatedSettings(time_scale=0, iteration_log=path)
    engine = SimulatedEngine(settings, clock=lambda: next(ticks) * 0.1)
    await engine.start()
    prompt, output_tokens = "some words to answer", 12
    async with httpx.AsyncClient(transport=httpx.ASGITransport(engine.asgi), base_url="http://engine") as http:

        async def complete(name: str) -> None:
            CURRENT_LEASE.set(ActiveLease(name, "a", name, 0, 1))
            body = {"prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True}
            assert (await http.post("/v1/completions", json=body)).status_code == 200

        await asyncio.gather(*(asyncio.create_task(complete(name)) for name in ("x", "y")))
    assert lines(path)[-1]["kv_used_tokens"] == 0, "it rests, and has written all"
    await engine.stop()
    iterations = read_iterations(path.read_text().splitlines(keepends=True))
    assert {one.duration_s for one in iterations} == {0.1}
    assert sum(one.sequences for one in iterations) == 2 * output_tokens
    assert sum(one.prefilled_tokens for one in iterations) == 2 * approximate_tokens(prompt)
    assert max(one.sequences for one in iterations) == 2
    assert lines(path)[-1]["kv_used_tokens"] == 0
    assert lines(path)[0]["kv_used_tokens"] > 0


@pytest.mark.parametrize("path", [{"a": 1}, 5])
def test_a_path_is_a_text(path: object) -> None:
    with pytest.raises(ValueError, match="iteration_log"):
        SimulatedSettings.model_validate({"iteration_log": path})
