"""Predicting costs from type and prompt: error, order, intervals, and what happens where nothing is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

from predictors.evaluation import evaluate
from predictors.models import YOUNG_ROWS, Asked, LogCost, PerTypeCostModel, Source
from predictors.targets import CEILING, FLOOR
from predictors.text_regressors import KernelTextRegressor, NetworkTextRegressor
from tests.predicting import NOISE, made_up

ODD_PROMPTS = ["", " ", "5", "???", "你好", "🎉", "the a of", "x" * 1_000_000, "\x00"]
MODELS = {
    "default": lambda: PerTypeCostModel(KernelTextRegressor()),
    "mlp": lambda: PerTypeCostModel(NetworkTextRegressor(hidden_layer_sizes=(16, 8, 8), max_iter=60), point="median"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> PerTypeCostModel:
    return MODELS[request.param]().fit(*made_up(60, seed=1))


@pytest.fixture(scope="module")
def default() -> PerTypeCostModel:
    return PerTypeCostModel().fit(*made_up(60, seed=1))


def test_costs_that_follow_from_the_prompt_are_predicted(default: PerTypeCostModel) -> None:
    asked, costs = made_up(100, seed=2)
    found = evaluate([default.predict_one(*one) for one in asked], [one.application_type for one in asked], costs)
    assert found.overall.mean_relative_error < 2 * NOISE
    assert found.overall.kendall_tau is not None
    assert found.overall.kendall_tau > 0.9
    assert found.sources == {"prompt": 200}


def test_four_in_five_costs_lie_in_the_interval(default: PerTypeCostModel) -> None:
    asked, costs = made_up(300, seed=3)
    estimates = [default.predict_one(*one) for one in asked]
    inside = [estimate.low <= cost <= estimate.high for estimate, cost in zip(estimates, costs, strict=True)]
    assert 0.75 < np.mean(inside) < 0.87


def test_quantiles_are_exceeded_as_often_as_they_say(default: PerTypeCostModel) -> None:
    asked, costs = made_up(300, seed=4)
    for q in (0.25, 0.5, 0.9):
        assert np.mean(costs <= default.predict_quantile(asked, q)) == pytest.approx(q, abs=0.1)


def test_quantiles_rise_with_their_level(model: PerTypeCostModel) -> None:
    asked = [*made_up(3, seed=5)[0], Asked("unknown", "river"), Asked("report", "")]
    quantiles = np.array([model.predict_quantile(asked, q) for q in (0.01, 0.1, 0.5, 0.9, 0.99)])
    assert np.all(np.diff(quantiles, axis=0) >= 0)
    assert model.quantile_one(*asked[0], 0.9) == pytest.approx(quantiles[3][0])


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, math.nan])
def test_a_quantile_that_is_none_is_refused(default: PerTypeCostModel, q: float) -> None:
    with pytest.raises(ValueError, match="q must"):
        default.predict_quantile([], q)
    with pytest.raises(ValueError, match="q must"):
        default.quantile_one("report", "river", q)


def test_one_at_a_time_is_the_same_as_many(model: PerTypeCostModel) -> None:
    asked = [*made_up(10, seed=6)[0], *(Asked(kind, prompt) for kind in ("report", "new") for prompt in ODD_PROMPTS)]
    assert_allclose(model.predict(asked), [model.predict_one(*one).cost for one in asked], rtol=1e-9)


@pytest.mark.parametrize("prompt", ODD_PROMPTS)
@pytest.mark.parametrize("kind", ["report", "never seen", ""])
def test_any_prompt_of_any_type_has_a_cost(model: PerTypeCostModel, kind: str, prompt: str) -> None:
    estimate = model.predict_one(kind, prompt)
    assert FLOOR <= estimate.low <= estimate.high <= CEILING
    assert FLOOR <= estimate.cost <= CEILING


def test_a_prompt_without_a_known_term_gets_its_types_typical_cost(default: PerTypeCostModel) -> None:
    _, costs = made_up(60, seed=1)
    estimate = default.predict_one("report", "🎉")
    assert estimate.source is Source.TYPE
    assert min(costs[::2]) < estimate.cost < max(costs[::2])


def test_an_unknown_type_is_answered_from_all_types_with_a_wide_interval(default: PerTypeCostModel) -> None:
    known, unknown = (default.predict_one(kind, "river castle " * 20) for kind in ("report", "never seen"))
    assert unknown.source is Source.ALL_TYPES
    assert unknown.high / unknown.low > 3 * known.high / known.low


def test_a_type_that_begins_is_learnt_from_its_first_observations() -> None:
    model = PerTypeCostModel().fit(*made_up(40, seed=1))
    asked, costs = made_up(100, seed=7, kinds=("tiny", "small", "huge"))
    new = [(one, cost) for one, cost in zip(asked, costs, strict=True) if one.application_type == "huge"]
    held_out = new[50:]

    def error() -> float:
        predicted = model.predict([one for one, _ in held_out])
        return float(np.median(np.abs(np.log(predicted / [cost for _, cost in held_out]))))

    errors = [error()]
    for one, cost in new[:50]:
        model.partial_fit([one], [cost])
        errors.append(error())
    assert errors[1] < errors[0]
    assert errors[10] < 0.5
    assert errors[50] < 0.2
    assert model.predict_one(*held_out[0][0]).source is Source.PROMPT


def test_learning_one_by_one_leaves_other_types_alone(default: PerTypeCostModel) -> None:
    model = PerTypeCostModel().fit(*made_up(60, seed=1))
    asked = [one for one in made_up(5, seed=8)[0] if one.application_type == "question"]
    before = model.predict(asked)
    model.partial_fit([Asked("report", "river")] * 3, [1e9, math.nan, -1.0])
    assert_allclose(model.predict(asked), before, rtol=0)
    assert_allclose(default.predict(asked), before)


def test_a_known_type_learns_what_it_is_told() -> None:
    model = PerTypeCostModel().fit(*made_up(60, seed=1))
    prompt = "castle garden " * 30
    before = model.predict_one("report", prompt).cost
    model.partial_fit([Asked("report", prompt)] * 5, [before * 2] * 5)
    assert before * 1.4 < model.predict_one("report", prompt).cost < before * 2.1


def test_a_young_type_grows_up() -> None:
    asked, costs = made_up(YOUNG_ROWS + 5, seed=9)
    model = PerTypeCostModel().fit(asked[:20], costs[:20])
    assert set(model.young_) == {"report", "question"}
    model.partial_fit(asked[20:], costs[20:])
    assert not any(model.young_.values())
    model.partial_fit(asked[:2], costs[:2])
    assert not any(model.young_.values())


@pytest.mark.parametrize("regressor", [KernelTextRegressor(), NetworkTextRegressor(max_iter=20)])
@pytest.mark.parametrize("count", [1, 2, 15])
def test_constant_costs_are_learnt(regressor: object, count: int) -> None:
    model = PerTypeCostModel(clone(regressor)).fit(
        [Asked("a", f"text {number}") for number in range(count)], [700.0] * count
    )
    estimate = model.predict_one("a", "text 1")
    assert 200 < estimate.cost <= 750
    assert math.isfinite(estimate.high)


@pytest.mark.parametrize("regressor", [KernelTextRegressor(), NetworkTextRegressor(max_iter=20)])
def test_digits_alone_can_be_learnt_from(regressor: object) -> None:
    model = PerTypeCostModel(clone(regressor)).fit(
        [Asked("EV", text) for text in ("1 2", "3 4", "7 + 5") * 5], range(50, 65)
    )
    for prompt in ("5", "???", "方程", "🧮", "of the and"):
        assert 1 <= model.predict_one("EV", prompt).cost < 1000


def test_costs_over_many_orders_of_magnitude_stay_finite() -> None:
    asked, _ = made_up(50, seed=1, kinds=("wide",))
    costs = np.geomspace(56, 244_413_162, 50)
    for create in MODELS.values():
        predicted = create().fit(asked, costs).predict(asked)
        assert np.all((predicted >= FLOOR) & (predicted <= CEILING))


def test_costs_that_are_none_are_left_out_and_counted() -> None:
    asked, costs = made_up(20, seed=1)
    clean = PerTypeCostModel().fit(asked, costs)
    spoilt = PerTypeCostModel().fit([*asked, *[Asked("report", "river")] * 4], [*costs, math.nan, math.inf, -3.0, 0.0])
    assert spoilt.ignored_ == 4
    assert_allclose(spoilt.predict(asked), clean.predict(asked))


@pytest.mark.parametrize("costs", [[], [math.nan], [-1.0, 0.0]])
def test_nothing_to_learn_from_is_refused(costs: list[float]) -> None:
    with pytest.raises(ValueError, match="no application with a finite, positive cost"):
        PerTypeCostModel().fit([Asked("a", "b")] * len(costs), costs)


def test_as_many_costs_as_applications_are_needed() -> None:
    with pytest.raises(ValueError, match="1 applications, 2 costs"):
        PerTypeCostModel().fit([Asked("a", "b")], [1.0, 2.0])


class Spoilt(KernelTextRegressor):
    """Says whatever it is told to say."""

    answer: float = math.nan

    def predict_one(self, text: str) -> tuple[float, float]:
        return self.answer, 0.1

    def predict(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(texts), self.answer), np.full(len(texts), 0.1)


@pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf, 1e300, -3.0])
def test_whatever_a_model_says_becomes_a_cost(answer: float) -> None:
    asked, costs = made_up(20, seed=1)
    model = PerTypeCostModel(Spoilt()).fit(asked, costs)
    for regressor in model.types_.values():
        regressor.answer = answer  # type: ignore[attr-defined]
    estimate = model.predict_one(*asked[0])
    assert estimate.replaced
    assert all(FLOOR <= cost <= CEILING for cost in (estimate.cost, estimate.low, estimate.high))
    assert np.all(np.isfinite(model.predict(asked)))
    if math.isnan(answer):
        assert min(costs[::2]) < estimate.cost < max(costs[::2])


def test_an_interval_of_no_width_is_widened() -> None:
    asked, costs = made_up(20, seed=1)
    model = PerTypeCostModel().fit(asked, costs)
    assert model._quantile(LogCost("report", 5.0, math.nan, Source.PROMPT), 0.9) > math.exp(5.0)


def test_the_same_applications_give_the_same_model() -> None:
    asked, costs = made_up(30, seed=1)
    for create in MODELS.values():
        assert_allclose(create().fit(asked, costs).predict(asked), create().fit(asked, costs).predict(asked), rtol=0)


def test_the_point_estimate_that_fits_relative_errors_lies_below_the_median() -> None:
    asked, costs = made_up(60, seed=1)
    relative, median = (PerTypeCostModel(point=point).fit(asked, costs) for point in ("relative", "median"))
    assert np.all(relative.predict(asked) < median.predict(asked))


def test_parameters_are_scikit_learns() -> None:
    model = PerTypeCostModel(NetworkTextRegressor(hidden_layer_sizes=(4, 4, 4)), point="median")
    assert clone(model).get_params()["regressor__hidden_layer_sizes"] == (4, 4, 4)
    with pytest.raises(TypeError):
        NetworkTextRegressor(100, (4, 4, 4))  # type: ignore[misc]


def test_each_type_is_announced_when_it_is_done() -> None:
    heard: list[str] = []
    PerTypeCostModel().fit(*made_up(5, seed=1), heard.append)
    assert heard == ["question", "report"]
