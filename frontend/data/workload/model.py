"""Lifetimes of runs, strips and stacks, ready to be drawn. Nothing here reads a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from radt.frontend.data.model import MetricInfo, NamedCurve
from radt.frontend.data.spec import AxisRange
from radt.model import STATUS_WORDS, RunStatus
from radt.store.records import BoolArray, Float64Array, SeriesRecord
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
class LaneSpan:
    """A time span of a run. ``end_s`` equals ``start_s`` for an instant.

    ``count`` is the number of merged bars, ``busy`` the share of the span that they cover. ``text``
    describes it, ``label`` is short: an epoch's number, a span's name, or a workload's name, with
    ``mark`` for the run. ``is_open`` says that it has not ended. ``key`` and ``hue`` are its owner
    and its colour index, if bars of several owners are in one row.
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
    bars: tuple[LaneSpan, ...]
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


def binned(bars: Iterable[LaneSpan], window: AxisRange, shortest_s: float) -> list[LaneSpan]:
    """Return the bars of one kind in a window, by start, with thin neighbours merged."""
    bins: list[LaneSpan] = []
    group: list[LaneSpan] = []

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


def _together(group: Sequence[LaneSpan]) -> LaneSpan:
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
    return LaneSpan(
        first.kind, first.start_s, end_s, text, "", len(group), busy=busy, key=key, hue=hue
    )


@dataclass(frozen=True, slots=True)
class Band:
    """One run's share: values (M,) on the grid, 0 outside its lifetime, NaN if unknown.

    ``runs`` has several runs if their shares are summed. ``mean`` and ``peak`` cover the visible
    part of its lifetime, zeros included; NaN without a reading there.
    """

    runs: tuple[RunEntry, ...]
    values: Float64Array
    mean: float
    peak: float

    @property
    def name(self) -> str:
        if len(self.runs) > 1:
            return f"{len(self.runs)} more"
        return self.runs[0].letter_or_name


@dataclass(frozen=True, slots=True)
class Total:
    """The value of the whole device. ``owner`` is the only run on a device, if any.

    ``mean`` and ``peak`` cover the visible time; NaN without a value there.
    """

    line: NamedCurve
    mean: float
    peak: float
    owner: RunEntry | None = None


@dataclass(frozen=True, slots=True)
class StackData:
    """Data of a strip. ``edges_s`` (M + 1,) are the edges of its cells.

    ``known`` (M,) is False where a run's share is unknown, so that nothing is stacked.
    """

    strip: Strip
    edges_s: Float64Array
    bands: tuple[Band, ...]
    known: BoolArray
    totals: tuple[Total, ...]
    window: AxisRange

    @property
    def at_s(self) -> Float64Array:
        """Middles of the cells (M,)."""
        middles: Float64Array = (self.edges_s[:-1] + self.edges_s[1:]) / 2
        return middles


@dataclass(frozen=True, slots=True)
class StackedResource:
    """A shared resource: the metrics of runs and devices that measure it, best first.

    ``peak``: The maximum counts, not the mean, as for memory. ``of_cores``: The device's value is a
    share of all cores, while those of runs are numbers of cores. ``whole``: Why the resource has no
    shares; empty if it has any.
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
    """The series of a whole device, as its runs recorded it. ``entity`` is empty for a machine."""

    entity: str
    listener: str
    parts: tuple[tuple[RunEntry, SeriesRecord], ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One run's part of a resource on one device: its series, whose values are added."""

    run: RunEntry
    series: tuple[SeriesRecord, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """One resource of one device. ``without`` are its runs without a share."""

    resource: StackedResource
    host: str
    device: str
    quantity: MetricInfo
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
