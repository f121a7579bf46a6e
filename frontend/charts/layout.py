"""What stands around the data in a figure: size, margins, axes."""

from __future__ import annotations

from dataclasses import dataclass

from radt.frontend.charts import scale as scales
from radt.frontend.charts.spec import Window, XAxis
from radt.frontend.charts.traces import Figure, escaped
from radt.frontend.palette import Scheme
from radt.frontend.theme import FONT, Ink

HEIGHT_PX = 280
#: What a chart of two rows is higher than two charts: a card's head and the space between.
ROW_GAP_PX = 56
RUG_GAP_PX = 6
_TOP_PX, _BOTTOM_PX, _LEFT_PX, _SECOND_LINE_PX, _TITLE_PX = 8, 28, 52, 14, 20


@dataclass(frozen=True, slots=True)
class Look:
    """How a figure is drawn: colours, size in cells of the grid, for ``paper`` or the screen.

    Paper has no pointer: what that would tell is written.
    """

    scheme: Scheme = Scheme.LIGHT
    monochrome: bool = False
    rows: int = 1
    columns: int = 1
    paper: bool = False

    @property
    def height_px(self) -> int:
        return HEIGHT_PX * self.rows + ROW_GAP_PX * (self.rows - 1)


def layout_of(
    ink: Ink,
    kind: XAxis,
    window: Window,
    limits: tuple[float, float],
    look: Look,
    rug_px: int,
    rug_rows: int,
) -> Figure:
    """The layout of a figure without its data; ``rug_px`` are kept free below for marks."""
    positions, texts = scales.ticks(kind, window, about=8 * min(look.columns, 2))
    bottom_px = _BOTTOM_PX + (_SECOND_LINE_PX if kind is XAxis.WALL else 0)
    bottom_px += _TITLE_PX if look.paper else 0
    plot_px = look.height_px - _TOP_PX - bottom_px
    floor = rug_px / plot_px
    axis = {
        "gridcolor": ink.grid,
        "gridwidth": 1,
        "zeroline": False,
        "linecolor": ink.axis,
        "linewidth": 1,
        "ticks": "",
        "tickfont": {"size": 11, "color": ink.dim},
    }
    title = {"text": scales.TITLES[kind], "standoff": 4, "font": {"size": 11, "color": ink.dim}}
    return {
        "height": look.height_px,
        "autosize": True,
        "margin": {"l": _LEFT_PX, "r": 12, "t": _TOP_PX, "b": bottom_px, "pad": 0},
        "paper_bgcolor": ink.paper,
        "plot_bgcolor": ink.paper,
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": "zoom",
        "hoverlabel": {
            "bgcolor": ink.hover,
            "bordercolor": ink.axis,
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "namelength": -1,
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "transition": {"duration": 0},
        "xaxis": {
            **axis,
            "range": [window.start, window.end],
            "tickvals": positions,
            "ticktext": texts,
            "showgrid": False,
            "showline": True,
            "unifiedhovertitle": {"text": scales.HOVER_TITLES[kind]},
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": ink.axis,
            "anchor": "y2" if rug_rows else "y",
            **({"title": title} if look.paper else {}),
        },
        "yaxis": {
            **axis,
            "range": list(limits),
            "domain": [floor, 1],
            "fixedrange": True,
            "nticks": 6 * look.rows,
            "ticklabelstandoff": 4,
            "showline": False,
            "exponentformat": "SI",
        },
        "yaxis2": {
            "domain": [0, max(0.0, floor - RUG_GAP_PX / plot_px)] if rug_rows else [0, 0.001],
            "range": [max(rug_rows, 1) - 0.5, -0.5],
            "fixedrange": True,
            "visible": False,
        },
    }


def note(text: str, ink: Ink) -> Figure:
    """A sentence in the middle of an empty chart."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "text": escaped(text),
        "font": {"size": 13, "color": ink.dim},
    }
