"""The service's own log of applications that have ended: JSON Lines to train on, and to read.

One thread writes; the event loop only puts lines into a bounded queue. Each ingress has files of its own, so that
several may share a directory: `finished-MILLISECONDS-WRITER.jsonl`, a new one each `FILE_SHARE` of the bound. Laws:
serving never waits for the disk, and never fails with it; what could not be written is counted (`lost`) and said once
until something can be written again; all such files of the directory together stay within `max_bytes`, plus one file
of each writer: the oldest go.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from cluster.clock import wall_s
from cluster.telemetry import log_event
from serve_app.training_data import LOG_FILES

logger = logging.getLogger("ray.serve")

MAX_QUEUED = 10_000
FILE_SHARE = 8
CLOSE_S = 2.0


class FinishedLog:
    """The log of one writer, from `start` to `close`. `clock` gives Unix seconds; `writer` is part of a file name."""

    def __init__(self, directory: Path, writer: str, max_bytes: int, clock: Callable[[], float] = wall_s) -> None:
        self.lost = 0
        self.written = 0
        self._directory = directory
        self._writer = "".join(letter for letter in writer if letter.isalnum())[-16:]
        self._max_bytes = max_bytes
        self._clock = clock
        self._lines: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._write_all, name="finished-log", daemon=True)
        self._file: BinaryIO | None = None
        self._failing = False

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, document: Mapping[str, Any]) -> None:
        """Have a line written soon; never waits."""
        try:
            self._lines.put_nowait(document)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Write what is queued, for CLOSE_S at most; idempotent."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _write_all(self) -> None:
        while (document := self._lines.get()) is not None:
            try:
                self._write(document)
            except (OSError, ValueError, TypeError) as error:  # the last two: what JSON cannot hold
                self._lose(error)
            else:
                self._failing = False
                self.written += 1
        self._leave_file()

    def _write(self, document: Mapping[str, Any]) -> None:
        line = (json.dumps(document, allow_nan=False) + "\n").encode()
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:  # another writer made room
            self._leave_file()
        if self._file is None:
            self._file = self._next_file()
        _append(self._file, line)
        if self._file.tell() >= self._max_bytes // FILE_SHARE:
            self._leave_file()

    def _next_file(self) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._forget_oldest()
        name = f"finished-{int(self._clock() * 1000):014d}-{self._writer}.jsonl"
        return (self._directory / name).open("ab", buffering=0)

    def _forget_oldest(self) -> None:
        """Before a file is begun: leave room for it. Another writer may have taken a file away already."""
        files = sorted(self._directory.glob(LOG_FILES))
        sizes = [(path, _size(path)) for path in files]
        room = self._max_bytes - self._max_bytes // FILE_SHARE - sum(size for _, size in sizes)
        for path, size in sizes:
            if room >= 0:
                return
            path.unlink(missing_ok=True)
            room += size

    def _lose(self, error: Exception) -> None:
        self.lost += 1
        if not self._failing:
            log_event(logger, "finished_log_failed", error=repr(error))
        self._failing = True
        self._leave_file()

    def _leave_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _append(file: BinaryIO, line: bytes) -> None:
    """All of it or nothing. Raises OSError: a disk that is almost full takes a part."""
    taken = file.write(line)
    if taken != len(line):
        file.truncate(file.tell() - taken)
        raise OSError(f"only {taken} of {len(line)} bytes were written")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
