"""The command line around an agent's `run`: where its text comes from, how its answer is shown, how it fails.

Exit codes are those of `justitia`: 1 nobody answers, 2 refused, 3 the application did not finish.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from serve_app.agents.result import InputError, Result
from serve_app.agents.trace import gantt
from serve_app.cli import http
from serve_app.client import AsyncJustitia, JustitiaError, JustitiaUnreachable

Run = Callable[[AsyncJustitia, str], Awaitable[Result]]
InputArgument = Annotated[
    str | None,
    typer.Argument(metavar="INPUT", help="A file or a text; - reads stdin. Without it: a sample.", show_default=False),
]
_FILE_NAME = re.compile(r"(?:/|\.{1,2}/|~/)\S+|\S+\.(?:txt|md|py|json|csv)")
TraceOption = Annotated[bool, typer.Option("--trace", help="Show its calls over time.")]


def main(run: Run, sample: str, about: str | None) -> None:
    """Be the program of one agent."""
    program = typer.Typer(add_completion=False)

    @program.command(help=about)
    def agent(
        text: InputArgument = None,
        trace: TraceOption = False,
        as_json: http.JsonOption = False,
        url: http.UrlOption = http.DEFAULT_URL,
        api_key: http.ApiKeyOption = None,
    ) -> None:
        execute(run, read_input(text, sample), url=url, api_key=api_key, trace=trace, as_json=as_json)

    program()


def execute(run: Run, text: str, *, url: str, api_key: str | None, trace: bool, as_json: bool) -> None:
    """Run an agent and print what it found. Ends the command (typer.Exit) when it cannot."""
    try:
        client = AsyncJustitia(url, api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    http.require_service(url, api_key)
    try:
        result = asyncio.run(_run(run, text, client))
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    except JustitiaUnreachable as error:
        http.end_unreachable(url, error)
    except JustitiaError as error:
        http.complain(f"Refused: {error}" if error.status else str(error))
        raise typer.Exit(http.REFUSED if error.status else http.NOT_FINISHED) from None
    if as_json:
        http.print_json(asdict(result))
    else:
        _print(result, trace)


def read_input(source: str | None, sample: str) -> str:
    """The text that an argument stands for: a file's, where there is one of that name. Raises typer.BadParameter."""
    if source is None:
        return sample
    text = _decoded(sys.stdin.buffer.read()) if source == "-" else _file_text(source)
    if not text.strip():
        raise typer.BadParameter("there is no text in it")
    if not _is_unicode(text):
        raise typer.BadParameter("its text is not UTF-8")
    return text


async def _run(run: Run, text: str, client: AsyncJustitia) -> Result:
    async with client:
        return await run(client, text)


def _file_text(source: str) -> str:
    """The text of the file that `source` names, or `source` itself. Raises typer.BadParameter for one of no use."""
    if not source.strip():
        return source
    file = Path(source)
    exists = False
    with suppress(OSError, ValueError):  # too long for a name, or with characters that no name has
        exists = file.exists()
    if not exists and _FILE_NAME.fullmatch(source) is None:
        return source
    try:
        return _decoded(file.read_bytes())
    except OSError as error:
        raise typer.BadParameter(f"{source}: {error.strerror or error}") from None


def _decoded(read: bytes) -> str:
    """A text with the lines of this system; bytes that are no UTF-8 become characters that are no Unicode."""
    return read.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _print(result: Result, trace: bool) -> None:
    console = Console(soft_wrap=True)
    console.print(result.answer, markup=False, highlight=False)
    for name, value in vars(result).items():
        if name not in ("answer", "calls"):
            console.print(f"\n{name.replace('_', ' ')}: {_shown(value)}", markup=False, highlight=False)
    if trace:
        console.print()
        Console().print(gantt(result.calls))


def _shown(value: Any) -> str:
    """A field of a result: tuples a line an entry, dataclasses by their fields."""
    if isinstance(value, tuple):
        return "".join(f"\n  {_shown(entry)}" for entry in value) or "none"
    if hasattr(value, "__dataclass_fields__"):
        return " | ".join(
            "; ".join(entry) if isinstance(entry, tuple) else str(entry) for entry in vars(value).values()
        )
    return str(value)
