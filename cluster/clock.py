"""The one file of this package that reads the process's clocks, for decisions and for display.

Deadlines on an event loop use the loop's own clock. Durations and order use the monotonic clock, which no
administrator sets back; the wall clock is for people, and for epochs that outlive a process (`journal`).
"""

from __future__ import annotations

import time


def monotonic_s() -> float:
    """Seconds on a clock that never falls; only differences mean something, and only on one machine."""
    return time.monotonic()


def wall_s() -> float:
    """Seconds since 1970, for display."""
    return time.time()


def pause(seconds: float) -> None:
    """Block this thread; never on an event loop that others wait for."""
    time.sleep(seconds)
