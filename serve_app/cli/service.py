"""Bringing the service up for a command: its configuration, its model, Ray, and the deployment.

The configuration is a Serve file as `serve deploy` takes it; commands change the port, and the model where the
configured one cannot be had here.
"""

from __future__ import annotations

import copy
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cluster.models import ModelUnavailable, default_root, prepare_demo_model, prepare_model

DEFAULT_CONFIG = Path("serve_config.yaml")
FAILED = 1

ConfigOption = Annotated[
    Path, typer.Option("--config", help="The Serve configuration to deploy.", exists=True, dir_okay=False)
]
SimulatedOption = Annotated[
    bool, typer.Option("--simulated", help="Use the simulated engine: no model, made-up words.")
]

Config = dict[str, Any]


def with_port(config: Config, port: int) -> Config:
    """The configuration on another port."""
    changed = copy.deepcopy(config)
    changed.setdefault("http_options", {})["port"] = port
    return changed


def with_engine(config: Config, engine: dict[str, Any]) -> Config:
    """The configuration with another engine."""
    changed = copy.deepcopy(config)
    _serving_args(changed)["engine"] = engine
    return changed


def with_available_model(config: Config, console: Console) -> Config:
    """Prepare the configured model, or say that it cannot be had and take the tiny random one."""
    engine = _serving_args(config)["engine"]
    if engine.get("kind") != "vllm":
        return config
    if (odd := packages_of_other_builds()) is not None:
        console.print(f"[yellow]{odd}[/yellow]")
    with console.status(f"Preparing the model {engine['model']} (the first time takes a while)"):
        try:
            prepare_model(engine["model"])
        except ModelUnavailable:
            demo = prepare_demo_model()
            console.print(f"[yellow]{demo.note}[/yellow]")
            return with_engine(config, {**engine, "model": demo.name})
    return config


def packages_of_other_builds() -> str | None:
    """A warning where torchvision and its like were not built for the torch that is here, by their versions' ends.

    Such a torchvision fails when it is imported, and every engine with it, minutes later and at length.
    """
    builds = {name: _build_of(name) for name in ("torch", "torchvision", "torchaudio", "torchcodec")}
    odd = [name for name, build in builds.items() if build not in (None, builds["torch"])]
    if builds["torch"] is None or not odd:
        return None
    return (
        f"{', '.join(odd)} may not fit torch {metadata.version('torch')}. If the engines do not start: "
        f"pip uninstall {' '.join(odd)}"
    )


def _build_of(package: str) -> str | None:
    """What stands behind the + of its version, such as cpu; None where it is not installed."""
    try:
        return metadata.version(package).partition("+")[2]
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def running_service(config: Config, console: Console) -> Iterator[str]:
    """The service, for as long as the block runs; yields its URL. Ends the command when it cannot start."""
    _require_free_port(config, console)
    from cluster.deploy.local import DeployFailed, deploy, local_ray  # Ray takes a second to import

    with console.status("Starting Ray") as status:
        ray_context = local_ray(environment=_worker_environment())
        with ray_context:
            # Ray has taken SIGTERM and would abort; as an interrupt it lets what was started be shut down.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                url = deploy(config, lambda line: status.update(f"Deploying: {line}"))
            except DeployFailed as error:
                console.print(f"The service did not start: {error}", style="red", markup=False)
                raise typer.Exit(FAILED) from None
            status.stop()
            yield url


def _require_free_port(config: Config, console: Console) -> None:
    """End the command with a sentence, before anything is started, when somebody listens on the port already."""
    options = config.get("http_options", {})
    host, port = options.get("host", "127.0.0.1"), options.get("port", 8000)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            console.print(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another with --port.", style="red")
            raise typer.Exit(FAILED) from None


def _worker_environment() -> dict[str, str]:
    return {
        "JUSTITIA_MODELS": str(default_root().expanduser().absolute()),
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
    }


def _serving_args(config: Config) -> Config:
    for application in config["applications"]:
        if "engine" in application.get("args", {}):
            args: Config = application["args"]
            return args
    raise typer.BadParameter("no application of the configuration has an engine", param_hint="--config")
