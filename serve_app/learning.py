"""Learning while the service runs: ended applications in, now and then a better model out.

    EndedApplication → errors, drift → is it time? → a training (`serve_app.training_job`) → judged → in use, or not

Each ingress learns from the applications that came through it. The pieces that decide are pure (`predictors.online`);
this module holds them together on the event loop. Laws: a model in use is never changed, only replaced whole, and only
by one that was better on the newest applications, which it had not learnt from; one training at a time; one that fails
costs nothing but its time and is tried again with the next application that ends after a wait that doubles from
`retry_s` to MAX_RETRY_S; whatever happens here, serving goes on with what there is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster.telemetry import log_event
from predictors.inheritance import sharing
from predictors.models import Asked
from predictors.online import (
    DriftDetector,
    Observation,
    RecentApplications,
    RetrainRule,
    Verdict,
    Versions,
)
from predictors.output_length import FinishedCall
from predictors.store import ModelFileError, load
from serve_app.champion import Champion
from serve_app.ended_applications import EndedApplication
from serve_app.learning_telemetry import LearningTelemetry
from serve_app.model_shelf import CONTEST, ModelShelf
from serve_app.predictions import Predictions
from serve_app.settings import LearningSettings
from serve_app.training_job import TrainingFailed, TrainingJob, run_training

logger = logging.getLogger("ray.serve")

MAX_RETRY_S = 3600.0
CALLS_LEARNT_FROM = 100
"""Of one application, at most: a thousand calls of one stage teach no more."""

_EXPECTED = (TrainingFailed, ModelFileError, OSError)

Train = Callable[[TrainingJob], Awaitable[Verdict]]


class Learner:
    """Learns for one ingress, from `resume` to `close`. `clock` gives monotonic seconds."""

    def __init__(
        self,
        predictions: Predictions,
        first: Champion,
        shelf: ModelShelf,
        settings: LearningSettings,
        clock: Callable[[], float],
        train: Train = run_training,
    ) -> None:
        self._predictions = predictions
        self._shelf = shelf
        self._settings = settings
        self._clock = clock
        self._train = train
        self._telemetry = LearningTelemetry()
        self._recent = RecentApplications(settings.max_rows_per_type)
        self._rule = RetrainRule(settings.min_new)
        self._drift = DriftDetector()
        self._began_with = first.fingerprint
        self._versions = Versions(first, max_kept=settings.max_versions)
        self._task: asyncio.Task[None] | None = None
        self._new = 0
        self._drifted = False
        self._failures = 0
        self._retry_at_s = 0.0
        self.drifts = 0
        self.last: dict[str, Any] | None = None
        self._use()

    # ---- what there is

    @property
    def version(self) -> int:
        return self._versions.number

    @property
    def training(self) -> bool:
        return self._task is not None and not self._task.done()

    def status(self) -> dict[str, Any]:
        """In numbers and names, without a word of anybody's prompt, and without types, which are a tenant's."""
        champion = self._versions.current
        return {
            "version": self._versions.number,
            "model": champion.name,
            "learnt_from": champion.learnt_from,
            "versions_before": list(self._versions.before),
            "training": self.training,
            "remembered": len(self._recent),
            "new": self._new,
            "not_learnt_from": self._recent.refused,
            "drifts": self.drifts,
            "failures": self._failures,
            "last_training": self.last,
        }

    # ---- what comes in

    def take(self, ended: EndedApplication) -> None:
        """An application has ended. Never raises for what it was, and takes no time worth speaking of."""
        record = ended.record
        if record.outcome != "finished":
            return
        if record.predicted_cost > 0 and ended.cost > 0:
            self._telemetry.ended(record.predicted_cost, ended.cost)
            self._watch(record.predicted_cost, ended.cost)
        if self._settings.enabled and self._recent.add(_observation(ended)):
            self._new += 1
            self._train_if_due()

    def _watch(self, predicted: float, true: float) -> None:
        if self._drift.update(predicted, true):
            self.drifts += 1
            self._drifted = True
            self._telemetry.drifted()
            log_event(logger, "predictor_drifted", version=self.version, drifts=self.drifts)

    # ---- training

    def _train_if_due(self) -> None:
        if self.training or self._clock() < self._retry_at_s:
            return
        learnt_from = self._versions.current.learnt_from
        if not self._rule.due(self._new, min(learnt_from, len(self._recent)), self._drifted):
            return
        train, held_out = self._recent.split()
        if train and len(held_out) >= self._settings.min_held_out:
            self._task = asyncio.create_task(self._run(train, held_out), name="learning")

    async def _run(self, train: list[Observation], held_out: list[Observation]) -> None:
        """One training, and what follows from it; it ends in itself."""
        taken, drifted, self._drifted = self._new, self._drifted, False
        try:
            outcome = await self._challenge(train, held_out)
        except Exception as error:  # whatever went wrong must not be tried again at once, and again
            self._drifted = self._drifted or drifted
            reason = str(error) if isinstance(error, _EXPECTED) else repr(error)
            self._fail(reason.replace(str(self._shelf.directory), "the models' directory"))
            return
        self._failures, self._retry_at_s = 0, 0.0
        self._new -= taken
        self._tell(outcome)

    async def _challenge(self, train: list[Observation], held_out: list[Observation]) -> dict[str, Any]:
        number, out = await asyncio.to_thread(self._shelf.claim, self._versions.highest)
        kept = False
        try:
            champion = await asyncio.to_thread(self._versions.current.copied, out / CONTEST)
            verdict = await self._train(self._job(train, held_out, champion, out))
            if verdict.accepted:
                await self._promote(number, out, verdict)
                kept = True
        finally:
            if not kept:
                self._shelf.drop(number)
        return {"outcome": "accepted" if kept else "kept", "candidate": number, **_plain(verdict)}

    def _job(
        self, train: list[Observation], held_out: list[Observation], champion: Path | None, out: Path
    ) -> TrainingJob:
        chosen = self._settings
        return TrainingJob(train, held_out, champion, out, chosen.min_held_out, chosen.margin, chosen.timeout_s)

    async def _promote(self, number: int, out: Path, verdict: Verdict) -> None:
        predictor = await asyncio.to_thread(load, out)
        before = self._versions.current.predictor
        if before is not None:
            predictor = await asyncio.to_thread(sharing, predictor, before)
        accepted = {**_plain(verdict), "began_with": self._began_with}
        await asyncio.to_thread(self._shelf.accept, number, accepted)
        self._versions.promote(Champion(predictor), number)
        self._use()

    def _use(self) -> None:
        self._predictions.model = self._versions.current.predictor
        self._drift = DriftDetector()
        self._telemetry.use(self._versions.number)

    def _fail(self, reason: str) -> None:
        self._failures += 1
        wait_s = min(self._settings.retry_s * 2 ** min(self._failures - 1, 20), MAX_RETRY_S)
        self._retry_at_s = self._clock() + wait_s
        self._tell({"outcome": "failed", "reason": reason, "retry_in_s": wait_s})

    def _tell(self, outcome: dict[str, Any]) -> None:
        self.last = outcome
        self._telemetry.trained(outcome["outcome"])
        log_event(logger, "predictor_trained", in_use=self.version, **outcome)

    # ---- whoever decides

    async def resume(self) -> None:
        """Go on with the newest version that this predictor led to before, if there is one."""
        found = await asyncio.to_thread(self._shelf.newest, self._began_with, _log_refused)
        if found is not None:
            self._versions.promote(Champion(found.predictor), found.number)
            self._use()
            log_event(logger, "predictor_resumed", version=found.number)

    async def rollback(self) -> int:
        """Use the version before from here on, and never again the present one; its number. Raises LookupError."""
        if not self._versions.before:  # before a training is ended for it
            raise LookupError("no model is kept from before")
        await self.close()
        number = self._versions.number
        self._versions.rollback()
        self._use()
        self._new, self._drifted = 0, False
        try:
            await asyncio.to_thread(self._shelf.withdraw, number)
        except OSError as error:
            reason = f"version {number} cannot be marked as withdrawn and returns at the next start: {error.strerror}"
            self._tell({"outcome": "rolled back", "reason": reason})
        log_event(logger, "predictor_rolled_back", withdrawn=number, version=self.version)
        return self.version

    async def close(self) -> None:
        """End a training that runs; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _observation(ended: EndedApplication) -> Observation:
    record = ended.record
    calls = tuple(
        FinishedCall(record.application_type, call.stage, call.prompt_tokens, max(call.output_tokens), record.tenant)
        for call in ended.calls[:CALLS_LEARNT_FROM]
    )
    return Observation(Asked(record.application_type, ended.prompt), ended.cost, calls)


def _plain(verdict: Verdict) -> dict[str, Any]:
    """As JSON can hold it: an error that was not measured is None."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(verdict).items()
    }


def _log_refused(reason: str) -> None:
    log_event(logger, "predictor_refused", reason=reason)
