"""`justitia models`: what predicts in the live service, and going back to what predicted before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from serve_app.cli import http
from serve_app.cli.live_table import shown_number

PREDICTOR = "/v1/predictor"

models = typer.Typer(no_args_is_help=True, help="The live service's predictors: list them, go back a version.")


@models.command("list")
def list_models(
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Show what predicts in each ingress: version, what it learnt from, its last training, drift.

    Example: [bold]justitia models list[/bold]
    """
    _show(http.ask(url, "GET", PREDICTOR, api_key=api_key), as_json)


@models.command()
def rollback(
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Predict with the version before the present one from here on; the present one is not used again.

    Where API keys are asked for, the key's tenant must stand in `ingress.operators`.

    Example: [bold]justitia models rollback[/bold]
    """
    _show(http.ask(url, "POST", f"{PREDICTOR}/rollback", api_key=api_key), as_json)


def _show(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        http.print_json(answer)
        return
    console = Console()
    statuses: Sequence[Mapping[str, Any]] = answer["data"]
    console.print(_table(statuses))
    for status in statuses:
        if status.get("model_refused"):
            console.print(f"refused: {status['model_refused']}", style="red", markup=False)


def _table(statuses: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("ingress", "version", "model", "learnt from", "before", "drifts", "last training", expand=False)
    for status in statuses:
        table.add_row(
            str(status["ingress"]),
            str(status["version"]),
            str(status["model"]),
            shown_number(status.get("learnt_from")),
            ", ".join(map(str, status.get("versions_before", []))) or "-",
            shown_number(status.get("drifts")),
            _last(status),
        )
    return table


def _last(status: Mapping[str, Any]) -> str:
    if status.get("training"):
        return "runs"
    last = status.get("last_training")
    return "-" if last is None else f"{last['outcome']}: {last['reason']}"
