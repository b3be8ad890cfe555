"""`justitia agents` and `justitia agent`: nine applications as programs, on a running service."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from serve_app.agents import AGENTS
from serve_app.cli import http


def agents(as_json: http.JsonOption = False) -> None:
    """List the agents: programs that each do one job with several calls.

    Example: [bold]justitia agents[/bold]
    """
    about = {name: _about(_agent(name)) for name in AGENTS}
    if as_json:
        http.print_json(about)
        return
    table = Table("agent", "what it does")
    for name, says in about.items():
        table.add_row(name, says)
    Console().print(table)


def agent(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(AGENTS)}.", show_default=False)],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT", help="A file or a text; - reads stdin. Without it: a sample.", show_default=False
        ),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show its calls over time.")] = False,
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Run one agent on a text, and print what it found.

    Example: [bold]justitia agent fact_verification "Whales are fish." --trace[/bold]
    """
    from serve_app.agents.command import execute, read_input  # as the agents do, they take the client's libraries

    if name not in AGENTS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(AGENTS)}", param_hint="NAME")
    module = _agent(name)
    source = read_input(text, module.SAMPLE)
    execute(module.run, source, url=url, api_key=api_key, trace=trace, as_json=as_json)


def _agent(name: str) -> ModuleType:
    return import_module(f"serve_app.agents.{name}")


def _about(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
