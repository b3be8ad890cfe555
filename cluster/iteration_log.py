"""The iterations of an engine as JSON lines, from which `justitia calibrate` learns how fast it is.

A line: `duration_s`, `sequences` in the batch, `prefilled_tokens`, and `kv_used_tokens` when it was over. Lines are
added to what the file holds, so that the replicas of a node can share one: each writes whole lines at once.

Laws: at most `MAX_LINES_PER_S` lines are kept of a second, the first ones; they reach the file when `KEPT_LINES` are
there or a second is over, when the engine rests, and at the end; generation never depends on it: the first failure,
such as a full disk, ends the log and is said once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from cluster.telemetry import log_event

logger = logging.getLogger("ray.serve")

MAX_LINES_PER_S = 200
KEPT_LINES = 100


class IterationLog:
    """Iterations in the file at `path`; without one, nothing is kept. `clock` gives monotonic seconds."""

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._lines: list[str] = []
        self._second_s = -1.0
        self._in_second = 0

    def write(self, duration_s: float, sequences: int, prefilled_tokens: int, kv_used_tokens: int) -> None:
        """Add one iteration, unless this second has enough of them."""
        if self._path is None or not self._has_room():
            return
        document = {
            "duration_s": round(duration_s, 9),
            "sequences": sequences,
            "prefilled_tokens": prefilled_tokens,
            "kv_used_tokens": kv_used_tokens,
        }
        self._lines.append(json.dumps(document) + "\n")
        if len(self._lines) >= KEPT_LINES:
            self.flush()

    def flush(self) -> None:
        """Write what is kept, as when the engine rests: what follows may be long in coming."""
        if self._path is None or not self._lines:
            return
        lines, self._lines = "".join(self._lines), []
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            log_event(logger, "iteration_log_stopped", path=str(self._path), error=repr(error))
            self._path = None

    def close(self) -> None:
        """Write what is kept; idempotent."""
        self.flush()
        self._path = None

    def _has_room(self) -> bool:
        now_s = self._clock()
        if now_s - self._second_s >= 1.0 or self._second_s < 0:
            self._second_s, self._in_second = now_s, 0
            self.flush()
        self._in_second += 1
        return self._path is not None and self._in_second <= MAX_LINES_PER_S
