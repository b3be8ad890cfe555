"""The report of `justitia simulate --html`: the charts that the paper draws, in one file that needs no network.

The drawing library stands in the file. The same runs give the same file, to the byte. Names come from the user's
workload: they are escaped wherever they appear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from scheduler.sim.metrics import Group, cdf
from serve_app.cli.simulation_runs import Run
from serve_app.cli.simulation_tables import Groups, number, percent

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
CHART_HEIGHT_PX = 420

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: #fff; color: #1b1b1b;
       font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .25rem; font-size: 1.6rem; }
h2 { margin: 2.5rem 0 .25rem; font-size: 1.2rem; }
p { margin: .25rem 0 .75rem; max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
"""


def report_html(
    runs: Sequence[Run],
    source: str,
    intensity: float,
    *,
    kind: str = "simulation",
    where: str = "in virtual time",
    more: str = "",
) -> str:
    """The report on these runs (at least one) of the workload that came from `source`; `more` is HTML at its end."""
    parts = "\n".join([*_parts(runs), more])
    title = f"{len(runs[0].result.applications):,} applications from {escape(source)} at {intensity:g}×"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Justitia {kind}: {title}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>What each policy did to this traffic</h1>
<p>{title}, {where}.</p>
{parts}
</body>
</html>
"""


def _parts(runs: Sequence[Run]) -> Iterator[str]:
    yield html_table(*_summary(runs))
    yield f"<p>{_words_of_summary(runs[0].yardstick)}</p>"
    yield _section("Completion time", "From an application's arrival to the end of its last call.", _bars(runs))
    yield _section("Distribution of completion times", "Share of applications that took at most so long.", _times(runs))
    yield from _ratio_part(runs)
    yield from _gap_part(runs)
    yield "<h2>By application type</h2><p>Mean completion time and, in brackets, P90; seconds.</p>"
    yield html_table(*_group_rows(runs, "type", lambda run: run.measures.by_type))
    yield "<h2>By tenant</h2><p>Mean completion time and, in brackets, P90; seconds.</p>"
    yield html_table(*_group_rows(runs, "tenant", lambda run: run.measures.by_tenant))


def _words_of_summary(yardstick: str | None) -> str:
    name = "" if yardstick is None else escape(yardstick)
    beside = (
        f"≤ {name}: applications that ended no later than under {name}; worst ×: of one application. " if name else ""
    )
    return (
        f"{beside}≤ GPS: no later than under fair sharing in the fluid reference. Tokens: output. KV use: while the "
        "engines ran. Violations: of the delay bound."
    )


def _ratio_part(runs: Sequence[Run]) -> Iterator[str]:
    yardstick = runs[0].yardstick
    if yardstick is None:
        yield "<h2>Ratio to a yardstick</h2><p>No yardstick was chosen: simulate vtc too, or give --yardstick.</p>"
        return
    name = escape(yardstick)
    words = f"Each application's completion time over its own under {name}: left of 1 it gained."
    yield _section(f"Ratio to {name}", words, _ratios(runs))


def _gap_part(runs: Sequence[Run]) -> Iterator[str]:
    figure = _gaps(runs)
    if not figure.data:
        yield "<h2>Service gap between tenants</h2><p>Never did two tenants wait at the same time: there is no gap.</p>"
        return
    words = "The most less the least service over weight among tenants with work waiting, from when they began to wait."
    yield _section("Service gap between tenants", words, figure)


# ---- charts


def _bars(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("policy", "seconds")
    names = [run.policy for run in runs]
    found = [run.measures.completion for run in runs]
    for label, values, colour in (
        ("mean", [one.mean_s if one else None for one in found], COLOURS[0]),
        ("P90", [one.p90_s if one else None for one in found], COLOURS[5]),
    ):
        figure.add_bar(name=label, x=names, y=values, marker_color=colour, texttemplate="%{y:.3s}")
    return figure.update_layout(barmode="group", hovermode="x unified")


def _times(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("completion time (s, log scale)", "share of applications")
    for place, run in enumerate(runs):
        points = cdf(sorted(one.completion_s for one in run.result.applications))
        _add_steps(figure, run.policy, points, place)
    return figure.update_xaxes(type="log", dtick="D2").update_yaxes(range=[0, 1.02], tickformat=".0%")


def _ratios(runs: Sequence[Run]) -> go.Figure:
    figure = _figure(
        f"completion time / that under {escape(str(runs[0].yardstick))} (log scale)", "share of applications"
    )
    for place, run in enumerate(runs):
        found = run.measures.ratio_to_yardstick
        if found is not None and run.policy != run.yardstick:
            _add_steps(figure, run.policy, found.cdf, place)
    figure.add_vline(x=1, line_dash="dot", line_color="#666")
    return figure.update_xaxes(type="log", dtick="D2").update_yaxes(range=[0, 1.02], tickformat=".0%")


def _gaps(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("virtual time (s)", "token-iterations a unit of weight")
    for place, run in enumerate(runs):
        gaps = () if run.measures.service is None else run.measures.service.gaps
        if any(gap is not None for _, gap in gaps):
            times_s, values = zip(*gaps, strict=True)
            figure.add_scatter(name=run.policy, x=times_s, y=values, mode="lines", line=_line(place))
    return figure


def _add_steps(figure: go.Figure, name: str, points: Sequence[tuple[float, float]], place: int) -> None:
    values, shares = zip(*points, strict=True)
    line = {**_line(place), "shape": "hv"}
    figure.add_scatter(name=name, x=values, y=shares, mode="lines", line=line)


def _line(place: int) -> dict[str, object]:
    return {"color": COLOURS[place % len(COLOURS)], "dash": DASHES[place // len(COLOURS) % len(DASHES)], "width": 2}


def _figure(x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        height=CHART_HEIGHT_PX,
        margin={"l": 70, "r": 20, "t": 70, "b": 60},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        xaxis_title=x_title,
        yaxis_title=y_title,
        showlegend=True,
    )
    return figure


def _section(title: str, words: str, figure: go.Figure) -> str:
    name = "chart-" + "-".join(title.lower().split())
    options = {"displaylogo": False, "responsive": True}
    chart = to_html(figure, config=options, include_plotlyjs=False, full_html=False, div_id=name)
    return f"<h2>{title}</h2><p>{words}</p>\n{chart}"


# ---- tables


def _summary(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    yardstick = runs[0].yardstick
    headings = ["policy", "mean s", "P50 s", "P90 s", "P99 s"]
    headings += [] if yardstick is None else [f"≤ {yardstick}", "worst ×"]
    headings += ["≤ GPS", "makespan s", "tokens/s", "KV use", "preempted", "violations"]
    return headings, [_summary_row(run) for run in runs]


def _summary_row(run: Run) -> list[str]:
    measures, result = run.measures, run.result
    completion, against, gps = measures.completion, measures.ratio_to_yardstick, measures.ratio_to_gps
    assert completion is not None
    row = [run.policy, *map(number, (completion.mean_s, completion.p50_s, completion.p90_s, completion.p99_s))]
    if run.yardstick is not None:
        row += ["-", "-"] if against is None else [percent(against.share_within_1), f"{against.worst:.2f}"]
    return [
        *row,
        "-" if gps is None else percent(gps.share_within_1),
        number(result.makespan_s),
        number(measures.output_tokens_per_s),
        percent(result.kv_used),
        f"{result.preemptions:,}",
        f"{result.bound_violations:,}",
    ]


def _group_rows(runs: Sequence[Run], kind: str, groups: Groups) -> tuple[list[str], list[list[str]]]:
    found: list[Mapping[str, Group]] = [groups(run) for run in runs]
    first = found[0]
    headings = [kind, "applications", "share of cost", *(run.policy for run in runs)]
    rows = [
        [
            name,
            f"{group.completion.count:,}",
            percent(group.cost_share),
            *(_mean_and_p90(one.get(name)) for one in found),
        ]
        for name, group in first.items()
    ]
    return headings, rows


def _mean_and_p90(group: Group | None) -> str:
    return "-" if group is None else f"{number(group.completion.mean_s)} ({number(group.completion.p90_s)})"


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
