"""What `justitia workload show` says of a workload: applications, calls, tokens and costs by type and by tenant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from scheduler.sim.engine import REFERENCE
from scheduler.sim.workload import TraceApplication


@dataclass(slots=True)
class Counted:
    """Applications of one type or tenant, one number each, and the tokens of their calls."""

    calls: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)

    def add(self, application: TraceApplication) -> None:
        self.calls.append(len(application.calls))
        self.costs.append(application.cost)
        for call in application.calls:
            self.prompt_tokens.append(call.prompt_tokens)
            self.output_tokens.append(call.output_tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """What is shown of a type or tenant. Costs are in KV token-iterations, `cost_share` is of the whole workload."""

    applications: int
    mean_calls: float
    median_prompt_tokens: float
    median_output_tokens: float
    mean_cost: float
    cost_share: float


@dataclass(frozen=True, slots=True)
class Contents:
    """A workload in numbers. `least_work_s`: the reference engine needs as long with its memory always full."""

    applications: int
    calls: int
    last_arrival_s: float
    cost: float
    least_work_s: float
    by_type: Mapping[str, Row]
    by_tenant: Mapping[str, Row]

    def document(self) -> dict[str, Any]:
        return asdict(self)


def measure_workload(applications: Iterable[TraceApplication]) -> Contents:
    """Count it."""
    everything, last_s = Counted(), 0.0
    types: dict[str, Counted] = {}
    tenants: dict[str, Counted] = {}
    for application in applications:
        everything.add(application)
        types.setdefault(application.application_type, Counted()).add(application)
        tenants.setdefault(application.tenant, Counted()).add(application)
        last_s = application.arrival_s
    cost = sum(everything.costs)
    return Contents(
        applications=len(everything.calls),
        calls=sum(everything.calls),
        last_arrival_s=last_s,
        cost=cost,
        least_work_s=cost / REFERENCE.pool_tokens * REFERENCE.base_s,
        by_type={name: _row(types[name], cost) for name in sorted(types)},
        by_tenant={name: _row(tenants[name], cost) for name in sorted(tenants)},
    )


def _row(counted: Counted, cost: float) -> Row:
    return Row(
        applications=len(counted.calls),
        mean_calls=fmean(counted.calls),
        median_prompt_tokens=median(counted.prompt_tokens),
        median_output_tokens=median(counted.output_tokens),
        mean_cost=fmean(counted.costs),
        cost_share=sum(counted.costs) / cost,
    )


def shown(found: Contents) -> Iterator[Table | str]:
    """A table by type, one by tenant where there are several, and the whole in a sentence."""
    yield _table("type", found.by_type)
    if len(found.by_tenant) > 1:
        yield _table("tenant", found.by_tenant)
    counts = f"{found.applications:,} applications with {found.calls:,} calls"
    yield f"{counts}; the last arrives after {found.last_arrival_s:,.0f} s."
    yield f"The reference engine works on them for {found.least_work_s:,.0f} s at least."


def _table(kind: str, rows: Mapping[str, Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(kind, overflow="fold")
    for heading in ("applications", "calls each", "prompt", "output", "mean cost", "of cost"):
        table.add_column(heading, justify="right")
    table.caption = "prompt, output: median tokens of a call; cost: KV token-iterations"
    for name, row in rows.items():
        table.add_row(
            escape(name),
            f"{row.applications:,}",
            f"{row.mean_calls:.1f}",
            f"{row.median_prompt_tokens:,.0f}",
            f"{row.median_output_tokens:,.0f}",
            f"{row.mean_cost:,.0f}",
            f"{100 * row.cost_share:.1f} %",
        )
    return table
