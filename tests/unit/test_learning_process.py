"""A training in a process of its own: what it says, and what is left of one that was killed, hung or abandoned."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from predictors.models import Asked
from predictors.online import Observation
from predictors.output_length import FinishedCall
from predictors.store import load
from serve_app.training_job import TrainingFailed, TrainingJob, run_training
from tests.predicting import made_up


def job(out: Path, champion: Path | None = None, timeout_s: float = 120.0) -> TrainingJob:
    calls = (FinishedCall("report", "write", 40, 30, "acme"),)
    rows = [Observation(one, cost, calls) for one, cost in zip(*made_up(15, seed=3), strict=True)]
    return TrainingJob(rows[:20], rows[20:], champion, out, min_held_out=5, margin=0.0, timeout_s=timeout_s)


def trainings() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "serve_app.learning_process" in " ".join(process.cmdline())]


async def begun() -> psutil.Process:
    while not (running := trainings()):  # noqa: ASYNC110 - a process says nothing when it begins
        await asyncio.sleep(0.01)
    return running[0]


async def test_it_learns_judges_and_leaves_a_model(tmp_path: Path) -> None:
    verdict = await run_training(job(tmp_path / "out"))
    assert verdict.accepted
    assert verdict.challenger_error < verdict.champion_error < math.inf
    assert verdict.held_out == 10
    model = load(tmp_path / "out")
    assert sum(model.applications.values()) == 20
    assert "report" in model.lengths.types_
    assert model.costs.predict_one("report", "river castle " * 60).cost > 0
    assert trainings() == []


async def test_one_that_is_killed_in_the_middle_fails_with_a_reason(tmp_path: Path) -> None:
    running = asyncio.create_task(run_training(job(tmp_path / "out")))
    (await begun()).kill()
    with pytest.raises(TrainingFailed, match="SIGKILL"):
        await running
    assert not (tmp_path / "out" / "model.json").exists()


async def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"longer than 0\.05 s"):
        await run_training(job(tmp_path / "out", timeout_s=0.05))
    assert trainings() == []


async def test_one_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    running = asyncio.create_task(run_training(job(tmp_path / "out")))
    await begun()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    assert trainings() == []


async def test_one_without_its_champion_says_so(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"model\.json"):
        await run_training(job(tmp_path / "out", champion=tmp_path / "absent"))


async def test_types_that_have_not_come_again_stay_known(tmp_path: Path) -> None:
    asked, costs = made_up(20, 1, ("rested",))
    rested = [Observation(*pair) for pair in zip(asked, costs, strict=True)]
    await run_training(TrainingJob(rested[:15], rested[15:], None, tmp_path / "first", 5, 0.0, 120.0))
    await run_training(job(tmp_path / "second", champion=tmp_path / "first"))
    known, before = load(tmp_path / "second"), load(tmp_path / "first")
    assert {"report", "rested"} <= known.applications.keys()
    assert known.costs.predict_one(*asked[0]).cost == pytest.approx(before.costs.predict_one(*asked[0]).cost)


def test_it_ends_with_the_ingress_that_began_it(tmp_path: Path) -> None:
    header = {"train": 1, "held_out": 0, "min_held_out": 1, "margin": 0.0}
    row = {"application_type": "a", "prompt": "p", "true_cost": 5.0}
    command = [sys.executable, "-m", "serve_app.learning_process", "--out", str(tmp_path / "out")]
    told = f"{json.dumps(header)}\n{json.dumps(row)}\n"
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")


async def test_a_process_that_cannot_be_started_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(TrainingFailed, match="No such file"):
        await run_training(job(tmp_path / "out"))


@pytest.mark.parametrize("said", ["", "[]", '{"accepted": true}', "Traceback"])
async def test_nonsense_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    liar = tmp_path / "python"
    liar.write_text(f"#!/bin/sh\ncat > /dev/null &\necho '{said}'\n")
    liar.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(liar))
    with pytest.raises(TrainingFailed, match="makes no sense"):
        await run_training(job(tmp_path / "out"))


async def test_prompts_of_any_kind_reach_it(tmp_path: Path) -> None:
    odd = ["", "\x00\ud800", "日本語" * 1000, '"\n\\', "NaN"]
    rows = [Observation(Asked("odd", text), 10.0 + place) for place, text in enumerate(odd * 4)]
    verdict = await run_training(TrainingJob(rows[:15], rows[15:], None, tmp_path / "out", 5, 0.0, 120.0))
    assert verdict.held_out == 5
    assert load(tmp_path / "out").costs.predict_one("odd", odd[2]).cost > 0
