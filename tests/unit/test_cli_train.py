"""`justitia train` and `justitia evaluate`, and the simulator with what they made."""

from __future__ import annotations

import gzip
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.sim.workload import read_workload
from serve_app.cli.main import app
from serve_app.trained_predictor import TrainedModel
from tests.predicting import workload_lines

KEYS = {"mean_relative_error", "kendall_tau", "coverage_80", "predict_ms_p50", "by_type"}


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code == 0 else " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload to learn from, one to judge by, and a model."""
    made = tmp_path_factory.mktemp("models")
    (made / "train.jsonl").write_text(workload_lines(40, seed=1))
    (made / "eval.jsonl").write_text(workload_lines(40, seed=2))
    run("train", "--workload", made / "train.jsonl", "--out", made / "model")
    return made


def evaluated(folder: Path, model: str) -> dict[str, Any]:
    return json.loads(run("evaluate", "--model", folder / model, "--workload", folder / "eval.jsonl", "--json"))


def test_a_model_predicts_what_it_has_not_seen(folder: Path) -> None:
    found = evaluated(folder, "model")
    assert found.keys() >= KEYS
    assert found["mean_relative_error"] < 0.2
    assert found["kendall_tau"] > 0.8
    assert 0.65 < found["coverage_80"] < 0.95
    assert found["predict_ms_p50"] > 0
    assert set(found["by_type"]) == {"report", "question"}
    assert found["by_type"]["report"]["applications"] == 40


def test_the_papers_model(folder: Path) -> None:
    said = json.loads(
        run("train", "--workload", folder / "train.jsonl", "--model", "mlp", "--out", folder / "mlp", "--json")
    )
    assert said["model"] == "mlp"
    assert said["applications"] == {"question": 40, "report": 40}
    assert evaluated(folder, "mlp")["model"] == "mlp"


def test_the_limit_by_type_holds(folder: Path) -> None:
    train = ("train", "--workload", folder / "train.jsonl", "--out", folder / "few")
    said = json.loads(run(*train, "--limit-per-type", 10, "--json"))
    assert said["applications"] == {"question": 10, "report": 10}


def test_the_learning_curve_falls(folder: Path) -> None:
    said = json.loads(
        run(
            *("train", "--workload", folder / "train.jsonl", "--out", folder / "curve", "--json"),
            *("--learning-curve", folder / "eval.jsonl"),
        )
    )
    errors = [point["mean_relative_error"] for point in said["learning_curve"]]
    assert [point["per_type"] for point in said["learning_curve"]] == [10, 30, 100]
    assert errors[-1] < errors[0]


def test_prompts_left_out_are_judged_in_turn(folder: Path) -> None:
    train = ("train", "--workload", folder / "train.jsonl", "--out", folder / "folds", "--folds", 2)
    said = json.loads(run(*train, "--json"))
    assert 0 < said["left_out"]["mean_relative_error"] < 0.3
    assert said["left_out"]["kendall_tau"] > 0.8
    assert "On prompts left out" in run(*train)


def test_nothing_is_trained_before_everything_is_known_to_be_there(folder: Path) -> None:
    train = ("train", "--workload", folder / "train.jsonl", "--out", folder / "none")
    assert "No such file" in run(*train, "--learning-curve", folder / "absent", code=2)
    assert not (folder / "none").exists()


@pytest.mark.parametrize("text", ['{"format": "somebody-else"}', "not JSON", "[]"])
def test_what_is_somebody_elses_is_not_replaced(folder: Path, text: str) -> None:
    place = folder / "theirs"
    place.mkdir(exist_ok=True)
    (place / "model.json").write_text(text)
    assert "it is not replaced" in run("train", "--workload", folder / "train.jsonl", "--out", place, code=2)
    assert (place / "model.json").read_text() == text
    (place / "model.json").write_text('{"format": "justitia-predictor", "format_version": 0}')
    run("train", "--workload", folder / "train.jsonl", "--out", place)


def test_odd_names_are_shown_as_they_are(tmp_path: Path) -> None:
    line = {"application_type": "[/x]", "prompt": "p", "calls": [{"name": "c", "prompt_tokens": 9, "output_tokens": 9}]}
    (tmp_path / "w.jsonl").write_text(f"{json.dumps(line)}\n" * 3)
    out = tmp_path / "[red]model"
    assert "[red]model" in "".join(run("train", "--workload", tmp_path / "w.jsonl", "--out", out).split())
    assert "[/x]" in run("evaluate", "--model", out, "--workload", tmp_path / "w.jsonl")


def test_costs_that_never_differ_lie_in_their_interval(tmp_path: Path) -> None:
    line = {"application_type": "a", "prompt": "p", "calls": [{"name": "c", "prompt_tokens": 9, "output_tokens": 9}]}
    (tmp_path / "w.jsonl").write_text(f"{json.dumps(line)}\n" * 20)
    run("train", "--workload", tmp_path / "w.jsonl", "--out", tmp_path / "m")
    found = json.loads(run("evaluate", "--model", tmp_path / "m", "--workload", tmp_path / "w.jsonl", "--json"))
    assert found["coverage_80"] == 1.0


@pytest.mark.parametrize(
    "line",
    [
        '{"application_type": "a", "prompt": "p", "true_cost": 1' + "0" * 400 + "}",
        '{"application_type": "\\ud800", "prompt": "p", "true_cost": 5}',
    ],
)
def test_what_cannot_be_learnt_or_shown_is_refused_by_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "w.jsonl").write_text(f"{line}\n")
    assert "line 1" in run("train", "--workload", tmp_path / "w.jsonl", "--out", tmp_path / "m", code=2)


def test_a_workload_can_come_through_a_pipe(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = (folder / "train.jsonl").read_text()
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    said = json.loads(run("train", "--workload", pipe, "--out", tmp_path / "m", "--json"))
    writer.join()
    assert said["applications"] == {"question": 40, "report": 40}


def test_costs_that_are_none_are_left_out_of_every_judgement(folder: Path, tmp_path: Path) -> None:
    odd = '{"application_type": "report", "prompt": "p", "true_cost": 0}\n'
    (tmp_path / "w.jsonl").write_text((folder / "train.jsonl").read_text() + odd)
    train = ("train", "--workload", tmp_path / "w.jsonl", "--out", tmp_path / "m", "--json")
    said = json.loads(run(*train, "--folds", 2, "--learning-curve", tmp_path / "w.jsonl"))
    assert said["left_out"]["mean_relative_error"] < 0.3
    assert len(said["learning_curve"]) == 3


def test_what_was_learnt_from_can_be_passed_over(folder: Path) -> None:
    evaluate = ("evaluate", "--model", folder / "model", "--workload", folder / "eval.jsonl")
    said = json.loads(run(*evaluate, "--skip-per-type", 30, "--json"))
    everything = json.loads(run(*evaluate, "--json"))
    assert {name: one["applications"] + 30 for name, one in said["by_type"].items()} == {
        name: one["applications"] for name, one in everything["by_type"].items()
    }
    assert "no application is left" in run(*evaluate, "--skip-per-type", 1000, code=2)


def test_a_model_that_learns_follows_costs_that_have_changed(folder: Path) -> None:
    dearer = folder / "dearer.jsonl"
    documents = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    for call in (call for document in documents for call in document["calls"]):
        call["output_tokens"] *= 3
    dearer.write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    evaluate = ("evaluate", "--model", folder / "model", "--workload", dearer)
    fixed, learning = (json.loads(run(*evaluate, *more, "--json")) for more in ((), ("--learning",)))
    assert (fixed["learning"], learning["learning"]) == (False, True)
    assert fixed["mean_relative_error"] > 0.5
    assert learning["mean_relative_error"] < 0.9 * fixed["mean_relative_error"]
    assert evaluated(folder, "model")["mean_relative_error"] < 0.2, "what stands in the files has not changed"
    assert "--html plots a model that does not learn" in run(*evaluate, "--learning", "--html", folder / "x", code=2)


def test_people_get_tables_and_a_plot(folder: Path) -> None:
    arguments = ("--model", folder / "model", "--workload", folder / "eval.jsonl", "--html", folder / "plot.html")
    said = run("evaluate", *arguments)
    assert "report" in said
    assert "One prediction, from text to cost" in said
    assert "Share of applications" in (folder / "plot.html").read_text()
    said = run(
        *("train", "--workload", folder / "train.jsonl", "--out", folder / "again"),
        *("--learning-curve", folder / "eval.jsonl"),
    )
    assert "80 applications of 2 types" in said
    assert "Learning curve" in said


def test_a_log_of_finished_applications_teaches_too(folder: Path) -> None:
    lines = [
        {"application_type": "a", "prompt": "one two", "true_cost": 500.0, "outcome": "finished", "tenant": "t"},
        {"application_type": "a", "prompt": "three", "true_cost": 9e9, "outcome": "cancelled"},
        {"application_type": "a", "prompt": None, "true_cost": float("nan")},
        {"application_type": "a", "prompt": "four", "true_cost": 400},
    ]
    with gzip.open(folder / "log.jsonl.gz", "wt") as file:
        file.write("\n\n".join(map(json.dumps, lines)))
    said = json.loads(run("train", "--workload", folder / "log.jsonl.gz", "--out", folder / "log", "--json"))
    assert said["applications"] == {"a": 3}
    assert said["ignored"] == 1
    said = run("train", "--workload", folder / "log.jsonl.gz", "--out", folder / "log")
    assert "1 without a finite, positive cost taught nothing." in said


def test_the_simulator_takes_a_trained_model_and_repeats_itself(folder: Path) -> None:
    arguments = ("--workload", folder / "eval.jsonl", "--policies", "justitia,vtc", "--intensity", 50, "--json")
    found = run("simulate", *arguments, "--predictor", folder / "model")
    assert [len(one["applications"]) for one in json.loads(found)] == [80, 80]
    assert run("simulate", *arguments, "--predictor", folder / "model") == found


def test_the_simulator_orders_by_the_quantile_it_is_asked_for(folder: Path) -> None:
    low, point, high = (TrainedModel.of_directory(folder / "model", q) for q in (0.1, None, 0.9))
    for application in read_workload((folder / "eval.jsonl").read_text().splitlines()):
        costs = [model.predict(application).cost for model in (low, point, high)]
        assert costs[0] < costs[1] < costs[2]  # type: ignore[operator]
    arguments = ("--workload", folder / "eval.jsonl", "--policies", "justitia", "--json", "--predictor")
    found = json.loads(run("simulate", *arguments, folder / "model", "--predictor-quantile", 0.9))
    predicted = {one["application_id"]: one["predicted_cost"] for one in found[0]["applications"]}
    usual = json.loads(run("simulate", *arguments, folder / "model"))[0]["applications"]
    assert all(predicted[one["application_id"]] >= one["predicted_cost"] for one in usual)


def test_a_quantile_that_cannot_be_had_is_refused(folder: Path) -> None:
    arguments = ("simulate", "--limit", 1, "--predictor-quantile")
    assert "'oracle' has no quantiles" in run(*arguments, 0.9, code=2)
    assert "must lie between 0 and 1" in run(*arguments, 1.0, "--predictor", folder / "model", code=2)


def test_a_trained_model_tells_the_simulator_costs_and_lengths_and_learns(folder: Path) -> None:
    model = TrainedModel.of_directory(folder / "model")
    for application in read_workload((folder / "eval.jsonl").read_text().splitlines()):
        found = model.predict(application)
        assert found.cost == pytest.approx(application.cost, rel=0.9)
        assert 20 <= found.outputs["plan"] <= 25
    before = model.predict(application).cost
    assert before is not None
    longer = replace(application, calls=tuple(replace(call, output_tokens=5_000) for call in application.calls))
    for _ in range(5):
        model.learn(longer)
    after = model.predict(application).cost
    assert after is not None
    assert after > 10 * before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 2: Expecting value"),
        ("[]", "line 2: not an object"),
        ('{"prompt": "x"}', "line 2: 'application_type' is missing"),
        ('{"application_type": "a"}', "line 2: 'calls' is missing"),
        ('{"application_type": "a", "prompt": 7, "true_cost": 1}', "line 2: prompt must be a text"),
        ('{"application_type": "a", "true_cost": "much"}', "line 2: could not convert"),
        ('{"application_type": "a", "calls": [7]}', "line 2: a call must be an object"),
        (
            '{"application_type": "a", "calls": [{"name": "b", "prompt_tokens": 1}]}',
            "line 2: 'output_tokens' is missing",
        ),
        (
            '{"application_type": "a", "calls": [{"name": "b", "prompt_tokens": -1, "output_tokens": 1}]}',
            "line 2: prompt_tokens must be a count",
        ),
    ],
)
def test_a_line_at_fault_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"application_type": "a", "prompt": "p", "true_cost": 5}\n' + line)
    assert said in run("train", "--workload", path, "--out", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()


def test_mistakes_are_told_in_words(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    train, out = folder / "train.jsonl", ("--out", tmp_path / "out")
    assert "No such file" in run("train", "--workload", "no/such/file", *out, code=2)
    assert "no finished application" in run("train", "--workload", tmp_path / "empty.jsonl", *out, code=2)
    assert "binary.jsonl" in run("train", "--workload", tmp_path / "binary.jsonl", *out, code=2)
    assert "broken.gz" in run("train", "--workload", tmp_path / "broken.gz", *out, code=2)
    assert "no model 'guess'" in run("train", "--workload", train, "--model", "guess", *out, code=2)
    assert "not a directory" in run("train", "--workload", train, "--out", train, code=2)
    assert "model.json: No such file" in run("evaluate", "--model", tmp_path, "--workload", train, code=2)
    evaluate = ("evaluate", "--model", folder / "model", "--workload")
    assert "No such file" in run(*evaluate, "no/such/file", code=2)
    assert "no file can be written there" in run(*evaluate, train, "--html", "no/such/plot.html", code=2)


def test_a_cost_that_is_none_cannot_be_judged_by(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "zero.jsonl"
    path.write_text('{"application_type": "a", "prompt": "p", "true_cost": 0}')
    assert "must be finite and positive" in run("evaluate", "--model", folder / "model", "--workload", path, code=2)


def test_a_damaged_model_is_refused_by_the_simulator_with_the_reason(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    assert "not a predictor" in run("simulate", "--predictor", tmp_path, code=2)


def test_help_has_an_example() -> None:
    assert "justitia train --workload" in run("train", "--help")
    assert "justitia evaluate --model" in run("evaluate", "--help")
