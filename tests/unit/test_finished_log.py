"""The log of ended applications: what it holds, how large it grows, and what can be trained from it."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serve_app import finished_log as module
from serve_app.cli.main import app
from serve_app.ended_applications import ApplicationsUnderway, EndedApplication, EndedCall
from serve_app.finished_log import FinishedLog
from serve_app.training_data import TrainingDataError, read_finished
from tests.learning import many, record


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(directory.glob("*")) for line in path.read_text().splitlines()]


def written(directory: Path, documents: list[dict[str, object]], max_bytes: int = 10**6) -> FinishedLog:
    times = iter(range(10**6))
    log = FinishedLog(directory, "serve_replica#1", max_bytes, lambda: next(times))
    log.start()
    for document in documents:
        log.add(document)
    log.close()
    return log


def test_a_line_says_what_became_of_an_application() -> None:
    calls = (EndedCall("map", 10, (3, 5)), EndedCall("reduce", 20, (7,)))
    one = EndedApplication(record("report", 999.0, application_id="acme/x-1", tenant="acme", calls=2), "Secret.", calls)
    document = one.document(1000.25, with_prompt=False)
    cost = (10 * 3 + 6) + (10 * 5 + 15) + (20 * 7 + 28)
    assert document == {
        "application_id": "x-1",
        "application_type": "report",
        "tenant": "acme",
        "outcome": "finished",
        "ended_s": 1000.25,
        "completion_s": 2.5,
        "predicted_cost": 1000.0,
        "true_cost": cost,
        "calls": [
            {"name": "map", "prompt_tokens": 10, "output_tokens": 4, "sequences": 2},
            {"name": "reduce", "prompt_tokens": 20, "output_tokens": 7, "sequences": 1},
        ],
    }
    assert one.document(1000.25, with_prompt=True)["prompt"] == "Secret."


def test_where_calls_are_missing_the_cost_is_what_the_scheduler_counted() -> None:
    one = EndedApplication(record("report", 999.0, calls=3), "", (EndedCall("map", 10, (3,)),))
    assert one.document(0.0, with_prompt=False)["true_cost"] == 999.0


def test_what_is_written_can_be_trained_from(tmp_path: Path) -> None:
    documents = [one.document(1.0, with_prompt=True) for one in many(12)]
    documents += [one.document(1.0, with_prompt=True) for one in many(3, outcome="failed")]
    log = written(tmp_path / "log", documents, max_bytes=8 * 8000)
    assert (log.written, log.lost) == (30, 0)
    assert len(list((tmp_path / "log").iterdir())) > 1
    found = read_finished(tmp_path / "log")
    assert [one.asked.prompt for one in found] == [one.prompt for one in many(12)]
    runner = CliRunner()
    trained = runner.invoke(app, ["train", "--workload", str(tmp_path / "log"), "--out", str(tmp_path / "m"), "--json"])
    assert trained.exit_code == 0, trained.output
    judged = runner.invoke(
        app, ["evaluate", "--model", str(tmp_path / "m"), "--workload", str(tmp_path / "log"), "--json"]
    )
    assert json.loads(judged.stdout)["applications"] == 24


def test_a_log_without_prompts_trains_by_type_and_says_so(tmp_path: Path) -> None:
    written(tmp_path / "log", [one.document(1.0, with_prompt=False) for one in many(6)])
    arguments = ["train", "--workload", str(tmp_path / "log"), "--out", str(tmp_path / "m")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "no prompts" in done.stderr


def test_a_last_line_that_was_cut_off_is_passed_over_in_a_log_alone(tmp_path: Path) -> None:
    written(tmp_path / "log", [one.document(1.0, with_prompt=True) for one in many(3)])
    (path,) = (tmp_path / "log").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert len(read_finished(path)) == 5
    assert len(read_finished(tmp_path / "log")) == 5
    with path.open("ab") as file:
        file.write(b"\n" + path.read_bytes().splitlines()[0] + b"\n")
    with pytest.raises(TrainingDataError, match="line 6"):
        read_finished(path)
    other = tmp_path / "workload.jsonl"
    other.write_text('{"application_type": "a", "true_cost": 5, "prompt": ""}\n{"application_type": "a", "tr')
    with pytest.raises(TrainingDataError, match="line 2"):
        read_finished(other)


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="without a log"):
        read_finished(tmp_path)


def test_the_oldest_go_when_the_directory_is_full(tmp_path: Path) -> None:
    documents: list[dict[str, object]] = [{"number": number, "padding": "x" * 80} for number in range(1000)]
    written(tmp_path, documents, max_bytes=8000)
    kept = [line["number"] for line in lines(tmp_path)]
    assert kept == list(range(1000 - len(kept), 1000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8000 + 200


def test_other_files_of_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x" * 100_000)
    written(tmp_path, [{"number": number, "padding": "x" * 80} for number in range(500)], max_bytes=8000)
    assert (tmp_path / "notes.txt").exists()


def test_a_directory_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = written(tmp_path / "file", [{"number": 1}, {"number": 2}])
    assert (log.written, log.lost) == (0, 2)


def test_what_json_does_not_have_is_lost_alone(tmp_path: Path) -> None:
    log = written(tmp_path, [{"cost": math.nan}, {"cost": 1.0}])
    assert (log.written, log.lost, lines(tmp_path)) == (1, 1, [{"cost": 1.0}])


def test_nobody_waits_for_a_full_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 3)
    log = FinishedLog(tmp_path, "one", 1000)
    for number in range(10):
        log.add({"number": number})
    assert log.lost == 7
    log.close()


def test_an_application_that_was_never_seen_to_begin_has_no_line() -> None:
    assert ApplicationsUnderway().end(record()) is None


def test_what_another_writer_took_away_is_written_to_no_more(tmp_path: Path) -> None:
    times = iter(range(10))
    log = FinishedLog(tmp_path, "one", 10**6, lambda: next(times))
    log._write({"number": 1})
    for path in tmp_path.iterdir():
        path.unlink()
    log._write({"number": 2})
    log._leave_file()
    assert lines(tmp_path) == [{"number": 2}]


class AlmostFull(io.FileIO):
    """A file on a disk with room for a few bytes more."""

    def write(self, line: Any) -> int:
        return super().write(line[:5])


def test_a_line_that_a_full_disk_took_in_part_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"{}\n")
    log = FinishedLog(tmp_path, "one", 10**6)
    log._file = AlmostFull(tmp_path / "log", "ab")
    with pytest.raises(OSError, match="only 5 of 14"):
        log._write({"number": 1})
    log._leave_file()
    assert (tmp_path / "log").read_bytes() == b"{}\n"
