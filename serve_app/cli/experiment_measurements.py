"""What `justitia reproduce` measures in real time, on this machine: decisions (table III)."""

from __future__ import annotations

from scheduler.sim.experiments.findings import Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import Experiment, Laboratory
from serve_app.cli.core_speed import measure_core

PAPER_MS = {15: 0.778, 20: 1.827, 30: 3.076, 50: 5.190, 100: 8.093}
"""Scheduling overhead in milliseconds by applications a minute."""

APPLICATIONS = 300


def table_3(laboratory: Laboratory) -> Findings:
    """CPU time of the whole scheduler for one application, at each rate of the paper."""
    speeds = [measure_core(rate, APPLICATIONS) for rate in PAPER_MS]
    return Findings(
        name="table3",
        title="Scheduling overhead",
        source=f"{APPLICATIONS} applications of several calls at each rate, simulated replicas, this machine",
        comparisons=tuple(
            Comparison(
                measure=f"{speed.applications_a_minute} applications a minute",
                unit="ms",
                paper=PAPER_MS[speed.applications_a_minute],
                ours=speed.mean_ms,
            )
            for speed in speeds
        ),
        tables=(
            Table(
                title="CPU time of all decisions for one application",
                headings=("applications a minute", "mean ms", "P99 ms", "calls waiting"),
                rows=tuple((one.applications_a_minute, one.mean_ms, one.p99_ms, one.mean_queue) for one in speeds),
            ),
        ),
        remarks=(
            "The paper does not say what its overhead includes, nor on which processor; its growth with the rate "
            "suggests that queues are gone through. Here all that the scheduler does for an application is counted, "
            "from its arrival to its end, and the order is a heap. See also justitia bench core.",
        ),
    )


TABLE_3 = Experiment("table3", "what deciding costs, in milliseconds an application", table_3)
