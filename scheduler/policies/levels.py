"""Levels whose widths grow by a factor: what policies of several queues are set up with.

Laws: steps are finite, positive and grow; the priority of a lower level is larger than any of a higher one.
"""

from __future__ import annotations

from math import inf

from scheduler.policies.contract import bounded_priority

MAX_LEVELS = 64
MAX_STEP = 1e18
MAX_FACTOR = 1024.0
_LEVEL_PRIORITIES = 2**46


def geometric_steps(name: str, first: float, factor: float, levels: int) -> tuple[float, ...]:
    """first·factor^i for i = 0..levels − 2: one step for each level but the last, which has no end.

    Raises ValueError, naming the first step by `name`, unless 0 < first <= 1e18, 1 < factor <= 1024 and levels is a
    whole number in 1..64.
    """
    if not 0 < first <= MAX_STEP:
        raise ValueError(f"{name} must lie in (0, {MAX_STEP:g}], got {first}")
    if not 1 < factor <= MAX_FACTOR:
        raise ValueError(f"factor must lie in (1, {MAX_FACTOR:g}], got {factor}")
    if levels not in range(1, MAX_LEVELS + 1):
        raise ValueError(f"levels must be a whole number in 1..{MAX_LEVELS}, got {levels}")
    return tuple(first * factor**i for i in range(int(levels) - 1))


def require_positive(name: str, value: float) -> float:
    """The value; raises ValueError unless it is positive and finite."""
    if not 0 < value < inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return value


def level_priority(level: float, sequence: int) -> int:
    """A place in a level as an engine priority: by level, then by sequence (below 2^46)."""
    return bounded_priority(level * _LEVEL_PRIORITIES + min(sequence, _LEVEL_PRIORITIES - 1))
