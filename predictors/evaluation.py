"""How good predictions are: errors, order, intervals; and how fast a model learns.

Relative error: |predicted − true| / true. Order: Kendall's tau-b between predicted and true costs, which is what a
scheduler that sorts by them needs; where few prompts are asked often, one of them weighs much, and `order_interval`
tells how far tau strays when prompts are drawn anew. Coverage: the share of true costs inside the 80 % interval.
Calibration: for each level q, the share of true costs at or below the predicted quantile; a straight line from 0 to 1
is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from predictors.models import Asked, CostEstimate, PerTypeCostModel
from predictors.targets import CEILING, FLOOR

Array = NDArray[np.float64]

ROUNDING = 1e-9
"""A cost that went through its logarithm and back differs by less."""
CALIBRATION_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class CostPredictor(Protocol):
    """What can be evaluated."""

    def predict_one(self, application_type: str, prompt: str) -> CostEstimate: ...


@dataclass(frozen=True, slots=True)
class Quality:
    """Of some applications. `kendall_tau` is None where fewer than two costs differ."""

    applications: int
    mean_relative_error: float
    median_relative_error: float
    kendall_tau: float | None
    coverage_80: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Over all applications and by type; `sources` counts what estimates rested on."""

    overall: Quality
    by_type: dict[str, Quality]
    sources: dict[str, int]
    replaced: int


def evaluate(estimates: Sequence[CostEstimate], types: Sequence[str], costs: Sequence[float]) -> Evaluation:
    """Compare estimates with true costs. Raises ValueError without applications or with a cost that is not positive."""
    if not costs:
        raise ValueError("no applications to evaluate on")
    true = np.asarray(costs, dtype=float)
    if not np.all((true > 0) & np.isfinite(true)):
        raise ValueError("true costs must be finite and positive")
    true = np.clip(true, FLOOR, CEILING)
    kinds = np.asarray(types, dtype=object)
    predicted = np.array([estimate.cost for estimate in estimates])
    low, high = np.array([(one.low, one.high) for one in estimates]).T
    inside = (low * (1 - ROUNDING) <= true) & (true <= high * (1 + ROUNDING))
    sources: dict[str, int] = {}
    for estimate in estimates:
        sources[estimate.source.value] = sources.get(estimate.source.value, 0) + 1
    return Evaluation(
        overall=_quality(predicted, true, inside),
        by_type={
            name: _quality(predicted[kinds == name], true[kinds == name], inside[kinds == name])
            for name in sorted(set(types))
        },
        sources=dict(sorted(sources.items())),
        replaced=sum(estimate.replaced for estimate in estimates),
    )


def order_interval(
    estimates: Sequence[CostEstimate], asked: Sequence[Asked], costs: Sequence[float], draws: int = 200, seed: int = 0
) -> tuple[float, float] | None:
    """Where Kendall's tau lies in nine of ten draws of each type's prompts, with repetition (a bootstrap by prompt).

    None where tau cannot be said.
    """
    predicted, true = np.array([one.cost for one in estimates]), np.asarray(costs, dtype=float)
    rows: dict[str, dict[str, list[int]]] = {}
    for place, one in enumerate(asked):
        rows.setdefault(one.application_type, {}).setdefault(one.prompt, []).append(place)
    chance = np.random.default_rng(seed)
    taus = []
    for _ in range(draws):
        drawn = np.concatenate([_drawn([*prompts.values()], chance) for prompts in rows.values()])
        taus.append(_tau(predicted[drawn], true[drawn]))
    known = [tau for tau in taus if tau is not None]
    return (float(np.quantile(known, 0.05)), float(np.quantile(known, 0.95))) if known else None


def _drawn(prompts: Sequence[Sequence[int]], chance: np.random.Generator) -> NDArray[np.intp]:
    """Places of as many prompts as there are, drawn with repetition."""
    return np.concatenate(
        [np.array(prompts[one], dtype=np.intp) for one in chance.integers(len(prompts), size=len(prompts))]
    )


def _tau(predicted: Array, true: Array) -> float | None:
    tau = kendalltau(predicted, true).statistic if len(true) > 1 else np.nan
    return None if np.isnan(tau) else float(tau)


def mean_relative_error(predicted: Array, true: Array) -> float:
    """Mean of |predicted − true| / true."""
    return float(np.mean(np.abs(predicted - true) / true))


def calibration(model: PerTypeCostModel, asked: Sequence[Asked], costs: Sequence[float]) -> list[tuple[float, float]]:
    """(q, share of true costs that are not above the predicted quantile q) for the CALIBRATION_LEVELS."""
    true = np.asarray(costs, dtype=float)
    return [(q, float(np.mean(true <= model.predict_quantile(asked, q)))) for q in CALIBRATION_LEVELS]


def learning_curve(
    create: Callable[[], PerTypeCostModel],
    observed: tuple[Sequence[Asked], Sequence[float]],
    held_out: tuple[Sequence[Asked], Sequence[float]],
    counts: Sequence[int],
) -> list[tuple[int, Evaluation]]:
    """For each count n, how good a model is that has seen the first n applications of each type."""
    asked, costs = held_out
    curve = []
    for count in counts:
        model = create().fit(*first_of_each_type(*observed, count))
        estimates = [model.predict_one(*one) for one in asked]
        curve.append((count, evaluate(estimates, [one.application_type for one in asked], costs)))
    return curve


def cross_validated(
    create: Callable[[], PerTypeCostModel], asked: Sequence[Asked], costs: Sequence[float], folds: int
) -> Evaluation:
    """How good models are on prompts that they have not seen: each of `folds` parts by those trained on the others.

    Every prompt of a type is in one part, in turn by first appearance. Raises ValueError below two folds, and where
    a part holds everything.
    """
    if folds < 2:
        raise ValueError(f"cross-validation needs at least 2 folds, got {folds}")
    parts = _parts(asked, folds)
    estimates: dict[int, CostEstimate] = {}
    for part in range(folds):
        used = [place for place, one in enumerate(parts) if one != part]
        if not used:
            raise ValueError("too few prompts to leave some out")
        model = create().fit([asked[place] for place in used], [costs[place] for place in used])
        estimates |= {place: model.predict_one(*asked[place]) for place, one in enumerate(parts) if one == part}
    ordered = [estimates[place] for place in range(len(asked))]
    return evaluate(ordered, [one.application_type for one in asked], costs)


def _parts(asked: Sequence[Asked], folds: int) -> list[int]:
    """The part that each application is in."""
    prompts: dict[str, dict[str, int]] = {}
    for one in asked:
        places = prompts.setdefault(one.application_type, {})
        places.setdefault(one.prompt, len(places))
    return [prompts[one.application_type][one.prompt] % folds for one in asked]


def first_of_each_type(asked: Sequence[Asked], costs: Sequence[float], count: int) -> tuple[list[Asked], list[float]]:
    """The first `count` applications of each type, in order."""
    seen: dict[str, int] = {}
    kept = []
    for place, one in enumerate(asked):
        seen[one.application_type] = seen.get(one.application_type, 0) + 1
        if seen[one.application_type] <= count:
            kept.append(place)
    return [asked[place] for place in kept], [costs[place] for place in kept]


def _quality(predicted: Array, true: Array, inside: NDArray[np.bool_]) -> Quality:
    errors = np.abs(predicted - true) / true
    return Quality(
        applications=len(true),
        mean_relative_error=float(errors.mean()),
        median_relative_error=float(np.median(errors)),
        kendall_tau=_tau(predicted, true),
        coverage_80=float(inside.mean()),
    )
