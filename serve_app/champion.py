"""What predicts in an ingress at a time: a trained model, or the running means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from predictors.store import TrainedPredictor, save

RUNNING_MEANS = "running means"


@dataclass(frozen=True, slots=True)
class Champion:
    """A trained model, or none, which stands for the running means."""

    predictor: TrainedPredictor | None = None

    @property
    def name(self) -> str:
        return RUNNING_MEANS if self.predictor is None else self.predictor.kind

    @property
    def fingerprint(self) -> str:
        return RUNNING_MEANS if self.predictor is None else self.predictor.fingerprint

    @property
    def learnt_from(self) -> int:
        """Applications."""
        return 0 if self.predictor is None else sum(self.predictor.applications.values())

    def copied(self, directory: Path) -> Path | None:
        """The model, written there for its contest: whatever it was read from may be another one by then, or gone.

        None for running means. Raises OSError.
        """
        if self.predictor is None:
            return None
        save(self.predictor, directory)
        return directory
