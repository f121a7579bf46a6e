"""What all figures of the Workload page have in common: margins, the time axis, looks.

All have the same left and right margin and the same time axis, so that an instant is at the same
place in each of them. Figures are plain dictionaries in Plotly's JSON (`charts.timeseries`).
"""

from __future__ import annotations

from typing import Any

from radt.frontend.charts import elapsed
from radt.frontend.charts.spec import Window
from radt.frontend.charts.traces import escaped
from radt.frontend.theme import FONT, Ink

Figure = dict[str, Any]

LEFT_PX, RIGHT_PX = 56, 12


def layout(ink: Ink, window: Window, height_px: int) -> Figure:
    """A figure's layout without margins and y axis."""
    positions, texts = elapsed.ticks(window.start, window.end, about=8)
    return {
        "height": height_px,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": "zoom",
        "hoverlabel": {
            "bgcolor": ink.hover,
            "bordercolor": ink.axis,
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "namelength": -1,
            "align": "left",
        },
        "transition": {"duration": 0},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "xaxis": {
            "showspikes": False,  # the page's own line runs through all rows
            "range": [window.start, window.end],
            "tickvals": positions,
            "ticktext": texts,
            "tickfont": {"size": 11, "color": ink.dim},
            "ticks": "",
            "showgrid": True,
            "gridcolor": ink.grid,
            "zeroline": False,
            "showline": False,
            "unifiedhovertitle": {"text": "%{x:.2f} s"},
        },
    }


def note(text: str, ink: Ink) -> Figure:
    """A sentence in the middle of an empty figure."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "text": escaped(text),
        "font": {"size": 12, "color": ink.dim},
    }


def blank(height_px: int) -> Figure:
    """What a graph shows until its data come."""
    return {
        "data": [],
        "layout": {
            "height": height_px,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": 0, "b": 0},
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
        },
    }
