"""How many tokens a sequence of a call will make, with quantiles: from its application type, its stage and its prompt.

For a key with n observations of (prompt tokens p, output tokens d), ln d is a straight line in ln(1 + p) through their
means; its slope is shrunk towards 0 by `SLOPE_ROWS` rows of unit variance. The answer is the first that is known of

    (type, stage) leaning on type  →  type  →  the tenant's history  →  `max_tokens`

where a stage with n observations outweighs its type with n / (n + LEAN_ON). Quantiles are those of the residuals, the
key's own mixed with the type's in the same way.

Laws: an answer is an integer in [1, max_tokens]; it does not fall with q; without anything known it is max_tokens,
which is the only promise that holds for a call that nobody has seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors.cold_start import stage_of

Array = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

LEVELS = np.arange(1, 100) / 100
LEAN_ON = 4.0
SLOPE_ROWS = 5.0
MAX_PROMPT_DEVIATION = 3.0
MIN_SPREAD = 0.05
MAX_ROWS = 20_000
MAX_KEYS = 10_000


class FinishedCall(NamedTuple):
    """A call that ended; its stage is its name without the number at the end."""

    application_type: str
    name: str
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"


@dataclass(frozen=True, slots=True)
class Line:
    """ln d = mean + slope·z, z the standardized ln(1 + p) within ±MAX_PROMPT_DEVIATION, and residual quantiles."""

    count: int
    mean: float
    slope: float
    center: float
    spread: float
    residuals: Array

    def at(self, prompt_tokens: int) -> float:
        z = (math.log1p(max(0, prompt_tokens)) - self.center) / self.spread
        return self.mean + self.slope * min(max(z, -MAX_PROMPT_DEVIATION), MAX_PROMPT_DEVIATION)

    def quantile(self, q: float) -> float:
        return float(np.interp(q, LEVELS, self.residuals))

    def numbers(self) -> list[float]:
        return [float(self.count), self.mean, self.slope, self.center, self.spread, *map(float, self.residuals)]

    @classmethod
    def from_numbers(cls, numbers: Array) -> Line:
        count, mean, slope, center, spread = (float(number) for number in numbers[:5])
        return cls(int(count), mean, slope, center, spread, np.asarray(numbers[5:]))


class OutputLengthModel:
    """`fit` on finished calls; `predict` and `predict_quantile` for one call each."""

    def fit(self, calls: Iterable[FinishedCall]) -> Self:
        """Learn from calls in the order in which they ended; those with impossible counts are left out.

        Of stages, types and tenants the `MAX_KEYS` with most calls each are kept: clients name them.
        """
        by_stage: dict[tuple[str, str], list[FinishedCall]] = {}
        by_type: dict[str, list[FinishedCall]] = {}
        by_tenant: dict[str, list[FinishedCall]] = {}
        for call in calls:
            if call.output_tokens < 0 or call.prompt_tokens < 0:
                continue
            by_stage.setdefault((call.application_type, stage_of(call.name)), []).append(call)
            by_type.setdefault(call.application_type, []).append(call)
            by_tenant.setdefault(call.tenant, []).append(call)
        self.stages_ = {key: _line(found) for key, found in _largest(by_stage)}
        self.types_ = {key: _line(found) for key, found in _largest(by_type)}
        self.tenants_ = {key: _line(found) for key, found in _largest(by_tenant)}
        return self

    def predict(
        self, application_type: str, name: str, prompt_tokens: int, max_tokens: int, tenant: str | None = None
    ) -> int:
        """The median number of output tokens. Raises ValueError when `max_tokens` is below 1."""
        return self.predict_quantile(application_type, name, prompt_tokens, max_tokens, 0.5, tenant)

    def predict_quantile(
        self,
        application_type: str,
        name: str,
        prompt_tokens: int,
        max_tokens: int,
        q: float,
        tenant: str | None = None,
    ) -> int:
        """Output tokens that are not exceeded with probability q, 0 < q < 1."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        if not 0 < q < 1:
            raise ValueError(f"q must lie between 0 and 1, got {q}")
        log_tokens = self._log_tokens(application_type, stage_of(name), prompt_tokens, q, tenant)
        if log_tokens is None or log_tokens >= math.log(max_tokens):
            return max_tokens
        return min(max_tokens, max(1, round(math.exp(log_tokens))))

    def _log_tokens(
        self, application_type: str, stage: str, prompt_tokens: int, q: float, tenant: str | None
    ) -> float | None:
        of_type = self.types_.get(application_type)
        if of_type is None:
            of_tenant = None if tenant is None else self.tenants_.get(tenant)
            return None if of_tenant is None else of_tenant.at(prompt_tokens) + of_tenant.quantile(q)
        typical = of_type.at(prompt_tokens) + of_type.quantile(q)
        of_stage = self.stages_.get((application_type, stage))
        if of_stage is None:
            return typical
        weight = of_stage.count / (of_stage.count + LEAN_ON)
        return weight * (of_stage.at(prompt_tokens) + of_stage.quantile(q)) + (1 - weight) * typical

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What was learnt, as JSON and as arrays."""
        keys = {"stages": [list(key) for key in self.stages_], "types": [*self.types_], "tenants": [*self.tenants_]}
        arrays = {
            "stages": _table(self.stages_.values()),
            "types": _table(self.types_.values()),
            "tenants": _table(self.tenants_.values()),
        }
        return keys, arrays

    @classmethod
    def from_state(cls, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """The inverse of `state`. Raises KeyError, TypeError or ValueError when they do not fit together."""
        model = cls()
        model.stages_ = {(str(kind), str(stage)): line for (kind, stage), line in _lines("stages", document, arrays)}
        model.types_ = {str(kind): line for kind, line in _lines("types", document, arrays)}
        model.tenants_ = {str(tenant): line for tenant, line in _lines("tenants", document, arrays)}
        return model


def _largest(groups: dict[Key, list[FinishedCall]]) -> list[tuple[Key, list[FinishedCall]]]:
    """The groups with most calls, at most MAX_KEYS; of equal ones those that came first."""
    kept = set(sorted(groups, key=lambda key: len(groups[key]), reverse=True)[:MAX_KEYS])
    return [(key, found) for key, found in groups.items() if key in kept]


def _table(lines: Collection[Line]) -> Array:
    return np.array([line.numbers() for line in lines]).reshape(len(lines), 5 + len(LEVELS))


def _lines(name: str, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[tuple[Any, Line]]:
    table = arrays[name]
    if table.shape != (len(document[name]), 5 + len(LEVELS)):
        raise ValueError(f"the table {name} has another size than its keys")
    if len(table) and not np.all(table[:, 4] > 0):
        raise ValueError(f"the table {name} has spreads that are not positive")
    return [(key, Line.from_numbers(row)) for key, row in zip(document[name], table, strict=True)]


def _line(calls: list[FinishedCall]) -> Line:
    recent = calls[-MAX_ROWS:]
    prompts = np.log1p([float(call.prompt_tokens) for call in recent])
    outputs = np.log([max(1.0, float(call.output_tokens)) for call in recent])
    center, spread = float(prompts.mean()), float(max(prompts.std(), MIN_SPREAD))
    z = np.clip((prompts - center) / spread, -MAX_PROMPT_DEVIATION, MAX_PROMPT_DEVIATION)
    mean = float(outputs.mean())
    slope = float(z @ (outputs - mean) / (z @ z + SLOPE_ROWS))
    residuals: Array = np.quantile(outputs - mean - slope * z, LEVELS).astype(float)
    return Line(len(calls), mean, slope, center, spread, residuals)
