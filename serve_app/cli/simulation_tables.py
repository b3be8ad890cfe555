"""How the runs of `justitia simulate` are shown: as tables that fit 80 columns, and as a JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from scheduler.sim.metrics import Completion, Group, Ratios
from scheduler.sim.service import QUANTITY, ServiceRecord
from scheduler.sim.simulation import ApplicationResult
from serve_app.cli.simulation_runs import Run

DIGITS = 9
"""Decimal places in JSON: virtual time is in nanoseconds."""

NARROWEST = 64
"""Characters of a table, so that titles and captions have room."""

Groups = Callable[[Run], Mapping[str, Group]]


# ---- tables


def tables(runs: Sequence[Run], details: bool) -> Iterator[Table]:
    """Completion, engines and fairness of each run, and each tenant where there are several; with details each type."""
    yield completion_table(runs)
    yield engine_table(runs)
    yield fairness_table(runs)
    tenants = {name for run in runs for name in run.measures.by_tenant}
    if details:
        yield group_table(runs, "type", lambda run: run.measures.by_type)
    if len(tenants) > 1:
        yield group_table(runs, "tenant", lambda run: run.measures.by_tenant)


def completion_table(runs: Sequence[Run]) -> Table:
    """Completion times, and how they compare with the yardstick's, application by application."""
    yardstick = runs[0].yardstick
    table = _table("Completion time (s)", "policy", "mean", "P50", "P90", "P99")
    if yardstick is not None:
        for heading in (f"mean vs {yardstick}", f"≤ {yardstick}", "worst ×"):
            table.add_column(heading, justify="right")
        table.caption = f"≤: applications no later than under {escape(yardstick)}; worst ×: of one application"
    for run in runs:
        completion = run.measures.completion
        assert completion is not None
        times_s = (completion.mean_s, completion.p50_s, completion.p90_s, completion.p99_s)
        table.add_row(run.policy, *map(number, times_s), *([] if yardstick is None else _against(run)))
    return table


def _against(run: Run) -> list[str]:
    found, completion = run.measures.ratio_to_yardstick, run.measures.completion
    if found is None or completion is None or run.yardstick_mean_s is None:
        return ["-", "-", "-"]
    change = 100 * (completion.mean_s / run.yardstick_mean_s - 1) if run.yardstick_mean_s else 0.0
    return [f"{change:+.1f} %", percent(found.share_within_1), f"{found.worst:.2f}"]


def engine_table(runs: Sequence[Run]) -> Table:
    """What the engines did."""
    table = _table("Engines", "policy", "makespan", "tokens/s", "apps/min", "KV", "preempted", "recomputed")
    table.caption = (
        "makespan: seconds; tokens/s: output; KV: use while engines ran;\n"
        "recomputed: tokens prefilled again after preemptions"
    )
    for run in runs:
        result, measures = run.result, run.measures
        rates = (result.makespan_s, measures.output_tokens_per_s, measures.applications_per_minute)
        counts = (f"{result.preemptions:,}", f"{result.recomputed_tokens:,}")
        table.add_row(run.policy, *map(number, rates), percent(result.kv_used), *counts)
    return table


def fairness_table(runs: Sequence[Run]) -> Table:
    """Against the fluid reference, and between tenants."""
    table = _table("Fairness", "policy", "≤ GPS", "worst × GPS", "lag s", "late", "Jain", "gap")
    table.caption = (
        "GPS: fair sharing in the fluid reference; lag: mean;\n"
        "late: beyond the delay bound; Jain, gap: between tenants,\n"
        "the largest gap in token-iterations a unit of weight"
    )
    for run in runs:
        gps, lag, service = run.measures.ratio_to_gps, run.measures.lag, run.measures.service
        jain = None if service is None else service.jain()
        table.add_row(
            run.policy,
            "-" if gps is None else percent(gps.share_within_1),
            "-" if gps is None else f"{gps.worst:.2f}",
            "-" if lag is None else number(lag.mean_s),
            "-" if lag is None else f"{lag.violations:,}",
            "-" if jain is None or jain.index is None else f"{jain.index:.3f}",
            "-" if service is None else number(service.worst_gap),
        )
    return table


def group_table(runs: Sequence[Run], kind: str, groups: Groups) -> Table:
    """Mean completion of each type or tenant; the fewer of policies and groups are the columns."""
    rows = {run.policy: {name: number(group.completion.mean_s) for name, group in groups(run).items()} for run in runs}
    names = sorted({name for row in rows.values() for name in row})
    if len(rows) < len(names):
        rows, names = {name: {policy: row.get(name, "-") for policy, row in rows.items()} for name in names}, list(rows)
    table = _table(f"Mean completion (s) by {kind}", "", *map(escape, names))
    for name, row in rows.items():
        table.add_row(escape(name), *(row.get(column, "-") for column in names))
    return table


def number(value: float | None) -> str:
    """Three digits or more, as a reader wants it."""
    if value is None:
        return "-"
    if abs(value) >= 1_000_000:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, min_width=NARROWEST)
    table.title, table.title_justify, table.caption_justify = title, "left", "left"
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


# ---- JSON


def documents(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One object a policy, with all measures and every application."""
    return [_rounded(_document(run)) for run in runs]


def _document(run: Run) -> dict[str, Any]:
    result, measures = run.result, run.measures
    return {
        "policy": run.policy,
        **_completion(measures.completion),
        "preemptions": result.preemptions,
        "makespan_s": result.makespan_s,
        "busy_s": result.busy_s,
        "iterations": result.iterations,
        "calls": result.calls,
        "output_tokens": result.output_tokens,
        "prefilled_tokens": result.prefilled_tokens,
        "recomputed_tokens": result.recomputed_tokens,
        "output_tokens_per_s": measures.output_tokens_per_s,
        "prefilled_tokens_per_s": measures.prefilled_tokens_per_s,
        "applications_per_minute": measures.applications_per_minute,
        "kv_used": result.kv_used,
        "bound_violations": result.bound_violations,
        "lag": None if measures.lag is None else asdict(measures.lag),
        "yardstick": run.yardstick,
        "ratio_to_yardstick": _ratios(measures.ratio_to_yardstick),
        "ratio_to_gps": _ratios(measures.ratio_to_gps),
        "service": _service(measures.service),
        "by_type": {name: _group(group) for name, group in measures.by_type.items()},
        "by_tenant": {name: _group(group) for name, group in measures.by_tenant.items()},
        "applications": [_application(one) for one in result.applications],
    }


def _completion(completion: Completion | None) -> dict[str, Any]:
    if completion is None:
        return {}
    return {
        "applications_finished": completion.count,
        "mean_completion_s": completion.mean_s,
        "p50_completion_s": completion.p50_s,
        "p90_completion_s": completion.p90_s,
        "p99_completion_s": completion.p99_s,
        "worst_completion_s": completion.worst_s,
    }


def _ratios(found: Ratios | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _service(service: ServiceRecord | None) -> dict[str, Any] | None:
    if service is None:
        return None
    jain = service.jain()
    return {
        "quantity": QUANTITY,
        "worst_gap": service.worst_gap,
        "gap": service.gaps,
        "jain": None if jain is None else asdict(jain),
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        **_completion(group.completion),
        "cost": group.cost,
        "cost_share": group.cost_share,
        "ratio_to_yardstick": _without_cdf(group.ratio_to_yardstick),
        "ratio_to_gps": _without_cdf(group.ratio_to_gps),
    }


def _without_cdf(found: Ratios | None) -> dict[str, Any] | None:
    return None if found is None else {name: value for name, value in asdict(found).items() if name != "cdf"}


def _application(one: ApplicationResult) -> dict[str, Any]:
    return {
        "application_id": one.application_id,
        "application_type": one.application_type,
        "tenant": one.tenant,
        "weight": one.weight,
        "arrival_s": one.arrival_s,
        "finish_s": one.finish_s,
        "completion_s": one.completion_s,
        "gps_finish_s": one.gps_finish_s,
        "lag_s": None if one.gps_finish_s is None else one.finish_s - one.gps_finish_s,
        "bound_s": one.bound_s,
        "cost": one.cost,
        "predicted_cost": one.predicted_cost,
        "calls": one.calls,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return value
