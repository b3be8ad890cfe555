"""`justitia reproduce`: the paper's figures and tables, simulated, beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from scheduler.sim.experiments import EXPERIMENTS
from scheduler.sim.experiments.findings import Findings
from scheduler.sim.experiments.laboratory import (
    EVEN,
    PREDICTORS,
    TRAIN,
    Advance,
    CreatePredictor,
    Experiment,
    Laboratory,
    Workloads,
)
from serve_app.cli import http
from serve_app.cli.experiment_measurements import TABLE_3
from serve_app.cli.experiment_predictors import KINDS, Model, train_models, with_times
from serve_app.cli.experiment_tables import documents, print_findings
from serve_app.cli.experiment_workloads import GeneratedWorkloads, find_workloads, shared_folder
from serve_app.cli.simulate import mistakes_in_words
from serve_app.cli.simulation_runs import CannotSimulate, load_predictor

ALL, NONE = "all", "none"
LEAST_APPLICATIONS = 10
TRAINED: Mapping[str, Sequence[str]] = {"table2": KINDS, "held_out": KINDS[:1]}
"""The kinds of models that experiments need trained."""

KNOWN: Mapping[str, Experiment] = {**EXPERIMENTS, TABLE_3.name: TABLE_3}


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Experiments by name, or all.", show_default=False)
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments, and run none.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="DIR", help="A trained model for table2; repeatable.", show_default=False),
    ] = None,
    train: Annotated[
        str,
        typer.Option(
            "--train", metavar="KINDS", help="The models that table2 and held_out train first, between commas, or none."
        ),
    ] = ",".join(KINDS),
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The first N applications of each workload only: a quick look.",
            min=LEAST_APPLICATIONS,
            show_default="all",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of generated applications.", min=0)] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with charts.", show_default=False)
    ] = None,
    as_json: http.JsonOption = False,
) -> None:
    """Run the paper's experiments in virtual time, and print its figures beside ours.

    Applications come from the shared folder (JUSTITIA_SHARED, or ../shared beside the project); where it is absent
    they are generated. Experiments that need the same run share it.

    \b
    justitia reproduce --list
    justitia reproduce fig8 fig10
    justitia reproduce all --html report.html
    """
    if list_them or not names:
        _print_list(as_json)
        return
    with mistakes_in_words():
        _check_can_write(html)
        chosen = _chosen(names)
        predictors = {**PREDICTORS, **{name: load_predictor(name) for name in model or ()}}
        found = _run(chosen, predictors, _kinds(train, chosen), seed, limit)
        if html is not None:
            _write_report(html, found)
    if as_json:
        http.print_json(documents(found))
    else:
        for one in found:
            print_findings(Console(), one)
    if html is not None:
        Console(stderr=True).print(f"The report is in {html}.", markup=False, highlight=False, soft_wrap=True)


def _print_list(as_json: bool) -> None:
    if as_json:
        http.print_json([{"name": one.name, "shows": one.shows} for one in KNOWN.values()])
        return
    table = Table("name", "shows")
    for one in KNOWN.values():
        table.add_row(one.name, one.shows)
    Console().print(table)


def _chosen(names: Sequence[str]) -> list[Experiment]:
    for name in names:
        if name != ALL and name not in KNOWN:
            raise CannotSimulate(f"no experiment {name!r}; known: {', '.join(KNOWN)}, {ALL}")
    wanted = KNOWN if ALL in names else dict.fromkeys(names)
    return [KNOWN[name] for name in wanted]


def _kinds(named: str, chosen: Sequence[Experiment]) -> list[str]:
    """Those named that an experiment needs."""
    kinds = [] if named == NONE else [kind.strip() for kind in named.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            raise CannotSimulate(f"--train: no model {kind!r}; known: {', '.join(KINDS)}, {NONE}")
    needed = {kind for experiment in chosen for kind in TRAINED.get(experiment.name, ())}
    return [kind for kind in KINDS if kind in kinds and kind in needed]


def _run(
    chosen: Sequence[Experiment],
    predictors: Mapping[str, CreatePredictor],
    kinds: Sequence[str],
    seed: int,
    limit: int | None,
) -> list[Findings]:
    console = Console(stderr=True)
    workloads = find_workloads(seed, limit)
    if isinstance(workloads, GeneratedWorkloads):
        _say(console, f"No shared workloads in {shared_folder()}: the applications are generated.")
    models = _models(kinds, workloads, console)
    with _progress(console) as progress:

        def notice(what: str, count: int) -> Advance:
            task = progress.add_task(what, total=count)
            return lambda: progress.advance(task)

        everybody = {**predictors, **{kind: model.create() for kind, model in models.items()}}
        laboratory = Laboratory(workloads, everybody, notice)
        return [_with_times(experiment.run(laboratory), models, workloads) for experiment in chosen]


def _models(kinds: Sequence[str], workloads: Workloads, console: Console) -> dict[str, Model]:
    if not kinds:
        return {}
    with console.status(f"training {', '.join(kinds)}"):
        return train_models(kinds, workloads.applications(TRAIN), lambda words: _say(console, words))


def _with_times(found: Findings, models: Mapping[str, Model], workloads: Workloads) -> Findings:
    """The paper's table of predictors also has their speed, which only a clock can tell."""
    return with_times(found, models, workloads.applications(EVEN)) if found.name == "table2" and models else found


def _say(console: Console, words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def _check_can_write(path: Path | None) -> None:
    """Before the runs, which may take long."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise CannotSimulate(f"--html {path}: no file can be written there")


def _write_report(path: Path, found: Sequence[Findings]) -> None:
    from serve_app.cli.experiment_report import report_html  # plotly takes a second to import

    try:
        path.write_text(report_html(found), "utf-8")
    except OSError as error:
        raise CannotSimulate(f"{path}: {error.strerror}") from error
