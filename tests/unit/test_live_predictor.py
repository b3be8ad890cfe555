"""What an ingress begins with, what it keeps, and predictions on the whole path to the scheduler's tags."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.held_calls import HeldCalls
from predictors.models import CostEstimate, Source
from predictors.store import TrainedPredictor, save
from scheduler.actions import PublishTag
from scheduler.events import ApplicationArrived, ApplicationClosed, CallRevealed
from scheduler.types import ApplicationSpec, CallKey, CallSpec
from serve_app.documents import parse_application
from serve_app.errors import ApiError
from serve_app.inference_request import parse_inference
from serve_app.live_predictor import LivePredictor
from serve_app.settings import IngressSettings, LearningSettings
from serve_app.training import ModelKind, train
from serve_app.training_data import FinishedApplication
from tests.in_process import InProcessIngress, InProcessSystem, eventually, started
from tests.learning import many, record
from tests.predicting import made_up


@cache
def trained() -> TrainedPredictor:
    return train([FinishedApplication(*one, ()) for one in zip(*made_up(20, seed=9), strict=True)], ModelKind.DEFAULT)


async def test_it_begins_with_the_model_that_it_is_given(tmp_path: Path) -> None:
    save(trained(), tmp_path / "model")
    predictor = LivePredictor(IngressSettings(predictor_dir=tmp_path / "model"), "one")
    await predictor.start()
    assert predictor.predictions.model is not None
    status = predictor.status()
    assert (status["model"], status["learnt_from"], status["model_refused"]) == ("default", 40, None)
    with pytest.raises(LookupError):
        await predictor.rollback()
    await predictor.close()


@pytest.mark.parametrize("damage", ["cut", "foreign", "absent", "not json"])
async def test_a_model_that_cannot_be_read_is_refused_and_serving_begins(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "model"
    if damage != "absent":
        save(trained(), directory)
    match damage:
        case "cut":
            (directory / "arrays.npz").write_bytes((directory / "arrays.npz").read_bytes()[:100])
        case "foreign":
            (directory / "model.json").write_text('{"format": "somebody-elses"}')
        case "not json":
            (directory / "model.json").write_bytes(b"\x80\x04pickled")
    predictor = LivePredictor(IngressSettings(predictor_dir=directory), "one")
    await predictor.start()
    status = predictor.status()
    assert (status["version"], status["model"]) == (1, "running means")
    assert "predictor_dir" in status["model_refused"]
    assert str(tmp_path) not in status["model_refused"]
    assert predictor.predictions.output_tokens(CallKey("a", "b"), "report", "map", 999) == 128
    await predictor.close()


async def test_without_settings_nothing_is_kept_or_trained() -> None:
    predictor = LivePredictor(IngressSettings(), "one")
    await predictor.start()
    status = predictor.status()
    assert (status["version"], status["learning"], status["log_written"]) == (1, False, 0)
    with pytest.raises(LookupError):
        await predictor.rollback()
    await predictor.close()


async def test_a_state_directory_that_cannot_be_used_fails_nobody(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    learning = LearningSettings(enabled=True, min_new=5, min_held_out=2)
    predictor = LivePredictor(IngressSettings(state_dir=tmp_path / "state", learning=learning), "one")
    await predictor.start()
    assert predictor.predictions.on_ended is not None
    for application in many(6):
        predictor.predictions.on_ended(application)
    await eventually(lambda: predictor.status()["last_training"] is not None)
    assert predictor.status()["last_training"]["outcome"] == "failed"
    await predictor.close()
    assert predictor.status()["log_lost"] == 12
    assert predictor.status()["version"] == 1


@pytest.mark.parametrize("error", [OSError("no room in /tmp/x"), ImportError("scikit-learn"), ValueError("version")])
@pytest.mark.parametrize("where", ["tempfile.mkdtemp", "serve_app.model_shelf.ModelShelf.newest"])
async def test_whatever_keeps_models_away_serving_begins(
    monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, fail)
    predictor = LivePredictor(IngressSettings(learning=LearningSettings(enabled=True)), "one")
    await predictor.start()
    status = predictor.status()
    assert (status["version"], status["model"]) == (1, "running means")
    assert status["model_refused"] == f"models cannot be used: {type(error).__name__}"
    await predictor.close()


@pytest.mark.parametrize("log_prompts", [False, True])
async def test_what_ended_is_written_down_with_its_prompt_if_asked(tmp_path: Path, log_prompts: bool) -> None:
    predictor = LivePredictor(IngressSettings(state_dir=tmp_path, log_prompts=log_prompts), "one")
    await predictor.start()
    predictor.predictions.underway.begin("app", "A secret.")
    ending = predictor.predictions.underway.end(record())
    assert ending is not None
    assert predictor.predictions.on_ended is not None
    predictor.predictions.on_ended(ending)
    await predictor.close()
    (path,) = (tmp_path / "finished").iterdir()
    assert json.loads(path.read_text())["application_id"] == "app"
    assert ("A secret." in path.read_text()) is log_prompts


async def test_learnt_models_leave_with_an_ingress_that_keeps_no_state() -> None:
    predictor = LivePredictor(IngressSettings(learning=LearningSettings(enabled=True)), "one")
    await predictor.start()
    temporary = predictor._temporary
    assert temporary is not None
    assert temporary.is_dir()
    await predictor.close()
    assert not temporary.exists()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"predictor_dir": "model"}, "predictor_dir"),
        ({"state_dir": "state"}, "state_dir"),
        ({"predictor_quantile": 1.0}, "predictor_quantile"),
        ({"learning": {"min_new": 0}}, "min_new"),
        ({"learning": {"margin": 1}}, "margin"),
        ({"learning": {"enabled": True, "often": 1}}, "often"),
        ({"finished_log_bytes": -1}, "finished_log_bytes"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        IngressSettings.model_validate(settings)


# ---- on the whole path


class Costs:
    """Says the same of every application."""

    def __init__(self, cost: float) -> None:
        self.cost = cost

    def predict_one(self, application_type: str, prompt: str) -> CostEstimate:
        return CostEstimate(self.cost, self.cost / 2, self.cost * 2, Source.PROMPT)


def predicts(ingress: InProcessIngress, cost: float) -> None:
    ingress.inference.predictions.model = replace(trained(), costs=Costs(cost))  # type: ignore[arg-type]


def tags_of(system: InProcessSystem, ingress: InProcessIngress) -> list[PublishTag]:
    tags: list[PublishTag] = []
    note = ingress.inference.predictions.note

    def hear(action: object) -> None:
        note(action)  # type: ignore[arg-type]
        if isinstance(action, PublishTag):
            tags.append(action)

    ingress.link.listen_to_all(hear)
    return tags


async def all_answered(system: InProcessSystem) -> None:
    """Every client has its answers, and nothing is left of what was done."""
    runs = [run for ingress in system.ingresses for run in ingress.runner._runs.values()]
    await eventually(lambda: all(run.settled and not run.tasks for run in runs))
    await system.clean()


async def open_call(ingress: InProcessIngress, prompt: str = "Go on", tokens: int = 5) -> None:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "application_id": "open-1"}
    counted = await ingress.inference.count(parse_inference("/v1/completions", {}, json.dumps(body).encode()))
    _, messages = ingress.inference.answer_open(counted, ())
    answer = [message async for message in messages]
    assert answer[0]["status"] == 200


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, 0.0, 1e300])
async def test_what_a_model_says_never_brings_a_tag_that_is_no_number(cost: float) -> None:
    async with started() as system:
        ingress = system.ingresses[0]
        predicts(ingress, cost)
        tags = tags_of(system, ingress)
        await open_call(ingress, "long " * 500)
        calls = [{"name": "a", "prompt": "One.", "max_tokens": 3}, {"name": "b", "prompt": "Two.", "max_tokens": 3}]
        status = await ingress.runner.submit(parse_application({"calls": calls}))
        assert status.predicted_cost is not None
        await all_answered(system)
        assert tags
        assert all(math.isfinite(tag.finish_tag) and 0 < tag.predicted_cost <= 4e15 for tag in tags)
        assert ingress.inference.predictions.replaced == 2


async def test_a_graph_costs_the_larger_of_the_models_word_and_its_calls() -> None:
    call = {"name": "a", "prompt": "One.", "max_tokens": 30, "ignore_eos": True}
    async with started() as system:
        ingress = system.ingresses[0]
        status = await ingress.runner.submit(parse_application({"calls": [call]}))
        alone = status.predicted_cost
        assert alone is not None
        for cost, expected in ((alone * 50, alone * 50), (1.0, alone)):
            predicts(ingress, cost)
            status = await ingress.runner.submit(parse_application({"calls": [call]}))
            assert status.predicted_cost == expected
        await all_answered(system)


async def test_an_open_applications_prediction_moves_as_its_calls_end() -> None:
    async with started(open_idle_s=30.0) as system:
        ingress = system.ingresses[0]
        predicts(ingress, 200.0)
        tags = tags_of(system, ingress)
        for _ in range(4):
            await open_call(ingress, tokens=20)
        core = system.core.applications["open-1"]
        known = core.expected_cost
        assert tags[0].reason == "arrival"
        assert tags[0].predicted_cost == pytest.approx(200.0)
        ends = [tag for tag in tags if tag.reason.endswith("ended") or tag.reason.endswith("revealed")]
        assert len(ends) >= 4
        assert tags[-1].predicted_cost > known > 200
        ingress.link.tell(ApplicationClosed("open-1"))
        await all_answered(system)


async def test_what_was_seen_to_end_is_put_together_with_what_was_asked() -> None:
    heard: list[Any] = []
    async with started() as system:
        ingress = system.ingresses[0]
        ingress.inference.predictions.on_ended = heard.append
        await open_call(ingress, "Of the open one")
        calls = [
            {"name": "part1", "prompt": "One.", "max_tokens": 3, "ignore_eos": True},
            {"name": "join", "after": ["part1"], "prompt": "All: {{part1}}", "max_tokens": 3, "ignore_eos": True},
        ]
        await ingress.runner.submit(parse_application({"application_type": "report", "calls": calls}))
        await all_answered(system)
        assert len(ingress.inference.predictions.underway) == 0
    by_type = {one.record.application_type: one for one in heard}
    assert by_type["unknown"].prompt == "Of the open one"
    assert by_type["report"].prompt == "One."
    assert [call.stage for call in by_type["report"].calls] == ["part", "join"]
    assert all(one.complete and one.cost == one.record.true_cost for one in heard)


async def test_nothing_is_kept_of_a_call_that_this_ingress_has_no_room_for() -> None:
    async with started() as system:
        inference = system.ingresses[0].inference
        inference._in_flight = 20_000
        with pytest.raises(ApiError, match="calls in flight"):
            await open_call(system.ingresses[0])
        inference._in_flight = 0
        assert len(inference.predictions._pending) == 0


def test_a_later_scheduler_estimates_the_rest_as_the_earlier_one_did() -> None:
    spec = ApplicationSpec(application_id="a", predicted_cost=1000.0, cost_deviation=0.5, open=True)
    call = CallSpec(call_id="c", prompt_tokens=1, predicted_output_tokens=1, max_output_tokens=1)
    held = HeldCalls()
    held.note_event(0.0, CallRevealed("a", call, spec))
    held.note_action(PublishTag("a", 10.0, 1510.0, 1500.0, "call c revealed"))
    (arrival, *_) = held.reintroduction(1.0)
    assert isinstance(arrival, ApplicationArrived)
    assert (arrival.application.predicted_cost, arrival.application.cost_deviation) == (1000.0, 0.5)
