"""Learning while serving: who is trained when, who takes over, and what happens when a training goes wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from predictors.online import Verdict
from predictors.store import TrainedPredictor, load, save
from serve_app.champion import RUNNING_MEANS, Champion
from serve_app.learning import Learner
from serve_app.model_shelf import ModelShelf
from serve_app.predictions import Predictions
from serve_app.settings import LearningSettings
from serve_app.training import ModelKind, train
from serve_app.training_data import FinishedApplication
from serve_app.training_job import TrainingFailed, TrainingJob
from tests.learning import ended, many, record
from tests.predicting import made_up

SETTINGS = LearningSettings(enabled=True, min_new=20, min_held_out=4, retry_s=10)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Trainer:
    """Hands out a model that was trained before, and the verdicts that it was told to; the last again and again."""

    def __init__(self, *verdicts: bool | Exception) -> None:
        self.jobs: list[TrainingJob] = []
        self.champions: list[str] = []
        self._verdicts = list(verdicts)
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, job: TrainingJob) -> Verdict:
        self.jobs.append(job)
        await self.hold.wait()
        verdict = self._verdicts.pop(0) if len(self._verdicts) > 1 else self._verdicts[0]
        if isinstance(verdict, Exception):
            raise verdict
        self.champions.append(RUNNING_MEANS if job.champion is None else load(job.champion).fingerprint)
        model = replace(trained(), fingerprint=str(len(self.jobs)), applications={"report": len(job.train)})
        save(model, job.out)
        return Verdict(0.5, 0.4, len(job.held_out), verdict, "as the test wants")


@cache
def trained() -> TrainedPredictor:
    return train([FinishedApplication(*one, ()) for one in zip(*made_up(30, seed=9), strict=True)], ModelKind.DEFAULT)


class Live:
    """A learner with all that it holds."""

    def __init__(self, directory: Path, trainer: Trainer, settings: LearningSettings = SETTINGS) -> None:
        self.clock = Clock()
        self.predictions = Predictions()
        self.trainer = trainer
        self.shelf = ModelShelf(directory, settings.max_versions)
        self.learner = Learner(self.predictions, Champion(), self.shelf, settings, self.clock, trainer)

    async def see(self, count: int, seed: int = 1) -> None:
        for one in many(count, seed):
            self.learner.take(one)
        await self.settled()

    async def settled(self) -> None:
        while self.learner.training:  # noqa: ASYNC110 - it ends with the training
            await asyncio.sleep(0.005)


@pytest.fixture
def live(tmp_path: Path) -> Callable[..., Live]:
    return lambda *verdicts, **changes: Live(
        tmp_path / "models", Trainer(*verdicts), SETTINGS.model_copy(update=changes)
    )


async def test_a_better_model_takes_over_whole_and_predictions_change(live: Callable[..., Live]) -> None:
    one = live(True)
    before = one.predictions.of_open("report", "river castle " * 50)
    await one.see(15)
    assert (one.learner.version, before) == (2, None)
    short, long = (one.predictions.of_open("report", "river castle " * words) for words in (5, 100))
    assert short is not None
    assert long is not None
    assert long.cost > 3 * short.cost
    assert one.learner.status()["last_training"]["outcome"] == "accepted"
    assert one.learner.status()["learnt_from"] == len(one.trainer.jobs[0].train)


async def test_a_worse_model_is_not_used_and_not_kept(live: Callable[..., Live], tmp_path: Path) -> None:
    one = live(False)
    await one.see(15)
    status = one.learner.status()
    assert (status["version"], status["model"], status["last_training"]["outcome"]) == (1, RUNNING_MEANS, "kept")
    assert one.predictions.model is None
    assert list((tmp_path / "models").iterdir()) == []
    await one.see(9, seed=2)
    assert len(one.trainer.jobs) == 1, "the next one waits for as many applications again"
    await one.see(9, seed=3)
    assert len(one.trainer.jobs) == 2


async def test_nobody_is_judged_by_what_he_learnt_from(live: Callable[..., Live]) -> None:
    one = live(True)
    await one.see(15)
    await one.see(40, seed=2)
    first, second = one.trainer.jobs[0], one.trainer.jobs[-1]
    assert len(one.trainer.jobs) >= 2
    for job in (first, second):
        assert not {id(row) for row in job.train} & {id(row) for row in job.held_out}
    assert not {id(row) for row in first.train} & {id(row) for row in second.held_out}


async def test_each_challenger_meets_the_model_in_use(live: Callable[..., Live]) -> None:
    one = live(True, False)
    await one.see(15)
    assert one.predictions.model is not None
    await one.see(40, seed=2)
    assert one.trainer.champions[:2] == [RUNNING_MEANS, one.predictions.model.fingerprint]


async def test_rollback_gives_exactly_what_predicted_before_and_outlives_a_restart(live: Callable[..., Live]) -> None:
    one = live(True)
    await one.see(15)
    second = one.predictions.model
    await one.see(40, seed=2)
    assert one.learner.version >= 3
    while one.learner.version > 2:
        await one.learner.rollback()
    assert one.predictions.model is second
    again = live(True)
    await again.learner.resume()
    assert again.learner.version == 2
    assert again.predictions.model is not None
    assert again.predictions.model.fingerprint == second.fingerprint
    await one.learner.rollback()
    assert (one.learner.version, one.predictions.model) == (1, None)
    with pytest.raises(LookupError):
        await one.learner.rollback()
    await one.see(20, seed=5)
    assert one.learner.version > 3, "numbers are never used again"


async def test_a_rollback_that_cannot_be_noted_says_so(
    live: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = live(True)
    await one.see(15)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    await one.learner.rollback()
    assert one.predictions.model is None
    assert one.learner.last is not None
    assert "returns at the next start: No space left on device" in one.learner.last["reason"]


async def test_a_restart_goes_on_with_the_newest_that_can_be_read(live: Callable[..., Live], tmp_path: Path) -> None:
    one = live(True)
    await one.see(15)
    await one.see(40, seed=2)
    newest = one.learner.version
    arrays = tmp_path / "models" / f"v{newest:06d}" / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:-7])
    refused: list[str] = []
    found = one.shelf.newest(RUNNING_MEANS, refused.append)
    assert found is not None
    assert found.number == newest - 1
    assert "damaged" in refused[0]
    assert one.shelf.newest("another beginning", refused.append) is None


async def test_a_failed_training_is_tried_again_later_and_less_and_less_often(live: Callable[..., Live]) -> None:
    one = live(TrainingFailed("killed"), TrainingFailed("killed"), ValueError("odd"), True)
    await one.see(15)
    assert one.learner.status()["last_training"] == {"outcome": "failed", "reason": "killed", "retry_in_s": 10}
    for wait_s, tries in ((9.9, 1), (0.1, 2), (19.9, 2), (0.1, 3)):
        one.clock.now_s += wait_s
        one.learner.take(ended(prompt="river"))
        await one.settled()
        assert len(one.trainer.jobs) == tries
    assert one.learner.status()["last_training"]["retry_in_s"] == 40
    assert (one.learner.version, one.learner.status()["failures"]) == (1, 3)
    one.clock.now_s += 40
    one.learner.take(ended(prompt="river"))
    await one.settled()
    assert (one.learner.version, one.learner.status()["failures"]) == (2, 0)


async def test_one_training_at_a_time_and_none_left_behind(live: Callable[..., Live], tmp_path: Path) -> None:
    one = live(True)
    one.trainer.hold.clear()
    for application in many(60):
        one.learner.take(application)
        await asyncio.sleep(0)
    assert one.learner.training
    while not one.trainer.jobs:  # noqa: ASYNC110 - a thread claims a number first
        await asyncio.sleep(0.005)
    await one.learner.close()
    assert not one.learner.training
    assert (len(one.trainer.jobs), one.learner.version) == (1, 1)
    assert list((tmp_path / "models").iterdir()) == []


async def test_errors_that_shift_are_noticed_and_lead_to_a_training_at_once(live: Callable[..., Live]) -> None:
    one = live(False, min_new=100_000)
    for _ in range(40):
        one.learner.take(ended(cost=1000.0, predicted=1000.0))
    assert one.learner.status()["drifts"] == 0
    for _ in range(40):
        one.learner.take(ended(cost=5000.0, predicted=1000.0))
    await one.settled()
    assert one.learner.status()["drifts"] >= 1
    assert len(one.trainer.jobs) >= 1


async def test_a_training_that_drift_led_to_is_tried_again_too(live: Callable[..., Live]) -> None:
    one = live(TrainingFailed("killed"), False, min_new=100_000)
    for cost in [1000.0] * 40 + [5000.0] * 40:
        one.learner.take(ended(cost=cost, predicted=1000.0))
        await one.settled()
    assert len(one.trainer.jobs) == 1
    one.clock.now_s += 10
    one.learner.take(ended(cost=5000.0, predicted=5000.0))
    await one.settled()
    assert len(one.trainer.jobs) == 2


async def test_nothing_is_trained_without_enough_to_judge_by(live: Callable[..., Live]) -> None:
    one = live(True, min_held_out=1000)
    await one.see(60)
    assert one.trainer.jobs == []


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, 0.0, 1e300])
async def test_what_is_no_cost_teaches_nothing_that_hurts(live: Callable[..., Live], cost: float) -> None:
    one = live(True)
    for application in many(15):
        one.learner.take(ended(cost=cost, predicted=cost))
        one.learner.take(application)
    await one.settled()
    assert one.learner.version == 2
    expected = one.predictions.of_open("report", "river castle")
    assert expected is not None
    assert 0 < expected.cost < 1e15


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_only_what_finished_teaches(live: Callable[..., Live], outcome: str) -> None:
    one = live(True)
    for application in many(40, outcome=outcome):
        one.learner.take(application)
    assert one.learner.status()["remembered"] == 0


async def test_its_status_is_json_without_anybodys_words(live: Callable[..., Live]) -> None:
    one = live(True)
    await one.see(15)
    text = json.dumps(one.learner.status(), allow_nan=False)
    assert "river" not in text
    assert "report" not in text


async def test_where_learning_is_off_only_the_errors_are_watched(live: Callable[..., Live]) -> None:
    one = live(True, enabled=False)
    await one.see(60)
    assert one.trainer.jobs == []
    assert one.learner.status()["remembered"] == 0


async def test_costs_are_learnt_in_token_iterations_whatever_the_policy_counts(live: Callable[..., Live]) -> None:
    one = live(True)
    in_its_policys_unit = replace(ended(cost=7.0), record=record(cost=7.0, calls=1))
    one.learner.take(in_its_policys_unit)
    ((observation,), _) = one.learner._recent.split()
    assert observation.cost == in_its_policys_unit.cost == 40 * 30 + 465


async def test_a_rollback_to_nothing_leaves_a_training_alone(live: Callable[..., Live]) -> None:
    one = live(True)
    one.trainer.hold.clear()
    for application in many(15):
        one.learner.take(application)
    assert one.learner.training
    with pytest.raises(LookupError):
        await one.learner.rollback()
    assert one.learner.training
    one.trainer.hold.set()
    await one.settled()
    assert one.learner.version == 2
