"""The twin: the same traffic under the same policy in the simulator, on the engine as it was calibrated.

It has the live scheduler's settings, admission included, and predictions of the same kind: those of the trained model
where the service has one, from the text that the service sees, else running means of what has ended. It differs from
the live run where the live run has what no virtual time has: reports come at their own pace, and messages take time,
which the calibration's slowdown stands for in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from predictors.cold_start import OutputLengthHistory, stage_of
from scheduler.settings import CoreSettings
from scheduler.sim.engine import EngineProfile
from scheduler.sim.prediction import Prediction, Predictor
from scheduler.sim.simulation import Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication


class RunningMeans:
    """Predicts output tokens as an ingress without a trained model does, from applications that have ended."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._lengths = OutputLengthHistory()

    def predict(self, application: TraceApplication) -> Prediction:
        kind = application.application_type
        limit = self._max_model_len
        return Prediction(
            {call.name: self._lengths.predict(kind, stage_of(call.name), limit) for call in application.calls}
        )

    def learn(self, application: TraceApplication) -> None:
        for call in application.calls:
            self._lengths.observe(application.application_type, stage_of(call.name), call.output_tokens)


class Unlearning:
    """Predicts as another does, and stays as it is, as the service's model does while it does not learn."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, application: TraceApplication) -> Prediction:
        return self._predictor.predict(application)

    def learn(self, application: TraceApplication) -> None:
        """It does not."""


def predictor_of(predictor_dir: Path | None, max_model_len: int) -> Callable[[], Predictor]:
    """What makes the predictor that the service has. Raises ModelFileError for a directory that holds no model."""
    if predictor_dir is None:
        return lambda: RunningMeans(max_model_len)
    from serve_app.trained_predictor import TrainedModel  # scikit-learn takes a second to import

    model = TrainedModel.of_directory(predictor_dir)
    return lambda: Unlearning(model)


def forecast(
    applications: Sequence[TraceApplication],
    policy: str,
    profile: EngineProfile,
    core: CoreSettings,
    create_predictor: Callable[[], Predictor],
) -> SimulationResult:
    """The run as the simulator has it, with a result for each application."""
    settings = SimulationSettings(policy=policy, core=core, engines=(profile,))
    return Simulation(applications, settings, create_predictor()).run()
