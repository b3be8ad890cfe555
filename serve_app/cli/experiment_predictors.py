"""The models that `justitia reproduce` trains for itself, and how long training and predicting take on this machine.

Each learns from the first SAMPLES_OF_A_TYPE applications of each type of the workload TRAIN, as the paper's did. What a
prediction takes is measured from the prompt to the cost, one application at a time; the middle one of PREDICTIONS
counts. The paper's expensive predictor is a DistilBERT; an encoder of its size with random weights stands beside ours
for the time that it takes, and for nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from scheduler.sim.experiments.findings import Cell, Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import SAMPLES_OF_A_TYPE, CreatePredictor, first_of_each_type
from scheduler.sim.experiments.predictions import PAPER, counterpart
from scheduler.sim.workload import TraceApplication

if TYPE_CHECKING:
    from predictors.store import TrainedPredictor
    from serve_app.training_data import FinishedApplication

KINDS = ("default", "mlp", "transformer")
TRANSFORMER = "transformer"
PREDICTIONS = 200
WARM_UPS = 10
SLOW_PREDICTIONS = 30


@dataclass(frozen=True, slots=True)
class Model:
    """A trained predictor; `training_s` is None where somebody else trained it."""

    predictor: TrainedPredictor
    training_s: float | None

    def create(self) -> CreatePredictor:
        """What makes a fresh one for each run of the simulator, which teaches it further."""
        from serve_app.trained_predictor import TrainedModel  # scikit-learn takes a second to import

        return lambda: TrainedModel(deepcopy(self.predictor))


def train_models(
    kinds: Iterable[str], applications: Iterable[TraceApplication], say: Callable[[str], object]
) -> dict[str, Model]:
    """A model of each kind; `say` hears of one that cannot be trained here."""
    learnt = [_finished(one) for one in first_of_each_type(applications, SAMPLES_OF_A_TYPE)]
    models = {}
    for kind in kinds:
        try:
            models[kind] = _trained(kind, learnt)
        except ImportError as error:
            say(f"{kind} is left out: {error}")
    return models


def with_times(found: Findings, models: Mapping[str, Model], applications: Sequence[TraceApplication]) -> Findings:
    """Table II whole: the findings of the simulator, and what training and predicting take."""
    took_ms = {name: prediction_ms(model, applications) for name, model in models.items()}
    headings = ("predictor", "error %", "overhead ms", "training s", "mean s")
    ours = [
        (name, error, took_ms.get(str(name)), models[str(name)].training_s if name in models else None, mean_s)
        for name, error, mean_s, *_ in found.tables[0].rows
        if not str(name).startswith("the paper's")
    ]
    paper = [
        (f"the paper's {name}", one.error_percent, one.overhead_ms, one.training_s, one.mean_s)
        for name, one in PAPER.items()
    ]
    size = ("DistilBERT's size, random weights", None, distilbert_ms(applications), None, None)
    rows: list[tuple[Cell, ...]] = [*ours, size, *paper]
    table = Table(title="Table II, times on this machine", headings=headings, rows=tuple(rows))
    compared = tuple(one for name in models for one in _comparisons(name, models[name], took_ms[name]))
    remarks = (*found.remarks, *_remarks(took_ms))
    return replace(found, comparisons=(*found.comparisons, *compared), tables=(table, *found.tables), remarks=remarks)


def prediction_ms(model: Model, applications: Sequence[TraceApplication]) -> float:
    """The middle time from a prompt to its cost."""
    costs = model.predictor.costs
    count = SLOW_PREDICTIONS if model.predictor.kind == TRANSFORMER else PREDICTIONS
    return _middle_ms(lambda one: costs.predict_one(one.application_type, one.prompt), applications[:count])


def distilbert_ms(applications: Sequence[TraceApplication]) -> float:
    """The middle time in which an encoder of DistilBERT's size reads a prompt."""
    from predictors.transformer import distilbert_sized_encoder  # torch takes seconds to import

    encoder = distilbert_sized_encoder()
    return _middle_ms(lambda one: encoder([one.prompt]), applications[:SLOW_PREDICTIONS])


def _middle_ms(predict: Callable[[TraceApplication], object], applications: Sequence[TraceApplication]) -> float:
    for one in applications[:WARM_UPS]:
        predict(one)
    times_s = []
    for one in applications:
        begin_s = time.perf_counter()
        predict(one)
        times_s.append(time.perf_counter() - begin_s)
    return 1000 * median(times_s)


def _trained(kind: str, learnt: Sequence[FinishedApplication]) -> Model:
    from serve_app.training import ModelKind, train

    if kind == TRANSFORMER:
        from predictors.transformer import packaged_encoder

        packaged_encoder()  # reading it is no part of training
    begin_s = time.perf_counter()
    predictor = train(learnt, ModelKind(kind))
    return Model(predictor, time.perf_counter() - begin_s)


def _finished(application: TraceApplication) -> FinishedApplication:
    from predictors.models import Asked
    from predictors.output_length import FinishedCall
    from serve_app.training_data import FinishedApplication

    kind = application.application_type
    calls = tuple(
        FinishedCall(kind, call.name, call.prompt_tokens, call.output_tokens, application.tenant)
        for call in application.calls
    )
    return FinishedApplication(Asked(kind, application.prompt), application.cost, calls)


def _comparisons(name: str, model: Model, took_ms: float) -> tuple[Comparison, ...]:
    paper = counterpart(name)
    one = PAPER[paper]
    return (
        Comparison(measure=f"{name}, the paper's {paper}: overhead", unit="ms", paper=one.overhead_ms, ours=took_ms),
        Comparison(
            measure=f"{name}, the paper's {paper}: training", unit="s", paper=one.training_s, ours=model.training_s
        ),
    )


def _remarks(took_ms: Mapping[str, float]) -> tuple[str, ...]:
    learning = (
        f"Each model learnt from the first {SAMPLES_OF_A_TYPE} applications of each type; default goes on learning "
        "from those that end."
    )
    if TRANSFORMER not in took_ms:
        return (learning,)
    shares = ", ".join(
        f"{name} 1/{took_ms[TRANSFORMER] / ms:.0f}" for name, ms in took_ms.items() if name != TRANSFORMER
    )
    words = (
        "The transformer is a small encoder as it was published, of which only a linear head is trained; the paper "
        "fine-tunes the whole."
    )
    return learning, f"{words} One prediction takes, as a part of its time: {shares}." if shares else words
