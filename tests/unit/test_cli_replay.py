"""`justitia replay` and `justitia simulate --from-log` on logs of simulated and of live schedulers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.actions import Action
from scheduler.event_log import LogHeader, event_to_json
from scheduler.events import Event
from scheduler.sim.simulation import Simulation, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.cli.event_logs import log_files, recorded_traffic
from serve_app.cli.main import app
from serve_app.documents import parse_application
from tests.in_process import started
from tests.unit.test_system_in_process import infer


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "140", "NO_COLOR": "1"})


def workload() -> list[TraceApplication]:
    first = TraceCall(name="a", prompt_tokens=50, output_tokens=40)
    second = TraceCall(name="b", prompt_tokens=30, output_tokens=20, after=("a",), delay_s=1.0)
    return [
        TraceApplication(application_id=f"app-{n}", application_type="pair", arrival_s=0.5 * n, calls=(first, second))
        for n in range(12)
    ]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """The log of one simulated run, as the scheduler of epoch 3 would have left it."""
    settings = SimulationSettings()
    with (tmp_path / "events-3.jsonl").open("w") as file:
        file.write(LogHeader(settings.core, settings.policy, 3, 0.0).to_json() + "\n")

        def hear(now_s: float, event: Event, actions: Sequence[Action]) -> None:
            file.write(event_to_json(now_s, event).replace('"1-', '"3-') + "\n")

        Simulation(workload(), settings, hear=hear).run()
    return tmp_path


# ---- replay


def test_a_log_agrees_and_its_applications_are_shown(state_dir: Path) -> None:
    shown = run("replay", str(state_dir), "--limit", "5")
    assert shown.exit_code == 0, shown.output
    assert "epoch 3, policy justitia" in shown.output
    assert "24 grants; the facts agree with it. 12 applications ended, 0 had not" in shown.output
    assert "The last 5 of 12 applications" in shown.output
    assert "app-11" in shown.output
    assert "app-0 " not in shown.output


def test_json_has_every_application(state_dir: Path) -> None:
    shown = run("replay", str(state_dir / "events-3.jsonl"), "--json")
    (log,) = json.loads(shown.stdout)
    assert (log["epoch"], log["policy"], log["agrees"], log["grants"]) == (3, "justitia", True, 24)
    assert log["events_by_kind"]["CallFinished"] == 24
    assert log["events"] == sum(log["events_by_kind"].values())
    assert log["replicas"]["r0"]["usable_blocks"] == 459
    assert {one["application_id"] for one in log["applications"]} == {f"app-{n}" for n in range(12)}
    one = log["applications"][0]
    assert one["completion_s"] == pytest.approx(one["finish_s"] - one["arrival_s"])
    assert one["lag_s"] == pytest.approx(one["finish_s"] - one["gps_finish_s"])


def test_a_log_that_disagrees_ends_with_4(state_dir: Path) -> None:
    log = state_dir / "events-3.jsonl"
    log.write_text(log.read_text().replace('"3-24"', '"3-25"'))
    shown = run("replay", str(log))
    assert shown.exit_code == 4
    assert "facts disagree with it" in shown.output
    assert "lease 3-25 was never granted" in shown.stderr
    assert run("replay", str(log), "--json").exit_code == 4


def test_logs_of_a_directory_come_in_order_of_epochs(tmp_path: Path) -> None:
    for name in ("events-10.jsonl", "events-9.jsonl", "events-x.jsonl", "journal.sqlite"):
        (tmp_path / name).touch()
    assert [path.name for path in log_files(tmp_path)] == ["events-9.jsonl", "events-10.jsonl"]


@pytest.mark.parametrize("command", [["replay"], ["simulate", "--from-log"]])
def test_what_is_no_log_is_refused_in_words(command: list[str], tmp_path: Path) -> None:
    log = tmp_path / "events-1.jsonl"
    cases = {
        str(tmp_path): "no events-EPOCH.jsonl here; a scheduler writes them into its state_dir with `event_log: true`",
        str(tmp_path / "none"): "none: No such file or directory",
    }
    for path, why in cases.items():
        shown = run(*command, path)
        assert (shown.exit_code, isinstance(shown.exception, SystemExit)) == (2, True)
        assert why in shown.stderr
    for content, why in (
        (b"", "line 1: not the beginning"),
        (b"{}\n", "line 1: not the"),
        (b"\xff\n", "'utf-8' codec"),
    ):
        log.write_bytes(content)
        shown = run(*command, str(tmp_path))
        assert (shown.exit_code, isinstance(shown.exception, SystemExit)) == (2, True)
        assert f"{log}: {why}" in shown.stderr


# ---- the twin


def test_recorded_traffic_runs_under_other_policies(state_dir: Path) -> None:
    shown = run("simulate", "--from-log", str(state_dir), "--policies", "fcfs,justitia", "--json")
    assert shown.exit_code == 0, shown.output
    assert "12 applications; left out: 0 calls (none)" in shown.stderr
    runs = json.loads(shown.stdout)
    assert [one["policy"] for one in runs] == ["fcfs", "justitia"]
    twin = {one["application_id"]: one["completion_s"] for one in runs[1]["applications"]}
    lived = {one.application_id: one.completion_s for one in Simulation(workload()).run().applications}
    assert twin == pytest.approx(lived, abs=0.2)
    assert all(seconds > 1.0 for seconds in twin.values())


def test_a_log_takes_intensity_and_limit(state_dir: Path) -> None:
    shown = run(
        "simulate", "--from-log", str(state_dir), "--policies", "fcfs", "--limit", "4", "--intensity", "2", "--json"
    )
    (one,) = json.loads(shown.stdout)
    assert [application["arrival_s"] for application in one["applications"]] == [0.0, 0.25, 0.5, 0.75]


def test_a_log_or_a_workload(state_dir: Path) -> None:
    shown = run("simulate", "--from-log", str(state_dir), "--workload", "x.jsonl")
    assert shown.exit_code == 2
    assert "choose one" in shown.stderr


DOCUMENT = {
    "application_id": "chain",
    "calls": [
        {"name": "draft", "prompt": "Write something.", "max_tokens": 20},
        {"name": "check", "after": ["draft"], "prompt": "Check {{draft}}", "max_tokens": 9},
    ],
}
THOUGHT_S = 0.1


async def test_a_live_run_is_replayed_and_becomes_a_workload(tmp_path: Path) -> None:
    """Scheduler, replica and ingress in this process: a chain with dependencies, and an agent that thinks."""
    async with started(state_dir=tmp_path, event_log=True) as system:
        ingress = system.ingresses[0]
        await ingress.runner.submit(parse_application(DOCUMENT))
        for prompt in ("What now?", "And then?"):
            body = {"prompt": prompt, "max_tokens": 9, "ignore_eos": True, "application_id": "agent"}
            assert (await infer(ingress, body))[0] == 200
            await asyncio.sleep(THOUGHT_S)
        await system.clean()
    shown = run("replay", str(tmp_path), "--json")
    assert shown.exit_code == 0, shown.output
    (log,) = json.loads(shown.stdout)
    assert log["agrees"]
    assert {one["application_id"]: one["outcome"] for one in log["applications"]} == {
        "chain": "finished",
        "agent": "finished",
    }
    traffic, recording = recorded_traffic(tmp_path)
    assert recording.left_out.calls.total() == 0
    by_id = {one.application_id: one for one in traffic}
    draft, check = by_id["chain"].calls
    assert (draft.after, check.after) == ((), ("draft",))
    first, second = by_id["agent"].calls
    assert second.after == (first.name,)
    assert second.delay_s >= THOUGHT_S
    assert (first.output_tokens, second.output_tokens) == (9, 9)
    (one,) = json.loads(run("simulate", "--from-log", str(tmp_path), "--policies", "fcfs", "--json").stdout)
    assert {application["application_id"] for application in one["applications"]} == {"chain", "agent"}
