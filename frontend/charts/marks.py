"""Epochs, phases and spans on the x axis of a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.axes import Axis, is_epoch
from radt.frontend.charts.spec import Window
from radt.model import MarkerKind
from radt.store.records import MarkerRecord
from radt.units import duration

#: Marks of one run; of more, those in between are left out.
MAX_MARKS = 400


@dataclass(frozen=True, slots=True)
class Tick:
    """An instant, or the beginning of a stretch (until ``end``), of one run.

    ``row`` counts the runs of the chart from 0, ``ordinal`` is the place of its colour, ``x`` and
    ``end`` are on the chart's axis.
    """

    row: int
    ordinal: int
    x: float
    text: str
    kind: MarkerKind = MarkerKind.EPOCH
    end: float | None = None
    key: str = ""


def ticks(
    runs: Mapping[str, RunEntry],
    tints: Mapping[str, int],
    markers: Sequence[MarkerRecord],
    axis: Axis,
    window: Window | None,
) -> tuple[Tick, ...]:
    """The marks of the runs, those in the window if there is one."""
    of_run: dict[str, list[MarkerRecord]] = {}
    for marker in markers:
        if marker.run_id in runs and (is_epoch(marker) or marker.kind is not MarkerKind.EPOCH):
            of_run.setdefault(marker.run_id, []).append(marker)
    found: list[Tick] = []
    in_order = [run_id for run_id in runs if run_id in of_run]
    for row, run_id in enumerate(in_order):
        run = runs[run_id]
        own = [_tick(row, tints[run_id], run, marker, axis) for marker in of_run[run_id]]
        seen = [one for one in own if _is_seen(one, window)]
        # Epochs first: of a script's spans there may be thousands.
        epochs = [one for one in seen if one.kind is MarkerKind.EPOCH]
        others = [one for one in seen if one.kind is not MarkerKind.EPOCH]
        found += _thinned(epochs)
        found += _thinned(others)
    return tuple(found)


def _tick(row: int, ordinal: int, run: RunEntry, marker: MarkerRecord, axis: Axis) -> Tick:
    x = axis.x_of(run, (marker.start_ns - run.origin_ns) / 1e9)
    end = None
    took = ""
    if marker.end_ns is not None:
        took = f" · {duration((marker.end_ns - marker.start_ns) / 1e9)}"
        end = axis.x_of(run, (marker.end_ns - run.origin_ns) / 1e9)
    if marker.kind is MarkerKind.EPOCH:
        what = f"epoch {marker.step if marker.step is not None else marker.name}"
    else:
        what = " ".join(part for part in (marker.name, marker.process) if part)
        if marker.kind is MarkerKind.EVENT and marker.detail:
            took = f" · {marker.detail[:80]}"
    key = f"r{run.run_id[:12]}"
    return Tick(row, ordinal, x, f"{run.short} · {what}{took}", marker.kind, end, key)


def _is_seen(tick: Tick, window: Window | None) -> bool:
    if not math.isfinite(tick.x):
        return False
    last = tick.x if tick.end is None or not math.isfinite(tick.end) else tick.end
    return window is None or (tick.x <= window.end and last >= window.start)


def _thinned(found: Sequence[Tick]) -> Sequence[Tick]:
    step = math.ceil(len(found) / MAX_MARKS)
    return found[::step] if step > 1 else found
