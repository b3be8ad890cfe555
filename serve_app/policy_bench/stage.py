"""One Ray for all runs of a benchmark, on which services come and go: each is deployed afresh and deleted again.

Nothing of a service outlives it: its scheduler, ingresses and engine are processes of their own. Ray starts with the
first service and ends with the stage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rich.console import Console

from serve_app.cli.service import running_service
from serve_app.policy_bench.deployment import Config
from serve_app.policy_bench.results import ResultsError

END_WAIT_S = 60.0
POLL_S = 0.25


class Stage:
    """A context; leaving it ends what it started."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = ExitStack()
        self._begun = False
        self.port = 0

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def choose_port(self) -> int:
        """The port of every service of this stage."""
        from cluster.deploy.local import free_port  # Ray takes a second to import

        self.port = self.port or free_port()
        return self.port

    @contextmanager
    def service(self, config: Config) -> Iterator[str]:
        """A service of its own, for as long as the block runs; yields its URL.

        Ends the command when Ray or the first service cannot start. Raises ResultsError when a later one cannot, and
        when one does not end.
        """
        if not self._begun:
            url = self._open.enter_context(running_service(config, self._console))
            self._begun = True
        else:
            url = self._deploy(config)
        try:
            yield url
        finally:
            self._delete([application["name"] for application in config["applications"]])

    def _deploy(self, config: Config) -> str:
        from cluster.deploy.local import DeployFailed, deploy

        with self._console.status("Deploying"):
            try:
                return deploy(config)
            except DeployFailed as error:
                raise ResultsError(f"the service did not start: {error}") from error

    def _delete(self, names: list[str]) -> None:
        """Delete Serve applications and wait until their processes have ended."""
        from ray import serve

        try:
            for name in names:
                serve.delete(name)
        except TimeoutError as error:
            raise ResultsError(f"the service does not end: {error}") from error
        deadline_s = time.monotonic() + END_WAIT_S
        while left := list(serve.status().applications):
            if time.monotonic() > deadline_s:
                raise ResultsError(f"the service does not end: {', '.join(left)} still there after {END_WAIT_S:.0f} s")
            time.sleep(POLL_S)
