"""`justitia bench core`: what deciding costs, with no engine beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from serve_app.cli import http
from serve_app.cli.core_speed import PAPER_MS, PAPER_RATE_A_MINUTE, RATES_A_MINUTE, CoreSpeed, measure_core
from serve_app.cli.policy_speed import SIZES, Promise, Row, heap_pair_us, measure, promises, rows_to_measure

PROMISED = "justitia"
TIMES_LONGER_IF_PROMISED = 4
BROKEN = 1
"""Exit code of --check when a promise does not hold."""


def core(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Measure these rows only; may be given several times.")
    ] = None,
    size: Annotated[list[int] | None, typer.Option("--size", help="Waiting applications.", min=1)] = None,
    rate: Annotated[list[int] | None, typer.Option("--rate", help="Applications a minute.", min=1)] = None,
    seconds: Annotated[float, typer.Option(help="Time for each policy, about.", min=0.001)] = 1.0,
    applications: Annotated[int, typer.Option(help="Applications to count at each rate.", min=2)] = 500,
    check: Annotated[bool, typer.Option("--check", help="End with 1 when a promise does not hold.")] = False,
    as_json: http.JsonOption = False,
) -> None:
    """What the life of one call costs each policy, beside a heapq push and pop, and what the scheduler costs in all.

    A life is ready, granted, finished, and the next application arrives: CPU time, the best of several repeats. The
    last table is the time of the whole scheduler for one application, with simulated engines.

    Example: justitia bench core --policy justitia --rate 10000 --check
    """
    sizes, rates = tuple(size or SIZES), tuple(rate or RATES_A_MINUTE)
    console = Console(stderr=True)
    heap_us, rows = _measure_policies(policy or (), sizes, seconds, console)
    kept = [promise for row in rows if row.name == PROMISED for promise in promises(row, heap_us)]
    with console.status("Measuring the whole scheduler"):
        speeds = [measure_core(each, applications) for each in rates]
    if as_json:
        http.print_json(_document(heap_us, rows, kept, speeds))
    else:
        for table in (_policy_table(heap_us, rows), _promise_table(kept), _core_table(speeds)):
            Console().print(table)
    if check and not all(promise.holds for promise in kept):
        raise typer.Exit(BROKEN)


def _measure_policies(
    names: Sequence[str], sizes: Sequence[int], seconds: float, console: Console
) -> tuple[dict[int, float], list[Row]]:
    rows = []
    with console.status("Measuring heapq") as status:
        heap_us = heap_pair_us(sizes)
        for name, create in rows_to_measure(names).items():
            status.update(f"Measuring {name}")
            longer = TIMES_LONGER_IF_PROMISED if name == PROMISED else 1
            rows.append(measure(name, create, seconds * longer, sizes))
    return heap_us, rows


def _policy_table(heap_us: Mapping[int, float], rows: Sequence[Row]) -> Table:
    table = Table(
        "waiting applications", *(f"{size:,}" for size in heap_us), title="Life of one call, µs (heapq pairs)"
    )
    table.add_row("heapq push + pop", *(f"{time_us:.2f}" for time_us in heap_us.values()))
    table.add_section()
    for row in rows:
        table.add_row(row.name, *(_cell(row.life_us[size], heap_us[size]) for size in heap_us))
    return table


def _cell(life_us: float | None, heap_us: float) -> str:
    return "-" if life_us is None else f"{life_us:,.1f} ({life_us / heap_us:,.0f})"


def _promise_table(kept: Sequence[Promise]) -> Table:
    table = Table("promised of justitia", "measured", "at most", "holds")
    for promise in kept:
        table.add_row(promise.says, f"{promise.measured:.1f}", f"{promise.limit:.0f}", "yes" if promise.holds else "no")
    return table


def _core_table(speeds: Sequence[CoreSpeed]) -> Table:
    table = Table(
        "applications a minute",
        "ms an application, mean",
        "P99",
        "calls waiting, mean",
        "replicas",
        title="The whole scheduler",
        caption=f"The paper's table III: {PAPER_MS} ms at {PAPER_RATE_A_MINUTE} applications a minute.",
    )
    for speed in speeds:
        figures = (f"{speed.mean_ms:.3f}", f"{speed.p99_ms:.3f}", f"{speed.mean_queue:,.1f}", str(speed.replicas))
        table.add_row(f"{speed.applications_a_minute:,}", *figures)
    return table


def _document(
    heap_us: Mapping[int, float], rows: Sequence[Row], kept: Sequence[Promise], speeds: Sequence[CoreSpeed]
) -> dict[str, object]:
    return {
        "heap_pair_us": heap_us,
        "life_us": {row.name: row.life_us for row in rows},
        "promises": [{**asdict(promise), "holds": promise.holds} for promise in kept],
        "core": [asdict(speed) for speed in speeds],
    }
