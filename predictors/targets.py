"""Costs on the way into a model and out of it: logarithms, limits, and a count of what was no cost at all.

Costs spread over six orders of magnitude; models learn their logarithms. Laws: what goes in is finite and in
[FLOOR, CEILING]; what comes out too, whatever a model says: NaN becomes the fallback, everything else the nearest
limit; each replacement is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class ReplacementCounter:
    """How often a prediction was no cost: kept by whoever asks, so that asking never changes a model."""

    predictions: int = 0
    replaced: int = 0
    by_type: dict[str, int] = field(default_factory=dict)

    def note(self, application_type: str, replaced: bool) -> None:
        self.predictions += 1
        if replaced:
            self.replaced += 1
            self.by_type[application_type] = self.by_type.get(application_type, 0) + 1


def geometric_mean(costs: Iterable[float]) -> float:
    """Of positive costs; FLOOR when there is none."""
    logs = [math.log(within_limits(cost)) for cost in costs]
    return math.exp(sum(logs) / len(logs)) if logs else FLOOR
