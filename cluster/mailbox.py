"""One ingress's mail: actions that concern it, numbered, kept until it says that they arrived.

A reply that is lost on its way is simply asked for again. A mailbox that nobody empties is bounded by the limits
on calls: every action in it concerns a call or an application that its owner submitted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from scheduler.actions import Action


class Mailbox:
    """Mail for one ingress, with one reader waiting at most."""

    def __init__(self, now_s: float) -> None:
        self.last_seen_s = now_s
        self._first = 1
        self._actions: deque[Action] = deque()
        self._arrived = asyncio.Event()

    def put(self, action: Action) -> None:
        """Add one action and wake the reader."""
        self._actions.append(action)
        self._arrived.set()

    async def collect(self, after: int, wait_s: float) -> tuple[tuple[Action, ...], int]:
        """Everything after number `after`, and the number of the last; waits up to `wait_s` for a first one."""
        while self._actions and self._first <= after:
            self._actions.popleft()
            self._first += 1
        if not self._actions:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
        return tuple(self._actions), self._first + len(self._actions) - 1
