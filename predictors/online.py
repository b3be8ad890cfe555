"""Learning while the service runs: what to remember, when to train again, and whether the new model is better.

    finished applications → RecentApplications → (RetrainRule, DriftDetector) → a challenger → choose → Versions

Everything here is pure: no thread, no clock, no file. Training itself is done by whoever holds these pieces, away
from event loops; a model that is in use is never changed, only replaced whole.

Laws: memory is bounded (rows by type, types, texts and calls in all, versions); a challenger replaces the champion
only if it is better on applications that neither has learnt from; the newest are held out; a rollback gives exactly
the model before.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from predictors.cold_start import ApplicationCostHistory
from predictors.models import Asked
from predictors.output_length import FinishedCall
from predictors.targets import within_limits

MAX_ROWS_PER_TYPE = 400
MAX_TYPES = 500
MAX_SIZE = 20_000_000
CALL_SIZE = 100
"""What a call counts for beside the characters of prompts, as it takes about that many bytes."""
HELD_OUT_SHARE = 5
MIN_DEVIATION = 0.3
"""Of log errors: what a good model has of itself."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished application: what it was asked, its cost in token-iterations, and its calls."""

    asked: Asked
    cost: float
    calls: tuple[FinishedCall, ...] = ()

    @property
    def size(self) -> int:
        return len(self.asked.prompt) + CALL_SIZE * len(self.calls) + CALL_SIZE


class RecentApplications:
    """The newest `max_rows` observations of each type.

    Beyond `max_types` the type goes that was silent longest, beyond `max_size` (characters and calls, in all) its
    oldest observations.
    """

    def __init__(self, max_rows: int = MAX_ROWS_PER_TYPE, max_types: int = MAX_TYPES, max_size: int = MAX_SIZE) -> None:
        if min(max_rows, max_types, max_size) < 1:
            raise ValueError(f"limits must be at least 1, got {max_rows}, {max_types} and {max_size}")
        self._max_rows = max_rows
        self._max_types = max_types
        self._max_size = max_size
        self._types: OrderedDict[str, deque[Observation]] = OrderedDict()
        self._size = 0
        self.refused = 0

    def add(self, observation: Observation) -> bool:
        """Remember it; False, and counted in `refused`, when its cost is not finite or not positive."""
        if not (math.isfinite(observation.cost) and observation.cost > 0):
            self.refused += 1
            return False
        name = observation.asked.application_type
        rows = self._types.setdefault(name, deque())
        rows.append(observation)
        self._size += observation.size
        self._types.move_to_end(name)
        if len(rows) > self._max_rows:
            self._forget_oldest(name)
        while len(self._types) > self._max_types or self._size > self._max_size:
            self._forget_oldest(next(iter(self._types)))
        return True

    def _forget_oldest(self, name: str) -> None:
        self._size -= self._types[name].popleft().size
        if not self._types[name]:
            del self._types[name]

    def __len__(self) -> int:
        return sum(map(len, self._types.values()))

    def split(self, share: int = HELD_OUT_SHARE) -> tuple[list[Observation], list[Observation]]:
        """To train on, and the newest 1/share of each type to judge by (none of a type with fewer than `share`)."""
        train: list[Observation] = []
        held_out: list[Observation] = []
        for name in sorted(self._types):
            rows = list(self._types[name])
            kept = len(rows) - len(rows) // share
            train += rows[:kept]
            held_out += rows[kept:]
        return train, held_out


@dataclass(frozen=True, slots=True)
class RetrainRule:
    """Train again after `min_new` observations and 1/`share` of what the model knows, or at once after drift."""

    min_new: int = 50
    share: int = 5

    def due(self, new: int, known: int, drifted: bool) -> bool:
        if new < 1:
            return False
        return drifted or new >= max(self.min_new, known // self.share)


class DriftDetector:
    """Page-Hinkley's test in both directions on log errors ln(true / predicted).

    It sums their deviations from their running mean beyond `slack`; when a sum leaves its extreme by more than
    `threshold`, the errors have shifted. Deviations, slack and threshold are in running standard deviations, of which
    none is taken to be below MIN_DEVIATION: noisy errors are no drift. After an alarm it begins anew (Page, 1954).
    """

    def __init__(self, slack: float = 0.33, threshold: float = 26.0, min_count: int = 20) -> None:
        if slack < 0 or threshold <= 0 or min_count < 1:
            raise ValueError("slack must not be negative, threshold and min_count must be positive")
        self.slack = slack
        self.threshold = threshold
        self.min_count = min_count
        self._count, self._mean, self._squares, self._up, self._down = 0, 0.0, 0.0, 0.0, 0.0

    def update(self, predicted: float, true: float) -> bool:
        """One application ended; True when the errors have drifted."""
        error = math.log(within_limits(true) / within_limits(predicted))
        self._count += 1
        before = error - self._mean
        self._mean += before / self._count
        self._squares += before * (error - self._mean)
        deviation = (error - self._mean) / max(MIN_DEVIATION, math.sqrt(self._squares / self._count))
        self._up = max(0.0, self._up + deviation - self.slack)
        self._down = max(0.0, self._down - deviation - self.slack)
        if self._count < self.min_count or max(self._up, self._down) <= self.threshold:
            return False
        self._restart()
        return True

    def _restart(self) -> None:
        self._count, self._mean, self._squares, self._up, self._down = 0, 0.0, 0.0, 0.0, 0.0


class Predicts(Protocol):
    """What can be a champion."""

    def predict(self, X: Sequence[tuple[str, str]]) -> Sequence[float]: ...  # noqa: N803


class TypicalCosts:
    """The champion before anything was trained: running means by type, of what a challenger has learnt from too."""

    def __init__(self, learnt_from: Sequence[Observation]) -> None:
        self._history = ApplicationCostHistory()
        for observation in learnt_from:
            self._history.observe(observation.asked.application_type, observation.cost)

    def predict(self, X: Sequence[tuple[str, str]]) -> Sequence[float]:  # noqa: N803
        return [within_limits(self._history.predict(kind) or math.nan) for kind, _ in X]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Mean relative errors on held-out applications, and whether the challenger takes over."""

    champion_error: float
    challenger_error: float
    held_out: int
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Contest:
    """A challenger must lower the mean relative error by `margin` of the champion's, on `min_held_out` or more.

    Errors count at most `MAX_ERROR` each, so that one application does not decide.
    """

    min_held_out: int = 10
    margin: float = 0.0
    MAX_ERROR = 3.0

    def judge(self, champion: Predicts, challenger: Predicts, held_out: Sequence[Observation]) -> Verdict:
        if len(held_out) < self.min_held_out:
            reason = f"only {len(held_out)} applications to judge by, {self.min_held_out} needed"
            return Verdict(math.nan, math.nan, len(held_out), False, reason)
        old, new = self._error(champion, held_out), self._error(challenger, held_out)
        accepted = new < old * (1 - self.margin)
        reason = f"{new:.3f} against {old:.3f} mean relative error on {len(held_out)} applications"
        return Verdict(old, new, len(held_out), accepted, reason)

    def _error(self, model: Predicts, held_out: Sequence[Observation]) -> float:
        true = np.array([observation.cost for observation in held_out])
        predicted = np.asarray(model.predict([observation.asked for observation in held_out]), dtype=float)
        errors = np.abs(predicted - true) / true
        return float(np.mean(np.where(np.isfinite(errors), np.minimum(errors, self.MAX_ERROR), self.MAX_ERROR)))


Model = TypeVar("Model")


@dataclass(slots=True)
class Versions(Generic[Model]):
    """The model in use and those before it, the newest `max_kept`; numbers are never used again."""

    current: Model
    number: int = 1
    max_kept: int = 5
    _before: deque[tuple[int, Model]] = field(default_factory=deque)
    _highest: int = 1

    def promote(self, model: Model, number: int | None = None) -> int:
        """Use another model from now on; its number, which is the next one unless it is given.

        Raises ValueError for a number that is not above all earlier ones.
        """
        chosen = self._highest + 1 if number is None else number
        if chosen <= self._highest:
            raise ValueError(f"version {chosen} is not above version {self._highest}")
        self._before.append((self.number, self.current))
        while len(self._before) > self.max_kept:
            self._before.popleft()
        self._highest = chosen
        self.current, self.number = model, chosen
        return chosen

    @property
    def highest(self) -> int:
        """The highest number that was ever given."""
        return self._highest

    @property
    def before(self) -> tuple[int, ...]:
        """Numbers of the versions that a rollback can go to, the newest last."""
        return tuple(number for number, _ in self._before)

    def rollback(self) -> int:
        """Use the model before again; its number. Raises LookupError when none is kept."""
        if not self._before:
            raise LookupError("no model is kept from before")
        self.number, self.current = self._before.pop()
        return self.number
