"""How findings are shown: as tables that fit 80 columns, and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from scheduler.sim.experiments import findings
from scheduler.sim.experiments.findings import Cell, Comparison, Findings
from serve_app.cli.simulation_tables import DIGITS, NARROWEST, number


def print_findings(console: Console, found: Findings) -> None:
    for part in _parts(found):
        console.print(part)
    console.print()


def documents(all_found: Sequence[Findings]) -> list[Any]:
    """One object an experiment."""
    return [_rounded(asdict(found)) for found in all_found]


def shown(cell: Cell) -> str:
    """A number as a reader wants it, words as they are."""
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case int():
            return f"{cell:,}"
        case float():
            return number(cell)


def with_unit(cell: Cell, unit: str) -> str:
    return shown(cell) if cell is None or not unit else f"{shown(cell)} {unit}"


def comparison_cells(comparison: Comparison) -> tuple[str, str, str]:
    """The measure, the paper's figure and ours."""
    unit = comparison.unit
    return comparison.measure, with_unit(comparison.paper, unit), with_unit(comparison.ours, unit)


def _parts(found: Findings) -> Iterator[RenderableType]:
    yield Rule(Text(f"{found.name}: {found.title}", style="bold"), align="left")
    yield Text(f"Applications: {found.source}", style="dim")
    if found.comparisons:
        yield _comparison_table(found.comparisons)
    for table in found.tables:
        yield _table(table)
    for remark in found.remarks:
        yield Padding(Text(remark), (1, 0, 0, 0))


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    table = _empty_table("", "", "paper", "ours")
    for comparison in comparisons:
        table.add_row(*map(Text, comparison_cells(comparison)))
    return table


def _table(found: findings.Table) -> Table:
    table = _empty_table(found.title, *found.headings)
    for row in found.rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def _empty_table(title: str, first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, min_width=NARROWEST)
    if title:
        table.title, table.title_justify = Text(title), "left"
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return value
