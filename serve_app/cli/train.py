"""`justitia train`: learn what applications cost from those that have finished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from serve_app.cli import http

if TYPE_CHECKING:
    from collections.abc import Iterator

    from predictors.evaluation import Evaluation
    from predictors.store import TrainedPredictor
    from serve_app.training_data import FinishedApplication

MODELS = ("default", "mlp", "transformer")
CURVE = (10, 30, 100)


def train(
    workload: Annotated[
        Path,
        typer.Option(
            "--workload",
            metavar="FILE",
            help="Finished applications, JSON Lines, gzip or not; or the service's log (DIR).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the model goes; replaced if it is there.")],
    model: Annotated[
        str, typer.Option("--model", metavar="KIND", help="default, mlp (the paper's), or transformer (slow).")
    ] = "default",
    limit_per_type: Annotated[
        int | None,
        typer.Option(
            "--limit-per-type", metavar="N", help="The first N applications of each type.", min=1, show_default="all"
        ),
    ] = None,
    learning_curve: Annotated[
        Path | None,
        typer.Option(
            "--learning-curve",
            metavar="FILE",
            help="Also show the error on FILE after the first 10, 30 and 100 of each type.",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Also show the error on prompts left out of training, K parts in turn.",
            min=2,
            show_default=False,
        ),
    ] = None,
    as_json: http.JsonOption = False,
) -> None:
    """Train a predictor of application costs and call lengths. No service is needed.

    A line of the file is what `justitia simulate` reads, or a finished application of the service:

    \b
    {"application_type": "report", "prompt": "Summarize ...",
     "calls": [{"name": "draft", "prompt_tokens": 800, "output_tokens": 200}]}
    (on one line; "true_cost" in token-iterations may stand in place of the calls)

    \b
    justitia train --workload train.jsonl --limit-per-type 100 --out model
    justitia train --workload train.jsonl --model mlp --out paper-model
    justitia train --workload STATE_DIR/finished --out model
    justitia train --workload train.jsonl --learning-curve eval.jsonl --out model
    justitia train --workload train.jsonl --folds 5 --out model
    """
    from predictors.store import check_replaceable, save
    from serve_app.training import ModelKind
    from serve_app.training import train as train_on
    from serve_app.training_data import without_prompts

    with mistakes_in_words():
        if model not in MODELS:
            raise ValueError(f"no model {model!r}; known: {', '.join(MODELS)}")
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out}: not a directory")
        check_replaceable(out)
        applications = _read(workload, limit_per_type)
        judged_by = None if learning_curve is None else _read(learning_curve)
        if without_prompts(applications):
            http.complain("There are no prompts in it: costs are predicted by application type alone.")
        types = {one.asked.application_type for one in applications}
        with progress_bar(f"train {model}", len(types)) as advance:
            predictor = train_on(applications, ModelKind(model), advance)
        try:
            save(predictor, out)
        except OSError as error:
            raise ValueError(f"--out {out}: {error.strerror or error}") from error
        curve = [] if judged_by is None else _curve(ModelKind(model), applications, judged_by)
        left_out = None if folds is None else _left_out(ModelKind(model), applications, folds)
    _print(predictor, out, curve, left_out, as_json)


@contextmanager
def mistakes_in_words() -> Iterator[None]:
    """End the command with 2 and a sentence for what a user got wrong."""
    from predictors.store import ModelFileError

    try:
        yield
    except OSError as error:
        http.complain(f"{error.filename}: {error.strerror or error}")
        raise typer.Exit(http.REFUSED) from None
    except (ImportError, ModelFileError, ValueError) as error:
        http.complain(str(error))
        raise typer.Exit(http.REFUSED) from None


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Any]:
    """A bar on the standard error stream, on a terminal only; yields what is to be called after each step."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda *_: progress.advance(task)


def _read(path: Path, limit_per_type: int | None = None) -> list[FinishedApplication]:
    from serve_app.training_data import read_finished

    return read_finished(path, limit_per_type)


def _curve(
    kind: Any, applications: Sequence[FinishedApplication], judged_by: Sequence[FinishedApplication]
) -> list[tuple[int, Evaluation]]:
    from predictors.evaluation import learning_curve
    from serve_app.training import asked_and_costs, create_cost_model

    with progress_bar("learning curve", len(CURVE)) as advance:

        def create() -> Any:
            advance()
            return create_cost_model(kind)

        return learning_curve(create, asked_and_costs(applications), asked_and_costs(_with_costs(judged_by)), CURVE)


def _left_out(kind: Any, applications: Sequence[FinishedApplication], folds: int) -> Evaluation:
    from predictors.evaluation import cross_validated
    from serve_app.training import asked_and_costs, create_cost_model

    with progress_bar("cross-validation", folds) as advance:

        def create() -> Any:
            advance()
            return create_cost_model(kind)

        return cross_validated(create, *asked_and_costs(_with_costs(applications)), folds)


def _with_costs(applications: Sequence[FinishedApplication]) -> list[FinishedApplication]:
    """Those that a model learns from: their cost is finite and positive."""
    return [one for one in applications if 0 < one.cost < math.inf]


def _print(
    predictor: TrainedPredictor,
    out: Path,
    curve: Sequence[tuple[int, Evaluation]],
    left_out: Evaluation | None,
    as_json: bool,
) -> None:
    if as_json:
        document: dict[str, Any] = {
            "model": predictor.kind,
            "directory": str(out),
            "fingerprint": predictor.fingerprint,
            "ignored": predictor.costs.ignored_,
            "applications": dict(predictor.applications),
        }
        if curve:
            document["learning_curve"] = [{"per_type": count, **_quality(found)} for count, found in curve]
        if left_out is not None:
            document["left_out"] = _quality(left_out)
        http.print_json(document)
        return
    console = Console()
    count = sum(predictor.applications.values())
    console.print(
        f"{predictor.kind}: {count:,} applications of {len(predictor.applications)} types, in {escape(str(out))}"
    )
    if predictor.costs.ignored_:
        console.print(f"{predictor.costs.ignored_:,} without a finite, positive cost taught nothing.")
    if curve:
        console.print(_table("Learning curve", "per type", [(str(count), found) for count, found in curve]))
    if left_out is not None:
        console.print(_table("On prompts left out", "", [("all", left_out)]))


def _quality(found: Evaluation) -> dict[str, Any]:
    return {
        "mean_relative_error": found.overall.mean_relative_error,
        "kendall_tau": found.overall.kendall_tau,
        "coverage_80": found.overall.coverage_80,
    }


def _table(title: str, first: str, rows: Sequence[tuple[str, Evaluation]]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in (first, "mean error", "Kendall tau", "in 80 % interval"):
        table.add_column(heading, justify="right")
    for name, found in rows:
        quality = found.overall
        tau = "-" if quality.kendall_tau is None else f"{quality.kendall_tau:.3f}"
        table.add_row(name, f"{quality.mean_relative_error:.1%}", tau, f"{quality.coverage_80:.1%}")
    return table
