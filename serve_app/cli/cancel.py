"""`justitia cancel`: stop an application."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_app.cli import http
from serve_app.cli.live_table import ENDED_STATES


def cancel(
    application_id: Annotated[str, typer.Argument(help="The application.")],
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Cancel an application: its running calls stop, its waiting calls never run.

    Example: [bold]justitia cancel my-review-7[/bold]
    """
    answer = http.ask(url, "DELETE", http.application_path(application_id), api_key=api_key)
    if as_json:
        http.print_json(answer)
    else:
        state = answer.get("state")
        typer.echo(f"{application_id} is {state if state in ENDED_STATES else 'being cancelled'}.")
