"""A model of a replica's prefix cache: which leading blocks of a prompt it most likely still has.

A prefix is a hash for each leading block, each covering all blocks before it. The least recently used blocks are
forgotten first, of one prompt the last ones, so that a block is only kept with all that lead to it. At most
`max_blocks` are kept. Matching is O(blocks matched), touching O(blocks).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class PrefixCache:
    """Blocks by their hashes, least recently used first."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prefix: tuple[int, ...]) -> int:
        """Leading blocks of the prefix that are there."""
        for number, block in enumerate(prefix):
            if block not in self._blocks:
                return number
        return len(prefix)

    def touch(self, prefix: tuple[int, ...]) -> list[int]:
        """A prompt with this prefix was computed; returns the blocks that came or went."""
        came = [block for block in prefix if block not in self._blocks]
        for block in reversed(prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        went = [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._max_blocks)]
        return came + went
