"""`justitia evaluate`: how well a trained model predicts applications whose costs are known."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serve_app.cli import http
from serve_app.cli.train import mistakes_in_words, progress_bar

if TYPE_CHECKING:
    from predictors.evaluation import Evaluation, Quality
    from predictors.models import Asked, CostEstimate
    from predictors.store import TrainedPredictor
    from serve_app.training_data import FinishedApplication

WARM_UPS = 20


def evaluate(
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="What `justitia train` wrote.")],
    workload: Annotated[
        Path, typer.Option("--workload", metavar="FILE", help="Finished applications, JSON Lines, gzip or not.")
    ],
    skip_per_type: Annotated[
        int,
        typer.Option(
            "--skip-per-type", metavar="N", help="Pass over the first N of each type, which it learnt from.", min=0
        ),
    ] = 0,
    learning: Annotated[
        bool,
        typer.Option("--learning", help="Learn from each after predicting it, as the simulator does from what ends."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a calibration plot.", show_default=False),
    ] = None,
    as_json: http.JsonOption = False,
) -> None:
    """Evaluate a trained predictor: errors by type, order, 80 % intervals, and the time of one prediction.

    \b
    justitia evaluate --model model --workload eval.jsonl
    justitia evaluate --model model --workload eval.jsonl --html calibration.html
    justitia evaluate --model model --workload train.jsonl --skip-per-type 100
    justitia evaluate --model model --workload eval.jsonl --learning
    """
    from predictors.evaluation import evaluate as compare
    from predictors.evaluation import order_interval
    from predictors.store import load
    from serve_app.training import ModelKind, asked_and_costs
    from serve_app.training_data import read_finished

    with mistakes_in_words():
        if html is not None and (html.is_dir() or not html.parent.is_dir()):
            raise ValueError(f"--html {html}: no file can be written there")
        predictor = load(model)
        if html is not None and learning:
            raise ValueError("--html plots a model that does not learn: it cannot be given with --learning")
        if learning and predictor.kind != ModelKind.DEFAULT:
            raise ValueError(f"a model of the kind {predictor.kind!r} learns whole or not at all: not with --learning")
        asked, costs = asked_and_costs(_beyond(read_finished(workload), skip_per_type))
        estimates, times_s = _timed_estimates(predictor, asked, costs if learning else None)
        found = compare(estimates, [one.application_type for one in asked], costs)
        interval = order_interval(estimates, asked, costs)
        if html is not None:
            _write_plot(html, predictor, asked, costs, estimates)
    p50_ms = 1000 * median(times_s)
    if as_json:
        http.print_json({**_document(predictor, found, interval, p50_ms), "learning": learning})
        return
    _print(predictor, found, interval, p50_ms)
    if html is not None:
        Console(stderr=True).print(f"The plot is in {html}.", markup=False, highlight=False, soft_wrap=True)


def _print(predictor: TrainedPredictor, found: Evaluation, interval: tuple[float, float] | None, p50_ms: float) -> None:
    console = Console()
    console.print(_table(predictor, found))
    if interval is not None:
        low, high = interval
        console.print(f"With other prompts of these types, Kendall tau: {low:.3f} to {high:.3f} (nine draws of ten).")
    console.print(f"One prediction, from text to cost: {p50_ms:.3f} ms (P50).")
    if found.replaced:
        console.print(f"{found.replaced:,} answers of the model were no cost and were replaced.")


def _beyond(applications: Sequence[FinishedApplication], count: int) -> list[FinishedApplication]:
    """All but the first `count` of each type. Raises ValueError where none is left."""
    seen: Counter[str] = Counter()
    kept = []
    for one in applications:
        seen[one.asked.application_type] += 1
        if seen[one.asked.application_type] > count:
            kept.append(one)
    if not kept:
        raise ValueError(f"--skip-per-type {count}: no application is left")
    return kept


def _timed_estimates(
    predictor: TrainedPredictor, asked: Sequence[Asked], learnt: Sequence[float] | None
) -> tuple[list[CostEstimate], list[float]]:
    """An estimate for each, and the seconds it took; a few go first untimed, as in a service that runs.

    `learnt` are costs that the model learns from, each after its estimate: as if all ended before the next one arrived.
    """
    for one in asked[:WARM_UPS]:
        predictor.costs.predict_one(*one)
    estimates, times_s = [], []
    with progress_bar("predict", len(asked)) as advance:
        for place, one in enumerate(asked):
            started_s = time.perf_counter()
            estimates.append(predictor.costs.predict_one(*one))
            times_s.append(time.perf_counter() - started_s)
            if learnt is not None:
                predictor.costs.partial_fit([one], [learnt[place]])
            advance()
    return estimates, times_s


def _document(
    predictor: TrainedPredictor, found: Evaluation, interval: tuple[float, float] | None, p50_ms: float
) -> dict[str, Any]:
    overall = _quality_document(found.overall)
    return {
        "model": predictor.kind,
        **overall,
        "kendall_tau_90": interval,
        "predict_ms_p50": p50_ms,
        "sources": found.sources,
        "replaced": found.replaced,
        "by_type": {name: _quality_document(quality) for name, quality in found.by_type.items()},
    }


def _quality_document(quality: Quality) -> dict[str, Any]:
    return {
        "applications": quality.applications,
        "mean_relative_error": quality.mean_relative_error,
        "median_relative_error": quality.median_relative_error,
        "kendall_tau": quality.kendall_tau,
        "coverage_80": quality.coverage_80,
    }


def _table(predictor: TrainedPredictor, found: Evaluation) -> Table:
    table = Table(title=f"Model {predictor.kind}", title_justify="left")
    table.add_column("type")
    for heading in ("applications", "learnt from", "mean error", "median error", "Kendall tau", "in 80 % interval"):
        table.add_column(heading, justify="right")
    for name, quality in found.by_type.items():
        table.add_row(escape(name), *_cells(quality, predictor.applications.get(name, 0)))
    table.add_section()
    table.add_row("all", *_cells(found.overall, sum(predictor.applications.values())))
    return table


def _cells(quality: Quality, learnt_from: int) -> list[str]:
    return [
        f"{quality.applications:,}",
        f"{learnt_from:,}",
        f"{quality.mean_relative_error:.1%}",
        f"{quality.median_relative_error:.1%}",
        "-" if quality.kendall_tau is None else f"{quality.kendall_tau:.3f}",
        f"{quality.coverage_80:.1%}",
    ]


def _write_plot(
    path: Path,
    predictor: TrainedPredictor,
    asked: Sequence[Asked],
    costs: Sequence[float],
    estimates: Sequence[CostEstimate],
) -> None:
    from predictors.evaluation import calibration
    from serve_app.cli.calibration_plot import calibration_html

    points = calibration(predictor.costs, asked, costs)
    types = [one.application_type for one in asked]
    try:
        path.write_text(calibration_html(points, types, costs, [one.cost for one in estimates]), "utf-8")
    except OSError as error:
        raise ValueError(f"--html {path}: {error.strerror or error}") from error
