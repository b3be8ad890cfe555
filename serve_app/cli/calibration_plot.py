"""A page with two charts: do quantiles hold, and how far do predictions lie from the truth?"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

HEIGHT_PX = 520


def calibration_html(
    points: Sequence[tuple[float, float]], types: Sequence[str], costs: Sequence[float], predicted: Sequence[float]
) -> str:
    """A page that needs nothing else. `points`: (level, share of costs at or below that predicted quantile)."""
    charts = "\n".join(
        f"<h2>{title}</h2>\n<p>{words}</p>\n"
        + to_html(figure, include_plotlyjs=False, full_html=False, div_id=name, config={"displaylogo": False})
        for name, title, words, figure in (
            (
                "quantiles",
                "Quantiles",
                "Share of applications that cost no more than the predicted quantile; on the dotted line it is right.",
                _quantiles(points),
            ),
            ("costs", "Costs", "Predicted against true, in token-iterations.", _costs(types, costs, predicted)),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Calibration</title>'
        f"<script>{get_plotlyjs()}</script></head>\n<body><h1>Calibration</h1>\n{charts}\n</body></html>\n"
    )


def _quantiles(points: Sequence[tuple[float, float]]) -> go.Figure:
    levels, shares = zip(*points, strict=True)
    figure = _figure("predicted quantile", "share of applications")
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"dash": "dot", "color": "#888"}, name="right")
    figure.add_scatter(x=levels, y=shares, mode="lines+markers", name="model")
    return figure


def _costs(types: Sequence[str], costs: Sequence[float], predicted: Sequence[float]) -> go.Figure:
    figure = _figure("true cost (log scale)", "predicted cost (log scale)")
    ends = [min(*costs, *predicted), max(*costs, *predicted)]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"dash": "dot", "color": "#888"}, name="right")
    for kind in sorted(set(types)):
        places = [place for place, one in enumerate(types) if one == kind]
        figure.add_scatter(
            x=[costs[place] for place in places],
            y=[predicted[place] for place in places],
            mode="markers",
            name=escape(kind),
        )
    return figure.update_xaxes(type="log").update_yaxes(type="log")


def _figure(x_title: str, y_title: str) -> go.Figure:
    return go.Figure().update_layout(
        template="plotly_white", height=HEIGHT_PX, xaxis_title=x_title, yaxis_title=y_title
    )
