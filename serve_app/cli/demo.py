"""`justitia demo`: applications of several types at once on a real engine, beside what fair sharing would do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console

from serve_app.cli import http
from serve_app.cli.demo_applications import demo_applications
from serve_app.cli.live_table import ENDED_STATES, ServiceRefused, Status, final_table, progress_line, watch
from serve_app.cli.service import (
    DEFAULT_CONFIG,
    ConfigOption,
    SimulatedOption,
    running_service,
    with_available_model,
    with_engine,
    with_port,
)

AUDIT_WAIT_S = 30.0
WIDE = 160
AUDIT_POLL_S = 0.25


def demo(
    config: ConfigOption = DEFAULT_CONFIG,
    simulated: SimulatedOption = False,
    seconds: Annotated[float, typer.Option(help="Give up after so long.", min=1)] = 600.0,
    as_json: http.JsonOption = False,
    api_key: http.ApiKeyOption = None,
) -> None:
    """Start the service, run applications of several types on it, and show how each of them fared.

    The last table sets each application's time beside the time that fair sharing (GPS) would have given it: a
    negative lag is time won. Everything that was started is shut down at the end.

    Example: justitia demo
    """
    from cluster.deploy.local import free_port, load_config  # Ray takes a second to import

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    document = with_port(load_config(config), free_port())
    if simulated:
        document = with_engine(document, {"kind": "simulated"})
    document = with_available_model(document, console)
    with running_service(document, console) as url:
        console.print(f"The service is up at {url}.")
        try:
            statuses = asyncio.run(_run(url, console, seconds, api_key))
        except httpx.TransportError as error:
            http.end_unreachable(url, error)
    if as_json:
        http.print_json(statuses)
    else:
        console.print(final_table(statuses))
        _print_summary(statuses, console)
    if any(status["state"] != "finished" for status in statuses):
        raise typer.Exit(http.NOT_FINISHED)


async def _run(url: str, console: Console, seconds: float, api_key: str | None = None) -> list[Status]:
    async with http.make_async_client(url, api_key) as client:
        try:
            async with asyncio.timeout(seconds):
                ids = await _submit(client, console)
                await watch(client, ids, console)
        except TimeoutError:
            await _end_unfinished(client, seconds)
        except ServiceRefused as refused:
            http.end_refused(refused.answer)
        return await _audited(client, ids)


async def _submit(client: httpx.AsyncClient, console: Console) -> list[str]:
    """Send all applications at once; their ids."""
    documents = demo_applications()
    answers = await asyncio.gather(*(client.post(http.APPLICATIONS, json=document) for document in documents))
    ids = [_accepted(answer) for answer in answers]
    console.print(f"{len(ids)} applications of {len({d['application_type'] for d in documents})} types submitted.")
    return ids


async def _end_unfinished(client: httpx.AsyncClient, seconds: float) -> NoReturn:
    """End the command, naming the applications that had not ended in time."""
    answer = await client.get(http.APPLICATIONS)
    if answer.is_error:
        http.end_refused(answer)
    left = [status for status in answer.json()["data"] if status["state"] not in ENDED_STATES]
    http.complain(f"Gave up after {seconds:g} s. Not finished: {len(left)}.")
    for status in left:
        http.complain(progress_line(status["application_id"], status))
    raise typer.Exit(http.NOT_FINISHED)


def _accepted(answer: httpx.Response) -> str:
    if answer.is_error:
        http.end_refused(answer)
    application_id: str = answer.json()["application_id"]
    return application_id


async def _audited(client: httpx.AsyncClient, ids: Sequence[str]) -> list[Status]:
    """The statuses once the reference has served everyone too, or what is known after a while."""
    statuses: list[Status] = []
    for _ in range(int(AUDIT_WAIT_S / AUDIT_POLL_S)):
        answers = await asyncio.gather(*(client.get(http.application_path(name)) for name in ids))
        statuses = [dict(answer.json()) for answer in answers]
        if all(status["gps_completion_s"] is not None for status in statuses):
            break
        await asyncio.sleep(AUDIT_POLL_S)
    return statuses


def _print_summary(statuses: Sequence[dict[str, Any]], console: Console) -> None:
    known = [status for status in statuses if status["lag_s"] is not None]
    if not known:
        return
    mean_s = sum(status["completion_s"] for status in known) / len(known)
    gps_mean_s = sum(status["gps_completion_s"] for status in known) / len(known)
    late = sum(status["bound_s"] is not None and status["completion_s"] > status["bound_s"] for status in known)
    console.print("Lag: seconds later (+) or earlier (-) than fair sharing would have ended the application.")
    console.print(
        f"Mean completion {mean_s:.1f} s; under fair sharing {gps_mean_s:.1f} s. "
        f"Later than the delay bound allows: {late} of {len(known)}."
    )
