"""What is measured of an engine before policies are compared on it: its speed, and how far to stretch the arrivals.

The engine serves other applications of the same workload, all at once, while it writes its iteration log. From it:

- the speed of an iteration (`scheduler.sim.calibration`), and a `slowdown` by which the whole takes longer than the
  simulator says with that speed: what passes between engine, scheduler and clients while memory is held;
- the `stretch`: how long the engine takes for all of the measured applications at once, as the simulator has it, over
  how long the reference engine takes. Arrivals that are stretched by it load the engine as the trace loads the
  reference engine at the same intensity, with the same share of the work arriving before it can be done.

A forecast of a run is made from these alone, before the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scheduler.settings import CoreSettings
from scheduler.sim.calibration import Fit, Iteration, fit
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.prediction import Predictor
from scheduler.sim.simulation import Simulation, SimulationSettings, engine_admission
from scheduler.sim.workload import TraceApplication
from serve_app.policy_bench.replay import Outcome

ORDER = "fcfs"
"""The policy of the calibration, which every application meets in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The engine as the twin has it (`profile` with the slowdown in it), the fit, and the stretch of arrivals."""

    profile: EngineProfile
    fit: Fit
    slowdown: float
    stretch: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, document: dict[str, Any]) -> Calibration:
        """Raises TypeError, KeyError or ValueError for what `as_dict` did not make."""
        return cls(
            profile=EngineProfile(**document["profile"]),
            fit=Fit(**document["fit"]),
            slowdown=float(document["slowdown"]),
            stretch=float(document["stretch"]),
        )


def calibrate(
    iterations: Sequence[Iteration],
    served: Sequence[TraceApplication],
    outcomes: Sequence[Outcome],
    measured: Sequence[TraceApplication],
    sizes: EngineProfile,
    core: CoreSettings,
    predictor: Predictor,
) -> Calibration:
    """Learn an engine's speed from `outcomes`, those of `served`, all of which arrived at once and finished.

    `sizes` has what the log says nothing of, `measured` are the applications that the stretch is for, `core` has the
    live scheduler's settings and `predictor` predicts as the service did. Raises CalibrationError when the log cannot
    tell a speed.
    """
    fitted = fit(iterations)
    nominal = fitted.applied_to(sizes)
    took_s = max(one.finish_s for one in outcomes if one.finish_s is not None)
    slowdown = took_s / drain_s(served, nominal, core, predictor)
    profile = slowed(nominal, slowdown)
    stretch = drain_s(measured, profile, core) / drain_s(measured, REFERENCE, engine_admission())
    return Calibration(profile=profile, fit=fitted, slowdown=slowdown, stretch=stretch)


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """The engine with iterations that last `factor` times as long."""
    return replace(
        profile,
        base_s=profile.base_s * factor,
        per_sequence_s=profile.per_sequence_s * factor,
        per_prefill_token_s=profile.per_prefill_token_s * factor,
    )


def drain_s(
    applications: Sequence[TraceApplication],
    profile: EngineProfile,
    core: CoreSettings,
    predictor: Predictor | None = None,
) -> float:
    """Simulated seconds in which an engine serves applications that all arrive at once; lengths known by default."""
    at_once = [replace(one, arrival_s=0.0) for one in applications]
    settings = SimulationSettings(policy=ORDER, core=core, engines=(profile,))
    return Simulation(at_once, settings, predictor).run().makespan_s
