"""Size, margins, axes, ticks and line names of a figure: everything except the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from radt.frontend.charts.traces import Figure, Ordinate, Pen, escaped
from radt.frontend.data.model import NamedCurve
from radt.frontend.data.spec import AxisRange, XAxis
from radt.frontend.theme import FONT, Ink, Scheme
from radt.render.labels import shortened
from radt.units import Scale

_STEPS_S = (
    *(base * 10.0**exponent for exponent in range(-6, 1) for base in (1, 2, 5)),
    *(10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0, 432000.0, 864000.0),
)


def elapsed_ticks(start_s: float, end_s: float, about: int = 6) -> tuple[list[float], list[str]]:
    """Return positions in seconds and their labels, at most ``about`` + 1 of them."""
    span_s = end_s - start_s
    step_s = next((s for s in _STEPS_S if span_s / s <= about), span_s / about)
    first = math.ceil(start_s / step_s - 1e-9)
    last = math.floor(end_s / step_s + 1e-9)
    positions = [index * step_s for index in range(first, last + 1)]
    return positions, [elapsed_label(position, step_s) for position in positions]


def elapsed_label(seconds: float, step_s: float = 1.0) -> str:
    """Return ``0:07``, ``1:30`` or ``2:05:00``, with decimals if ticks are under a second apart."""
    decimals = max(0, -math.floor(math.log10(step_s) + 1e-9)) if step_s < 1 else 0
    sign = "−" if round(seconds, decimals) < 0 else ""
    # Round first: 59.9999 must not become 0:60.
    total = round(abs(seconds), decimals)
    whole = int(total)
    fraction = f"{total - whole:.{decimals}f}"[1:] if decimals else ""
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        days, hours = divmod(hours, 24)
        return f"{sign}{days}d {hours}:{minutes:02}"
    text = f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
    return sign + text + fraction


_DAY_S = 86_400.0
_WALL_STEPS_S = (
    *(base * 10.0**exponent for exponent in range(-6, 0) for base in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0),
    *(days * _DAY_S for days in (1, 2, 7, 14, 28, 56, 112, 364)),
)

#: Titles of the axis if there is room, as on paper.
TITLES = {
    XAxis.BARRIER: "time since the barrier",
    XAxis.START: "time since the run's start",
    XAxis.WALL: "time of day",
    XAxis.STEP: "step",
    XAxis.EPOCH: "epochs done",
}


@dataclass(frozen=True, slots=True)
class Abscissa:
    """The x axis of a figure: its kind, visible range and title.

    ``scale`` is that of a metric. The range of a ``log`` axis is above 0.
    """

    kind: XAxis
    window: AxisRange
    title: str
    scale: Scale = field(default_factory=lambda: Scale(1.0, ""))
    log: bool = False

    def drawn(self, about: int) -> Figure:
        """Return range, type and about this many ticks, in Plotly's terms."""
        window, factor = self.window, self.scale.factor
        seen = AxisRange(window.start * factor, window.end * factor)
        positions, texts = (
            log_ticks(self.kind, seen) if self.log else axis_ticks(self.kind, seen, about)
        )
        ends = [window.start, window.end]
        return {
            "type": "log" if self.log else "linear",
            "range": [math.log10(end) for end in ends] if self.log else ends,
            "tickvals": [position / factor for position in positions],
            "ticktext": texts,
        }


def axis_ticks(kind: XAxis, window: AxisRange, about: int = 8) -> tuple[list[float], list[str]]:
    """Return positions on the axis and their labels."""
    match kind:
        case XAxis.WALL:
            return _wall(window, about)
        case XAxis.STEP:
            return _numbers(window, about, smallest=1.0)
        case XAxis.EPOCH | XAxis.METRIC:
            return _numbers(window, about, smallest=0.0)
    return elapsed_ticks(window.start, window.end, about=about)


def log_ticks(kind: XAxis, window: AxisRange) -> tuple[list[float], list[str]]:
    """Return positions on a logarithmic axis and their labels.

    These are powers of ten; over less than two decades, also 2 and 5 times these; over less than
    one, round values as on other axes.
    """
    low, high = math.log10(window.start), math.log10(window.end)
    if high - low < 1:
        return axis_ticks(kind, window)
    step = max(1, math.ceil((high - low) / 8))
    powers = range(math.floor(low), math.ceil(high) + 1, step)
    positions = [
        base * 10.0**power
        for power in powers
        for base in ((1, 2, 5) if high - low < 2 else (1,))
        if low - 1e-9 <= math.log10(base) + power <= high + 1e-9
    ]
    if kind in (XAxis.STEP, XAxis.EPOCH, XAxis.METRIC):
        return positions, [f"{at:,.0f}" if at >= 1 else f"{at:.12g}" for at in positions]
    return positions, [elapsed_label(at, min(at, 1.0)) for at in positions]


def _numbers(window: AxisRange, about: int, smallest: float) -> tuple[list[float], list[str]]:
    """Return round numbers, labelled like ``1,000``."""
    rough = max((window.end - window.start) / about, smallest, 1e-9)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(base * power for base in (1, 2, 5, 10) if base * power >= rough * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(window.start / step - 1e-9), math.floor(window.end / step + 1e-9)
    positions = [number * step for number in range(first, last + 1)]
    return positions, [f"{position:,.{decimals}f}" for position in positions]


def _wall(window: AxisRange, about: int) -> tuple[list[float], list[str]]:
    """Return times of day of this machine, with the date at the first tick and at each new day."""
    span_s = window.end - window.start
    step_s = next((s for s in _WALL_STEPS_S if span_s / s <= about), _WALL_STEPS_S[-1])
    shift_s = utc_offset_s(window)  # round in local time
    first = math.ceil((window.start + shift_s) / step_s - 1e-9)
    last = math.floor((window.end + shift_s) / step_s + 1e-9)
    positions = [number * step_s - shift_s for number in range(first, last + 1)]
    labels = []
    day = ""
    for position in positions:
        labels.append(wall_label(position, step_s, day))
        day = labels[-1].split("<br>")[-1] if "<br>" in labels[-1] else day
    return positions, labels


def utc_offset_s(window: AxisRange) -> float:
    """Return this machine's UTC offset at the window's start, in seconds."""
    local = datetime.fromtimestamp(window.start).astimezone().utcoffset()
    return 0.0 if local is None else local.total_seconds()


def wall_label(at_s: float, step_s: float, day: str = "") -> str:
    """Return ``14:30`` or ``14:30:05.2``, with the date below if it is not ``day``."""
    moment = datetime.fromtimestamp(round(at_s, 6)).astimezone()
    date = f"{moment.day} {moment:%b}"
    if step_s >= _DAY_S:
        return date if f"{moment:%H:%M}" == "00:00" else f"{moment:%H:%M}<br>{date}"
    text = f"{moment:%H:%M}" if step_s >= 60 else f"{moment:%H:%M:%S}"
    if step_s < 1:
        decimals = -math.floor(math.log10(step_s) + 1e-9)
        text += f".{moment.microsecond:06}"[: 1 + decimals]
    return text if date == day else f"{text}<br>{date}"


HEIGHT_PX = 280
#: The distance between two rows of charts: a card's head and the space between cards.
ROW_GAP_PX = 56
RUG_GAP_PX = 6
_LEAST_PX = 160
_TOP_PX, _BOTTOM_PX, _LEFT_PX, _SECOND_LINE_PX, _TITLE_PX = 8, 28, 52, 14, 20


@dataclass(frozen=True, slots=True)
class Look:
    """Style of a figure: colours, size in cells of the grid, for ``paper`` or the screen.

    Nobody can hover over paper, so details are written out. ``small`` is one of many charts:
    without names at the lines, titles and marks. ``shown_px`` is its height on the screen and
    ``width_px`` the width of its lines, 0 if unknown.
    """

    scheme: Scheme = Scheme.LIGHT
    monochrome: bool = False
    rows: int = 1
    columns: int = 1
    paper: bool = False
    small: bool = False
    shown_px: int = 0
    width_px: int = 0

    @property
    def height_px(self) -> int:
        if self.shown_px:
            return max(self.shown_px, _LEAST_PX)
        return HEIGHT_PX * self.rows + ROW_GAP_PX * (self.rows - 1)


def layout_of(
    ink: Ink,
    x: Abscissa,
    limits: tuple[float, float],
    look: Look,
    rug_px: int,
    rug_rows: int,
    title: str = "",
    marks: str = "",
) -> Figure:
    """Return the layout of a figure without its data.

    ``title`` is that of the y axis. ``rug_px`` is the height reserved at the bottom for marks,
    which the x axis's title explains with ``marks``.
    """
    bottom_px = _BOTTOM_PX + (_SECOND_LINE_PX if x.kind is XAxis.WALL else 0)
    bottom_px += 0 if look.small else _TITLE_PX
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
    small_print = {"size": 11, "color": ink.dim}
    x_title = {"text": escaped(x.title) + marks, "standoff": 4, "font": small_print}
    return {
        "height": look.height_px,
        "autosize": True,
        "margin": {
            "l": _LEFT_PX + (_TITLE_PX if title else 0),
            "r": 12,
            "t": _TOP_PX,
            "b": bottom_px,
            "pad": 0,
        },
        "paper_bgcolor": ink.paper,
        "plot_bgcolor": ink.paper,
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": "zoom",
        # The page's own tooltip (static/compare_cursor.js) is more concise.
        "hovermode": False,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "transition": {"duration": 0},
        "xaxis": {
            **axis,
            **x.drawn(about=8 * min(look.columns, 2)),
            "showgrid": False,
            "showline": True,
            "anchor": "y2" if rug_rows else "y",
            **({} if look.small else {"title": x_title}),
        },
        "yaxis": {
            **axis,
            "range": list(limits),
            "domain": [floor, 1],
            "fixedrange": True,
            **({"title": _y_title(title, ink)} if title else {}),
            "nticks": max(6 * look.rows, look.height_px // 60),
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


def add_second_axis(layout: Figure, limits: tuple[float, float], title: str, ink: Ink) -> None:
    """Add a second y axis, ``y3``, to the right of a layout."""
    layout["margin"]["r"] = _LEFT_PX + _TITLE_PX
    layout["yaxis3"] = layout["yaxis"] | {
        "range": list(limits),
        "overlaying": "y",
        "anchor": "x",
        "side": "right",
        "tickmode": "auto",  # its own round values, rather than those beside the grid
        "showgrid": False,
        "title": _y_title(title, ink),
    }


def _y_title(text: str, ink: Ink) -> Figure:
    return {"text": escaped(text), "standoff": 4, "font": {"size": 11, "color": ink.dim}}


def note(text: str, ink: Ink) -> Figure:
    """Return a sentence in the middle of an empty chart."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "text": escaped(text),
        "font": {"size": 13, "color": ink.dim},
    }


MAX_LABELS = 8
_LABEL_PX = 14
#: Width of a character of a name.
CHAR_PX = 7
#: Names of lines get at least this many characters, and more in up to this share of the width.
_LABEL_CHARS, _LABEL_SHARE = 14, 0.25


def label_chars(lines: Sequence[NamedCurve], look: Look) -> int:
    """Return how many characters of the names of lines to show on the right."""
    longest = max((len(line.short) for line in lines), default=0)
    return min(longest, max(_LABEL_CHARS, int(look.width_px * _LABEL_SHARE / CHAR_PX)))


def end_labels(
    drawn: Sequence[tuple[NamedCurve, Pen]],
    window: AxisRange,
    ordinate: Ordinate,
    limits: tuple[float, float],
    plot_px: float,
    characters: int,
) -> list[Figure]:
    """Return the names at the ends of lines, moved apart where they would overlap.

    They are shortened to ``characters``.
    """
    ends = []
    for line, pen in drawn:
        x, values = line.curve.x, ordinate.of(line.curve.values)
        finite = np.isfinite(values)
        seen = np.flatnonzero(finite & (x <= window.end))
        # A line that ended before the window has no name here, unless it crosses the window.
        if len(seen) and finite[x >= window.start].any():
            value = float(values[seen[-1]])
            if ordinate.log:
                value = math.log10(value)
            share = (value - limits[0]) / (limits[1] - limits[0])
            ends.append((min(1.0, max(0.0, share)) * plot_px, line, pen))
    ends.sort(key=lambda end: end[0])
    heights = spread([end[0] for end in ends], _LABEL_PX, plot_px)
    return [
        {
            "xref": "paper",
            "x": 1,
            "xanchor": "left",
            "xshift": 4,
            "yref": "y domain",
            "y": height / plot_px,
            "yanchor": "middle",
            "showarrow": False,
            "text": escaped(shortened(line.short, characters)),
            "name": line.key,
            "font": {"size": 11, "color": pen.colour},
        }
        for height, (_, line, pen) in zip(heights, ends, strict=True)
    ]


def spread(heights: Sequence[float], gap: float, limit: float) -> list[float]:
    """Move sorted positions at least ``gap`` apart, as little as possible, within 0 to ``limit``.

    Positions that are too close form a block around their common centre; blocks that touch merge.
    """
    blocks: list[tuple[float, int]] = []  # bottom of the block, positions in it
    for height in heights:
        bottom, count = height, 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > bottom:
            below, many = blocks.pop()
            # Weighted mean of the centres: each position counts equally.
            centre = (
                (below + (many - 1) * gap / 2) * many + (bottom + (count - 1) * gap / 2) * count
            ) / (many + count)
            count += many
            bottom = min(max(0.0, centre - (count - 1) * gap / 2), limit - (count - 1) * gap)
        blocks.append((bottom, count))
    return [bottom + index * gap for bottom, count in blocks for index in range(count)]
