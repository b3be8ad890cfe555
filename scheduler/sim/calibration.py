"""An engine's speed from a log of its iterations, by least squares.

The log is JSON Lines, an iteration a line: `duration_s`, `sequences` in the batch and `prefilled_tokens`; other fields
are ignored. The model is that of `EngineProfile`: duration = base + per_sequence · sequences + per_prefill_token ·
prefilled. A coefficient that comes out negative, which no engine has, is left out and the others are fitted again.

A log is refused, with the reason, when it has fewer than `MIN_ITERATIONS` lines or when what it shows cannot tell the
coefficients apart: a batch that never changes in size, no prefill, or one that always goes with the batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from scheduler.sim.engine import EngineProfile

MIN_ITERATIONS = 30
MIN_INDEPENDENCE = 1e-6
"""Least 1 − r² between sequences and prefilled tokens, r being their correlation."""


class CalibrationError(ValueError):
    """A log from which no speed can be told."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of an engine as it was measured."""

    duration_s: float
    sequences: int
    prefilled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted seconds, and how well they fit: R² (1 is perfect) and the mean of |error| in seconds, of `iterations`."""

    base_s: float
    per_sequence_s: float
    per_prefill_token_s: float
    iterations: int
    r_squared: float
    mean_absolute_error_s: float
    mean_duration_s: float

    def duration_s(self, iteration: Iteration) -> float:
        """What the fit says that an iteration lasts."""
        return (
            self.base_s
            + self.per_sequence_s * iteration.sequences
            + self.per_prefill_token_s * iteration.prefilled_tokens
        )

    def applied_to(self, profile: EngineProfile) -> EngineProfile:
        """The profile with this speed."""
        return replace(
            profile,
            base_s=self.base_s,
            per_sequence_s=self.per_sequence_s,
            per_prefill_token_s=self.per_prefill_token_s,
        )


def read_iterations(lines: Iterable[str]) -> list[Iteration]:
    """The iterations of a log; CalibrationError names the line that is none. A line that was cut off ends it."""
    iterations = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            iterations.append(_iteration(json.loads(line)))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, json.JSONDecodeError) and not line.endswith("\n"):
                break
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CalibrationError(f"line {number}: {what}") from error
    return iterations


def _iteration(document: Any) -> Iteration:
    if not isinstance(document, dict):
        raise TypeError("not an object")
    numbers = {name: document[name] for name in ("duration_s", "sequences", "prefilled_tokens")}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    return Iteration(**numbers)


def fit(iterations: Sequence[Iteration]) -> Fit:
    """The coefficients with the least sum of squared errors, none of them negative."""
    _check_tells(iterations)
    columns = {
        "base_s": [1.0] * len(iterations),
        "per_sequence_s": [float(one.sequences) for one in iterations],
        "per_prefill_token_s": [float(one.prefilled_tokens) for one in iterations],
    }
    durations = [one.duration_s for one in iterations]
    names = list(columns)
    while True:
        values = dict(zip(names, _least_squares([columns[name] for name in names], durations), strict=True))
        worst = min(names, key=lambda name: values[name] * sum(columns[name]))
        if values[worst] >= 0:
            break
        names.remove(worst)
    return _measured({name: round(values.get(name, 0.0), 12) for name in columns}, iterations)


def _check_tells(iterations: Sequence[Iteration]) -> None:
    if len(iterations) < MIN_ITERATIONS:
        raise CalibrationError(f"{len(iterations)} iterations are too few, at least {MIN_ITERATIONS} are needed")
    sequences = [one.sequences for one in iterations]
    prefilled = [one.prefilled_tokens for one in iterations]
    if min(sequences) == max(sequences):
        raise CalibrationError(f"every batch has {sequences[0]} sequences: what one of them costs cannot be told")
    if max(prefilled) == 0:
        raise CalibrationError("no iteration prefills anything: what a prompt token costs cannot be told")
    if min(prefilled) == max(prefilled):
        raise CalibrationError(f"every iteration prefills {prefilled[0]} tokens: what one costs cannot be told")
    if 1 - _correlation(sequences, prefilled) ** 2 < MIN_INDEPENDENCE:
        raise CalibrationError("prefill always goes with the size of the batch: their costs cannot be told apart")


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    both = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return float(both / (sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)) ** 0.5)


def _least_squares(columns: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Solve the normal equations, of columns scaled to 1, by Gauss's elimination with pivots."""
    scales = [max(column) for column in columns]
    scaled = [[value / scale for value in column] for column, scale in zip(columns, scales, strict=True)]
    rows = [[_dot(one, other) for other in scaled] + [_dot(one, targets)] for one in scaled]
    size = len(rows)
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(rows[row][place]))
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for row in range(place + 1, size):
            factor = rows[row][place] / rows[place][place]
            rows[row] = [value - factor * above for value, above in zip(rows[row], rows[place], strict=True)]
    solved = [0.0] * size
    for place in reversed(range(size)):
        known = sum(rows[place][other] * solved[other] for other in range(place + 1, size))
        solved[place] = (rows[place][size] - known) / rows[place][place]
    return [value / scale for value, scale in zip(solved, scales, strict=True)]


def _dot(xs: Sequence[float], ys: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(xs, ys, strict=True))


def _measured(coefficients: dict[str, float], iterations: Sequence[Iteration]) -> Fit:
    count = len(iterations)
    mean_s = sum(one.duration_s for one in iterations) / count
    fitted = Fit(**coefficients, iterations=count, r_squared=1.0, mean_absolute_error_s=0.0, mean_duration_s=mean_s)
    errors = [one.duration_s - fitted.duration_s(one) for one in iterations]
    spread = sum((one.duration_s - mean_s) ** 2 for one in iterations)
    squared = sum(error * error for error in errors)
    return replace(
        fitted,
        r_squared=1 - squared / spread if spread else 1.0 - bool(squared),
        mean_absolute_error_s=sum(map(abs, errors)) / count,
    )
