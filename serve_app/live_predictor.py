"""The predictor of one ingress, whole: what predicts, what learns, and what writes down.

It decides what an ingress begins with: the newest model that it has learnt, else the one it was given, else running
means. Models are heavy to import and to read, so that `start` does both in a thread, and only where a setting asks for
them. Laws: a model that cannot be read is refused with its reason, which is logged and shown, and serving begins
without it; nothing here fails an ingress.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.clock import monotonic_s, wall_s
from cluster.telemetry import log_event
from serve_app.ended_applications import EndedApplication
from serve_app.finished_log import FinishedLog
from serve_app.model_shelf import ModelShelf
from serve_app.predictions import Predictions
from serve_app.settings import IngressSettings

if TYPE_CHECKING:
    from serve_app.champion import Champion
    from serve_app.learning import Learner

logger = logging.getLogger("ray.serve")


class LivePredictor:
    """From `start` to `close`; `writer` names this ingress in the names of its log's files."""

    def __init__(self, settings: IngressSettings, writer: str) -> None:
        self.predictions = Predictions(self._take, settings.predictor_quantile)
        self._settings = settings
        self._refused: str | None = None
        self._learner: Learner | None = None
        self._temporary: Path | None = None
        self._log: FinishedLog | None = None
        if settings.state_dir is not None and settings.finished_log_bytes:
            self._log = FinishedLog(settings.state_dir / "finished", writer, settings.finished_log_bytes)

    async def start(self) -> None:
        """Read the models there are, and begin to learn and to write."""
        if self._log is not None:
            self._log.start()
        if self._settings.predictor_dir is None and not self._settings.learning.enabled:
            return
        try:
            await self._begin_to_learn()
        except Exception as error:  # whatever it is: serving begins with what was read until then
            self._refused = self._refused or f"models cannot be used: {type(error).__name__}"
            log_event(logger, "predictor_refused", reason=repr(error))

    async def _begin_to_learn(self) -> None:
        await asyncio.to_thread(import_module, "serve_app.learning")
        from serve_app.learning import Learner

        first = await asyncio.to_thread(self._given)
        shelf = ModelShelf(self._models_dir(), self._settings.learning.max_versions)
        self._learner = Learner(self.predictions, first, shelf, self._settings.learning, monotonic_s)
        if self._settings.learning.enabled:
            await self._learner.resume()

    def status(self) -> dict[str, Any]:
        """What predicts here, how it came to it, and what went wrong."""
        if self._learner is None:
            known: dict[str, Any] = {"version": 1, "model": "running means"}
        else:
            known = self._learner.status()
        return {
            **known,
            "learning": self._settings.learning.enabled,
            "model_refused": self._refused,
            "predictions_replaced": self.predictions.replaced,
            "predictions_failed": self.predictions.failed,
            "log_written": 0 if self._log is None else self._log.written,
            "log_lost": 0 if self._log is None else self._log.lost,
        }

    async def rollback(self) -> int:
        """Use the version before; its number. Raises LookupError where there is none."""
        if self._learner is None:
            raise LookupError("there is no model to go back from")
        return await self._learner.rollback()

    async def close(self) -> None:
        """End a training that runs, write what is left, leave nothing behind but the state; idempotent."""
        if self._learner is not None:
            await self._learner.close()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
        if self._temporary is not None:
            await asyncio.to_thread(shutil.rmtree, self._temporary, ignore_errors=True)

    def _take(self, ended: EndedApplication) -> None:
        if self._log is not None:
            self._log.add(ended.document(wall_s(), self._settings.log_prompts))
        if self._learner is not None:
            self._learner.take(ended)

    def _given(self) -> Champion:
        """The model that the settings name, or the running means where it cannot be read."""
        from predictors.store import ModelFileError, load
        from serve_app.champion import Champion

        directory = self._settings.predictor_dir
        if directory is None:
            return Champion()
        try:
            return Champion(load(directory))
        except ModelFileError as error:
            self._refused = str(error).replace(str(directory), "predictor_dir")
            log_event(logger, "predictor_refused", reason=str(error))
            return Champion()

    def _models_dir(self) -> Path:
        if self._settings.state_dir is not None:
            return self._settings.state_dir / "models"
        self._temporary = Path(tempfile.mkdtemp(prefix="justitia-models-"))
        return self._temporary
