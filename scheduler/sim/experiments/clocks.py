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
    rows = [_row(laboratory, name, intensity) for name, intensity in loads]
    return Findings(
        name="clock",
        title="What moves virtual time",
        source=f"{EVEN} and {SKEWED} ({laboratory.source}), perfect predictions",
        comparisons=(),
        tables=(
            _table("Mean completion saved against VTC, %", [(name, *saved) for name, saved, _ in rows]),
            _table("The worst application's ratio to VTC", [(name, *worst) for name, _, worst in rows]),
        ),
        remarks=(
            f"Virtual time moves by nominal seconds ({nominal:g} iterations a second, the setting's default), by one "
            "pool an iteration, or by the service delivered. The paper's clock is the first; it has no figure for the "
            "others.",
        ),
    )


def _row(laboratory: Laboratory, name: str, intensity: float) -> tuple[str, list[float], list[float]]:
    """The load, and under each clock the saving in percent and the worst ratio."""
    load = laboratory.load(name, intensity)
    yardstick = laboratory.run_policy(load, YARDSTICK)
    outcomes = [laboratory.run(load, under("justitia", clock=clock)) for clock in CLOCKS]
    saved = [saving_percent(one.completion.mean_s, yardstick.completion.mean_s) for one in outcomes]
    return load.name, saved, [one.against(yardstick).worst for one in outcomes]


def _table(title: str, rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(title=title, headings=("workload", *CLOCKS.values()), rows=tuple(rows))
