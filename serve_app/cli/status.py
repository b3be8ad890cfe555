"""`justitia status`: all applications, or one with its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_app.cli import http
from serve_app.cli.live_table import STATE_STYLE, first_words, progress_table, shown_number


def status(
    application_id: Annotated[str | None, typer.Argument(help="One application; without it, all.")] = None,
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Show how far applications are: state, finish tag, calls done, times.

    Example: [bold]justitia status my-review-7[/bold]
    """
    path = http.APPLICATIONS if application_id is None else http.application_path(application_id)
    answer = http.ask(url, "GET", path, api_key=api_key)
    if as_json:
        http.print_json(answer)
        return
    statuses = answer.get("data", []) if application_id is None else [answer]
    console = Console()
    console.print(progress_table(statuses) if statuses else "No applications.")
    if application_id is not None:
        _print_details(console, answer)


def _print_details(console: Console, status: Mapping[str, Any]) -> None:
    if status.get("calls"):  # none are kept of one that came call by call
        console.print(calls_table(status["calls"]))
    for name in ("completion_s", "gps_completion_s", "lag_s", "bound_s"):
        if status.get(name) is not None:
            console.print(f"{name}: {shown_number(status[name])}")
    if status.get("error"):
        console.print(f"error: {status['error']}", style="red", markup=False)


def calls_table(calls: Iterable[Mapping[str, Any]]) -> Table:
    table = Table("call", "state", "prompt tokens", "output tokens", "output or error", expand=False)
    for call in calls:
        state = str(call.get("state", ""))
        table.add_row(
            Text(str(call.get("name", ""))),
            Text(state, style=STATE_STYLE.get(state, "")),
            shown_number(call.get("prompt_tokens")),
            shown_number(call.get("output_tokens")),
            Text(first_words(call.get("error") or " / ".join(call.get("outputs") or []))),
        )
    return table
