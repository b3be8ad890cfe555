"""`justitia explain`: why an application stands where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_app.cli import http
from serve_app.cli.live_table import shown_number


def explain(
    application_id: Annotated[str, typer.Argument(help="The application.")],
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Say why an application waits: its finish tag, its costs, and who is ahead of it.

    Example: [bold]justitia explain my-review-7[/bold]
    """
    answer = http.ask(url, "GET", http.application_path(application_id, "explain"), api_key=api_key)
    if as_json:
        http.print_json(answer)
        return
    console = Console()
    console.print(_facts_table(answer))
    ahead = answer.get("ahead") or []
    if ahead:
        console.print(_ahead_table(ahead))


def _facts_table(facts: Mapping[str, Any]) -> Table:
    table = Table("what", "value", title="Where it stands")
    for name, value in facts.items():
        if name != "ahead":
            table.add_row(Text(name), Text(shown_number(value)))
    return table


def _ahead_table(ahead: list[Mapping[str, Any]]) -> Table:
    table = Table("application", "finish tag", title=f"Ahead of it: {len(ahead)}")
    for other in ahead:
        table.add_row(Text(str(other.get("application_id"))), shown_number(other.get("finish_tag")))
    return table
