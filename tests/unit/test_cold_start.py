"""Predictions from history: the formula, its limits, and its bounded memory."""

from __future__ import annotations

import math
import random

import pytest

from predictors.cold_start import ApplicationCostHistory, OutputLengthHistory, stage_of


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        *(("map1", "map"), ("map12", "map"), ("map_3", "map"), ("map1_2", "map"), ("map-a.7", "map-a")),
        *(("reduce", "reduce"), ("7", "")),
    ],
)
def test_stages_are_names_without_their_numbers(name: str, stage: str) -> None:
    assert stage_of(name) == stage
    assert stage_of(stage) == stage


def test_the_prior_answers_while_nothing_is_known() -> None:
    history = OutputLengthHistory(prior_tokens=100)
    assert history.predict("t", "map", 1_000) == 100
    assert history.predict("t", "map", 40) == 40


def test_the_estimate_follows_the_formula() -> None:
    history = OutputLengthHistory(prior_tokens=100, shrinkage=2.0)
    for tokens in (10, 20):
        history.observe("t", "map", tokens)
    history.observe("t", "reduce", 500)
    history.observe("u", "map", 50)
    overall = (sum(map(math.log, (10, 20, 500, 50))) + 2 * math.log(100)) / (4 + 2)
    of_type = (sum(map(math.log, (10, 20, 500))) + 2 * overall) / (3 + 2)
    of_stage = (sum(map(math.log, (10, 20))) + 2 * of_type) / (2 + 2)
    assert history.predict("t", "map", 10_000) == round(math.exp(of_stage))
    assert history.predict("t", "other", 10_000) == round(math.exp(of_type))
    assert history.predict("v", "map", 10_000) == round(math.exp(overall))


def test_many_observations_outweigh_the_neighbours() -> None:
    history = OutputLengthHistory()
    for _ in range(2_000):
        history.observe("t", "map", 300)
        history.observe("t", "vote", 2)
    assert abs(history.predict("t", "map", 10_000) - 300) <= 5
    assert history.predict("t", "vote", 10_000) == 2


def test_stages_of_other_types_are_kept_apart() -> None:
    history = OutputLengthHistory()
    for _ in range(100):
        history.observe("short", "map", 4)
        history.observe("long", "map", 4_000)
    assert history.predict("short", "map", 10_000) < 10
    assert history.predict("long", "map", 10_000) > 2_000


def test_predictions_are_always_within_their_limits() -> None:
    rng = random.Random(7)
    history = OutputLengthHistory()
    for _ in range(2_000):
        history.observe(rng.choice("abc"), rng.choice("xyz"), rng.choice([0, 1, 2**31, rng.randrange(10_000)]))
        limit = rng.choice([1, 5, 10**6])
        assert 1 <= history.predict(rng.choice("abcd"), rng.choice("xyzw"), limit) <= limit


@pytest.mark.parametrize("prediction", [0, -1])
def test_impossible_numbers_are_refused(prediction: int) -> None:
    history = OutputLengthHistory()
    with pytest.raises(ValueError, match="max_tokens"):
        history.predict("t", "s", prediction)
    with pytest.raises(ValueError, match="output_tokens"):
        history.observe("t", "s", -1)
    with pytest.raises(ValueError, match="prior_tokens"):
        OutputLengthHistory(prior_tokens=prediction)


def test_the_longest_unused_key_is_forgotten() -> None:
    history = OutputLengthHistory(prior_tokens=100, max_keys=2)
    for stage, tokens in (("kept", 9_000), ("idle", 10)):
        for _ in range(1_000):
            history.observe("t", stage, tokens)
    idle = history.predict("t", "idle", 10**6)
    kept = history.predict("t", "kept", 10**6)
    assert kept > 5_000
    history.observe("t", "third", 50)
    assert history.predict("t", "kept", 10**6) == pytest.approx(kept, rel=0.05)
    assert history.predict("t", "idle", 10**6) > 5 * idle


def test_minted_names_do_not_grow_the_memory() -> None:
    history = OutputLengthHistory(max_keys=50)
    for number in range(1_000):
        history.observe(f"type{number}", f"stage{number}", 10)
    assert len(history._stages) == len(history._types) == 50


def test_costs_of_applications() -> None:
    costs = ApplicationCostHistory(shrinkage=2.0)
    assert costs.predict("t") is None
    costs.observe("t", 100.0)
    assert costs.predict("t") == pytest.approx(100.0)
    assert costs.predict("unseen") == pytest.approx(100.0)
    costs.observe("u", 10_000.0)
    overall = math.log(1_000.0)
    assert costs.predict("t") == pytest.approx(math.exp((math.log(100) + 2 * overall) / 3))


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf])
def test_impossible_costs_are_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="cost"):
        ApplicationCostHistory().observe("t", cost)
