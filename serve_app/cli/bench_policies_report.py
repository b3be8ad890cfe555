"""The report of `justitia bench policies --html`: that of the simulator on live runs, and the twin's forecasts."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.cli.bench_policies_tables import TWIN_WORDS, left_out_line, twin_headings, twin_row
from serve_app.cli.report import html_table, report_html
from serve_app.policy_bench.comparison import Compared


def report_of(compared: Sequence[Compared], source: str, intensity: float) -> str:
    """The report on these runs, at least one, of at least one application."""
    return report_html(
        [one.run for one in compared],
        source,
        intensity,
        kind="benchmark",
        where="on a live engine, with arrivals stretched to its speed",
        more=_twin(compared),
    )


def _twin(compared: Sequence[Compared]) -> str:
    table = html_table(twin_headings(compared), [twin_row(one) for one in compared])
    left_out = f"<p>{left_out_line(compared)}</p>" if compared[0].left_out else ""
    return f"<h2>Twin, and the tail</h2><p>{TWIN_WORDS}</p>{left_out}{table}"
