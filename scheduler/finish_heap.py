"""A heap of keys whose order may change, for finish tags and for queues of calls.

Keys are ordered by (rank, sequence): `sequence` is unique, so that equal ranks never compare the keys
themselves and equal ranks leave in the order of their sequence numbers. Changing or removing a key leaves its
old entry behind; entries left behind never outnumber the live ones by more than 64, so memory follows the live
keys. set, discard and pop are O(log n) amortized, peek likewise.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SPARE_ENTRIES = 64


class FinishHeap(Generic[K]):
    """Keys by (rank, sequence), smallest first."""

    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, K]] = []
        self._live: dict[K, tuple[float, int, K]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: K) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[K]:
        """Live keys in no particular order."""
        return iter(self._live)

    def rank(self, key: K) -> float:
        """The key's rank; KeyError when it is not in the heap."""
        return self._live[key][0]

    def place(self, key: K) -> tuple[float, int]:
        """The key's rank and sequence; KeyError when it is not in the heap."""
        return self._live[key][:2]

    def set(self, key: K, rank: float, sequence: int) -> None:
        """Insert the key or move it. Raises ValueError for a rank that is not a number."""
        if rank != rank:
            raise ValueError(f"rank of {key!r} is not a number")
        entry = (rank, sequence, key)
        if self._live.get(key) == entry:
            return
        self._live[key] = entry
        heapq.heappush(self._entries, entry)
        self._compact_if_sparse()

    def discard(self, key: K) -> None:
        """Remove the key if it is there."""
        if self._live.pop(key, None) is not None:
            self._compact_if_sparse()

    def peek(self) -> K | None:
        """The smallest key, or None when there is none."""
        entries, live = self._entries, self._live
        while entries:
            entry = entries[0]
            if live.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(entries)  # left behind
        return None

    def pop(self) -> K:
        """Remove and return the smallest key; IndexError when there is none."""
        self.peek()
        key = heapq.heappop(self._entries)[2]
        del self._live[key]
        self._compact_if_sparse()
        return key

    def sorted(self) -> list[K]:
        """All live keys, smallest first; O(n log n)."""
        return [key for _, _, key in sorted(self._live.values())]

    def _compact_if_sparse(self) -> None:
        if len(self._entries) > 2 * len(self._live) + _SPARE_ENTRIES:
            self._entries = list(self._live.values())
            heapq.heapify(self._entries)
