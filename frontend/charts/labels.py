"""Names of lines beside their ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from radt.frontend.charts.lines import Line
from radt.frontend.charts.spec import Window
from radt.frontend.charts.traces import Figure, Ordinate, Pen, escaped

MAX_LABELS = 8
_LABEL_PX, _LABEL_CHARS, _CHAR_PX = 14, 14, 7


def room_px(lines: Sequence[Line]) -> int:
    """How much the names take at the right."""
    longest = max((len(line.short) for line in lines), default=0)
    return _CHAR_PX * min(_LABEL_CHARS, longest)


def labels(
    drawn: Sequence[tuple[Line, Pen]],
    window: Window,
    ordinate: Ordinate,
    limits: tuple[float, float],
    plot_px: float,
) -> list[Figure]:
    """The names, moved apart where lines end close to each other; ``limits`` as on the axis."""
    ends = []
    for line, pen in drawn:
        x, values = line.curve.x, ordinate.of(line.curve.values)
        finite = np.isfinite(values)
        seen = np.flatnonzero(finite & (x <= window.end))
        # A line that ended before what is seen has no end here, unless it reaches across.
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
            "text": escaped(_shortened(line.short)),
            "name": line.key,
            "font": {"size": 11, "color": pen.colour},
        }
        for height, (_, line, pen) in zip(heights, ends, strict=True)
    ]


def spread(heights: Sequence[float], gap: float, limit: float) -> list[float]:
    """Move sorted positions apart to at least ``gap``, but little, within 0 to ``limit``.

    Positions that are too close form a block around their common centre; blocks that touch merge.
    """
    blocks: list[tuple[float, int]] = []  # bottom of the block, positions in it
    for height in heights:
        bottom, count = height, 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > bottom:
            below, many = blocks.pop()
            # The mean of the centres, weighted: each position pulls alike.
            centre = (
                (below + (many - 1) * gap / 2) * many + (bottom + (count - 1) * gap / 2) * count
            ) / (many + count)
            count += many
            bottom = min(max(0.0, centre - (count - 1) * gap / 2), limit - (count - 1) * gap)
        blocks.append((bottom, count))
    return [bottom + index * gap for bottom, count in blocks for index in range(count)]


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"
