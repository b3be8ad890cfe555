"""A trained model as the simulator's predictor.

What it may see of an application is what is known at arrival: its type, its prompt, and the names and prompt lengths of
the calls that were submitted. Costs are those of the model, from type and prompt alone: its point estimate, or the cost
that is not exceeded with a chosen probability, for an order that would rather overrate. Lengths are a high quantile for
the call's stage: a tag follows the larger of the predicted cost and what its calls are expected to cost, and rises when
a call outgrows its length, so that lengths which are seldom outgrown keep the order steady. It learns costs from what
ends, each batch once it is 1/LEARN_SHARE of what was seen, which keeps long runs cheap; vocabulary and scales stay as
they were trained. (The live service trains anew and replaces its model whole.)
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
    """Predicts as the model in a directory does. `of_directory` raises ModelFileError for what is no model.

    `quantile` in (0, 1) is the probability with which a cost is not exceeded; None: the model's point estimate.
    ValueError for another number.
    """

    def __init__(self, predictor: TrainedPredictor, quantile: float | None = None) -> None:
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile must lie between 0 and 1, got {quantile}")
        self._quantile = quantile
        self._costs = predictor.costs
        self._lengths = predictor.lengths
        self._ended: list[tuple[Asked, float]] = []
        self._seen = 0

    @classmethod
    def of_directory(cls, directory: Path, quantile: float | None = None) -> TrainedModel:
        return cls(load(directory), quantile)

    def predict(self, application: TraceApplication) -> Prediction:
        kind = application.application_type
        outputs = {
            call.name: self._lengths.predict_quantile(
                kind, call.name, call.prompt_tokens, MAX_OUTPUT_TOKENS, LENGTH_QUANTILE, application.tenant
            )
            for call in application.calls
        }
        return Prediction(outputs, self._cost(kind, application.prompt))

    def learn(self, application: TraceApplication) -> None:
        self._ended.append((Asked(application.application_type, application.prompt), application.cost))
        self._seen += 1
        if len(self._ended) * LEARN_SHARE < self._seen:
            return
        self._costs.partial_fit([asked for asked, _ in self._ended], [cost for _, cost in self._ended])
        self._ended.clear()

    def _cost(self, kind: str, prompt: str) -> float:
        if self._quantile is None:
            return self._costs.predict_one(kind, prompt).cost
        return self._costs.quantile_one(kind, prompt, self._quantile)
