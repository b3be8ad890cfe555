"""The report of `justitia reproduce --html`: tables and charts in one file that needs no network.

The drawing library stands in the file. The same findings give the same file, to the byte. Everything that is not ours
is escaped wherever it appears.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from scheduler.sim.experiments.findings import Chart, Drawing, Findings
from serve_app.cli.experiment_tables import comparison_cells, shown
from serve_app.cli.report import CHART_HEIGHT_PX, COLOURS, STYLE

TITLE = "Justitia: the paper's figures, and ours"
SHAPES = {Drawing.LINES: "linear", Drawing.STEPS: "hv"}


def report_html(all_found: Sequence[Findings]) -> str:
    """One page with a section for each experiment."""
    sections = "\n".join(part for found in all_found for part in _section(found))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{TITLE}</h1>
{sections}
</body>
</html>
"""


def _section(found: Findings) -> Iterator[str]:
    yield f'<h2 id="{escape(found.name)}">{escape(found.name)}: {escape(found.title)}</h2>'
    yield f"<p>Applications: {escape(found.source)}</p>"
    if found.comparisons:
        yield _table(("measure", "paper", "ours"), [comparison_cells(one) for one in found.comparisons])
    for table in found.tables:
        yield f"<h3>{escape(table.title)}</h3>"
        yield _table(table.headings, [[shown(cell) for cell in row] for row in table.rows])
    for number, chart in enumerate(found.charts):
        yield f"<h3>{escape(chart.title)}</h3>"
        yield _drawn(chart, f"{found.name}-{number}")
    for remark in found.remarks:
        yield f"<p>{escape(remark)}</p>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _drawn(chart: Chart, name: str) -> str:
    figure = go.Figure()
    for line, colour in zip(chart.lines, _colours(len(chart.lines)), strict=True):
        x, y = zip(*line.points, strict=True) if line.points else ((), ())
        look = {"color": colour, "width": 2, "shape": SHAPES[chart.drawing]}
        figure.add_scatter(name=escape(line.name), x=x, y=y, mode="lines", line=look)
    figure.update_layout(
        template="plotly_white",
        height=CHART_HEIGHT_PX,
        margin={"l": 70, "r": 20, "t": 30, "b": 60},
        legend={"orientation": "h", "y": 1.1},
        xaxis_title=escape(chart.x_title),
        yaxis_title=escape(chart.y_title),
        showlegend=True,
    )
    figure.update_xaxes(type=chart.x_scale)
    options = {"displaylogo": False, "responsive": True}
    return str(to_html(figure, config=options, include_plotlyjs=False, full_html=False, div_id=name))


def _colours(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]
