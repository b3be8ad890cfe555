"""What a newer model keeps of the one that it replaces: the types that it has hardly seen itself.

A service learns from the newest applications. A type that rested meanwhile is not among them, or with so few that
nothing of it is held out to judge the newer model by; it would be forgotten, and found out only when it comes back.

Laws: a type of which the newer model has seen at least `FEW` stays as it learnt it; of the others the older model's is
kept where that has seen more. Of types that the newer one lacks those learnt from most come first, until there are
`MAX_TYPES`. Neither model is changed; models of different kinds share nothing, since a file holds types of one kind.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from predictors.models import PerTypeCostModel
from predictors.online import HELD_OUT_SHARE
from predictors.output_length import OutputLengthModel
from predictors.store import TrainedPredictor
from predictors.text_regressors import KernelTextRegressor, TextRegressor

MAX_TYPES = 64
"""One of 400 applications takes some 13 MB while it predicts."""
FEW = HELD_OUT_SHARE
"""With fewer of a type none is held out."""


def inheriting(newer: TrainedPredictor, older: TrainedPredictor, max_types: int = MAX_TYPES) -> TrainedPredictor:
    """The newer model with those of the older one's types that it has hardly seen.

    Regressors are shared with the two: only one of the three may go on learning.
    """
    if newer.kind != older.kind:
        return newer
    own = newer.costs.types_
    lacking = sorted(older.costs.types_.keys() - own.keys())
    lacking.sort(key=lambda name: older.applications.get(name, 0), reverse=True)
    kept = lacking[: max(0, max_types - len(own))]
    kept += [name for name in own.keys() & older.costs.types_.keys() if _hardly_seen(name, newer, older)]
    counts = {name: older.applications.get(name, 0) for name in kept}
    return replace(
        newer,
        costs=_costs(newer.costs, older.costs, kept),
        lengths=_lengths(newer.lengths, older.lengths, kept),
        applications=dict(sorted({**newer.applications, **counts}.items())),
    )


def sharing(newer: TrainedPredictor, older: TrainedPredictor) -> TrainedPredictor:
    """The newer model with the older one's regressors where they are the same, so that memory holds them once."""
    same = {
        name: regressor
        for name, regressor in older.costs.types_.items()
        if name in newer.costs.types_ and _are_the_same(newer.costs.types_[name], regressor)
    }
    costs = copy.copy(newer.costs)
    costs.types_ = {**newer.costs.types_, **same}
    return replace(newer, costs=costs)


def _hardly_seen(name: str, newer: TrainedPredictor, older: TrainedPredictor) -> bool:
    seen = newer.applications.get(name, 0)
    return seen < FEW and seen < older.applications.get(name, 0)


def _are_the_same(one: TextRegressor, other: TextRegressor) -> bool:
    """Would they say the same, as far as what they were made from tells?"""
    if not isinstance(one, KernelTextRegressor) or not isinstance(other, KernelTextRegressor):
        return False
    left, right = one.regressor_, other.regressor_
    pairs = ((left.rows_, right.rows_), (left.targets_, right.targets_), (left.scales_, right.scales_))
    return one.features_.terms_ == other.features_.terms_ and all(np.array_equal(*pair) for pair in pairs)


def _costs(newer: PerTypeCostModel, older: PerTypeCostModel, names: list[str]) -> PerTypeCostModel:
    costs = copy.copy(newer)
    for part in ("types_", "typical_", "quantiles_"):
        learnt = getattr(older, part)
        setattr(costs, part, {**getattr(newer, part), **{name: learnt[name] for name in names}})
    return costs


def _lengths(newer: OutputLengthModel, older: OutputLengthModel, names: list[str]) -> OutputLengthModel:
    lengths = copy.copy(newer)
    lengths.types_ = {**newer.types_, **{name: older.types_[name] for name in names if name in older.types_}}
    stages = {key: line for key, line in older.stages_.items() if key[0] in names}
    lengths.stages_ = {**newer.stages_, **stages}
    return lengths
