"""Does one more call fit on a replica? Judged by the projected peak of its KV use.

Every running sequence makes a token an iteration and frees its blocks when it ends. KV use therefore peaks just
before some call ends; the projected peak is the largest use at those moments, with the predicted rest of every
call. Reserving p + d for each call instead wastes what calls in different phases never hold together, and
looking at the present use alone admits calls that will be preempted.

A sequence that holds h tokens occupies ⌈h/B⌉ blocks of B tokens. Sequences are counted by what their last block holds,
so that the blocks of all after some iterations are a sum over B numbers: O(k·(log k + B)) for k calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """One call on a replica: `sequences` sequences of `held_tokens` now, `rest_tokens` more each until they end."""

    held_tokens: int
    rest_tokens: int
    sequences: int


def bound_tokens(holding: Holding, block_tokens: int) -> int:
    """What a call adds to the projected peak at most; a sum of these that fits needs no closer look."""
    return holding.sequences * (holding.held_tokens + holding.rest_tokens + block_tokens - 1)


def projected_peak_tokens(holdings: Iterable[Holding], block_tokens: int) -> int:
    """The most KV tokens that these calls will ever hold at once, in whole blocks; 0 for no calls.

    At the end of the k-th call to end, after r_k more iterations, those that have not ended before hold
    Σ n·⌈(h + r_k)/B⌉·B.
    """
    by_end = sorted(holdings, key=lambda holding: holding.rest_tokens, reverse=True)
    peak = blocks = sequences = 0
    begun = [0] * block_tokens
    for holding in by_end:
        whole, over = divmod(holding.held_tokens, block_tokens)
        blocks += holding.sequences * whole
        sequences += holding.sequences
        begun[over] += holding.sequences
        rounds, steps = divmod(holding.rest_tokens, block_tokens)
        second = sum(begun[block_tokens - steps + 1 :]) if steps else -begun[0]
        peak = max(peak, blocks + sequences * (rounds + 1) + second)
    return peak * block_tokens
