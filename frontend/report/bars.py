"""One quantity as bars: a bar for the like runs of a workload, or for the workload's devices.

In the manner of papers on collocation: blocks by how many runs share the hardware, whiskers for the
standard deviation over repeats. What did not finish stands in its place with the word for how it
ended: that memory did not suffice is a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.frontend.catalog import STATUS_WORDS
from radt.frontend.charts.quantity import UnitScale
from radt.frontend.charts.traces import Figure, escaped
from radt.frontend.palette import Scheme, colour
from radt.frontend.report.cells import Column, scale_of, told
from radt.frontend.report.choices import BY_ORDER, Choices
from radt.frontend.report.data import Entry, Shown, sorted_groups
from radt.frontend.report.files import runs_text
from radt.frontend.theme import FONT, INKS, Ink
from radt.model import RunStatus
from radt.report.estimates import Estimate
from radt.report.quantities import ABOUT, Combine, Of, Quantity
from radt.report.summary import GroupSummary
from radt.units import plural

HEIGHT_PX = 264
#: More are a table.
MAX_BARS = 60
#: Up to here three charts stand beside each other, or two.
_SMALL_BARS, _MEDIUM_BARS = 6, 20
_TOP_PX, _BOTTOM_PX, _LEFT_PX, _RIGHT_PX = 28, 28, 48, 12
_SLANTED_PX = 96
_CHARACTER_PX, _DIGIT_PX = 6.4, 6.2
_LABEL_CHARS = 18
_BLOCK_GAP = 0.7
_WIDTH = 0.72
_AIR = 1.16

#: What is drawn into the chart of another quantity.
PEAKS = {
    Quantity.MEMORY: Quantity.MEMORY_PEAK,
    Quantity.GPU_MEMORY: Quantity.GPU_MEMORY_PEAK,
}


class Size(StrEnum):
    """How wide charts are."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


_PLOT_PX = {Size.SMALL: 380.0, Size.MEDIUM: 600.0, Size.LARGE: 1200.0}
_HEADINGS = {
    Quantity.TIME_PER_EPOCH: "Time per epoch",
    Quantity.SLOWDOWN: "Slowdown against solo",
    Quantity.MAKESPAN: "Makespan",
    Quantity.SERIAL: "One after the other",
    Quantity.SPEED_UP: "Speed-up over one after the other",
    Quantity.SAMPLES_PER_S: "Samples per second",
    Quantity.SAMPLES_PER_S_OF_RUN: "Samples per second and run",
    Quantity.CPU: "CPU",
    Quantity.MEMORY: "Memory",
    Quantity.MEMORY_PEAK: "Memory, peak",
    Quantity.SM_ACTIVE: "GPU: SM active",
    Quantity.GPU_UTILIZATION: "GPU: utilisation",
    Quantity.GPU_MEMORY_PEAK: "GPU memory, peak",
    Quantity.GPU_MEMORY_OF_RUN: "GPU memory of a run, peak",
    Quantity.ENERGY: "Energy of the GPUs",
    Quantity.ENERGY_PER_EPOCH: "Energy per epoch",
    Quantity.ENERGY_PER_SAMPLE: "Energy per sample",
    Quantity.ENERGY_OF_RUNS: "Energy of the runs, estimated",
    Quantity.CARBON: "Carbon",
    Quantity.CARBON_PER_EPOCH: "Carbon per epoch",
    Quantity.DISK_READ: "Read from disks",
    Quantity.DISK_WRITTEN: "Written to disks",
    Quantity.TRACKER_CPU: "CPU of the tracker",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar; without ``estimate`` the word for how the runs ended.

    ``tint`` is the place of its colour: that of its first run on all pages.
    """

    entry: Entry
    label: str
    runs: str
    status: RunStatus
    run_count: int
    estimate: Estimate | None
    peak: Estimate | None = None
    tint: int = 0

    @property
    def degree(self) -> int:
        """How many runs share the hardware."""
        return self.entry.summary.run_count


def charted(shown: Shown) -> tuple[Quantity, ...]:
    """The quantities that have a chart of their own."""
    drawn_elsewhere = {peak for mean, peak in PEAKS.items() if mean in shown.quantities}
    return tuple(one for one in shown.quantities if one not in drawn_elsewhere)


def bars_of(shown: Shown, quantity: Quantity, choices: Choices) -> list[Bar]:
    """The bars, in the table's order, or by degree of collocation where none was chosen.

    Those of workloads behind the first `MAX_BARS` bars are left out.
    """
    entries = list(shown.entries)
    if choices.sort == BY_ORDER:
        entries.sort(key=lambda entry: entry.summary.run_count)
    bars: list[Bar] = []
    for entry in entries:
        if len(bars) > MAX_BARS:
            break
        groups = sorted_groups(entry, choices)
        if ABOUT[quantity].of is not Of.RUNS:
            bars += _of_workload(entry, groups, quantity)
        else:
            several = len({group.name for group in groups}) > 1
            for group in groups:
                bars += _of_group(entry, group, quantity, several=several)
    return bars


def size_of(bar_count: int) -> Size:
    """How wide a chart with so many bars is."""
    if bar_count <= _SMALL_BARS:
        return Size.SMALL
    return Size.MEDIUM if bar_count <= _MEDIUM_BARS else Size.LARGE


def title_of(quantity: Quantity) -> str:
    """Of a chart."""
    return _HEADINGS.get(quantity, ABOUT[quantity].title)


def column_of(quantity: Quantity, bars: Sequence[Bar]) -> Column:
    """The unit of the axis."""
    return Column(quantity, _scale(quantity, bars))


def figure(
    quantity: Quantity, bars: Sequence[Bar], scheme: Scheme, size: Size, *, in_blocks: bool
) -> Figure:
    """Draw at most `MAX_BARS`."""
    ink = INKS[scheme]
    bars = bars[:MAX_BARS]
    axis = column_of(quantity, bars)
    factor = axis.scale.factor
    blocks = _blocks(bars) if in_blocks else [(0, len(bars))]
    at = _positions(blocks)
    drawn = [(x, bar, bar.estimate) for x, bar in zip(at, bars, strict=True)]
    known = [(x, bar, estimate) for x, bar, estimate in drawn if estimate is not None]
    top = _top([bar for _, bar, _ in known]) * factor
    traces: list[Figure] = [
        {
            "type": "bar",
            "x": [x for x, _, _ in known],
            "y": [estimate.mean * factor for _, _, estimate in known],
            "width": _WIDTH,
            "marker": {
                "color": [colour(bar.tint, scheme) for _, bar, _ in known],
                "line": {"width": 0},
                "pattern": {
                    "shape": ["/" if estimate.is_estimated else "" for _, _, estimate in known],
                    "fillmode": "replace",
                    "size": 6,
                    "solidity": 0.35,
                },
            },
            "error_y": {
                "type": "data",
                "array": [
                    estimate.spread * factor if estimate.spread else None
                    for _, _, estimate in known
                ],
                "visible": any(estimate.spread for _, _, estimate in known),
                "color": ink.text,
                "thickness": 1,
                "width": 3,
            },
            "hovertext": [_hover(quantity, bar, estimate) for _, bar, estimate in known],
            "hoverinfo": "text",
            "showlegend": False,
            "name": "",
        }
    ]
    traces += _parts(quantity, known, factor, ink)
    traces += _peaks(quantity, known, factor, ink)
    layout = _layout(ink, bars, at, size, max(top * _AIR, 1e-12))
    layout["shapes"] = _separators(blocks, at, ink)
    if quantity is Quantity.SLOWDOWN and known:
        layout["shapes"].append(_hairline(1.0, ink))
    layout["annotations"] = [
        *_block_labels(bars, blocks, at, ink),
        *_ends(drawn, ink),
        *_numbers(known, axis, _room_px(at, size), ink),
    ]
    layout["meta"] = {"unit": axis.unit, "bars": len(bars)}
    return {"data": traces, "layout": layout}


def _of_group(entry: Entry, group: GroupSummary, quantity: Quantity, *, several: bool) -> list[Bar]:
    finished = group.status is RunStatus.FINISHED
    estimate = group.values.get(quantity) if finished else None
    if estimate is None and (finished or quantity is Quantity.SLOWDOWN):
        return []
    peak = PEAKS.get(quantity)
    return [
        Bar(
            entry,
            f"{entry.name} {group.name}" if several else entry.name,
            runs_text(group),
            group.status,
            len(group.runs),
            estimate,
            None if peak is None or not finished else group.values.get(peak),
            entry.tint_of(group),
        )
    ]


def _of_workload(entry: Entry, groups: Sequence[GroupSummary], quantity: Quantity) -> list[Bar]:
    estimate = entry.summary.values.get(quantity)
    statuses = {group.status for group in groups}
    if estimate is None and RunStatus.FINISHED in statuses:
        return []
    peak = PEAKS.get(quantity)
    return [
        Bar(
            entry,
            entry.name,
            ", ".join(map(runs_text, groups)),
            RunStatus.worst(statuses),
            entry.summary.run_count,
            estimate,
            None if peak is None else entry.summary.values.get(peak),
            entry.tint,
        )
    ]


def _scale(quantity: Quantity, bars: Sequence[Bar]) -> UnitScale:
    found = [bar.estimate.mean for bar in bars if bar.estimate is not None]
    found += [bar.peak.mean for bar in bars if bar.peak is not None]
    return scale_of(quantity, found)


def _top(bars: Sequence[Bar]) -> float:
    heights = [0.0]
    for bar in bars:
        if bar.estimate is not None:
            heights.append(bar.estimate.mean + (bar.estimate.spread or 0.0))
            if bar.estimate.parts and max(bar.estimate.parts) < 4 * bar.estimate.mean:
                heights.append(max(bar.estimate.parts))
        if bar.peak is not None:
            heights.append(bar.peak.mean)
    return max(heights)


def _blocks(bars: Sequence[Bar]) -> list[tuple[int, int]]:
    """From and to of bars with the same degree of collocation that follow each other."""
    blocks: list[tuple[int, int]] = []
    for place, bar in enumerate(bars):
        if blocks and bars[blocks[-1][0]].degree == bar.degree:
            blocks[-1] = (blocks[-1][0], place + 1)
        else:
            blocks.append((place, place + 1))
    return blocks


def _positions(blocks: Sequence[tuple[int, int]]) -> list[float]:
    return [
        place + number * _BLOCK_GAP
        for number, (start, stop) in enumerate(blocks)
        for place in range(start, stop)
    ]


def _hover(quantity: Quantity, bar: Bar, estimate: Estimate) -> str:
    lines = [f"<b>{escaped(bar.entry.name)}</b>  {escaped(bar.runs)}"]
    lines.append(escaped(told(quantity, estimate, bar.run_count)))
    if bar.peak is not None:
        lines.append(f"peak {escaped(told(PEAKS[quantity], bar.peak, bar.run_count))}")
    lines += [escaped(method) for method in estimate.methods]
    return "<br>".join(lines)


def _parts(
    quantity: Quantity, known: Sequence[tuple[float, Bar, Estimate]], factor: float, ink: Ink
) -> list[Figure]:
    """The single runs as dots, where they are no parts of a sum."""
    if ABOUT[quantity].combine is Combine.SUM:
        return []
    xs, ys = [], []
    for x, _, estimate in known:
        count = len(estimate.parts)
        for place, value in enumerate(estimate.parts):
            xs.append(x + _WIDTH * 0.8 * ((place + 0.5) / count - 0.5))
            ys.append(value * factor)
    if not xs:
        return []
    marker = {"size": 4, "color": ink.paper, "line": {"width": 1, "color": ink.text}}
    return [_points(xs, ys, marker)]


def _peaks(
    quantity: Quantity, known: Sequence[tuple[float, Bar, Estimate]], factor: float, ink: Ink
) -> list[Figure]:
    if quantity not in PEAKS:
        return []
    peaks = [(x, bar.peak.mean * factor) for x, bar, _ in known if bar.peak is not None]
    marker = {
        "symbol": "line-ew",
        "size": 16,
        "color": ink.text,
        "line": {"width": 1.5, "color": ink.text},
    }
    return [_points([x for x, _ in peaks], [y for _, y in peaks], marker)]


def _points(xs: list[float], ys: list[float], marker: Figure) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": ys,
        "marker": marker,
        "hoverinfo": "skip",
        "showlegend": False,
        "name": "",
    }


def _separators(blocks: Sequence[tuple[int, int]], at: Sequence[float], ink: Ink) -> list[Figure]:
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "y domain",
            "x0": (at[start - 1] + at[start]) / 2,
            "x1": (at[start - 1] + at[start]) / 2,
            "y0": 0,
            "y1": 1.08,
            "line": {"color": ink.axis, "width": 1, "dash": "dot"},
        }
        for start, _ in blocks[1:]
    ]


def _hairline(y: float, ink: Ink) -> Figure:
    return {
        "type": "line",
        "xref": "x domain",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": ink.axis, "width": 1},
    }


def _block_labels(
    bars: Sequence[Bar], blocks: Sequence[tuple[int, int]], at: Sequence[float], ink: Ink
) -> list[Figure]:
    """``3 runs`` above each block."""
    if len(blocks) < 2:
        return []
    return [
        {
            "xref": "x",
            "x": (at[start] + at[stop - 1]) / 2,
            "yref": "y domain",
            "y": 1,
            "yanchor": "bottom",
            "yshift": 6,
            "showarrow": False,
            "text": plural(bars[start].degree, "run"),
            "font": {"size": 11, "color": ink.dim},
        }
        for start, stop in blocks
    ]


def _ends(drawn: Sequence[tuple[float, Bar, Estimate | None]], ink: Ink) -> list[Figure]:
    """How it ended, where there is no value."""
    return [
        {
            "xref": "x",
            "x": x,
            "yref": "y domain",
            "y": 0,
            "yanchor": "bottom",
            "yshift": 4,
            "textangle": -90,
            "showarrow": False,
            "text": escaped(STATUS_WORDS[bar.status]),
            "hovertext": escaped(f"{bar.entry.name}  {bar.runs}"),
            "font": {"size": 11, "color": ink.dim},
        }
        for x, bar, estimate in drawn
        if estimate is None
    ]


def _numbers(
    known: Sequence[tuple[float, Bar, Estimate]], axis: Column, room_px: float, ink: Ink
) -> list[Figure]:
    """The values above their bars, or of memory the peaks; none where they do not fit."""
    factor = axis.scale.factor
    labels = []
    for x, bar, estimate in known:
        highest = [estimate.mean + (estimate.spread or 0.0)]
        if ABOUT[axis.quantity].combine is Combine.MEAN:
            highest += estimate.parts
        if bar.peak is not None:
            highest.append(bar.peak.mean)
        labels.append(
            {
                "xref": "x",
                "x": x,
                "yref": "y",
                "y": max(highest) * factor,
                "yanchor": "bottom",
                "yshift": 2,
                "showarrow": False,
                "text": axis.number((bar.peak or estimate).mean),
                "font": {"size": 11, "color": ink.text},
            }
        )
    widest = max((len(str(label["text"])) for label in labels), default=0)
    return labels if widest * _DIGIT_PX + 2 <= room_px else []


def _room_px(at: Sequence[float], size: Size) -> float:
    """How wide a bar's place is about, on a page of middling width."""
    return _PLOT_PX[size] / max(4.8, (at[-1] if at else 0.0) + 1.2)


def _layout(ink: Ink, bars: Sequence[Bar], at: Sequence[float], size: Size, top: float) -> Figure:
    labels = [escaped(_shortened(bar.label)) for bar in bars]
    widest_px = max((len(label) for label in labels), default=0) * _CHARACTER_PX
    room_px = _room_px(at, size)
    slanted = widest_px > room_px
    last = at[-1] if at else 0.0
    return {
        "height": HEIGHT_PX,
        "autosize": True,
        "paper_bgcolor": ink.paper,
        "plot_bgcolor": ink.paper,
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": False,
        "bargap": 0,
        "margin": {
            # A slanted label reaches to the left of its bar; cut off, it would not be drawn.
            "l": max(_LEFT_PX, round(widest_px * 0.77 - room_px / 2)) if slanted else _LEFT_PX,
            "r": _RIGHT_PX,
            "t": _TOP_PX,
            "b": min(_SLANTED_PX, 20 + round(widest_px * 0.66)) if slanted else _BOTTOM_PX,
            "pad": 0,
        },
        "hoverlabel": {
            "bgcolor": ink.hover,
            "bordercolor": ink.axis,
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "align": "left",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "transition": {"duration": 0},
        "xaxis": {
            # A single bar is a bar, not a wall.
            "range": [min(-0.6, last / 2 - 2.4), max(last + 0.6, last / 2 + 2.4)],
            "tickvals": list(at),
            "ticktext": labels,
            "tickangle": -40 if slanted else 0,
            "tickfont": {"size": 11, "color": ink.text},
            "ticks": "",
            "showgrid": False,
            "zeroline": False,
            "showline": True,
            "linecolor": ink.axis,
            "linewidth": 1,
            "fixedrange": True,
        },
        "yaxis": {
            "range": [0, top],
            "gridcolor": ink.grid,
            "gridwidth": 1,
            "zeroline": False,
            "nticks": 5,
            "ticks": "",
            "ticklabelstandoff": 4,
            "tickfont": {"size": 11, "color": ink.dim},
            "exponentformat": "SI",
            "fixedrange": True,
        },
    }


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"
