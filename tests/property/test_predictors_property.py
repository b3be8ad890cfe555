"""Whatever is learnt and whatever is asked, a prediction is a cost."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.features import TextFeatures, length_features
from predictors.models import PerTypeCostModel
from predictors.output_length import FinishedCall, OutputLengthModel
from predictors.targets import CEILING, FLOOR, clean_costs, cost_of

texts = st.text(max_size=80)
kinds = st.sampled_from(["a", "b", ""])
costs = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1, 1e9))


@given(texts)
def test_features_are_finite(text: str) -> None:
    assert all(map(math.isfinite, length_features(text)))


@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_rows_are_bounded_and_the_same_one_by_one(learnt: list[str], asked: str) -> None:
    features = TextFeatures().fit(learnt)
    together, alone = features.transform([*learnt, asked])[-1], features.transform([asked])[0]
    assert np.array_equal(together, alone)
    assert np.all(np.abs(together) <= 3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(kinds, texts, costs), min_size=1, max_size=12), st.tuples(st.sampled_from(["a", "new"]), texts)
)
def test_a_prediction_is_a_cost(learnt: list[tuple[str, str, float]], asked: tuple[str, str]) -> None:
    pairs, given_costs = [row[:2] for row in learnt], [row[2] for row in learnt]
    if not clean_costs(given_costs).kept.any():
        return
    model = PerTypeCostModel().fit(pairs, given_costs)
    estimate = model.predict_one(*asked)
    assert FLOOR <= estimate.low <= estimate.high <= CEILING
    assert FLOOR <= estimate.cost <= CEILING
    model.partial_fit([asked], [1e6])
    assert FLOOR <= model.predict_one(*asked).cost <= CEILING


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_becomes_a_cost(log_cost: float, fallback: float) -> None:
    assert FLOOR <= cost_of(log_cost, fallback)[0] <= CEILING


counts = st.integers(0, 10**9)


@given(
    st.lists(st.tuples(kinds, st.sampled_from(["map1", "reduce"]), counts, counts), max_size=10),
    counts,
    st.integers(1, 10**6),
    st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)),
)
def test_a_length_lies_within_its_limit_and_rises_with_its_level(
    rows: list[tuple[str, str, int, int]], prompt_tokens: int, most: int, levels: tuple[float, float]
) -> None:
    model = OutputLengthModel().fit(FinishedCall(*row) for row in rows)
    low, high = (model.predict_quantile("a", "map7", prompt_tokens, most, q) for q in sorted(levels))
    assert 1 <= low <= high <= most
