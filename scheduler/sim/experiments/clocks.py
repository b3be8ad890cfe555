"""What moves virtual time: seconds at a nominal speed, one pool an iteration, or the service that engines deliver.

A clock that runs ahead of the service lets applications leave the reference before they were served, and gives later
ones tags that are too late: the order decays towards first come, first served.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.settings import ClockMode, CoreSettings
from scheduler.sim.experiments.findings import Cell, Findings, Table, saving_percent
from scheduler.sim.experiments.laboratory import EVEN, SKEWED, YARDSTICK, Laboratory, under

LOADS = ((EVEN, 3.0), (SKEWED, 2.0), (SKEWED, 3.0))
CLOCKS = {
    ClockMode.CAPACITY: "seconds",
    ClockMode.ITERATION: "iteration",
    ClockMode.SERVICE: "service",
}


def clocks(laboratory: Laboratory, loads: Sequence[tuple[str, float]] = LOADS) -> Findings:
    """The saving against VTC and the worst ratio to it under each clock."""
    nominal = CoreSettings().nominal_iterations_per_s
    return Findings(
        name="clock",
        title="What moves virtual time",
        source=f"{EVEN} and {SKEWED} ({laboratory.source}), perfect predictions",
        comparisons=(),
        tables=(
            Table(
                title="Mean saved against VTC (%), and the worst application's ratio to VTC (×)",
                headings=("workload", *(f"{name}{what}" for name in CLOCKS.values() for what in (" %", " ×"))),
                rows=tuple(_row(laboratory, name, intensity) for name, intensity in loads),
            ),
        ),
        remarks=(
            f"Virtual time moves by nominal seconds ({nominal:g} iterations a second, the setting's default), by one "
            "pool an iteration, or by the service delivered. The paper's clock is the first; it has no figure for the "
            "others.",
        ),
    )


def _row(laboratory: Laboratory, name: str, intensity: float) -> tuple[Cell, ...]:
    load = laboratory.load(name, intensity)
    yardstick = laboratory.run_policy(load, YARDSTICK)
    row: list[Cell] = [load.name]
    for clock in CLOCKS:
        outcome = laboratory.run(load, under("justitia", clock=clock))
        row.append(saving_percent(outcome.completion.mean_s, yardstick.completion.mean_s))
        row.append(outcome.against(yardstick).worst)
    return tuple(row)
