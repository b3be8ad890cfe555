"""The twin: the same traffic under the same policy in the simulator, on an engine as it was measured.

It has the live scheduler's settings, admission included, and predictions of the same kind: those of the trained model
where the service has one, from the text that the service sees, else running means of what has ended. Like the live
scheduler it hears at an application's arrival what the service makes of prompts that have not been counted yet, and
their true lengths when they can be sent; a call can run a round trip later. It differs from the live run where that has
what no virtual time has: reports come at their own pace, and memory is held while messages pass, which the
calibration's slowdown stands for in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from predictors.cold_start import OutputLengthHistory, stage_of
from scheduler.settings import CoreSettings
from scheduler.sim.engine import EngineProfile
from scheduler.sim.prediction import Prediction, Predictor
from scheduler.sim.simulation import Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication
from scheduler.types import ApplicationSpec, CallSpec
from serve_app.cli.simulation_runs import CannotSimulate
from serve_app.policy_bench.traffic import LengthRule, as_the_service_sees
from serve_app.runner import CHARS_PER_TOKEN


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
    """What makes the predictor that the service has. Raises CannotSimulate for a directory that holds no model."""
    if predictor_dir is None:
        return lambda: RunningMeans(max_model_len)
    from predictors.store import ModelFileError  # scikit-learn takes a second to import
    from serve_app.trained_predictor import TrainedModel

    try:
        model = TrainedModel.of_directory(predictor_dir)
    except ModelFileError as error:
        raise CannotSimulate(str(error)) from error
    return lambda: Unlearning(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinSettings:
    """What a forecast depends on beside the traffic."""

    policy: str
    profile: EngineProfile
    core: CoreSettings
    create_predictor: Callable[[], Predictor]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsTold(TraceApplication):
    """An application of which the scheduler is told at arrival what the service says of it.

    The service counts prompts that it has whole. Of those that come after other calls it knows the characters,
    `chars_per_token` for each token (at least 1), and takes `CHARS_PER_TOKEN` of them for one. No application is open,
    though there is a round trip before its calls: all of them are known.
    """

    chars_per_token: int

    def spec(self, outputs: Mapping[str, int], predicted_cost: float | None) -> ApplicationSpec:
        whole = TraceApplication.spec(self, outputs, predicted_cost)
        return replace(whole, open=False, calls=tuple(map(self._as_told, whole.calls)))

    def _as_told(self, call: CallSpec) -> CallSpec:
        if not call.after:
            return call
        return replace(call, prompt_tokens=-(-call.prompt_tokens * self.chars_per_token // CHARS_PER_TOKEN))


def as_the_twin_has_it(application: TraceApplication, rule: LengthRule, round_trip_s: float) -> TraceApplication:
    """The application as a forecast needs it: as the service sees it, with a round trip (>= 0) before each call."""
    seen = as_the_service_sees(application, rule)
    values = {field.name: getattr(seen, field.name) for field in fields(seen)}
    values["calls"] = tuple(replace(call, delay_s=round_trip_s) for call in seen.calls)
    return AsTold(**values, chars_per_token=rule.chars_per_token)


def forecast(applications: Sequence[TraceApplication], twin: TwinSettings) -> SimulationResult:
    """The run as the simulator has it, with a result for each application."""
    settings = SimulationSettings(policy=twin.policy, core=twin.core, engines=(twin.profile,))
    return Simulation(applications, settings, twin.create_predictor()).run()
