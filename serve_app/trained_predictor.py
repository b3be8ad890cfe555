"""A trained model as the simulator's predictor.

What it may see of an application is what is known at arrival: its type, its prompt, and the names and prompt lengths of
the calls that were submitted. Costs are those of the model, from type and prompt alone. Lengths are a high quantile for
the call's stage: a tag follows the larger of the predicted cost and what its calls are expected to cost, and rises when
a call outgrows its length, so that lengths which are seldom outgrown keep the order steady. It learns costs from what
ends, as the live service does: each batch once it is 1/LEARN_SHARE of what was seen, which keeps long runs cheap.
"""

from __future__ import annotations

from pathlib import Path

from predictors.models import Asked
from predictors.store import TrainedPredictor, load
from scheduler.sim.prediction import Prediction
from scheduler.sim.workload import TraceApplication

MAX_OUTPUT_TOKENS = 32_768
LENGTH_QUANTILE = 0.9
LEARN_SHARE = 200


class TrainedModel:
    """Predicts as the model in a directory does. `of_directory` raises ModelFileError for what is no model."""

    def __init__(self, predictor: TrainedPredictor) -> None:
        self._costs = predictor.costs
        self._lengths = predictor.lengths
        self._ended: list[tuple[Asked, float]] = []
        self._seen = 0

    @classmethod
    def of_directory(cls, directory: Path) -> TrainedModel:
        return cls(load(directory))

    def predict(self, application: TraceApplication) -> Prediction:
        kind = application.application_type
        outputs = {
            call.name: self._lengths.predict_quantile(
                kind, call.name, call.prompt_tokens, MAX_OUTPUT_TOKENS, LENGTH_QUANTILE, application.tenant
            )
            for call in application.calls
        }
        return Prediction(outputs, self._costs.predict_one(kind, application.prompt).cost)

    def learn(self, application: TraceApplication) -> None:
        self._ended.append((Asked(application.application_type, application.prompt), application.cost))
        self._seen += 1
        if len(self._ended) * LEARN_SHARE < self._seen:
            return
        self._costs.partial_fit([asked for asked, _ in self._ended], [cost for _, cost in self._ended])
        self._ended.clear()
