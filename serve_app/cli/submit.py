"""`justitia submit`: send an application, and wait for its answers if asked to."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml
from rich.console import Console

from serve_app.cli import http
from serve_app.cli.live_table import ServiceRefused, answer_text, final_table, watch


def submit(
    file: Annotated[str, typer.Argument(help="A JSON or YAML file with the application; - reads stdin.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print its answer.")] = False,
    as_json: http.JsonOption = False,
    url: http.UrlOption = http.DEFAULT_URL,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Submit an application: LLM calls and what each of them waits for.

    Example: [bold]justitia submit review.yaml --wait[/bold]
    """
    answer = http.ask(url, "POST", http.APPLICATIONS, read_document(file), api_key=api_key)
    application_id = str(answer["application_id"])
    if wait:
        answer = wait_for(application_id, url, quiet=as_json, api_key=api_key)
    if as_json:
        http.print_json(answer)
    elif not wait:
        typer.echo(f"{application_id} is {answer.get('state', 'queued')}.")
        typer.echo(f"Follow it with: justitia status {application_id}")
    else:
        _print_ended(answer)
    if wait and answer.get("state") != "finished":
        raise typer.Exit(http.NOT_FINISHED)


def read_document(file: str) -> dict[str, Any]:
    """The application in a file or on stdin. JSON is tried first: YAML reads `1e5` as a text."""
    text = _read_text(file)
    try:
        document = json.loads(text)
    except ValueError:
        document = _parse_yaml(file, text)
    if not isinstance(document, dict):
        raise typer.BadParameter(f"{file} must hold one application (an object with calls)")
    return document


def wait_for(application_id: str, url: str, quiet: bool, api_key: str | None) -> dict[str, Any]:
    """The status of the application once it has ended; shows it on the way unless `quiet`."""

    async def follow() -> dict[str, Any]:
        async with http.make_async_client(url, api_key) as client:
            return (await watch(client, [application_id], Console(quiet=quiet)))[0]

    try:
        return asyncio.run(follow())
    except httpx.TransportError as error:
        http.end_unreachable(url, error)
    except ServiceRefused as refusal:
        http.end_refused(refusal.answer)


def _read_text(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}") from None


def _parse_yaml(file: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{file} is neither JSON nor YAML: {error}") from None


def _print_ended(status: dict[str, Any]) -> None:
    console = Console()
    console.print(final_table([status]))
    if status.get("error"):
        console.print(f"Error: {status['error']}", style="red", markup=False)
    console.print(answer_text(status), markup=False, highlight=False)
