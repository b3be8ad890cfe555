"""What `justitia bench policies` keeps in a directory, and how it says what went wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scheduler.sim.workload import TraceApplication, write_application
from serve_app.cli.bench_policies_tables import calibration_line
from serve_app.policy_bench import bench
from serve_app.policy_bench.bench import Bench, Question
from serve_app.policy_bench.calibration import Calibration
from serve_app.policy_bench.live import LiveRun
from serve_app.policy_bench.replay import Outcome
from serve_app.policy_bench.results import Results, ResultsError, digest_of
from serve_app.policy_bench.traffic import TrafficError
from tests.bench_traffic import FIT, LOG, SIZES, application, call, run


def test_what_was_kept_is_found_again_and_not_under_other_settings(tmp_path: Path) -> None:
    settings = {"apps": 3, "workload": "abc"}
    results = Results.open(tmp_path / "out", settings)
    calibration = Calibration(profile=SIZES, fit=FIT, slowdown=1.1, round_trip_s=0.05, stretch=0.2, on_measured=True)
    assert results.calibration() is None
    assert results.run_of("vtc", ["a0", "a1"]) is None
    results.keep_calibration(calibration)
    results.keep_run(run("vtc", 1.0, 2.0))
    again = Results.open(tmp_path / "out", settings)
    assert again.calibration() == calibration
    assert again.run_of("vtc", ["a0", "a1"]) == run("vtc", 1.0, 2.0)
    with pytest.raises(ResultsError, match=r"other settings \(apps differ\)"):
        Results.open(tmp_path / "out", {**settings, "apps": 4})


def question(workload: Path, seconds: float = 60.0, ingress: dict[str, Any] | None = None) -> Question:
    serving = {"args": {"engine": {}, "ingress": ingress or {}}, "deployments": [{"name": "EngineReplica"}]}
    return Question(
        workload=workload,
        policies=["fcfs"],
        intensity=1.0,
        apps=2,
        predictor_dir=None,
        stretch=1.0,
        seconds=seconds,
        simulated=True,
        config={"applications": [{"args": {}, "deployments": [{"user_config": {}}]}, serving]},
    )


def test_results_of_another_limit_or_other_ingresses_are_not_taken(tmp_path: Path) -> None:
    workload = tmp_path / "trace.jsonl"
    workload.write_text("".join(write_application(application(name)) + "\n" for name in "abc"))
    for _ in range(2):
        Results.open(tmp_path / "out", question(workload).settings({}))
    for other, name in ((question(workload, 600.0), "seconds"), (question(workload, ingress={"a": 1}), "ingress")):
        with pytest.raises(ResultsError, match=rf"\({name} differ\)"):
            Results.open(tmp_path / "out", other.settings({}))


@pytest.mark.parametrize("text", ["{", "[]", '{"policy": "vtc"}', '{"outcomes": [{}]}', '{"pace": NaN}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    results = Results.open(tmp_path, {})
    (tmp_path / "policy-vtc.json").write_text(text)
    with pytest.raises(ResultsError, match=r"policy-vtc\.json: ."):
        results.run_of("vtc", ["a0", "a1"])


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("paces", [], "at least one"),
        ("paces", [1.0, 0.0], "above 0"),
        ("paces", [1.0, "fast"], "paces.1: "),
        ("pace", "1.2", "pace: "),
        ("pace", -1.0, "above 0"),
        ("iterations", 2.5, "iterations: "),
        ("kv_used", -0.1, "must not be negative"),
        ("policy", "fcfs", "it is a run of fcfs"),
        ("outcomes", [{"application_id": "a0", "arrival_s": 0.0}], "its applications are not those of the workload"),
        ("outcomes", [{"application_id": "a0", "arrival_s": 0.0}] * 2, "its applications are not those of the"),
        ("outcomes", [{"application_id": "a0"}], "outcomes.0.arrival_s: "),
    ],
)
def test_a_file_that_says_what_cannot_be_is_named(tmp_path: Path, field: str, value: Any, what: str) -> None:
    results = Results.open(tmp_path, {})
    results.keep_run(run("vtc", 1.0, 2.0))
    path = tmp_path / "policy-vtc.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ResultsError, match=rf"policy-vtc\.json: .*{what}"):
        results.run_of("vtc", ["a0", "a1"])


@pytest.mark.parametrize(("field", "value"), [("stretch", 0.0), ("slowdown", "1"), ("fit", {}), ("round_trip_s", None)])
def test_a_damaged_calibration_is_named(tmp_path: Path, field: str, value: Any) -> None:
    results = Results.open(tmp_path, {})
    found = Calibration(profile=SIZES, fit=FIT, slowdown=1.1, round_trip_s=0.05, stretch=0.2, on_measured=False)
    (tmp_path / "calibration.json").write_text(json.dumps({**asdict(found), field: value}))
    with pytest.raises(ResultsError, match=r"calibration\.json: ."):
        results.calibration()


def test_a_digest_follows_contents_and_names(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    before = digest_of(tmp_path)
    (tmp_path / "two").write_text("2")
    with_another = digest_of(tmp_path)
    (tmp_path / "two").rename(tmp_path / "three")
    renamed = digest_of(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "three").rename(tmp_path / "below" / "three")
    assert len({before, with_another, renamed, digest_of(tmp_path)}) == 4


def test_a_digest_knows_where_one_file_ends(tmp_path: Path) -> None:
    for name, contents in (("one", {"a": b"xb\0y"}), ("two", {"a": b"x", "b": b"y"})):
        (tmp_path / name).mkdir()
        for file, content in contents.items():
            (tmp_path / name / file).write_bytes(content)
    assert digest_of(tmp_path / "one") != digest_of(tmp_path / "two")


# ---- what calibrates


def bench_of(tmp_path: Path, count: int, apps: int, stretch: float | None = 1.0) -> Bench:
    workload = tmp_path / "trace.jsonl"
    workload.write_text("".join(write_application(application(f"a{number:03}")) + "\n" for number in range(count)))
    asked = replace(question(workload), apps=apps, stretch=stretch)
    return Bench(asked, tmp_path / "out", Console(quiet=True))


@pytest.mark.parametrize(
    ("count", "apps", "calibrating", "on_measured"),
    [
        (60, 30, range(30, 54), False),
        (32, 30, range(6, 30), True),
        (30, 30, range(6, 30), True),
        (12, 6, range(6, 12), False),
        (8, 6, range(6), True),
    ],
)
def test_what_calibrates_is_measured_itself_only_where_too_little_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, apps: int, calibrating: range, on_measured: bool
) -> None:
    """24 applications calibrate 30."""
    asked: list[str] = []

    def run_live(_stage: Any, _arrangement: Any, _policy: str, traced: Sequence[TraceApplication], _: Any) -> LiveRun:
        asked.extend(one.application_id for one in traced)
        outcomes = [Outcome(application_id=one.application_id, arrival_s=0.0, finish_s=9.0) for one in traced]
        return LiveRun(outcomes=outcomes, iterations=9, preemptions=0, log=LOG, kv_used_tokens=[], marks=[])

    monkeypatch.setattr(bench, "run_live", run_live)
    found = bench_of(tmp_path, count, apps).calibration()
    assert asked == [f"a{number:03}" for number in calibrating]
    assert found.on_measured is on_measured
    assert ("applications that are compared as well" in calibration_line(found)) is on_measured
    assert found.stretch == 1.0


def test_a_calibration_that_tells_nothing_says_what_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Outcome(application_id=f"a00{number}", arrival_s=0.0, finish_s=9.0) for number in range(4)]
    empty = LiveRun(outcomes=outcomes, iterations=0, preemptions=0, log=[], kv_used_tokens=[], marks=[])
    monkeypatch.setattr(bench, "run_live", lambda *_: empty)
    with pytest.raises(ResultsError, match=r"calibration: 0 iterations are too few.* a longer workload, or fewer"):
        bench_of(tmp_path, 8, 4).calibration()


def test_what_the_reference_engine_cannot_hold_needs_a_stretch(tmp_path: Path) -> None:
    workload = tmp_path / "trace.jsonl"
    wide = replace(call("x", 3000, 900), sequences=2)
    workload.write_text(write_application(application("a", 0.0, wide)) + "\n")
    asked = replace(question(workload), simulated=False)
    with pytest.raises(TrafficError, match=r"take 488 blocks, more than the 459 of the reference engine, which --str"):
        Bench(replace(asked, stretch=None), tmp_path / "one", Console(quiet=True))
    Bench(asked, tmp_path / "two", Console(quiet=True))


def test_a_mistake_in_the_program_is_not_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> LiveRun:
        raise KeyError("mine")

    monkeypatch.setattr(bench, "run_live", fail)
    with pytest.raises(KeyError, match="mine"):
        bench_of(tmp_path, 8, 4).compared()
