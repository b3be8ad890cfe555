"""The event log of a running scheduler: one file an epoch, in the form of `scheduler.event_log`.

Law: scheduling never depends on it. The first failure, such as a full disk, ends the log and is said once.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from cluster.telemetry import log_event
from scheduler.event_log import LogHeader, event_to_json
from scheduler.events import Event

logger = logging.getLogger("ray.serve")


class LiveLog:
    """Events as they are taken, in `directory`; without one, nothing is kept."""

    def __init__(self, directory: Path | None, header: LogHeader) -> None:
        self._file: TextIO | None = None
        if directory is not None:
            try:
                self._file = (directory / f"events-{header.epoch}.jsonl").open("w", encoding="utf-8", buffering=1)
                self._file.write(header.to_json() + "\n")
            except OSError as error:
                self._stop(error)

    def write(self, now_s: float, event: Event) -> None:
        """Add one event."""
        if self._file is not None:
            try:
                self._file.write(event_to_json(now_s, event) + "\n")
            except (OSError, ValueError) as error:  # ValueError: a number that JSON does not have
                self._stop(error)

    def close(self) -> None:
        """Release the file; idempotent."""
        if self._file is not None:
            with suppress(OSError):  # what it could not write before, it tries again
                self._file.close()
            self._file = None

    def _stop(self, error: Exception) -> None:
        log_event(logger, "event_log_stopped", error=repr(error))
        self.close()
