"""Where experiments are run: workloads by name, predictors by name, and every run once.

All experiments stand on the reference engine (`scheduler.sim.engine.REFERENCE`) and let it admit by its free blocks,
unless they say otherwise. Two experiments that ask for the same run share it: a run is known by its workload,
intensity, settings and predictor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from scheduler.sim.experiments.findings import Findings
from scheduler.sim.metrics import Completion, Ratios, completion_of, completions, ratios
from scheduler.sim.prediction import Nothing, Oracle, Prediction, Predictor, TypeMean
from scheduler.sim.simulation import (
    ApplicationResult,
    Simulation,
    SimulationResult,
    SimulationSettings,
    engine_admission,
)
from scheduler.sim.workload import TraceApplication, at_intensity

YARDSTICK = "vtc"
EVEN, SKEWED, TRAIN = "eval-even", "eval-skewed", "train"
"""Workloads that experiments ask for: two of 300 applications, and one to learn from."""

SAMPLES_OF_A_TYPE = 100
"""Applications of each type that a predictor learns from before it is used, as the paper has it."""

TAUGHT = "type_mean_100"
"""The predictor `TypeMean` after that."""

Advance = Callable[[], None]


class Workloads(Protocol):
    """Applications by the names above, at intensity 1 and in order of arrival."""

    @property
    def source(self) -> str:
        """Where they come from, in words."""

    def applications(self, name: str) -> Sequence[TraceApplication]: ...


@dataclass(frozen=True, slots=True)
class Load:
    """Applications under a name that is theirs alone."""

    name: str
    applications: tuple[TraceApplication, ...] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, and for each application what it was predicted to cost at arrival; token-iterations."""

    result: SimulationResult
    predicted_costs: Mapping[str, float]

    @property
    def completion(self) -> Completion:
        found = completion_of(self.result.applications)
        assert found is not None
        return found

    def against(self, yardstick: Outcome) -> Ratios:
        """Each application's completion over its own in another run of the same workload."""
        found = ratios(self.result.applications, completions(yardstick.result.applications))
        assert found is not None
        return found

    def completion_s(self, application_id: str) -> float:
        return completions(self.result.applications)[application_id]


CreatePredictor = Callable[[], Predictor]
PREDICTORS: Mapping[str, CreatePredictor] = {"oracle": Oracle, "type_mean": TypeMean, "none": Nothing}
Notice = Callable[[str, int], Advance]
"""(what is run, how many applications) -> what hears of each that has ended."""


class Laboratory:
    """Runs simulations and remembers them. `predictors` are makers of fresh ones; TAUGHT is added to them."""

    def __init__(
        self,
        workloads: Workloads,
        predictors: Mapping[str, CreatePredictor] = PREDICTORS,
        notice: Notice = lambda name, count: lambda: None,
    ) -> None:
        self.workloads = workloads
        self.predictors = {**predictors, TAUGHT: self._create_taught}
        self._notice = notice
        self._outcomes: dict[tuple[Load, SimulationSettings, str], Outcome] = {}

    @property
    def source(self) -> str:
        return self.workloads.source

    def load(self, name: str, intensity: float = 1.0) -> Load:
        """A workload's applications, arriving `intensity` times as fast."""
        applications = at_intensity(self.workloads.applications(name), intensity)
        return Load(f"{name} {intensity:g}×", tuple(applications))

    def run(self, load: Load, settings: SimulationSettings, predictor: str = "oracle") -> Outcome:
        """The run of this load, from memory where it was run before."""
        key = load, settings, predictor
        if key not in self._outcomes:
            self._outcomes[key] = self._run(load, settings, predictor)
        return self._outcomes[key]

    def run_policy(self, load: Load, policy: str) -> Outcome:
        """The run of a policy on the reference engine, with perfect predictions."""
        return self.run(load, under(policy))

    def _create_taught(self) -> Predictor:
        predictor = TypeMean()
        for application in first_of_each_type(self.workloads.applications(TRAIN), SAMPLES_OF_A_TYPE):
            predictor.learn(application)
        return predictor

    def _run(self, load: Load, settings: SimulationSettings, predictor: str) -> Outcome:
        advance = self._notice(f"{load.name} {settings.policy}", len(load.applications))
        ended: list[ApplicationResult] = []

        def sink(application: ApplicationResult) -> None:
            ended.append(application)
            advance()

        witness = _Witness(self.predictors[predictor]())
        result = Simulation(load.applications, settings, witness, sink).run()
        result.applications = sorted(ended, key=lambda one: (one.arrival_s, one.application_id))
        return Outcome(result, witness.costs)


class _Witness:
    """A predictor that writes down what another one says."""

    def __init__(self, predictor: Predictor) -> None:
        self.costs: dict[str, float] = {}
        self._predictor = predictor

    def predict(self, application: TraceApplication) -> Prediction:
        prediction = self._predictor.predict(application)
        self.costs[application.application_id] = predicted_cost(application, prediction)
        return prediction

    def learn(self, application: TraceApplication) -> None:
        self._predictor.learn(application)


def first_of_each_type(applications: Iterable[TraceApplication], count: int) -> Iterator[TraceApplication]:
    """The first `count` applications of each type."""
    seen: Counter[str] = Counter()
    for application in applications:
        seen[application.application_type] += 1
        if seen[application.application_type] <= count:
            yield application


def predicted_cost(application: TraceApplication, prediction: Prediction) -> float:
    """The KV token-time that a prediction amounts to, in token-iterations."""
    if prediction.cost is not None:
        return prediction.cost
    calls = application.calls
    return sum(replace(call, output_tokens=prediction.outputs[call.name]).cost for call in calls)


def under(policy: str, **core: Any) -> SimulationSettings:
    """The reference engine under a policy; `core` are fields of `CoreSettings` that differ from the reference's.

    `app_fcfs` runs the calls of an application in order of readiness.
    """
    options = (("depth_first", 0),) if policy == "app_fcfs" else ()
    settings = replace(engine_admission(), **{"policy_options": options, **core})
    return SimulationSettings(policy=policy, core=settings)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment by name; `shows` says in a line what for."""

    name: str
    shows: str
    run: Callable[[Laboratory], Findings]
