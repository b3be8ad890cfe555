"""`justitia calibrate`: from an iteration log to a profile that `justitia simulate` takes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.event_log import LogHeader, event_to_json
from scheduler.events import ReplicaJoined
from scheduler.settings import CoreSettings
from scheduler.sim.engine import BatchEngine, EngineProfile
from scheduler.sim.engines import parse_profile
from scheduler.types import EngineLimits
from serve_app.cli.main import app

SPEED = EngineProfile(base_s=0.011, per_sequence_s=0.0003, per_prefill_token_s=0.00005)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "NO_COLOR": "1"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The iterations of an engine with the speed above."""
    rng = random.Random(5)
    engine = BatchEngine(SPEED)
    for number in range(60):
        engine.add(number, rng.randint(5, 300), rng.randint(5, 60))
    path = tmp_path / "iterations.jsonl"
    with path.open("w") as file:
        while not engine.idle:
            one = engine.step()
            numbers = {"duration_s": one.duration_s, "sequences": one.sequences}
            file.write(json.dumps(numbers | {"prefilled_tokens": one.prefilled_tokens, "kv_used_tokens": 1}) + "\n")
    return path


def test_the_speed_is_found_and_shown(log: Path) -> None:
    shown = run("calibrate", str(log))
    assert shown.exit_code == 0, shown.output
    for text in ("11.000 ms", "300.00 µs", "50.00 µs", "1.0000", "0.000 ms"):
        assert text in shown.output
    assert "below" not in shown.stderr


def test_a_bad_fit_is_said(tmp_path: Path) -> None:
    rng = random.Random(6)
    path = tmp_path / "noise.jsonl"
    numbers = [(rng.uniform(0.001, 1.0), rng.randint(1, 9), rng.randint(0, 99)) for _ in range(200)]
    names = ("duration_s", "sequences", "prefilled_tokens")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in numbers))
    assert "R² is below 0.5" in run("calibrate", str(path)).stderr


def test_the_profile_that_is_written_can_be_simulated(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    shown = run("calibrate", str(log), "--engine", "a100-llama7b", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    assert f"The profile is in {out}." in shown.stderr
    profile = parse_profile(out.read_text())
    assert profile.base_s == pytest.approx(SPEED.base_s)
    assert profile.chunked_prefill
    assert profile.max_model_len == 4096
    simulated = run("simulate", "--limit", "3", "--policies", "fcfs", "--engine", f"{out}x2", "--json")
    assert simulated.exit_code == 0, simulated.output


def test_json_has_fit_and_profile(log: Path) -> None:
    document = json.loads(run("calibrate", str(log), "--json").stdout)
    assert document["fit"]["per_prefill_token_s"] == pytest.approx(0.00005)
    assert document["fit"]["r_squared"] == pytest.approx(1.0)
    assert document["fit"]["mean_absolute_error_s"] == pytest.approx(0.0, abs=1e-9)
    assert document["profile"]["usable_blocks"] == 459
    assert document["profile"]["base_s"] == document["fit"]["base_s"]


def event_log(directory: Path, epoch: int, *joined: EngineLimits) -> None:
    header = LogHeader(CoreSettings(), "fcfs", epoch, 0.0)
    events = [event_to_json(float(n), ReplicaJoined(f"r{n}", one)) for n, one in enumerate(joined)]
    (directory / f"events-{epoch}.jsonl").write_text("".join(f"{line}\n" for line in [header.to_json(), *events]))


def test_sizes_come_from_an_event_log(log: Path, tmp_path: Path) -> None:
    sizes = {"block_tokens": 32, "max_model_len": 2048, "max_sequences": 16}
    event_log(tmp_path, 2, EngineLimits(usable_blocks=255, **sizes))
    event_log(tmp_path, 10, EngineLimits(usable_blocks=64, **sizes), EngineLimits(usable_blocks=63, **sizes))
    profile = json.loads(run("calibrate", str(log), "--limits-from", str(tmp_path), "--json").stdout)["profile"]
    assert {name: profile[name] for name in sizes} == sizes
    assert profile["usable_blocks"] == 63
    event_log(tmp_path, 11)
    again = json.loads(run("calibrate", str(log), "--limits-from", str(tmp_path), "--json").stdout)["profile"]
    assert again["usable_blocks"] == 63


def refused(*arguments: str) -> str:
    shown = run("calibrate", *arguments)
    assert shown.exit_code == 2
    assert isinstance(shown.exception, SystemExit)
    assert "Traceback" not in shown.output
    return str(shown.stderr)


def test_what_is_wrong_is_said(log: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(log.read_text().splitlines(keepends=True)[:5]))
    assert f"{few}: 5 iterations are too few" in refused(str(few))
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"duration_s": 1}\n')
    assert f"{wrong}: line 1: 'sequences' is missing" in refused(str(wrong))
    wrong.write_bytes(b"\xff\xfe\n")
    assert f"{wrong}: 'utf-8' codec" in refused(str(wrong))
    assert "none.jsonl: No such file" in refused(str(tmp_path / "none.jsonl"))
    assert "Is a directory" in refused(str(log), "--out", str(tmp_path))
    assert "no engine 'fast'; known: a100-llama7b" in refused(str(log), "--engine", "fast")
    assert "no events-EPOCH.jsonl here" in refused(str(log), "--limits-from", str(tmp_path))
    event_log(tmp_path, 1)
    assert "no replica joined" in refused(str(log), "--limits-from", str(tmp_path))
    assert "events-1.jsonl: line 1: not the beginning" in (
        (tmp_path / "events-1.jsonl").write_text("{}\n") and refused(str(log), "--limits-from", str(tmp_path))
    )


def test_help_has_an_example() -> None:
    shown = run("calibrate", "--help")
    assert "Example: justitia calibrate iterations.jsonl" in shown.output
    assert "--json" in shown.output
