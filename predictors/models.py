"""What an application will cost, from its type and the prompt it arrives with.

A model for each type, trained on the logarithms of the costs of that type's finished applications, and one over all
types for those that nobody has seen. A model says a distribution of the log cost: mean m, deviation s, and quantiles
m + s·z(q), where z(q) are quantiles of the scores of rows predicted without their own prompt, the type's own mixed
with `BORROWED` of everybody's (a split-conformal calibration with shrinkage). The point estimate is one of

    relative  exp(m − min(s², MAX_SHIFT)): minimizes the mean of |predicted − true| / true under a log-normal law
    median    exp(m)

Laws: a cost is finite, at least FLOOR and at most CEILING, whatever was learnt or asked; quantiles do not fall with q;
`predict_one` equals `predict`; a prompt of which no term is known gets its type's typical cost, an unknown type the
answer of the model over all types, and each answer says which (`Source`). A type with few observations leans on the
model over all types, and outgrows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from predictors.targets import FLOOR, clean_costs, cost_of
from predictors.text_regressors import (
    LEAN_ON,
    USUAL_DEVIATION,
    KernelTextRegressor,
    RestorableRegressor,
    State,
    TextRegressor,
    joined,
    under,
)

Array = NDArray[np.float64]
Point = Literal["relative", "median"]
OnType = Callable[[str], object]

LEVELS = np.arange(1, 100) / 100
MAX_SHIFT = 0.3
BORROWED = 30.0
MAX_GLOBAL_ROWS = 400
MAX_DEVIATION = 5.0
MAX_PRIOR_ROWS = 50
YOUNG_ROWS = 30
USUAL_LEVEL_SD = 2.0


class Asked(NamedTuple):
    """What is known when an application arrives."""

    application_type: str
    prompt: str


class Source(StrEnum):
    """What an estimate rests on."""

    PROMPT = "prompt"
    TYPE = "type"
    ALL_TYPES = "all types"


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Token-iterations: the point estimate and the 80 % interval. `replaced`: the model's answer was no cost."""

    cost: float
    low: float
    high: float
    source: Source
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class LogCost:
    """A type's (or, where `application_type` is None, any) distribution of log costs."""

    application_type: str | None
    mean: float
    deviation: float
    source: Source


class PerTypeCostModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Fit on `Asked` pairs and costs (token-iterations); `regressor` (None: KernelTextRegressor) is cloned per type.

    `fit` ignores costs that are not finite or not positive and counts them in `ignored_`; it raises ValueError when
    none is left.
    """

    def __init__(self, regressor: TextRegressor | None = None, point: Point = "relative") -> None:
        self.regressor = regressor
        self.point = point

    def fit(self, X: Iterable[tuple[str, str]], y: ArrayLike, on_type: OnType | None = None) -> Self:  # noqa: N803
        """Learn from applications in the order in which they finished; `on_type` hears each type when it is done."""
        cleaned = clean_costs(y)
        given = [Asked(*pair) for pair in X]
        if len(given) != len(cleaned.kept):
            raise ValueError(f"{len(given)} applications, {len(cleaned.kept)} costs")
        asked = [one for one, kept in zip(given, cleaned.kept, strict=True) if kept]
        if not asked:
            raise ValueError("no application with a finite, positive cost to learn from")
        self.ignored_ = cleaned.not_finite + cleaned.not_positive
        self.young_: dict[str, list[tuple[str, float]]] = {}
        rows: dict[str, list[int]] = {}
        for row, one in enumerate(asked):
            rows.setdefault(one.application_type, []).append(row)
        self._fit_global(asked, cleaned.logs, rows)
        self.types_: dict[str, TextRegressor] = {}
        self.typical_: dict[str | None, LogCost] = {}
        for name in sorted(rows):
            self._fit_type(name, [asked[row].prompt for row in rows[name]], cleaned.logs[rows[name]])
            if on_type is not None:
                on_type(name)
            if len(rows[name]) < YOUNG_ROWS:
                self.young_[name] = [(asked[row].prompt, float(cleaned.logs[row])) for row in rows[name]]
        self.quantiles_ = _calibrated({name: regressor.scores_ for name, regressor in self.types_.items()})
        return self

    def partial_fit(self, X: Iterable[tuple[str, str]], y: ArrayLike) -> Self:  # noqa: N803
        """Learn from further applications; what is learnt by type alone is cheap, and a new type begins with them.

        Types with fewer than YOUNG_ROWS observations are learnt anew each time, from all of their own; those of a model
        that was loaded are not, as a model file holds no prompts.
        """
        check_is_fitted(self)
        cleaned = clean_costs(y)
        places = np.cumsum(cleaned.kept) - 1
        rows: dict[str, list[tuple[str, float]]] = {}
        for (name, prompt), kept, place in zip(X, cleaned.kept, places, strict=True):
            if kept:
                rows.setdefault(name, []).append((prompt, float(cleaned.logs[place])))
        for name, found in rows.items():
            young = self.young_.get(name, [])
            if name in self.types_ and not young:
                self.types_[name].partial_fit([prompt for prompt, _ in found], np.array([log for _, log in found]))
                continue
            young = [*young, *found]
            self._fit_type(name, [prompt for prompt, _ in young], np.array([log for _, log in young]))
            self.quantiles_.setdefault(name, self.quantiles_[None])
            self.young_[name] = young if len(young) < YOUNG_ROWS else []
        return self

    def predict(self, X: Iterable[tuple[str, str]]) -> Array:  # noqa: N803
        """Point estimates in token-iterations."""
        return np.array([self._point(one)[0] for one in self.log_costs(X)])

    def predict_quantile(self, X: Iterable[tuple[str, str]], q: float) -> Array:  # noqa: N803
        """Costs that are not exceeded with probability q, 0 < q < 1."""
        _check_level(q)
        return np.array([self._quantile(one, q) for one in self.log_costs(X)])

    def predict_one(self, application_type: str, prompt: str) -> CostEstimate:
        """The estimate for one application; meant for serving, where they arrive one at a time."""
        log_cost = self.log_cost(application_type, prompt)
        cost, replaced = self._point(log_cost)
        low, high = self._quantile(log_cost, 0.1), self._quantile(log_cost, 0.9)
        return CostEstimate(cost, low, high, log_cost.source, replaced)

    def quantile_one(self, application_type: str, prompt: str, q: float) -> float:
        """As `predict_quantile`, for one application."""
        _check_level(q)
        return self._quantile(self.log_cost(application_type, prompt), q)

    def log_cost(self, application_type: str, prompt: str) -> LogCost:
        """The distribution of the log cost of one application."""
        regressor = self.types_.get(application_type)
        if regressor is None:
            mean, deviation = self.global_.predict_one(prompt)
            return LogCost(None, mean, deviation * self.global_scale_, Source.ALL_TYPES)
        if not regressor.knows(prompt):
            return self.typical_[application_type]
        return LogCost(application_type, *regressor.predict_one(prompt), Source.PROMPT)

    def log_costs(self, X: Iterable[tuple[str, str]]) -> list[LogCost]:  # noqa: N803
        """As `log_cost` for many, each type's in one go."""
        check_is_fitted(self)
        asked = [Asked(*pair) for pair in X]
        answers: dict[int, LogCost] = {}
        by_type: dict[str, list[int]] = {}
        for place, (name, prompt) in enumerate(asked):
            if name in self.types_ and self.types_[name].knows(prompt):
                by_type.setdefault(name, []).append(place)
            else:
                answers[place] = self.log_cost(name, prompt)
        for name, places in by_type.items():
            means, deviations = self.types_[name].predict([asked[place].prompt for place in places])
            for place, mean, deviation in zip(places, means, deviations, strict=True):
                answers[place] = LogCost(name, float(mean), float(deviation), Source.PROMPT)
        return [answers[place] for place in range(len(asked))]

    def state(self) -> State:
        """What was learnt, as JSON and as arrays."""
        check_is_fitted(self)
        names = sorted(self.types_)
        parts = {"global": self.global_.state()}
        parts |= {f"type{place}": self.types_[name].state() for place, name in enumerate(names)}
        document, arrays = joined(**parts)
        typical = [[self.typical_[name].mean, self.typical_[name].deviation] for name in names]
        quantiles = [self.quantiles_[name] for name in (*names, None)]
        arrays |= {"typical": np.array(typical), "quantiles": np.array(quantiles)}
        return document | {"types": names, "point": self.point, "global_scale": self.global_scale_}, arrays

    @classmethod
    def from_state(
        cls, document: Mapping[str, Any], arrays: Mapping[str, Array], regressor_class: type[RestorableRegressor]
    ) -> Self:
        """The inverse of `state`. Raises KeyError, TypeError or ValueError when the parts do not fit together."""
        names = [str(name) for name in document["types"]]
        typical, quantiles = arrays["typical"], arrays["quantiles"]
        if typical.shape != (len(names), 2) or quantiles.shape != (len(names) + 1, len(LEVELS)):
            raise ValueError("the model's tables have another size than its list of types")
        if document["point"] not in get_args(Point):
            raise ValueError(f"there is no point estimate {document['point']!r}")
        model = cls(regressor_class(), point=document["point"])
        model.ignored_, model.young_ = 0, {}
        model.global_scale_ = float(document["global_scale"])
        model.global_ = KernelTextRegressor.from_state(document["global"], under("global", arrays))
        model.types_ = {
            name: regressor_class.from_state(document[f"type{place}"], under(f"type{place}", arrays))
            for place, name in enumerate(names)
        }
        model.typical_ = {
            name: LogCost(name, float(mean), float(deviation), Source.TYPE)
            for name, (mean, deviation) in zip(names, typical, strict=True)
        }
        model.quantiles_ = dict(zip((*names, None), quantiles, strict=True))
        return model

    def _fit_global(self, asked: Sequence[Asked], logs: Array, rows: Mapping[str, Sequence[int]]) -> None:
        share = max(1, MAX_GLOBAL_ROWS // len(rows))
        chosen = sorted(row for places in rows.values() for row in places[-share:])[-MAX_GLOBAL_ROWS:]
        self.global_ = KernelTextRegressor(max_rows=MAX_GLOBAL_ROWS, level_sd=USUAL_LEVEL_SD)
        self.global_.fit([asked[row].prompt for row in chosen], logs[chosen], float(logs[chosen].mean()))
        unseen = self.global_.scores_by([asked[row].application_type for row in chosen])
        self.global_scale_ = float(max(1.0, np.sqrt(np.mean(unseen**2))))

    def _fit_type(self, name: str, prompts: Sequence[str], logs: Array) -> None:
        """Learn a type, leaning on what the model over all types says of its prompts."""
        prior = float(np.mean([self.global_.predict_one(prompt)[0] for prompt in prompts[-MAX_PRIOR_ROWS:]]))
        regressor = KernelTextRegressor() if self.regressor is None else clone(self.regressor)
        self.types_[name] = regressor.fit(prompts, logs, prior)
        self.typical_[name] = _typical(name, logs, prior)

    def _point(self, log_cost: LogCost) -> tuple[float, bool]:
        shift = min(log_cost.deviation**2, MAX_SHIFT) if self.point == "relative" else 0.0
        return cost_of(log_cost.mean - shift, self._fallback(log_cost))

    def _quantile(self, log_cost: LogCost, q: float) -> float:
        scores = self.quantiles_[log_cost.application_type]
        deviation = min(log_cost.deviation, MAX_DEVIATION) if log_cost.deviation > 0 else MAX_DEVIATION
        log_quantile = log_cost.mean + deviation * float(np.interp(q, LEVELS, scores))
        return cost_of(log_quantile, self._fallback(log_cost))[0]

    def _fallback(self, log_cost: LogCost) -> float:
        """A cost for a model that says none: the type's typical one, or that of all that was learnt from."""
        typical = self.typical_.get(log_cost.application_type)
        return cost_of(self.global_.regressor_.center_ if typical is None else typical.mean, FLOOR)[0]


def _typical(name: str, logs: Array, prior: float) -> LogCost:
    weight = len(logs) + LEAN_ON
    mean = float((logs.sum() + LEAN_ON * prior) / weight)
    variance = float((np.sum((logs - logs.mean()) ** 2) + LEAN_ON * USUAL_DEVIATION**2) / weight)
    return LogCost(name, mean, math.sqrt(variance), Source.TYPE)


def _calibrated(scores: Mapping[str, Array]) -> dict[str | None, Array]:
    """Scores at LEVELS by type, each type's own mixed with `BORROWED` of everybody's; None: everybody's alone.

    Everybody's hold LEAN_ON of a normal distribution's, so that a handful of rows does not say that nothing ever errs.
    """
    usual = norm.ppf(LEVELS)
    everybody = np.concatenate([*scores.values(), usual])
    weights = np.concatenate([np.ones(len(everybody) - len(usual)), np.full(len(usual), LEAN_ON / len(usual))])
    found: dict[str | None, Array] = {None: _weighted_quantiles(everybody, weights)}
    borrowed = weights * (BORROWED / weights.sum())
    for name, own in scores.items():
        found[name] = _weighted_quantiles(
            np.concatenate([own, everybody]), np.concatenate([np.ones(len(own)), borrowed])
        )
    return found


def _weighted_quantiles(values: Array, weights: Array) -> Array:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) - weights[order] / 2
    quantiles: Array = np.interp(LEVELS, reached / weights.sum(), values[order])
    return quantiles


def _check_level(q: float) -> None:
    if not 0 < q < 1:
        raise ValueError(f"q must lie between 0 and 1, got {q}")
