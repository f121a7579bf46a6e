"""Figures on paper that are no bars of one quantity: total times, and who slows down whom."""

from __future__ import annotations

from collections.abc import Sequence

from radt.frontend.charts.traces import Figure, escaped
from radt.frontend.palette import Scheme, colour
from radt.frontend.report.barmarks import reaches
from radt.frontend.report.bars import MAX_BARS
from radt.frontend.report.data import Shown
from radt.frontend.report.papers import base, text_at
from radt.frontend.theme import INKS
from radt.report.estimates import Estimate
from radt.report.formats.chart_bars import Way, way_of
from radt.report.formats.columns import column
from radt.report.formats.matrix import Matrix
from radt.report.quantities import Quantity

_INK = INKS[Scheme.LIGHT]
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 72, 24, 88, 104
_BAR_PX, _SMALLEST_PX, _PLOT_PX = 44, 360, 240
_CELL_PX, _CELL_HEIGHT_PX, _CHARACTER_PX = 108, 44, 7.0
_MOST_LABEL_PX = 280


def total_time(shown: Shown) -> Figure | None:
    """What workloads take together, and what their runs take one after the other.

    None where no workload has both.
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
    axis = column(Quantity.MAKESPAN, [serial for _, _, serial in rows])
    factor = axis.scale.factor
    names = [escaped(entry.name) for entry, _, _ in rows]
    order = list(Way)
    width = _LEFT_PX + _RIGHT_PX + max(_SMALLEST_PX, 2 * _BAR_PX * len(rows))
    height = _TOP_PX + _PLOT_PX + _BOTTOM_PX

    def bars(name: str, found: Sequence[Estimate], colours: str | list[str]) -> Figure:
        return {
            "type": "bar",
            "name": name,
            "x": list(range(len(rows))),
            "y": [one.mean * factor for one in found],
            "marker": {"color": colours},
            "error_y": {
                "type": "data",
                **reaches(found, factor),
                "color": _INK.text,
                "thickness": 1,
                "width": 3,
            },
            "text": [axis.number(one.mean) for one in found],
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
    """How much models slow each other down."""
    rows, columns = len(matrix.rows), len(matrix.columns)
    left = min(_MOST_LABEL_PX, 24 + max(map(len, matrix.rows)) * _CHARACTER_PX)
    bottom = min(_MOST_LABEL_PX, 32 + max(map(len, matrix.columns)) * _CHARACTER_PX * 0.7)
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
                "zmax": max(2.0, *(one for row in values for one in row if one is not None)),
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


def _in_two_lines(text: str) -> str:
    return text.replace(", ", ",<br>", 1)
