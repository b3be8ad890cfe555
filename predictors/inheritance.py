"""What a newer model keeps of the one that it replaces: the types that it has not seen itself.

A service learns from the newest applications. A type that rested meanwhile is not among them, and would be unknown when
it comes back. Laws: what the newer model has learnt itself stays as it is; of the older one come types alone, those
learnt from most first, until there are `MAX_TYPES`; neither model is changed; models of different kinds share nothing,
since a file holds types of one kind.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from predictors.models import PerTypeCostModel
from predictors.output_length import OutputLengthModel
from predictors.store import TrainedPredictor

MAX_TYPES = 64
"""One of 400 applications takes some 13 MB while it predicts."""


def inheriting(newer: TrainedPredictor, older: TrainedPredictor, max_types: int = MAX_TYPES) -> TrainedPredictor:
    """The newer model with the older one's types that it lacks.

    Regressors are shared with the two: only one of the three may go on learning.
    """
    if newer.kind != older.kind:
        return newer
    lacking = sorted(older.costs.types_.keys() - newer.costs.types_.keys())
    lacking.sort(key=lambda name: older.applications.get(name, 0), reverse=True)
    kept = lacking[: max(0, max_types - len(newer.costs.types_))]
    counts = {name: older.applications.get(name, 0) for name in kept}
    return replace(
        newer,
        costs=_costs(newer.costs, older.costs, kept),
        lengths=_lengths(newer.lengths, older.lengths, kept),
        applications=dict(sorted({**counts, **newer.applications}.items())),
    )


def _costs(newer: PerTypeCostModel, older: PerTypeCostModel, names: list[str]) -> PerTypeCostModel:
    costs = copy.copy(newer)
    for part in ("types_", "typical_", "quantiles_"):
        learnt = getattr(older, part)
        setattr(costs, part, {**{name: learnt[name] for name in names}, **getattr(newer, part)})
    return costs


def _lengths(newer: OutputLengthModel, older: OutputLengthModel, names: list[str]) -> OutputLengthModel:
    lengths = copy.copy(newer)
    lengths.types_ = {**{name: older.types_[name] for name in names if name in older.types_}, **newer.types_}
    stages = {key: line for key, line in older.stages_.items() if key[0] in names}
    lengths.stages_ = {**stages, **newer.stages_}
    return lengths
