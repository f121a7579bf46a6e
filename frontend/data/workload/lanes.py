"""Lanes of the timeline: the spans of each run below its bar, by name.

A name has the same hue in all runs of a workload, which no run has; spans of a job have that of its
child run. With many runs there is space for fewer lanes. Further spans share the last lane, and
without any space spans are drawn within the run's bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from radt.frontend.data.workload.model import BarKind, LaneSpan, Life

#: Maximum number of lanes of a run, and of a workload.
_MAX_LANES = 6
_MAX_LANES_IN_ALL = 48


@dataclass(frozen=True, slots=True)
class Lane:
    """The spans of one name in one run, in the order in which they began.

    ``hue`` is a colour index, None if the lane holds several names.
    """

    name: str
    hue: int | None
    bars: tuple[LaneSpan, ...]


def lanes_of(lives: Sequence[Life]) -> list[tuple[Lane, ...]]:
    """Return the lanes of each run, in the order in which their spans first began."""
    limit = min(_MAX_LANES, _MAX_LANES_IN_ALL // max(1, len(lives)))
    if not limit:
        return [()] * len(lives)
    spans = [
        sorted((bar for bar in life.bars if bar.kind is BarKind.INSIDE), key=_start)
        for life in lives
    ]
    first = sorted((bar for of_run in spans for bar in of_run), key=_start)
    hues = {
        f"job {life.run.record.name}": life.run.ordinal
        for life in lives
        if life.run.parent is not None
    }
    taken = {life.run.ordinal for life in lives}
    free = (place for place in count() if place not in taken)
    hues |= {
        name: next(free) for name in dict.fromkeys(bar.label for bar in first) if name not in hues
    }
    return [_lanes(of_run, hues, limit) for of_run in spans]


def _lanes(spans: Sequence[LaneSpan], hues: dict[str, int], limit: int) -> tuple[Lane, ...]:
    by_name: dict[str, list[LaneSpan]] = {}
    for bar in spans:
        by_name.setdefault(bar.label, []).append(bar)
    names = list(by_name)
    if len(names) > limit:  # the names with the longest total time keep their lanes
        length_s = {name: sum(bar.end_s - bar.start_s for bar in by_name[name]) for name in names}
        kept = set(sorted(names, key=lambda name: -length_s[name])[: limit - 1])
        names = [name for name in names if name in kept]
    lanes = [Lane(name, hues[name], tuple(by_name.pop(name))) for name in names]
    if by_name:
        rest = sorted((bar for bars in by_name.values() for bar in bars), key=_start)
        lanes.append(Lane(f"{len(by_name)} more", None, tuple(rest)))
    return tuple(lanes)


def _start(bar: LaneSpan) -> float:
    return bar.start_s
