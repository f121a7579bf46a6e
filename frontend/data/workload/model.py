"""Lives of runs, strips and stacks, ready to be drawn. Nothing here reads a store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from radt.frontend.data.model import STATUS_WORDS, BoolArray, Quantity
from radt.frontend.data.spec import Window
from radt.model import RunStatus
from radt.store.records import Float64Array, SeriesRecord
from radt.units import duration

if TYPE_CHECKING:
    from radt.frontend.data.catalog import RunEntry


class BarKind(StrEnum):
    """Kind of a bar of the timeline."""

    SETUP = "set-up"
    ALIVE = "alive"  # from the barrier to the end, beneath all other bars
    EPOCH = "epoch"
    INSIDE = "inside"  # a phase or span
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a run; ``end_s`` equals ``start_s`` for an instant.

    ``count`` is the number of merged bars, ``busy`` the share of the stretch that they take;
    ``text`` describes it, ``label`` is short: an epoch's number, a span's name, a workload's, of
    whose runs ``mark`` tells one from the others; ``is_open`` says that it has not ended. ``key``
    and ``hue`` are what it belongs to and its colour index, where bars of several lie in one row.
    """

    kind: BarKind
    start_s: float
    end_s: float
    text: str
    label: str = ""
    count: int = 1
    is_open: bool = False
    busy: float = 1.0
    key: str = ""
    hue: int | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """One run from its set-up to its end, or to now."""

    run: RunEntry
    start_s: float | None
    end_s: float
    setup_s: float
    bars: tuple[Bar, ...]
    epoch_s: float | None

    @property
    def never_started(self) -> bool:
        return self.start_s is None

    @property
    def end_text(self) -> str:
        """How the run ended: ``finished``, ``OOM``, ``running``."""
        return STATUS_WORDS[self.run.record.status]

    @property
    def reason(self) -> str:
        """Why the run did not finish; empty if it did."""
        record = self.run.record
        if record.status in (RunStatus.FINISHED, RunStatus.RUNNING, RunStatus.SCHEDULED):
            return ""
        if record.end_reason:
            return record.end_reason
        return "" if record.exit_code is None else f"exit code {record.exit_code}"


def binned(bars: Iterable[Bar], window: Window, shortest_s: float) -> list[Bar]:
    """Return the bars of one kind in a window, by start; thin neighbours are merged."""
    bins: list[Bar] = []
    group: list[Bar] = []

    def flush() -> None:
        if group:
            bins.append(_together(group))
            group.clear()

    for bar in sorted(bars, key=lambda member: member.start_s):
        if bar.end_s < window.start or bar.start_s > window.end:
            continue
        is_thin = bar.end_s - bar.start_s < shortest_s
        if group:
            starts_late = bar.start_s - group[0].start_s >= shortest_s
            gap = bar.start_s - max(member.end_s for member in group[-1:])
            if not is_thin or starts_late or gap >= shortest_s:
                flush()
        if is_thin:
            group.append(bar)
        else:
            bins.append(bar)
    flush()
    return bins


def _together(group: Sequence[Bar]) -> Bar:
    if len(group) == 1:
        return group[0]
    lengths = [bar.end_s - bar.start_s for bar in group]
    first, last = group[0], group[-1]
    mean, low, high = sum(lengths) / len(lengths), min(lengths), max(lengths)
    if first.kind is BarKind.EPOCH:
        what = f"epochs {first.label} to {last.label}"
        text = f"{what} · mean {duration(mean)} ({duration(low)} to {duration(high)})"
    else:
        names = list(dict.fromkeys(bar.label or bar.text.partition(" · ")[0] for bar in group))
        what = ", ".join(names[:3]) + ("…" if len(names) > 3 else "")
        text = f"{len(group):,} × {what}"
        if any(lengths):
            text += f" · mean {duration(mean)}, {duration(sum(lengths))} in all"
    end_s = max(bar.end_s for bar in group)
    whole_s = end_s - first.start_s
    busy = min(1.0, sum(lengths) / whole_s) if whole_s > 0 else 1.0
    key = first.key if all(bar.key == first.key for bar in group) else ""
    hue = first.hue if all(bar.hue == first.hue for bar in group) else None
    return Bar(first.kind, first.start_s, end_s, text, "", len(group), busy=busy, key=key, hue=hue)


@dataclass(frozen=True, slots=True)
class Readings:
    """Points in time order: seconds since the barrier (N,), values (N,); NaN is a gap.

    ``interval_s`` is None for irregular readings. ``counted_from_s`` is set for a counter's rates:
    when the first one began. Each holds since the one before, also over a gap.
    """

    at_s: Float64Array
    values: Float64Array
    interval_s: float | None = None
    counted_from_s: float | None = None

    @property
    def known_s(self) -> Float64Array:
        """Times with a value."""
        times_s: Float64Array = self.at_s[np.isfinite(self.values)]
        return times_s

    def mean(self, window: Window) -> float:
        """Return the mean over the time within a window; NaN without a value there.

        A value holds since the one before: a counter's rate is the mean since then.
        """
        if self.counted_from_s is None:
            held_s = np.diff(self.at_s, prepend=self.at_s[0] - (self.interval_s or 0.0))
        else:
            held_s = np.zeros(len(self.at_s))
            held_s[np.isfinite(self.values)] = np.diff(self.known_s, prepend=self.counted_from_s)
        inside = self._inside(window)
        values, held_s = self.values[inside], held_s[inside]
        if not held_s.sum():
            return float(values.mean()) if len(values) else math.nan
        return float(np.average(values, weights=held_s))

    def peak(self, window: Window) -> float:
        """Return the largest value within a window; NaN without one."""
        values = self.values[self._inside(window)]
        return float(values.max()) if len(values) else math.nan

    def _inside(self, window: Window) -> BoolArray:
        inside: BoolArray = (self.at_s >= window.start) & (self.at_s <= window.end)
        return inside & np.isfinite(self.values)


@dataclass(frozen=True, slots=True)
class Band:
    """One run's share: values (M,) on the grid, 0 outside its lifetime, NaN if unknown.

    ``runs`` has several runs if their shares are summed. ``mean`` and ``peak`` are those of the
    visible part of its lifetime, zeros included; NaN without a reading there.
    """

    runs: tuple[RunEntry, ...]
    values: Float64Array
    mean: float
    peak: float

    @property
    def name(self) -> str:
        if len(self.runs) > 1:
            return f"{len(self.runs)} more"
        record = self.runs[0].record
        return record.letter or record.name or record.run_id[:8]


@dataclass(frozen=True, slots=True)
class Total:
    """The value of the whole device; ``owner`` is the only run on a device, if any.

    ``mean`` and ``peak`` are those of the visible time; NaN without a value there.
    """

    name: str
    readings: Readings
    mean: float
    peak: float
    owner: RunEntry | None = None


@dataclass(frozen=True, slots=True)
class StackData:
    """Data of a strip; ``edges_s`` (M + 1,) of its cells.

    ``known`` (M,) is False where a run's share is unknown, so that nothing is stacked.
    """

    strip: Strip
    edges_s: Float64Array
    bands: tuple[Band, ...]
    known: BoolArray
    totals: tuple[Total, ...]
    window: Window

    @property
    def at_s(self) -> Float64Array:
        """Middles of the cells (M,)."""
        middles: Float64Array = (self.edges_s[:-1] + self.edges_s[1:]) / 2
        return middles


@dataclass(frozen=True, slots=True)
class Resource:
    """A shared resource: the metrics of runs and devices that measure it, best first.

    ``peak`` says that the maximum counts, not the mean: memory that was needed once was needed.
    ``of_cores``: the device's value is a share of all cores, the runs' values are cores. ``whole``
    says why the resource has no shares, if it has none.
    """

    key: str
    title: str
    parts: tuple[str, ...]
    totals: tuple[str, ...]
    peak: bool = False
    of_cores: bool = False
    whole: str = "measured for all runs together; the share of each run is not known"


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """The series of a whole device, as its runs recorded it; ``entity`` is empty for a machine."""

    entity: str
    listener: str
    parts: tuple[tuple[RunEntry, SeriesRecord], ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One run's part of a resource on one device: its series, whose values add up."""

    run: RunEntry
    series: tuple[SeriesRecord, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """One resource of one device. ``without`` are its runs that have no share."""

    resource: Resource
    host: str
    device: str
    quantity: Quantity
    shares: tuple[Share, ...]
    totals: tuple[DeviceSeries, ...]
    without: tuple[RunEntry, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.resource.key}|{self.host}|{self.device}"

    @property
    def title(self) -> str:
        """``GPU power``, with the device if there are several."""
        return f"{self.resource.title} {self.device}".strip()

    @property
    def is_estimated(self) -> bool:
        return any(record.estimated for share in self.shares for record in share.series)

    @property
    def is_stacked(self) -> bool:
        return bool(self.shares)
