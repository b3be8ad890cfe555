"""`justitia serve`: the service on this machine, left running until it is stopped."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer
from rich.console import Console

from serve_app.cli import http
from serve_app.cli.service import (
    DEFAULT_CONFIG,
    ConfigOption,
    SimulatedOption,
    running_service,
    with_available_model,
    with_engine,
    with_port,
)


def serve(
    config: ConfigOption = DEFAULT_CONFIG,
    port: Annotated[int | None, typer.Option(help="Listen here instead of where the configuration says.")] = None,
    simulated: SimulatedOption = False,
    as_json: http.JsonOption = False,
) -> None:
    """Run the service on a Ray of its own until Ctrl-C. On a Ray cluster, use `serve deploy` with the same file.

    Example: justitia serve --port 8100
    """
    from cluster.deploy.local import load_config  # Ray takes a second to import

    console = Console(stderr=as_json)
    document = load_config(config)
    if port is not None:
        document = with_port(document, port)
    if simulated:
        document = with_engine(document, {"kind": "simulated"})
    document = with_available_model(document, console)
    stop = threading.Event()
    with running_service(document, console) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        if as_json:
            http.print_json({"url": url})
        else:
            console.print(f"The service is up at {url}. Ctrl-C stops it.")
        stop.wait()
        console.print("Stopping, which takes some seconds.")
