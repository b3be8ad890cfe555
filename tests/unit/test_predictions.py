"""An ingress learns from what it has seen end, and keeps nothing for what has not."""

import pytest

from scheduler.actions import PublishCallEnd, PublishCompletion, Refusal, Reject
from scheduler.types import ApplicationRecord, CallKey
from serve_app import predictions as module
from serve_app.predictions import Predictions


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
