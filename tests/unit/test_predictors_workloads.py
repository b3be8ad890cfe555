"""The models on the shared workloads: trained on the first 100 of each type, judged on eval-even."""

from __future__ import annotations

import pytest

from predictors.evaluation import Evaluation, evaluate
from predictors.models import PerTypeCostModel
from serve_app.training import asked_and_costs
from serve_app.training_data import read_finished
from tests.predicting import shared_workload


@pytest.fixture(scope="module")
def judged() -> Evaluation:
    learnt = asked_and_costs(read_finished(shared_workload("train.jsonl"), limit_per_type=100))
    asked, costs = asked_and_costs(read_finished(shared_workload("eval-even.jsonl")))
    model = PerTypeCostModel().fit(*learnt)
    return evaluate([model.predict_one(*one) for one in asked], [one.application_type for one in asked], costs)


def test_the_default_models_error(judged: Evaluation) -> None:
    assert judged.overall.mean_relative_error <= 0.28


def test_the_default_models_order(judged: Evaluation) -> None:
    assert judged.overall.kendall_tau is not None
    assert judged.overall.kendall_tau >= 0.83


def test_the_default_models_intervals(judged: Evaluation) -> None:
    assert 0.75 <= judged.overall.coverage_80 <= 0.85


def test_every_answer_rests_on_the_prompt(judged: Evaluation) -> None:
    assert judged.sources == {"prompt": 300}
    assert judged.replaced == 0
