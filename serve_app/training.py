"""From finished applications to a trained predictor, and from a predictor to a judgement of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

from predictors.models import Asked, PerTypeCostModel
from predictors.output_length import OutputLengthModel
from predictors.store import TrainedPredictor, fingerprint
from predictors.text_regressors import KernelTextRegressor, NetworkTextRegressor
from serve_app.training_data import FinishedApplication


class ModelKind(StrEnum):
    """What can be trained."""

    DEFAULT = "default"
    MLP = "mlp"
    TRANSFORMER = "transformer"


def create_cost_model(kind: ModelKind) -> PerTypeCostModel:
    """An untrained model. Raises ImportError for a transformer whose packages are absent."""
    match kind:
        case ModelKind.DEFAULT:
            return PerTypeCostModel(KernelTextRegressor())
        case ModelKind.MLP:
            return PerTypeCostModel(NetworkTextRegressor(), point="median")
        case ModelKind.TRANSFORMER:
            from predictors.transformer import EncoderTextRegressor  # torch takes seconds to import

            return PerTypeCostModel(EncoderTextRegressor(), point="median")


def train(
    applications: Sequence[FinishedApplication], kind: ModelKind, on_type: Callable[[str], object] | None = None
) -> TrainedPredictor:
    """A predictor that has learnt from these; `on_type` hears each application type when it is done."""
    asked, costs = asked_and_costs(applications)
    return TrainedPredictor(
        kind=kind.value,
        costs=create_cost_model(kind).fit(asked, costs, on_type),
        lengths=OutputLengthModel().fit(call for application in applications for call in application.calls),
        fingerprint=fingerprint((*one, cost) for one, cost in zip(asked, costs, strict=True)),
        applications=dict(sorted(Counter(one.application_type for one in asked).items())),
    )


def asked_and_costs(applications: Sequence[FinishedApplication]) -> tuple[list[Asked], list[float]]:
    """What was asked, and what it cost."""
    return [one.asked for one in applications], [one.cost for one in applications]
