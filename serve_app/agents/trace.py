"""An application's calls over time, as a table with bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.bar import Bar
from rich.table import Table

from serve_app.client import CallTrace

NAMES_SHOWN = 3
NARROWEST = 20


def gantt(calls: Sequence[CallTrace]) -> Table:
    """One row a call in order of starting, its bar from its start to its end. As wide as the console."""
    whole_s = max((call.finished_s for call in calls), default=0.0)
    table = Table("call", "after", "tokens in", "out", "s", title="Calls over time", expand=True)
    table.add_column(f"0 … {whole_s:.1f} s", ratio=1, min_width=NARROWEST)
    for call in sorted(calls, key=lambda call: (call.started_s, call.finished_s)):
        figures = (str(call.prompt_tokens), str(call.output_tokens), f"{call.finished_s - call.started_s:.1f}")
        bar = Bar(max(whole_s, 1e-9), call.started_s, call.finished_s)
        table.add_row(call.name, _named(call.after), *figures, bar)
    return table


def _named(names: Sequence[str]) -> str:
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"
