"""What the outside sees of predictions and of learning, as Ray metrics; each ingress counts its own."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

_RATIO_BOUNDARIES = [0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0]


class LearningTelemetry:
    """Metrics of one ingress's predictor."""

    def __init__(self) -> None:
        self._version = Gauge("justitia_predictor_version", "Version of the predictor in use")
        self._error = Histogram(
            "justitia_prediction_error_ratio",
            "|predicted - true| / true of an application's cost, as predicted at its arrival",
            boundaries=_RATIO_BOUNDARIES,
        )
        self._drifts = Counter("justitia_predictor_drift_total", "Shifts of the predictor's errors that were noticed")
        self._trainings = Counter(
            "justitia_predictor_trainings_total", "Trainings by their outcome", tag_keys=("outcome",)
        )

    def use(self, version: int) -> None:
        """Another version is in use."""
        self._version.set(version)

    def ended(self, predicted: float, true: float) -> None:
        """An application ended; both costs are positive."""
        self._error.observe(abs(predicted - true) / true)

    def drifted(self) -> None:
        """Errors have shifted."""
        self._drifts.inc()

    def trained(self, outcome: str) -> None:
        """A training ended: `accepted`, `kept` (the champion) or `failed`."""
        self._trainings.inc(tags={"outcome": outcome})
