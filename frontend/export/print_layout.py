"""Layout of exported pictures: charts with title, units, axis names and a legend."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radt.frontend.charts.layout import elapsed_label as clock
from radt.frontend.charts.timeseries import Look, figure, notice
from radt.frontend.charts.traces import escaped
from radt.frontend.data.model import ChartData, unit_scale
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ChartSpec, Relative, Window, XAxis
from radt.frontend.export.render_worker import Order
from radt.frontend.export.request import Asked
from radt.frontend.export.shown import ShownChart, shown_charts
from radt.frontend.selection import Selection
from radt.frontend.theme import FONT, INKS, Scheme
from radt.frontend.view import View

Figure = dict[str, Any]

_AXIS = re.compile(r"^([xy])axis(\d*)$")
_REFERENCES = ("anchor", "overlaying", "matches", "scaleanchor")


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the sheet, in pixels from the sheet's left and bottom edge."""

    left: float
    bottom: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """Size of the sheet in pixels."""

    width: float
    height: float

    def domain(self, box: Box, letter: str, share: Sequence[float]) -> list[float]:
        """Return the position of a part of a box on the sheet, both from 0 to 1."""
        start, length, whole = (
            (box.left, box.width, self.width)
            if letter == "x"
            else (box.bottom, box.height, self.height)
        )
        return [min(1.0, max(0.0, (start + length * place) / whole)) for place in share]


class Merger:
    """Places figures on a sheet."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._counts = {"x": 0, "y": 0}
        self.traces: list[Figure] = []
        self.axes: dict[str, Figure] = {}
        self.annotations: list[Figure] = []
        self.shapes: list[Figure] = []

    def add(self, figure: Figure, box: Box) -> None:
        """Place a figure's plot into a box; ticks lie outside the box."""
        layout = figure["layout"]
        axes = [match for key in layout if (match := _AXIS.match(key))]
        axes = axes or [match for key in ("xaxis", "yaxis") if (match := _AXIS.match(key))]
        names: dict[str, str] = {}
        for match in axes:
            letter = match[1]
            self._counts[letter] += 1
            number = self._counts[letter]
            names[letter + match[2]] = letter + (str(number) if number > 1 else "")
        for match in axes:
            self._add_axis(
                layout.get(match[0], {}), match[1], names[match[1] + match[2]], names, box
            )
        for trace in figure["data"]:
            own = {**trace, "showlegend": False}
            own["xaxis"] = names[trace.get("xaxis", "x")]
            own["yaxis"] = names[trace.get("yaxis", "y")]
            self.traces.append(own)
        self.annotations += [self._placed(item, names) for item in layout.get("annotations", ())]
        self.shapes += [self._placed(item, names) for item in layout.get("shapes", ())]

    def _add_axis(
        self, given: Mapping[str, Any], letter: str, name: str, names: Mapping[str, str], box: Box
    ) -> None:
        axis = copy.deepcopy(dict(given))
        axis["domain"] = self._sheet.domain(box, letter, axis.get("domain", (0.0, 1.0)))
        for key in _REFERENCES:
            if axis.get(key) in names:
                axis[key] = names[axis[key]]
        # Without an anchor, Plotly attaches an axis to another chart's first axis.
        other = "y" if letter == "x" else "x"
        axis.setdefault("anchor", names.get(other, "free"))
        self.axes[f"{letter}axis{name[1:]}"] = axis

    def _placed(self, mark: Mapping[str, Any], names: Mapping[str, str]) -> Figure:
        """Return an annotation or shape that refers to the axes of its figure."""
        own = dict(mark)
        for letter in ("x", "y"):
            reference = str(own.get(f"{letter}ref", letter))
            if reference == "paper":
                own[f"{letter}ref"] = f"{names[letter]} domain"
                continue
            name, _, rest = reference.partition(" ")
            own[f"{letter}ref"] = f"{names.get(name, name)} {rest}".strip()
        return own


#: Pixels of a picture per pixel of the sheet: sharp on paper of that size.
PNG_SCALE = 2.0
_INK = INKS[Scheme.LIGHT]
_SINGLE = (880, 440)
_CELL = (560, 304)
_EDGE_PX = 16
_HEADER_PX, _TITLE_PX = 40, 44
_LEFT_PX, _BOTTOM_PX, _RIGHT_PX = 56, 48, 16
_LEGEND_ROW_PX, _LEGEND_MARK_PX, _LEGEND_GAP_PX, _CHAR_PX = 20, 56, 40, 6.6
_MAX_LEGEND = 60
_MAX_LEGEND_CHARS = 48


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a chart in the grid: column, row, and its spans."""

    column: int
    row: int
    columns: int
    rows: int


#: Colour and dashes, as Plotly has them.
Stroke = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the legend."""

    text: str
    stroke: Stroke


def order(source: Source, asked: Asked, selection: Selection) -> Order:
    """Lay out the picture of one chart, or of all charts of a view as on the page.

    Raises:
        UsageError: There is no such chart, or no chart at all.
        StoreError: The store cannot be read.
    """
    view = asked.view
    charts = list(shown_charts(source, view, selection, asked.chart))
    single = len(charts) == 1
    columns = 1 if single else asked.columns or (2 if len(charts) <= 4 else 3)
    cell = _SINGLE if single or columns == 1 else _CELL
    places = [Place(0, 0, 1, 1)] if single else arranged([card.spec for card in charts], columns)
    rows = max(place.row + place.rows for place in places)
    drawn = [_drawn(chart, view) for chart in charts]
    entries = _entries(drawn)
    width = 2 * _EDGE_PX + columns * cell[0]
    legend_px, entry_px = _legend_size(entries, width - 2 * _EDGE_PX)
    height = 2 * _EDGE_PX + _HEADER_PX + rows * cell[1] + legend_px
    merger = Merger(Sheet(width, height))
    top = height - _EDGE_PX - _HEADER_PX
    for chart, made, place in zip(charts, drawn, places, strict=True):
        right_px = max(_RIGHT_PX, made["layout"].get("margin", {}).get("r", _RIGHT_PX))
        box = Box(
            _EDGE_PX + place.column * cell[0] + _LEFT_PX,
            top - (place.row + place.rows) * cell[1] + _BOTTOM_PX,
            place.columns * cell[0] - _LEFT_PX - right_px,
            place.rows * cell[1] - _TITLE_PX - _BOTTOM_PX,
        )
        merger.add(made, box)
        left = (box.left - _LEFT_PX) / width
        merger.annotations.append(
            _title(chart, made, view, left, (box.bottom + box.height) / height)
        )
    layout = {
        **merger.axes,
        "width": width,
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0},
        "paper_bgcolor": _INK.paper,
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": _INK.text},
        "annotations": [*merger.annotations, *_header(view, selection, charts, width, height)],
        "shapes": merger.shapes,
        "showlegend": bool(entries),
        "legend": {
            "orientation": "h",
            "x": _EDGE_PX / width,
            "xanchor": "left",
            "y": (_EDGE_PX + legend_px) / height,
            "yanchor": "top",
            "entrywidth": entry_px,
            "entrywidthmode": "pixels",
            "font": {"size": 12, "color": _INK.text},
            "bgcolor": "rgba(0,0,0,0)",
            "itemsizing": "trace",
            "itemwidth": 30,
            "maxheight": max(2, legend_px),  # else half of the sheet, and a scroll bar
        },
    }
    traces = [*merger.traces, *_legend_traces(entries)]
    return Order(
        {"data": traces, "layout": layout},
        asked.format.value,
        width,
        height,
        PNG_SCALE if asked.format == "png" else 1.0,
    )


def arranged(specs: Sequence[ChartSpec], columns: int) -> list[Place]:
    """Return the places of charts in a grid, row by row, each in the first gap after the one
    before.

    This matches CSS's ``grid-auto-flow: row``
    (https://www.w3.org/TR/css-grid-1/#auto-placement-algo).
    """
    taken: set[tuple[int, int]] = set()
    places = []
    column = row = 0
    for spec in specs:
        wide, high = min(spec.columns, columns), spec.rows
        while True:
            if column + wide > columns:
                column, row = 0, row + 1
                continue
            cells = {(column + i, row + j) for i in range(wide) for j in range(high)}
            if not cells & taken:
                break
            column += 1
        taken |= cells
        places.append(Place(column, row, wide, high))
        column += wide
    return places


def _drawn(chart: ShownChart, view: View) -> Figure:
    if chart.data is None:
        return notice("the selected runs do not have this metric", Scheme.LIGHT)
    look = Look(
        Scheme.LIGHT,
        monochrome=view.board.monochrome,
        rows=chart.spec.rows,
        columns=chart.spec.columns,
        paper=True,
    )
    made = figure(chart.data, look)
    made["layout"]["xaxis"]["showspikes"] = False
    return made


def _title(chart: ShownChart, made: Figure, view: View, x: float, y: float) -> Figure:
    """Return the metric, unit, and most important notes."""
    facts = ""
    if chart.data is not None:
        facts = " · ".join(_facts(chart.data, made, view))
    text = f"<b>{escaped(chart.spec.metric)}</b>"
    if facts:
        text += f'<br><span style="color:{_INK.dim}">{escaped(facts)}</span>'
    return {
        "xref": "paper",
        "yref": "paper",
        "x": x,
        "y": y,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 4,
        "showarrow": False,
        "align": "left",
        "text": text,
        "font": {"size": 13, "color": _INK.text},
    }


def _facts(data: ChartData, made: Figure, view: View) -> Iterator[str]:
    meta = made["layout"]["meta"]
    if meta["unit"]:
        yield str(meta["unit"])
    if data.aggregate is not None:
        yield f"{data.aggregate} of runs"
    if data.quantity.subtitle:
        yield data.quantity.subtitle
    if data.smoothing_width:
        yield f"smoothed over {data.spec.smoothing_of(view.board):g} %"
    if data.relative is not Relative.OFF:
        yield f"{data.relative} to the baseline"
    yield from meta["notes"]


def _header(
    view: View, selection: Selection, charts: Sequence[ShownChart], width: float, height: float
) -> list[Figure]:
    """Return the experiment and the visible range."""
    words = [" · ".join(selection.experiments)]
    zoomed = {chart.spec.zoom_of(view.board): chart.data for chart in charts if chart.data}
    words += [
        _stretch(data, view.windows[name])
        for name, data in sorted(zoomed.items())
        if name in view.windows
    ]
    return [
        {
            "xref": "paper",
            "yref": "paper",
            "x": _EDGE_PX / width,
            "y": 1 - _EDGE_PX / height,
            "xanchor": "left",
            "yanchor": "top",
            "showarrow": False,
            "text": escaped("  ".join(word for word in words if word)),
            "font": {"size": 15, "color": _INK.text},
        }
    ]


def _stretch(data: ChartData, zoom: Window) -> str:
    axis = data.x
    if axis is XAxis.METRIC:
        scale = unit_scale(data.x_unit, max(abs(zoom.start), abs(zoom.end)))
        start, end = zoom.start * scale.factor, zoom.end * scale.factor
        return f"{data.spec.over} {start:.4g} – {end:.4g} {scale.label}".rstrip()
    if axis in (XAxis.BARRIER, XAxis.START):
        step_s = (zoom.end - zoom.start) / 100
        return f"{clock(zoom.start, step_s)} – {clock(zoom.end, step_s)}"
    if axis is XAxis.WALL:
        return ""  # the axis has the date
    return f"{axis} {zoom.start:g} – {zoom.end:g}"


def _entries(drawn: Sequence[Figure]) -> list[_Entry]:
    """Return the legend's entries, each once: a run looks the same in all charts."""
    labels: dict[tuple[str, Stroke], dict[str, None]] = {}
    shorts: dict[tuple[str, Stroke], str] = {}
    for made in drawn:
        meta = made["layout"].get("meta", {})
        keys = {line["key"] for line in meta.get("lines", ())}
        # Runs look the same on a second axis, but for dots; devices may be on that axis only.
        second = (meta.get("second") or {}).get("lines", ())
        beside = [line for line in second if line["key"] not in keys]
        for line in (*meta.get("lines", ()), *beside):
            if line["hidden"]:
                continue
            look = (line["key"], (("color", line["colour"]), ("dash", line["stroke"])))
            labels.setdefault(look, {})[" ".join(line["label"].split())] = None
            shorts[look] = line["short"]
    # A workload's sum in one chart and its mean in another: use its name.
    entries = [
        _Entry(_shortened(next(iter(members)) if len(members) == 1 else shorts[look]), look[1])
        for look, members in labels.items()
    ]
    if len(entries) > _MAX_LEGEND:
        more = len(entries) - _MAX_LEGEND
        nothing = (("color", "rgba(0,0,0,0)"),)
        entries = [*entries[:_MAX_LEGEND], _Entry(f"and {more} more", nothing)]
    return entries


def _shortened(label: str) -> str:
    return label if len(label) <= _MAX_LEGEND_CHARS else label[: _MAX_LEGEND_CHARS - 1] + "…"


def _legend_size(entries: Sequence[_Entry], width: float) -> tuple[int, float]:
    """Return the legend's height and an entry's text width: Plotly aligns entries in columns."""
    if not entries:
        return 0, 0.0
    text_px = _CHAR_PX * max(len(entry.text) for entry in entries) + 8
    columns = max(1, int(width // (text_px + _LEGEND_MARK_PX)))
    rows = -(-len(entries) // columns)
    if rows > 1:  # so wide that no other column fits in between the edges
        text_px = width / columns - _LEGEND_GAP_PX
    return rows * _LEGEND_ROW_PX + 8, text_px


def _legend_traces(entries: Sequence[_Entry]) -> list[Figure]:
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [None],
            "y": [None],
            "name": escaped(entry.text),
            "line": {**dict(entry.stroke), "width": 2},
            "showlegend": True,
        }
        for entry in entries
    ]
