"""An ingress learns from what it has seen end, and keeps nothing for what has not."""

import math

import pytest

from predictors.models import CostEstimate, Source
from predictors.store import TrainedPredictor
from scheduler.actions import PublishCallEnd, PublishCompletion, PublishTag, Refusal, Reject
from scheduler.types import ApplicationRecord, ApplicationSpec, CallKey
from serve_app import ended_applications
from serve_app import predictions as module
from serve_app.ended_applications import EndedApplication, EndedCall
from serve_app.predictions import ALL_TYPES, LENGTH_QUANTILE, Predictions
from serve_app.trained_predictor import LENGTH_QUANTILE as TRAINED_QUANTILE

TAG = PublishTag("app", 0.0, 1.0, 1.0, "arrival")


def end(call_id: str, outcome: str = "finished", *output_tokens: int) -> PublishCallEnd:
    return PublishCallEnd("app", call_id, outcome, "", 10, output_tokens)


def completion(outcome: str, true_cost: float) -> PublishCompletion:
    fields = dict.fromkeys(("arrival_s", "finish_s", "predicted_cost", "finish_tag"), 1.0)
    return PublishCompletion(
        ApplicationRecord(
            application_id="app",
            application_type="agent",
            tenant="t",
            weight=1.0,
            outcome=outcome,
            true_cost=true_cost,
            calls=1,
            **fields,
        )
    )


def predict(predictions: Predictions, call_id: str, stage: str = "map1", most: int = 10_000) -> int:
    return predictions.output_tokens(CallKey("app", call_id), "agent", stage, most)


def test_lengths_are_learnt_by_stage_from_calls_that_finished() -> None:
    predictions = Predictions()
    before = predict(predictions, "c0")
    for number in range(30):
        predict(predictions, f"c{number}", f"map{number}")
        predictions.note(end(f"c{number}", "finished", 700, 900))
    assert before < 800 < predict(predictions, "next", "map99") <= 900
    assert predict(predictions, "short", most=5) == 5
    assert set(predictions._pending) == {("app", "next"), ("app", "short")}


@pytest.mark.parametrize(
    "action",
    [
        end("c", "cancelled", 9000),
        end("c", "failed"),
        end("c", "finished"),
        end("stranger", "finished", 9000),
        Reject("app", "c", Refusal.CANNOT_FIT, ""),
    ],
)
def test_nothing_is_learnt_from_what_did_not_finish(action: PublishCallEnd | Reject) -> None:
    predictions = Predictions()
    before = predict(predictions, "c")
    predictions.note(action)
    assert predict(predictions, "c") == before


@pytest.mark.parametrize("action", [end("c", "cancelled"), Reject("app", "c", Refusal.BUSY, "")])
def test_nothing_is_kept_of_a_call_that_is_gone(action: PublishCallEnd | Reject) -> None:
    predictions = Predictions()
    predict(predictions, "c")
    predictions.note(action)
    assert len(predictions._pending) == 0


def test_pending_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 10)
    predictions = Predictions()
    for number in range(50):
        predict(predictions, str(number))
    assert [key.call_id for key in predictions._pending] == [str(number) for number in range(40, 50)]


def test_application_costs_are_learnt_from_those_that_finished() -> None:
    predictions = Predictions()
    assert predictions.application_cost("agent") is None
    for action in (completion("cancelled", 5.0), completion("failed", 5.0), completion("finished", 0.0)):
        predictions.note(action)
    assert predictions.application_cost("agent") is None
    predictions.note(completion("finished", 5000.0))
    assert predictions.application_cost("agent") == pytest.approx(5000.0)


class Lengths:
    """Knows one type, whose calls are as long as their prompts."""

    types_ = ("agent",)

    def predict_quantile(self, kind: str, name: str, prompt_tokens: int, most: int, q: float, tenant: str) -> int:
        assert (kind, name, q, tenant) == ("agent", "map", TRAINED_QUANTILE, "acme")
        return min(most, prompt_tokens)


class Costs:
    def __init__(self, answer: CostEstimate | Exception) -> None:
        self.answer = answer

    def predict_one(self, application_type: str, prompt: str) -> CostEstimate:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def quantile_one(self, application_type: str, prompt: str, q: float) -> float:
        return q * 1e6


def under(answer: CostEstimate | Exception) -> Predictions:
    predictions = Predictions()
    predictions.model = TrainedPredictor("default", Costs(answer), Lengths(), "", {})  # type: ignore[arg-type]
    return predictions


def estimate(cost: float, low: float, high: float) -> CostEstimate:
    return CostEstimate(cost, low, high, Source.PROMPT)


def test_a_trained_model_says_costs_and_their_spread() -> None:
    predictions = under(estimate(1000.0, 1000.0 * math.exp(-1.2816 * 0.5), 1000.0 * math.exp(1.2816 * 0.5)))
    expected = predictions.of_open("agent", "a prompt")
    assert expected is not None
    assert (expected.cost, expected.deviation) == (1000.0, pytest.approx(0.5, rel=1e-3))
    assert predictions.of_graph("agent", "a prompt") == 1000.0
    assert (predictions.replaced, predictions.failed) == (0, 0)


def test_a_chosen_quantile_takes_the_place_of_the_point_estimate() -> None:
    predictions = under(estimate(1000.0, 500.0, 2000.0))
    predictions.quantile = 0.8
    expected = predictions.of_open("agent", "p")
    assert expected is not None
    assert expected.cost == 800_000.0
    assert predictions.of_graph("agent", "p") == 800_000.0


def test_without_a_model_a_graph_costs_the_sum_of_its_calls() -> None:
    predictions = Predictions()
    predictions.note(completion("finished", 5000.0))
    assert predictions.of_graph("agent", "a prompt") is None
    expected = predictions.of_open("agent", "a prompt")
    assert expected is not None
    assert expected.cost == pytest.approx(5000.0)


def test_a_type_that_nobody_has_seen_leans_on_the_others() -> None:
    predictions = Predictions()
    assert predictions.of_open("new", "p") is None
    for cost in (1000.0, 4000.0):
        predictions.note(completion("finished", cost))
    expected = predictions.of_open("new", "p")
    assert expected is not None
    assert expected.cost == pytest.approx(2000.0)


def test_a_type_that_the_model_has_not_seen_outgrows_its_word() -> None:
    predictions = under(CostEstimate(100.0, 50.0, 200.0, Source.ALL_TYPES))
    costs = []
    for _ in range(30):
        expected = predictions.of_open("agent", "p")
        assert expected is not None
        costs.append(expected.cost)
        predictions.note(completion("finished", 6400.0))
    assert costs[0] == pytest.approx(100.0)
    assert costs == sorted(costs)
    assert costs[4] == pytest.approx(800.0), "after four observations both have the same weight"
    assert 3500 < costs[-1] < 6400
    assert ALL_TYPES == Source.ALL_TYPES


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf, -5.0, 0.0, 1e300])
def test_what_is_no_cost_never_leaves(cost: float) -> None:
    predictions = under(estimate(cost, cost, cost))
    expected = predictions.of_open("agent", "p")
    graph = predictions.of_graph("agent", "p")
    assert expected is not None
    assert graph is not None
    assert 1.0 <= expected.cost == graph <= 1e15
    assert 0 < expected.deviation <= 3
    assert predictions.replaced == 2
    ApplicationSpec(application_id="a", predicted_cost=expected.cost, cost_deviation=expected.deviation, open=True)


def test_where_a_model_fails_running_means_answer() -> None:
    predictions = under(FloatingPointError("overflow"))
    assert predictions.of_open("agent", "p") is None
    predictions.note(completion("finished", 5000.0))
    expected = predictions.of_open("agent", "p")
    assert expected is not None
    assert expected.cost == pytest.approx(5000.0)
    assert predictions.of_graph("agent", "p") is None
    assert predictions.failed == 3


def test_lengths_of_a_known_type_are_the_models_high_quantile() -> None:
    predictions = under(estimate(1.0, 1.0, 1.0))
    key = CallKey("app", "c")
    assert LENGTH_QUANTILE == TRAINED_QUANTILE, "the live service and the simulator predict alike"
    assert predictions.output_tokens(key, "agent", "map3", 500, 70, "acme") == 70
    assert predictions.output_tokens(key, "agent", "map3", 50, 70, "acme") == 50
    assert predictions.output_tokens(key, "another", "map3", 5000, 70, "acme") == 128


def test_whole_applications_are_put_together_from_their_parts() -> None:
    heard: list[EndedApplication] = []
    predictions = Predictions(heard.append)
    predictions.underway.begin("app", "What they asked.")
    predict(predictions, "a", "map1")
    predict(predictions, "b", "reduce")
    for action in (TAG, end("a", "finished", 3, 4), end("b", "cancelled", 9), completion("finished", 77.0)):
        predictions.note(action)
    predictions.note(completion("finished", 88.0))
    (one,) = heard
    assert (one.prompt, one.record.true_cost) == ("What they asked.", 77.0)
    assert one.calls == (EndedCall("map", 10, (3, 4)),)
    assert len(predictions.underway) == 0


def test_an_application_that_was_refused_is_forgotten() -> None:
    predictions = Predictions()
    predictions.underway.begin("app", "p")
    predictions.note(Reject("app", None, Refusal.BUSY, ""))
    assert len(predictions.underway) == 0


def test_applications_underway_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_applications, "MAX_APPLICATIONS", 5)
    monkeypatch.setattr(ended_applications, "MAX_CALLS", 3)
    monkeypatch.setattr(ended_applications, "MAX_CALLS_IN_ALL", 7)
    underway = Predictions().underway
    call = EndedCall("map", 1, (1,))
    for number in range(9):
        underway.begin(str(number), "p")
    assert underway.get("3") is None
    assert len(underway) == 5
    for number in range(4, 9):
        for _ in range(10):
            underway.end_call(str(number), call)
    known = {name: underway.get(name) for name in "45678"}
    assert [None if one is None else len(one.calls) for one in known.values()] == [None, None, None, 3, 3]


def test_an_application_whose_first_call_was_refused_is_forgotten() -> None:
    predictions = Predictions()
    predict(predictions, "a")
    predictions.underway.begin("app", "too long")
    predict(predictions, "b")
    predictions.note(Reject("app", "a", Refusal.CANNOT_FIT, ""))
    assert predictions.underway.get("app") is not None, "another call may be taken"
    predictions.note(Reject("app", "b", Refusal.CANNOT_FIT, ""))
    assert predictions.underway.get("app") is None


def test_an_application_that_another_ingress_hears_of_is_kept_no_longer_than_its_calls() -> None:
    predictions = Predictions()
    predict(predictions, "a")
    predictions.underway.begin("app", "of this run")
    predictions.note(end("a", "finished", 3))
    assert predictions.underway.get("app") is None
    predictions.note(TAG)
    predict(predictions, "b")
    predictions.underway.begin("app", "of the next run")
    predictions.note(end("b", "finished", 3))
    known = predictions.underway.get("app")
    assert known is not None
    assert (known.prompt, len(known.calls)) == ("of the next run", 1)


def test_a_duplicate_that_is_refused_leaves_the_one_that_runs() -> None:
    predictions = Predictions()
    predictions.underway.begin("app", "runs")
    predictions.note(TAG)
    predictions.note(Reject("app", None, Refusal.DUPLICATE_ID, ""))
    predictions.forget_call(CallKey("app", "of the duplicate"))
    assert predictions.underway.get("app") is not None


def test_running_means_learn_token_iterations_whatever_the_policy_counts() -> None:
    predictions = Predictions()
    predictions.underway.begin("app", "p")
    predict(predictions, "a")
    for action in (TAG, end("a", "finished", 30), completion("finished", 7.0)):
        predictions.note(action)
    assert predictions.application_cost("agent") == pytest.approx(10 * 30 + 465)


def test_where_a_model_fails_on_a_length_running_means_answer() -> None:
    predictions = under(estimate(1.0, 1.0, 1.0))
    assert predictions.output_tokens(CallKey("app", "c"), "agent", "another stage", 500, 70, "acme") == 128
    assert predictions.failed == 1
