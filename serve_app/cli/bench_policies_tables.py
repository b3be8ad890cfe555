"""How `justitia bench policies` shows its runs: the tables of `justitia simulate`, and the twin's forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table

from serve_app.cli.simulation_tables import completion_table, fairness_table, number, percent
from serve_app.cli.simulation_tables import documents as simulation_documents
from serve_app.policy_bench.calibration import Calibration
from serve_app.policy_bench.comparison import NEARLY, Compared, mean_s

TWIN_WORDS = (
    "Forecast: of the calibrated simulator, made after the run, at the pace that the engine's iterations had in it. "
    "Pace: their time over the calibration's; above 1 the machine was slower. Blind: how far off without the pace."
)
_ON_MEASURED = (
    " It was measured with applications that are compared as well: a longer workload, or fewer --apps, leaves others."
)
NOT_MEASURED = frozenset({"busy_s", "prefilled_tokens", "prefilled_tokens_per_s", "recomputed_tokens", "service"})


def tables(compared: Sequence[Compared]) -> Iterator[Table]:
    """Completion, engine and fairness of each run, and how near the twin came."""
    runs = [one.run for one in compared]
    yield completion_table(runs)
    yield _engine_table(compared)
    yield fairness_table(runs)
    yield twin_table(compared)


def _engine_table(compared: Sequence[Compared]) -> Table:
    """What the engine did."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Engine", title_justify="left")
    for place, heading in enumerate(("policy", "makespan s", "tokens/s", "apps/min", "KV", "preempted")):
        table.add_column(heading, justify="right" if place else "left", no_wrap=not place)
    for one in compared:
        result, measures = one.run.result, one.run.measures
        rates = (result.makespan_s, measures.output_tokens_per_s, measures.applications_per_minute)
        table.add_row(result.policy, *map(number, rates), percent(result.kv_used), f"{result.preemptions:,}")
    return table


def twin_table(compared: Sequence[Compared]) -> Table:
    """Means of the live runs beside the forecasts, and the tail of the ratios to the yardstick."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Twin, and the tail", title_justify="left")
    for place, heading in enumerate(twin_headings(compared)):
        table.add_column(heading, justify="right" if place else "left", no_wrap=not place)
    table.caption, table.caption_justify = TWIN_WORDS, "left"
    for one in compared:
        table.add_row(*twin_row(one))
    return table


def twin_headings(compared: Sequence[Compared]) -> list[str]:
    """What `twin_row` has."""
    yardstick = compared[0].run.yardstick
    against = [] if yardstick is None else [f"≤ {NEARLY:g} × {yardstick}", "P99 ×"]
    return ["policy", "mean s", "forecast s", "off by", "pace", "blind", *against]


def twin_row(one: Compared) -> list[str]:
    """A policy's figures as text."""
    completion = one.run.measures.completion
    row = [
        one.run.policy,
        number(None if completion is None else completion.mean_s),
        number(mean_s(one.twin.forecast)),
        _change(one.forecast_error),
        f"{one.pace:.2f}",
        _change(one.blind_error),
    ]
    if one.run.yardstick is None:
        return row
    near, tail = one.share_nearly_within, one.p99_ratio
    return [*row, "-" if near is None else percent(near), "-" if tail is None else f"{tail:.2f}"]


def _change(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"


def calibration_line(calibration: Calibration) -> str:
    """The calibration in a sentence."""
    fit = calibration.fit
    return (
        f"Calibration: an iteration lasts {1e3 * fit.base_s:.2f} ms + {1e6 * fit.per_sequence_s:.0f} µs a sequence "
        f"+ {1e6 * fit.per_prefill_token_s:.1f} µs a prefilled token (R² {fit.r_squared:.2f}, {fit.iterations:,} "
        f"iterations); the whole takes {calibration.slowdown:.2f} times as long, with "
        f"{1e3 * calibration.round_trip_s:.0f} ms before a call; arrivals are stretched by "
        f"{calibration.stretch:.3f}.{_ON_MEASURED if calibration.on_measured else ''}"
    )


def left_out_line(compared: Sequence[Compared]) -> str:
    """How many applications are compared, in a sentence."""
    left_out, whole = compared[0].left_out, len(compared[0].run.result.applications) + compared[0].left_out
    return f"{left_out} of {whole} applications are left out: compared are those that finished under every policy."


def documents(compared: Sequence[Compared], calibration: Calibration) -> list[dict[str, Any]]:
    """One object a policy: that of `justitia simulate --json` less what is not measured live, and the forecast."""
    plain = simulation_documents([one.run for one in compared])
    measured = ({name: value for name, value in one.items() if name not in NOT_MEASURED} for one in plain)
    by_measured = {"calibrated_on_measured": calibration.on_measured}
    return [{**document, **_forecast(one), **by_measured} for document, one in zip(measured, compared, strict=True)]


def _forecast(one: Compared) -> dict[str, Any]:
    return {
        "forecast_mean_completion_s": mean_s(one.twin.forecast),
        "forecast_makespan_s": one.twin.forecast.makespan_s,
        "forecast_preemptions": one.twin.forecast.preemptions,
        "forecast_error": one.forecast_error,
        "pace": one.pace,
        "blind_forecast_mean_completion_s": mean_s(one.twin.blind),
        "blind_forecast_error": one.blind_error,
        "share_within_1.02_of_yardstick": one.share_nearly_within,
        "p99_ratio_to_yardstick": one.p99_ratio,
        "errors": dict(one.errors),
        "left_out": one.left_out,
    }
