"""`justitia record`: a proxy before the service that writes what programs ask of it as a workload."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scheduler.sim.workload import TraceApplication, write_application
from serve_app.cli import http
from serve_app.recorder import Evidence, Recorder

SAVE_S = 5.0
FAILED = 1


def record(
    out: Annotated[Path, typer.Option("--out", help="The workload file to write; one that exists is not touched.")],
    port: Annotated[int, typer.Option(help="Where programs reach the proxy.", min=0, max=65535)] = 8001,
    host: Annotated[str, typer.Option(help="The address that it listens on.")] = "127.0.0.1",
    upstream: Annotated[
        str, typer.Option("--upstream", envvar="JUSTITIA_URL", help="Where the service listens.")
    ] = http.DEFAULT_URL,
    idle_s: Annotated[float, typer.Option(help="An application that is idle so long has ended.", min=0.0)] = 60.0,
    dependencies: Annotated[
        Evidence,
        typer.Option(help="text: on the answers that a prompt quotes, or else on all before it; time: always on all."),
    ] = Evidence.TEXT,
    delays: Annotated[bool, typer.Option("--delays", help="Record how long programs think between calls.")] = False,
) -> None:
    """Record the calls of any OpenAI client as applications that `justitia simulate --workload` takes.

    Point the client at this proxy; Ctrl-C ends the recording. Prompts are recorded, at most 4,000 characters of each.

    Example: justitia record --out trace.jsonl --port 8001
    """
    console = Console(stderr=True, soft_wrap=True)
    if not upstream.startswith(("http://", "https://")):
        raise typer.BadParameter("it must begin with http:// or https://", param_hint="--upstream")
    if out.exists():
        raise typer.BadParameter(f"{out} exists already", param_hint="--out")
    recorder = Recorder(idle_s, dependencies, delays)
    try:
        save(recorder, out)
        asyncio.run(_serve(recorder, out, upstream, host, port, console))
    except OSError as error:
        if not recorder.calls:
            out.unlink(missing_ok=True)  # so that the same command can be tried again
        console.print(f"Cannot record: {error}", style="red", markup=False)
        raise typer.Exit(FAILED) from None
    console.print(summary(recorder, out), markup=False, highlight=False)


def save(recorder: Recorder, out: Path) -> None:
    """Write all that is known, in place of what stood there, whole or not at all. Raises OSError."""
    write(recorder.applications(), out)


def write(applications: Sequence[TraceApplication], out: Path) -> None:
    """Write these, in place of what stood there, whole or not at all. Raises OSError."""
    part = out.with_name(f"{out.name}.part")
    text = "".join(write_application(application) + "\n" for application in applications)
    part.write_text(text, encoding="utf-8")
    os.replace(part, out)


def summary(recorder: Recorder, out: Path) -> str:
    """What was recorded and what was left out, in a sentence each."""
    text = f"{out}: {len(recorder.applications())} applications with {recorder.calls} calls."
    left = ", ".join(f"{count} {reason}" for reason, count in recorder.left_out.most_common())
    return f"{text} Left out: {left}." if left else text


async def _serve(recorder: Recorder, out: Path, upstream: str, host: str, port: int, console: Console) -> None:
    """Until a signal comes; what is known is written every few seconds, and at the end. Raises OSError."""
    from serve_app.recorder_server import serve_recorder  # what checks requests takes a second to import

    over = asyncio.Event()
    saving = asyncio.create_task(_save_again_and_again(recorder, out, over))
    try:
        console.print(f"Recording what passes http://{host}:{port} on its way to {upstream}. Ctrl-C ends it.")
        await serve_recorder(recorder, upstream, host, port)
    finally:
        over.set()
        await asyncio.wait({saving})  # its thread may be writing to the same file
        save(recorder, out)


async def _save_again_and_again(recorder: Recorder, out: Path, over: asyncio.Event) -> None:
    """Until it is over; files are written in a thread, so that no answer waits for the disk."""
    known = 0
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), SAVE_S)
            return
        if recorder.calls != known:
            known = recorder.calls
            with suppress(OSError):  # the disk may have room again at the end, where it is an error
                await asyncio.to_thread(write, recorder.applications(), out)
