"""`justitia bench policies` as a command: what it refuses before it runs, what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cluster.models import ModelUnavailable
from scheduler.sim.workload import write_application
from serve_app.cli import bench_policies
from serve_app.cli.main import app
from serve_app.policy_bench import bench
from serve_app.policy_bench.calibration import Calibration
from serve_app.policy_bench.comparison import Compared, Twin, compare
from serve_app.policy_bench.forecast import forecast
from tests.bench_traffic import FIT, SIZES, application, run, traces, twin_settings

CONFIG = Path(__file__).resolve().parents[2] / "serve_config.yaml"
CALIBRATION = Calibration(profile=SIZES, fit=FIT, slowdown=1.1, round_trip_s=0.05, stretch=0.2, on_measured=True)


def command(tmp_path: Path, *arguments: str) -> Result:
    workload = tmp_path / "trace.jsonl"
    workload.write_text("".join(write_application(application(name)) + "\n" for name in ("a0", "a1", "a2")))
    named = ("--workload", str(workload), "--out", str(tmp_path / "out"), "--config", str(CONFIG))
    return CliRunner().invoke(app, ["bench", "policies", *named, *arguments], env={"COLUMNS": "300", "NO_COLOR": "1"})


def fake_bench(monkeypatch: pytest.MonkeyPatch, runs: Sequence[Any], meanwhile: Callable[[], object]) -> None:
    """A benchmark of two applications with these runs; `meanwhile` is called while it runs."""

    class Fake:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def calibration(self) -> Calibration:
            return CALIBRATION

        def compared(self) -> list[Compared]:
            meanwhile()
            told = forecast(traces(2), twin_settings("vtc"))
            twins = {one.policy: Twin(forecast=told, blind=told) for one in runs}
            return compare(runs, traces(2), twins, "vtc")

    monkeypatch.setattr(bench_policies, "Bench", Fake)


def test_what_failed_is_said_and_the_rest_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bench(monkeypatch, [run("vtc", 1.0, 2.0), run("justitia", 1.0, 9.0, error="refused")], list)
    html = tmp_path / "report.html"
    ended = command(tmp_path, "--html", str(html))
    assert ended.exit_code == 3
    assert "justitia: a1: refused" in ended.stderr
    assert "1 of 2 applications are left out" in ended.stderr
    assert "applications that are compared as well" in ended.stderr
    assert "Completion" in ended.stdout
    assert "1 of 2 applications are left out" in html.read_text("utf-8")


def test_the_json_says_what_it_was_calibrated_on_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bench(monkeypatch, [run("vtc", 1.0, 2.0)], lambda: print("(raylet) a task failed"))
    ended = command(tmp_path, "--json")
    assert ended.exit_code == 0
    assert "(raylet)" in ended.stderr
    assert [one["calibrated_on_measured"] for one in json.loads(ended.stdout)] == [True]


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    fake_bench(monkeypatch, [], interrupt)
    ended = command(tmp_path, "--json")
    assert ended.exit_code != 0
    assert ended.stdout == ""
    assert "the same command goes on from there" in ended.stderr


def test_where_nothing_finished_there_is_no_report_and_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("vtc", 1.0, 2.0)
    failed = tuple(replace(one, error="refused") for one in whole.outcomes)
    fake_bench(monkeypatch, [replace(whole, outcomes=failed)], list)
    html = tmp_path / "report.html"
    ended = command(tmp_path, "--json", "--html", str(html))
    assert ended.exit_code == 3
    assert "vtc: a0: refused" in ended.stderr
    assert "there is no report: no application finished under every policy" in ended.stderr
    assert len(json.loads(ended.stdout)) == 1
    assert not html.exists()


def test_results_are_shown_though_the_report_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html = tmp_path / "report.html"
    fake_bench(monkeypatch, [run("vtc", 1.0, 2.0)], html.mkdir)
    ended = command(tmp_path, "--json", "--html", str(html))
    assert ended.exit_code == 2
    assert "report.html: Is a directory" in ended.stderr
    assert len(json.loads(ended.stdout)) == 1


def test_where_no_report_can_be_written_is_said_before_the_runs(tmp_path: Path) -> None:
    ended = command(tmp_path, "--html", str(tmp_path / "absent" / "report.html"))
    assert ended.exit_code == 2
    assert "no file can be written there" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_directory_without_a_model_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    ended = command(tmp_path, "--simulated", "--apps", "2", "--predictor", str(tmp_path / "model"))
    assert ended.exit_code == 2
    assert str(tmp_path / "model") in ended.stderr
    assert not (tmp_path / "out").exists()


def test_an_engine_whose_model_cannot_be_had_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ModelUnavailable("no such checkpoint here")

    monkeypatch.setattr(bench, "length_rule", fail)
    ended = command(tmp_path, "--apps", "2")
    assert ended.exit_code == 2
    assert "no such checkpoint here" in ended.stderr
