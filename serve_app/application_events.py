"""The events of one application, numbered from 1, for any number of readers, each at its own pace.

A stream holds a few events a call; it is kept as long as its application is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from cluster.clock import wall_s


class EventStream:
    """Appended to by one writer; followed by readers until it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self._events: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def add(self, event: str, **fields: Any) -> None:
        """Append one event."""
        self._events.append({"id": len(self._events) + 1, "event": event, "time_s": wall_s(), **fields})
        self._wake()

    def close(self) -> None:
        """Nothing more will be added; readers end after the last event."""
        self.closed = True
        self._wake()

    async def follow(self, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events with numbers above `after`, those to come included."""
        position = max(0, after)
        while True:
            changed = self._changed
            while position < len(self._events):
                position += 1
                yield self._events[position - 1]
            if self.closed:
                return
            await changed.wait()

    def _wake(self) -> None:
        """Readers wait on the event they have seen; the next wait is on a fresh one."""
        self._changed.set()
        self._changed = asyncio.Event()
