"""Printed figures of a report: bars and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity
from radt.frontend.charts.report_bars import figure, reaches
from radt.frontend.charts.traces import Figure, escaped
from radt.frontend.data.report_model import (
    MAX_BARS,
    PEAKS,
    Bar,
    Shown,
    column_of,
    size_of,
    title_of,
)
from radt.frontend.export.print_layout import Box, Merger, Sheet
from radt.frontend.theme import FONT, INKS, Scheme, colour
from radt.render.numbers import INTERVAL_NOTE, error_bar, scaled
from radt.render.report_content import Matrix, Way, way_of

_INK = INKS[Scheme.LIGHT]
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 72, 24, 88, 104
_BAR_PX, _SMALLEST_PX, _PLOT_PX = 44, 360, 240
_TITLE_CHARS = 60
_CHARACTER_PX = 6.4


def in_order(bars: Sequence[Bar]) -> list[Bar]:
    """Sort by degree of collocation, then by collocation, which sets the colour."""
    ways = [(way_of(bar.entry.summary), bar) for bar in bars]
    order = list(Way)
    ways.sort(key=lambda pair: (pair[1].degree, order.index(pair[0])))
    return [replace(bar, tint=order.index(way)) for way, bar in ways]


def single(quantity: AnyQuantity, bars: Sequence[Bar], shown: Shown) -> Figure:
    """Draw one quantity of all workloads."""
    return _sheet(", ".join(shown.experiments), [(quantity, bars)], shown.window)


def panels(title: str, of: Sequence[tuple[AnyQuantity, Sequence[Bar]]]) -> Figure:
    """Draw several quantities of the same workloads side by side."""
    return _sheet(title, of, "")


def _sheet(title: str, of: Sequence[tuple[AnyQuantity, Sequence[Bar]]], window: str) -> Figure:
    blocks = [len({bar.degree for bar in bars}) for _, bars in of]
    widths = [
        max(_SMALLEST_PX, min(len(bars), MAX_BARS) * _BAR_PX + count * _BAR_PX // 2)
        for (_, bars), count in zip(of, blocks, strict=True)
    ]
    width = sum(widths) + len(of) * (_LEFT_PX + _RIGHT_PX)
    height = _TOP_PX + _PLOT_PX + _BOTTOM_PX
    merger = Merger(Sheet(width, height))
    left = 0
    for place, ((quantity, bars), wide) in enumerate(zip(of, widths, strict=True)):
        made = figure(quantity, bars, Scheme.LIGHT, size_of(len(bars)), in_blocks=True)
        names = made["layout"]["xaxis"]["ticktext"]
        # On paper bars have their own width, independent of a page's size.
        fits = max(map(len, names), default=0) * _CHARACTER_PX <= _BAR_PX
        made["layout"]["xaxis"] |= {"tickangle": 0 if fits else -40, "automargin": False}
        merger.add(made, Box(left + _LEFT_PX, _BOTTOM_PX, wide, _PLOT_PX))
        letter = f"({chr(ord('a') + place)}) " if len(of) > 1 else ""
        merger.annotations.append(
            text_at(
                f"<b>{letter}{title_of(quantity)}</b>  {escaped(_unit(quantity, bars))}",
                (left + _LEFT_PX) / width,
                1 - 42 / height,
                size=13,
            )
        )
        left += wide + _LEFT_PX + _RIGHT_PX
    words = [title[:_TITLE_CHARS], *([window] if window else [])]
    merger.annotations.append(
        text_at(escaped(" · ".join(words)), _LEFT_PX / width, 1 - 14 / height, size=15)
    )
    if any(bar.estimate and error_bar(bar.estimate) for _, bars in of for bar in bars):
        note = escaped(INTERVAL_NOTE.replace("± or from–to", "Whiskers"))
        merger.annotations.append(text_at(note, _LEFT_PX / width, 6 / height, size=11))
    ways = {way_of(bar.entry.summary) for _, bars in of for bar in bars}
    return {
        "data": [*merger.traces, *_legend([way for way in Way if way in ways])],
        "layout": {
            **base(width, height),
            **merger.axes,
            "annotations": merger.annotations,
            "shapes": merger.shapes,
            "bargap": 0,
            "showlegend": len(ways) > 1,
            "legend": {
                "orientation": "h",
                "x": 1 - _RIGHT_PX / width,
                "xanchor": "right",
                "y": 1 - 8 / height,
                "yanchor": "top",
            },
        },
    }


def _unit(quantity: AnyQuantity, bars: Sequence[Bar]) -> str:
    words = [column_of(quantity, bars).unit]
    if quantity in PEAKS and any(bar.peak is not None for bar in bars):
        words.append("bar mean, line and number peak")
    if len(bars) > MAX_BARS:
        words.append(f"the first {MAX_BARS} of {len(bars):,}")
    return ", ".join(word for word in words if word)


def _legend(ways: Sequence[Way]) -> list[Figure]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": way.value,
            "marker": {
                "symbol": "square",
                "size": 11,
                "color": colour(list(Way).index(way), Scheme.LIGHT),
            },
            "showlegend": True,
        }
        for way in ways
    ]


def base(width: float, height: float) -> Figure:
    """Return the layout of a figure of that size in pixels."""
    return {
        "width": width,
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0},
        "paper_bgcolor": _INK.paper,
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": _INK.text},
    }


def text_at(text: str, x: float, y: float, *, size: int) -> Figure:
    """Return a text on the paper, from 0 to 1 in both directions; ``size`` in points."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": x,
        "y": y,
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
        "text": text,
        "font": {"size": size, "color": _INK.text},
    }


_CELL_PX, _CELL_HEIGHT_PX, _MAP_CHARACTER_PX = 108, 44, 7.0
_MOST_LABEL_PX = 280


def total_time(shown: Shown) -> Figure | None:
    """Draw the time of workloads, and of their runs one after the other.

    None if no workload has both.
    """
    rows = [
        (entry, together, serial)
        for entry in shown.entries
        if (together := entry.summary.values.get(Quantity.MAKESPAN)) is not None
        and (serial := entry.summary.values.get(Quantity.SERIAL)) is not None
        and entry.summary.run_count > 1
    ][:MAX_BARS]
    if not rows:
        return None
    axis = scaled(Quantity.MAKESPAN, [serial for _, _, serial in rows])
    factor = axis.scale.factor
    names = [escaped(entry.name) for entry, _, _ in rows]
    order = list(Way)
    width = _LEFT_PX + _RIGHT_PX + max(_SMALLEST_PX, 2 * _BAR_PX * len(rows))
    height = _TOP_PX + _PLOT_PX + _BOTTOM_PX

    def bars(name: str, estimates: Sequence[Estimate], colours: str | list[str]) -> Figure:
        return {
            "type": "bar",
            "name": name,
            "x": list(range(len(rows))),
            "y": [estimate.mean * factor for estimate in estimates],
            "marker": {"color": colours},
            "error_y": {
                "type": "data",
                **reaches(estimates, factor),
                "color": _INK.text,
                "thickness": 1,
                "width": 3,
            },
            "text": [axis.number(estimate.mean) for estimate in estimates],
            "textposition": "inside",
            "textangle": 0,
            "insidetextanchor": "end",
        }

    ways = [colour(order.index(way_of(entry.summary)), Scheme.LIGHT) for entry, _, _ in rows]
    return {
        "data": [
            bars("one after the other", [serial for _, _, serial in rows], _INK.axis),
            bars("together", [together for _, together, _ in rows], ways),
        ],
        "layout": {
            **base(width, height),
            "margin": {"l": _LEFT_PX, "r": _RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX, "pad": 0},
            "barmode": "group",
            "bargap": 0.25,
            "legend": {
                "orientation": "h",
                "x": 1,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
            },
            "annotations": [
                {
                    **text_at(
                        f"<b>Total time</b>  {axis.unit} · {escaped(', '.join(shown.experiments))}",
                        0,
                        1,
                        size=13,
                    ),
                    "yanchor": "bottom",
                    "yshift": 36,
                }
            ],
            "xaxis": {
                "tickvals": list(range(len(rows))),
                "ticktext": names,
                "tickangle": -40 if max(map(len, names)) > 10 else 0,
                "linecolor": _INK.axis,
                "showgrid": False,
            },
            "yaxis": {"gridcolor": _INK.grid, "rangemode": "tozero", "zeroline": False},
        },
    }


def heat_map(matrix: Matrix) -> Figure:
    """Draw how much models slow each other down."""
    rows, columns = len(matrix.rows), len(matrix.columns)
    left = min(_MOST_LABEL_PX, 24 + max(map(len, matrix.rows)) * _MAP_CHARACTER_PX)
    bottom = min(_MOST_LABEL_PX, 32 + max(map(len, matrix.columns)) * _MAP_CHARACTER_PX * 0.7)
    width = round(left + max(_SMALLEST_PX + 60, columns * _CELL_PX) + _RIGHT_PX)
    height = round(_TOP_PX + rows * _CELL_HEIGHT_PX + bottom)
    values = [
        [None if cell is None else cell.estimate.mean for cell in row] for row in matrix.cells
    ]
    return {
        "data": [
            {
                "type": "heatmap",
                "z": values,
                "text": [
                    ["–" if cell is None else escaped(cell.text) for cell in row]
                    for row in matrix.cells
                ],
                "texttemplate": "%{text}",
                "textfont": {"size": 12},
                "colorscale": [[0, "#ffffff"], [1, "#e98a4b"]],
                "zmin": 1,
                "zmax": max(2.0, *(value for row in values for value in row if value is not None)),
                "showscale": False,
                "xgap": 2,
                "ygap": 2,
            }
        ],
        "layout": {
            **base(width, height),
            "margin": {"l": left, "r": _RIGHT_PX, "t": _TOP_PX, "b": bottom, "pad": 0},
            "annotations": [
                {
                    **text_at(f"<b>{escaped(matrix.title)}</b>", 0, 1, size=13),
                    "yanchor": "bottom",
                    "yshift": 42,
                },
                {
                    **text_at(
                        escaped(matrix.explanation).replace(", over", ",<br>over"), 0, 1, size=11
                    ),
                    "align": "left",
                    "yanchor": "bottom",
                    "yshift": 6,
                },
            ],
            "xaxis": {
                "tickvals": list(range(columns)),
                "ticktext": list(map(escaped, matrix.columns)),
                "tickangle": -35,
                "ticks": "",
                "showgrid": False,
                "zeroline": False,
            },
            "yaxis": {
                "tickvals": list(range(rows)),
                "ticktext": list(map(escaped, matrix.rows)),
                "autorange": "reversed",
                "ticks": "",
                "showgrid": False,
                "zeroline": False,
            },
        },
    }
