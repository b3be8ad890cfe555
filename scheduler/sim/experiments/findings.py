"""What an experiment found: plain values for somebody else to print or draw.

Cells are numbers, words or None (nothing to say); units stand in headings and in `Comparison.unit`. A point of a chart
is (x, y).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Cell = float | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of the paper beside ours."""

    measure: str
    unit: str
    paper: Cell
    ours: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Each row has a cell for each heading."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.headings)} headings")


class Drawing(StrEnum):
    """How the points of a chart are joined."""

    LINES = "lines"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Line:
    """One named line of a chart."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over a common axis; `x_scale` is linear or log."""

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    drawing: Drawing = Drawing.LINES
    x_scale: str = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that one experiment has to say; `source` tells which applications were run."""

    name: str
    title: str
    source: str
    comparisons: tuple[Comparison, ...]
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    remarks: tuple[str, ...] = ()


def saving_percent(mean_s: float, yardstick_s: float) -> float:
    """By how much a mean is below that of a yardstick, in percent of the yardstick's; below 0 where it is above."""
    return 100 * (1 - mean_s / yardstick_s)
