"""The events of one application, numbered from 1, for any number of readers, each at its own pace.

A stream holds a few events a call, `max_kept` of them at most; it is kept as long as its application is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from cluster.clock import wall_s


class EventStream:
    """Appended to by one writer; followed by readers until it is closed."""

    def __init__(self, max_kept: int | None = None) -> None:
        self.closed = False
        self._max_kept = max_kept
        self._events: dict[int, dict[str, Any]] = {}
        self._last = 0
        self._changed = asyncio.Event()

    def add(self, event: str, **fields: Any) -> None:
        """Append one event; the oldest is forgotten where there are more than are kept."""
        self._last += 1
        self._events[self._last] = {"id": self._last, "event": event, "time_s": wall_s(), **fields}
        if self._max_kept is not None and len(self._events) > self._max_kept:
            del self._events[next(iter(self._events))]
        self._wake()

    def close(self) -> None:
        """Nothing more will be added; readers end after the last event."""
        self.closed = True
        self._wake()

    async def follow(self, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events with numbers above `after` that are kept, those to come included."""
        position = max(0, after)
        while True:
            changed = self._changed
            while position < self._last:
                position = max(position + 1, next(iter(self._events)))
                yield self._events[position]
            if self.closed:
                return
            await changed.wait()

    def _wake(self) -> None:
        """Readers wait on the event they have seen; the next wait is on a fresh one."""
        self._changed.set()
        self._changed = asyncio.Event()
