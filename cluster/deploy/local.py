"""A Ray cluster of this process, with the applications of a Serve configuration on it.

For the demo, benchmarks and tests: its own ports and its own temporary directory, so that it meets no other Ray of
this machine; leaving it stops exactly what it started. `deploy` does in this process what `serve deploy` does
through a cluster's dashboard, with the same file.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

# Serve reads its speed settings when it is imported: one event loop a replica for its system and its user code, and
# streams by gRPC. Everything is correct without them.
os.environ.setdefault("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0")
os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
# A busy machine needs more than Serve's five seconds to start its proxy, and one that is late is killed for good.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

import ray
import yaml
from ray import serve
from ray.serve._private import api as serve_internals
from ray.serve.schema import ServeDeploySchema

START_TIMEOUT_S = 600.0
POLL_S = 0.25

Progress = Callable[[str], None]


class DeployFailed(Exception):
    """An application of the configuration did not come up; the message is Serve's own."""


def load_config(path: Path) -> dict[str, Any]:
    """A Serve configuration file as a document. Raises ValueError when it is not a mapping."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a Serve configuration")
    return document


def free_port() -> int:
    """A TCP port that nobody on this machine listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def local_ray(num_cpus: int | None = None, environment: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Ray on this machine, for as long as the block runs; yields its temporary directory.

    `environment` is set for every worker. Sockets of Ray live in the directory, whose path must be short.
    """
    directory = Path(tempfile.mkdtemp(prefix="jst-", dir="/tmp"))
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            namespace="justitia",
            object_store_memory=256 * 2**20,
            _temp_dir=str(directory),
            _metrics_export_port=free_port(),
            runtime_env={"env_vars": dict(environment)} if environment else None,
        )
        yield directory
    finally:
        _end(directory)


def _end(directory: Path) -> None:
    """Serve, Ray and the directory. Serve fails to end when a handle's event loop is gone; Ray takes it along."""
    with suppress(RuntimeError), redirect_stdout(io.StringIO()):  # Ray tells there that the controller ended
        serve.shutdown()
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


def deploy(config: Mapping[str, Any], progress: Progress = lambda _: None) -> str:
    """Deploy a Serve configuration on the Ray of this process; returns the URL once every application runs.

    Raises DeployFailed when one of them cannot start.
    """
    schema = ServeDeploySchema.model_validate(config)
    client = serve_internals.serve_start(
        http_options=schema.http_options.model_dump(), proxy_location=schema.proxy_location
    )
    client.deploy_apps(schema)
    wait_until_running([application.name for application in schema.applications], progress)
    return f"http://{schema.http_options.host}:{schema.http_options.port}"


def wait_until_running(names: list[str], progress: Progress = lambda _: None) -> None:
    """Wait until every named application runs. Raises DeployFailed with what Serve says when one cannot."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    said = ""
    while True:
        applications = serve.status().applications
        states = {name: applications[name].status.value if name in applications else "WAITING" for name in names}
        for name, state in states.items():
            if state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise DeployFailed(f"{name} is {state}: {_reasons(applications[name])}")
        line = ", ".join(f"{name} {state.lower()}" for name, state in states.items())
        if line != said:
            progress(line)
            said = line
        if set(states.values()) == {"RUNNING"}:
            return
        if time.monotonic() > deadline_s:
            raise DeployFailed(f"not running after {START_TIMEOUT_S:g} s: {line}")
        time.sleep(POLL_S)


def _reasons(application: Any) -> str:
    deployments = application.deployments.items()
    return "; ".join([application.message, *(f"{name}: {status.message}" for name, status in deployments)])
