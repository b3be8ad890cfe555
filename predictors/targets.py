"""Costs on the way into a model and out of it: logarithms, limits, and a count of what was no cost at all.

Costs spread over six orders of magnitude; models learn their logarithms. Laws: what goes in is finite and in
[FLOOR, CEILING]; what comes out too, whatever a model says: NaN becomes the fallback, everything else the nearest
limit, and the answer says that it was replaced. What cannot be learnt from is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

FLOOR = 1.0
CEILING = 1e15
LOG_FLOOR, LOG_CEILING = math.log(FLOOR), math.log(CEILING)


@dataclass(frozen=True, slots=True)
class CleanCosts:
    """Observed costs fit to learn from. `kept` marks their places in what was given; the rest is counted."""

    logs: Array
    kept: NDArray[np.bool_]
    not_finite: int
    not_positive: int
    clipped: int


def clean_costs(costs: ArrayLike) -> CleanCosts:
    """Logarithms of the costs that are finite and positive, moved into the limits."""
    given = np.asarray(costs, dtype=float).ravel()
    finite = np.isfinite(given)
    kept = finite & (given > 0)
    usable = given[kept]
    limited = np.clip(usable, FLOOR, CEILING)
    return CleanCosts(
        logs=np.log(limited),
        kept=kept,
        not_finite=int(np.sum(~finite)),
        not_positive=int(np.sum(finite & (given <= 0))),
        clipped=int(np.sum(limited != usable)),
    )


def cost_of(log_cost: float, fallback: float) -> tuple[float, bool]:
    """The cost with this logarithm, and whether it had to be replaced. `fallback` is a cost, for NaN."""
    if math.isnan(log_cost):
        return within_limits(fallback), True
    if LOG_FLOOR <= log_cost <= LOG_CEILING:
        return math.exp(log_cost), False
    return (FLOOR if log_cost < LOG_FLOOR else CEILING), True


def within_limits(cost: float) -> float:
    """The nearest cost within the limits; FLOOR for NaN."""
    return FLOOR if math.isnan(cost) else min(max(cost, FLOOR), CEILING)
