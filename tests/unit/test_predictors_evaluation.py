"""Judging predictions: what a held-out prompt is, and how quality is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import pytest

from predictors.evaluation import cross_validated, evaluate, first_of_each_type, order_interval
from predictors.models import Asked, CostEstimate, PerTypeCostModel, Source
from tests.predicting import NOISE, made_up


class Remembers(PerTypeCostModel):
    """Knows the prompts that it was trained on, and says so by their cost; others cost 1."""

    def fit(self, X: Any, y: Any, on_type: Any = None) -> Self:  # noqa: N803
        self.seen = {Asked(*one): float(cost) for one, cost in zip(X, y, strict=True)}
        return self

    def predict_one(self, application_type: str, prompt: str) -> CostEstimate:
        cost = self.seen.get(Asked(application_type, prompt), 1.0)
        return CostEstimate(cost, cost, cost, Source.PROMPT)


def test_no_model_is_judged_on_a_prompt_that_it_has_seen() -> None:
    asked = [Asked(kind, f"prompt {number % 4}") for number in range(24) for kind in ("a", "b")]
    found = cross_validated(Remembers, asked, [100.0] * len(asked), 3)
    assert found.overall.applications == len(asked)
    assert found.overall.mean_relative_error == pytest.approx(0.99)
    assert found.overall.coverage_80 == 0


def test_cross_validation_finds_the_error_that_noise_leaves() -> None:
    asked, costs = made_up(60, seed=3)
    error = cross_validated(PerTypeCostModel, asked, costs, 3).overall.mean_relative_error
    assert NOISE * math.sqrt(2 / math.pi) * 0.7 < error < 0.25


@pytest.mark.parametrize(
    ("asked", "folds", "said"),
    [([Asked("a", "x"), Asked("a", "y")], 1, "at least 2 folds"), ([Asked("a", "x")] * 3, 2, "too few prompts")],
)
def test_what_cannot_be_left_out_is_refused(asked: Sequence[Asked], folds: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cross_validated(Remembers, asked, [1.0] * len(asked), folds)


def test_quality_is_counted_by_type() -> None:
    estimates = [CostEstimate(cost, cost / 2, cost * 2, Source.PROMPT) for cost in (10.0, 20.0, 300.0)]
    found = evaluate(estimates, ["a", "a", "b"], [10.0, 40.0, 100.0])
    assert found.by_type["a"].mean_relative_error == pytest.approx(0.25)
    assert found.by_type["a"].kendall_tau == 1
    assert found.by_type["b"].kendall_tau is None
    assert found.by_type["b"].coverage_80 == 0


def test_taus_interval_is_wide_where_one_prompt_is_asked_often() -> None:
    costs = [float(number) for number in range(1, 21)]
    right = [CostEstimate(cost, cost, cost, Source.PROMPT) for cost in costs]
    spread = [Asked("a", str(number)) for number in range(20)]
    assert order_interval(right, spread, costs) == (pytest.approx(1), pytest.approx(1))
    wrong = [
        CostEstimate(100.0 - cost, 1, 1, Source.PROMPT) if cost <= 5 else one
        for cost, one in zip(costs, right, strict=True)
    ]
    often = [Asked("a", str(max(number, 4))) for number in range(20)]
    widths = [
        high - low for low, high in filter(None, (order_interval(wrong, asked, costs) for asked in (spread, often)))
    ]
    assert widths[0] < widths[1]
    assert order_interval(wrong, often, costs) == order_interval(wrong, often, costs)


def test_one_application_has_no_order() -> None:
    assert order_interval([CostEstimate(1, 1, 1, Source.PROMPT)], [Asked("a", "b")], [1.0]) is None


def test_the_first_of_each_type_are_kept_in_order() -> None:
    asked = [Asked("a", "1"), Asked("b", "2"), Asked("a", "3"), Asked("b", "4")]
    assert first_of_each_type(asked, [1, 2, 3, 4], 1) == ([asked[0], asked[1]], [1, 2])
