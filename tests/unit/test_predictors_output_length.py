"""How many tokens a call will make: by stage, by type, by tenant, and at last what it may make."""

import random

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from predictors import output_length
from predictors.output_length import FinishedCall, OutputLengthModel


def calls(count: int = 200, seed: int = 0) -> list[FinishedCall]:
    """Maps make a tenth of their prompt, reduces 500 tokens; both with noise."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        prompt = draw.randint(100, 5_000)
        found.append(
            FinishedCall("sum", f"map{number % 7}", prompt, round(prompt / 10 * draw.lognormvariate(0, 0.2)), "t")
        )
        found.append(
            FinishedCall("sum", "reduce", draw.randint(900, 1100), round(500 * draw.lognormvariate(0, 0.2)), "t")
        )
    return found


@pytest.fixture(scope="module")
def model() -> OutputLengthModel:
    return OutputLengthModel().fit(calls())


def test_a_stage_follows_its_prompt(model: OutputLengthModel) -> None:
    assert model.predict("sum", "map3", 500, 10_000) == pytest.approx(50, rel=0.25)
    assert model.predict("sum", "map99", 4_000, 10_000) == pytest.approx(400, rel=0.25)
    assert model.predict("sum", "reduce", 1_000, 10_000) == pytest.approx(500, rel=0.2)


def test_a_quantile_is_exceeded_as_often_as_it_says(model: OutputLengthModel) -> None:
    held_out = calls(seed=1)
    for q in (0.5, 0.9):
        below = [
            call.output_tokens <= model.predict_quantile("sum", call.name, call.prompt_tokens, 10_000, q)
            for call in held_out
        ]
        assert np.mean(below) == pytest.approx(q, abs=0.07)


def test_quantiles_do_not_fall(model: OutputLengthModel) -> None:
    found = [model.predict_quantile("sum", "map1", 700, 10_000, q / 100) for q in range(1, 100)]
    assert found == sorted(found)


def test_an_unknown_stage_falls_back_on_its_type(model: OutputLengthModel) -> None:
    low, high = (model.predict_quantile("sum", "polish", 1_000, 10_000, q) for q in (0.05, 0.95))
    assert low < model.predict("sum", "polish", 1_000, 10_000) < high
    assert high > 400


def test_an_unknown_type_falls_back_on_its_tenant_and_then_on_the_limit(model: OutputLengthModel) -> None:
    assert 10 < model.predict("new", "map1", 1_000, 9_999, tenant="t") < 2_000
    assert model.predict("new", "map1", 1_000, 9_999, tenant="nobody") == 9_999
    assert model.predict("new", "map1", 1_000, 9_999) == 9_999


def test_one_observation_of_a_stage_does_not_outweigh_its_type() -> None:
    model = OutputLengthModel().fit([*calls(), FinishedCall("sum", "odd", 1_000, 1)])
    assert model.predict("sum", "odd", 1_000, 10_000) > 30


@pytest.mark.parametrize("prompt_tokens", [0, 1, 10**9, -5])
def test_an_answer_lies_within_its_limits(model: OutputLengthModel, prompt_tokens: int) -> None:
    for most in (1, 7, 100_000):
        assert 1 <= model.predict_quantile("sum", "map1", prompt_tokens, most, 0.99) <= most


def test_nothing_known_is_the_limit() -> None:
    assert OutputLengthModel().fit([]).predict("a", "b", 10, 77) == 77


def test_impossible_counts_teach_nothing() -> None:
    model = OutputLengthModel().fit([FinishedCall("a", "b", 10, -1), FinishedCall("a", "b", -1, 10)])
    assert model.predict("a", "b", 10, 77) == 77


def test_calls_without_output_count_as_one_token() -> None:
    assert OutputLengthModel().fit([FinishedCall("a", "b", 10, 0)] * 20).predict("a", "b", 10, 77) == 1


def test_what_cannot_be_asked_is_refused(model: OutputLengthModel) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        model.predict("sum", "map1", 10, 0)
    with pytest.raises(ValueError, match="q must"):
        model.predict_quantile("sum", "map1", 10, 10, 1.0)


def test_what_was_learnt_survives_its_state(model: OutputLengthModel) -> None:
    again = OutputLengthModel.from_state(*model.state())
    for name, tenant in (("map1", None), ("polish", None), ("x", "t")):
        assert_array_equal(
            again.predict_quantile("sum", name, 500, 9_999, 0.8, tenant),
            model.predict_quantile("sum", name, 500, 9_999, 0.8, tenant),
        )


def test_a_table_of_another_size_is_refused(model: OutputLengthModel) -> None:
    keys, arrays = model.state()
    with pytest.raises(ValueError, match="another size"):
        OutputLengthModel.from_state(keys | {"types": []}, arrays)


def test_names_that_clients_make_up_cannot_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_length, "MAX_KEYS", 3)
    made_up = [FinishedCall("report", f"ask-{letter}", 10, 10) for letter in "abcdef"]
    often = [FinishedCall("report", "write", 10, 40)] * 5
    model = OutputLengthModel().fit([*made_up, *often])
    assert list(model.stages_) == [("report", "ask-a"), ("report", "ask-b"), ("report", "write")]
