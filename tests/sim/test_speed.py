"""How fast the simulator is, beside a plain stepper in the same run; figures are printed (`pytest -s -m slow`)."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest

from scheduler.sim.generators import Load, generate
from scheduler.sim.simulation import Simulation, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall, at_intensity
from tests.sim.stepper import Stepper

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CALLS = 1_000_000
TIMES = 5
POLICIES = ("fcfs", "sjf", "app_fcfs", "vtc", "srtf", "justitia")
"""Those of the paper's figure 8; the order of two of them follows every token."""


@pytest.mark.parametrize("policy", POLICIES)
def test_jumping_is_several_times_as_fast_as_stepping(policy: str) -> None:
    """At three times the load, processor time; the results are the same."""
    taken_s, finishes = {}, {}
    for kind in (Simulation, Stepper):
        began_s = time.process_time()
        result = kind(
            at_intensity(generate("even", Load(applications=100)), 3.0), SimulationSettings(policy=policy)
        ).run()
        taken_s[kind] = time.process_time() - began_s
        finishes[kind] = [(one.application_id, one.finish_s) for one in result.applications]
    print(f"\n{policy}: {taken_s[Simulation]:.1f} s, stepping {taken_s[Stepper]:.1f} s")
    assert finishes[Simulation] == finishes[Stepper]
    assert taken_s[Stepper] >= TIMES * taken_s[Simulation]


def test_a_million_calls_leave_nothing_behind() -> None:
    """Memory grows with the applications in the system: the second half of the run needs no more than the first."""
    peaks_mb: list[float] = []
    seen = 0

    def note(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen % (CALLS // 20) == 0:
            peaks_mb.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    result = Simulation(steady(CALLS // 10), sink=note).run()
    print(f"\n{result.calls} calls in {result.makespan_s:.0f} simulated s; peak memory {peaks_mb}")
    assert result.calls == CALLS
    assert peaks_mb[-1] <= peaks_mb[0] + 100


def steady(count: int) -> Iterator[TraceApplication]:
    """Applications of ten calls, one at a time but for a few."""
    for number in range(count):
        calls = tuple(TraceCall(name=f"c{n}", prompt_tokens=100 + n, output_tokens=5 + n % 7) for n in range(10))
        yield TraceApplication(application_id=f"a{number}", arrival_s=number * 0.6, calls=calls)
