"""What is measured of an engine before policies are compared on it: its speed, and how far to stretch the arrivals.

The engine serves applications of the same workload, all at once, while it writes its iteration log: others than those
that are measured, where the workload has enough of them. From it:

- the speed of an iteration (`scheduler.sim.calibration`);
- a `slowdown` by which the whole takes longer than the simulator says with that speed, and a `round_trip_s`, what
  passes between the moment when a call could run and the moment when the engine has it: of the steps in
  `ROUND_TRIPS_S` the one with which the simulator's completion times are nearest to the real ones (the median of
  |log(real/simulated)|), each with the slowdown that gives the real end of the last application;
- the `stretch`: how long the engine takes for all of the measured applications at once, as the simulator has it, over
  how long the reference engine takes. Arrivals that are stretched by it load the engine as the trace loads the
  reference engine at the same intensity, with the same share of the work arriving before it can be done.

A blind forecast of a run is made from these alone. What is called the forecast has the run's own paces beside them
(`serve_app.policy_bench.pace`), and so can only be made after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import median

from scheduler.settings import CoreSettings
from scheduler.sim.calibration import Fit, Iteration, fit
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.simulation import Simulation, SimulationSettings, engine_admission
from scheduler.sim.workload import TraceApplication
from serve_app.policy_bench.forecast import TwinSettings, forecast
from serve_app.policy_bench.pace import paces_of
from serve_app.policy_bench.replay import Outcome

ORDER = "justitia"
"""The policy of the calibration: small applications run first, so that their times show what a round trip takes."""

STEPS = 3
"""Of the search for a slowdown: the end is nearly in proportion to it."""

ROUND_TRIPS_S = (0.0, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The engine as the twin has it, and how that was found.

    `profile` has the speed of `fit` (seconds an iteration, a sequence and a prefilled token) times `slowdown`, which is
    above 0: 1.1 means that all took a tenth longer than the iterations explain. `round_trip_s` is one of ROUND_TRIPS_S.
    `stretch`, above 0, is what the time between two arrivals of the trace is multiplied with. `on_measured`: the
    applications that calibrated are among those that are measured, since the workload has too few others.
    """

    profile: EngineProfile
    fit: Fit
    slowdown: float
    round_trip_s: float
    stretch: float
    on_measured: bool

    def __post_init__(self) -> None:
        if not (0 < self.slowdown < inf and 0 < self.stretch < inf and 0 <= self.round_trip_s < inf):
            found = (self.slowdown, self.stretch, self.round_trip_s)
            raise ValueError(f"slowdown and stretch must be finite and above 0, round_trip_s from 0 on, got {found}")


def calibrate(
    iterations: Sequence[Iteration],
    marks: Sequence[int],
    outcomes: Sequence[Outcome],
    twin_of: Callable[[float], Sequence[TraceApplication]],
    stretch_of: Callable[[EngineProfile], float],
    twin: TwinSettings,
    *,
    on_measured: bool = False,
) -> Calibration:
    """Learn an engine's speed from a run of applications that all arrived at once and finished, at least one.

    `marks` are as `paces_of` takes them: what else the machine did is no part of the engine's speed. `twin_of` gives
    the applications with a round trip of so many seconds, and `stretch_of` the stretch for an engine as it is found.
    Raises CalibrationError when the log cannot tell a speed.
    """
    fitted = fit(iterations)
    nominal = fitted.applied_to(twin.profile)
    paces = paces_of(iterations, marks, fitted)
    real_s = {one.application_id: paces.work_s(one.finish_s) for one in outcomes if one.finish_s is not None}
    tried = [(_tried(twin_of(trip_s), real_s, twin, nominal), trip_s) for trip_s in ROUND_TRIPS_S]
    (_, slowdown), round_trip_s = min(tried)
    profile = slowed(nominal, slowdown)
    return Calibration(
        profile=profile,
        fit=fitted,
        slowdown=slowdown,
        round_trip_s=round_trip_s,
        stretch=stretch_of(profile),
        on_measured=on_measured,
    )


def stretch_for(applications: Sequence[TraceApplication], profile: EngineProfile, core: CoreSettings) -> float:
    """The stretch for these applications. Raises WorkloadError where an engine or the reference cannot hold a call."""
    return drain_s(applications, profile, core) / drain_s(applications, REFERENCE, engine_admission())


def _tried(
    served: Sequence[TraceApplication], real_s: Mapping[str, float], twin: TwinSettings, nominal: EngineProfile
) -> tuple[float, float]:
    """How far the simulator is from the real run, with the slowdown that gives its end, and that slowdown."""
    slowdown, result = 1.0, forecast(served, replace(twin, profile=nominal))
    for _ in range(STEPS):
        slowdown *= max(real_s.values()) / result.makespan_s
        result = forecast(served, replace(twin, profile=slowed(nominal, slowdown)))
    return median(abs(log(real_s[one.application_id] / one.finish_s)) for one in result.applications), slowdown


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """The engine with iterations that last `factor` times as long."""
    return replace(
        profile,
        base_s=profile.base_s * factor,
        per_sequence_s=profile.per_sequence_s * factor,
        per_prefill_token_s=profile.per_prefill_token_s * factor,
    )


def drain_s(applications: Sequence[TraceApplication], profile: EngineProfile, core: CoreSettings) -> float:
    """Simulated seconds in which an engine serves applications of known lengths that all arrive at once."""
    at_once = [replace(one, arrival_s=0.0) for one in applications]
    settings = SimulationSettings(policy="fcfs", core=core, engines=(profile,))
    return Simulation(at_once, settings).run().makespan_s
