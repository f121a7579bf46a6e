"""The timeline of machines: which run was on which device when, and which runs were beside it.

It shows the runs of an experiment, or those of all experiments on one day in this machine's time
zone. Runs that were on a device at the same time are in separate lanes of it. Times are seconds
since 1970.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta

from sqlalchemy import text

from radt import units
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, read_catalog, tint
from radt.frontend.data.spec import AxisRange, XAxis
from radt.frontend.data.workload.devices import indices
from radt.frontend.data.workload.model import BarKind, LaneSpan
from radt.frontend.data.workload.subject import experiment_of
from radt.frontend.view import View
from radt.model import STATUS_WORDS, RunStatus
from radt.parts import from_tag
from radt.render.labels import natural
from radt.store.reader import StoreReader
from radt.tags import CLUSTER_NODE, CLUSTER_PARTS

DAY_OPTION = "timeline.day"
_UNKNOWN_HOST = "machine not known"
_MOST_BESIDE = 6
_SHORTEST_S = 1.0
#: Years whose times fit into the store's columns.
_YEARS = range(1971, 2200)
#: In every time zone, days begin at multiples of this.
_QUARTER_S = 900
_QUARTERS = text("SELECT DISTINCT started_ns / 900000000000 FROM run WHERE started_ns IS NOT NULL")
_EXPERIMENTS = text(
    "SELECT DISTINCT experiment FROM run WHERE started_ns < :end_ns "
    "AND (ended_ns IS NULL OR ended_ns >= :start_ns) ORDER BY experiment"
)
_WORKS = (RunStatus.FINISHED, RunStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class TimelineScope:
    """The scope of the page: an experiment, or one day of all experiments."""

    experiment: str = ""
    day: date | None = None

    @classmethod
    def of(cls, source: CachedStore, view: View) -> TimelineScope:
        """Return the day of a view, else its experiment.

        Raises:
            NothingRecordedError: No experiment is stored.
            StoreError: The store cannot be read.
        """
        with suppress(ValueError):
            day = date.fromisoformat(view.options.get(DAY_OPTION, ""))
            if day.year in _YEARS:
                return cls(day=day)
        return cls(experiment=experiment_of(source, view))

    @property
    def limits(self) -> AxisRange | None:
        """The day; None for an experiment."""
        if self.day is None:
            return None
        ends = (self.day, self.day + timedelta(days=1))
        return AxisRange(*(datetime.combine(at, time()).astimezone().timestamp() for at in ends))


@dataclass(frozen=True, slots=True)
class TimelineDevice:
    """A device of a machine. Bars in a lane do not overlap. ``key`` is the workload's id.

    ``ends`` are the ends of runs that did not finish, by lane; ``runs`` counts its runs.
    """

    host: str
    device: str
    lanes: tuple[tuple[LaneSpan, ...], ...]
    ends: tuple[tuple[LaneSpan, ...], ...]

    @property
    def runs(self) -> int:
        return sum(map(len, self.lanes))

    def busy(self, window: AxisRange) -> float:
        """Return the share of the window in which at least one run was there."""
        busy_s, until_s = 0.0, window.start
        for bar in sorted((bar for lane in self.lanes for bar in lane), key=_start):
            end_s = min(bar.end_s, window.end)
            busy_s += max(0.0, end_s - max(bar.start_s, until_s))
            until_s = max(until_s, end_s)
        return busy_s / (window.end - window.start)


@dataclass(frozen=True, slots=True)
class MachineTimeline:
    """All places, and all runs that have started. ``whole`` is the time that they span."""

    places: tuple[TimelineDevice, ...]
    runs: tuple[RunEntry, ...]
    whole: AxisRange
    most_at_once: int

    def zoomed(self, view: View) -> AxisRange | None:
        """Return the part of the time that a view is zoomed to; None if it shows all of it."""
        zoom, whole = view.windows.get(XAxis.WALL), self.whole
        if zoom is None:
            return None
        return AxisRange.of(max(zoom.start, whole.start), min(zoom.end, whole.end))


@dataclass(frozen=True, slots=True)
class _Stay:
    """A run's stay on a device."""

    run: RunEntry
    start_s: float
    end_s: float


def read_days(source: CachedStore) -> Sequence[date]:
    """Return the days on which runs started, the newest first.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Sequence[date]:
        with reader.snapshot() as connection:
            quarters = [int(row[0]) for row in connection.execute(_QUARTERS)]
        days = {datetime.fromtimestamp(at * _QUARTER_S).astimezone().date() for at in quarters}
        return sorted(days, reverse=True)

    return source.remember("timeline-days", read)


def read_timeline(source: CachedStore, scope: TimelineScope) -> MachineTimeline:
    """Return the places of the runs over time.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember(("timeline", scope), lambda reader: _read(source, reader, scope))


def _read(source: CachedStore, reader: StoreReader, scope: TimelineScope) -> MachineTimeline:
    limits = scope.limits
    experiments = [scope.experiment] if limits is None else _experiments(reader, limits)
    runs: list[RunEntry] = []
    nodes: dict[str, Sequence[str]] = {}
    for name in experiments:
        catalog = read_catalog(source, name)
        parts = reader.tagged(CLUSTER_PARTS, name)
        nodes |= {
            run_id: (node, *(part.node for part in from_tag(parts.get(run_id, ""))))
            for run_id, node in reader.tagged(CLUSTER_NODE, name).items()
        }
        runs += (
            replace(
                run,
                ordinal=tint(catalog, run.run_id, run),
                prefix=name if len(experiments) > 1 else "",
                is_elsewhere_too=False,  # its row names the machine
            )
            for run in catalog.runs.values()
            if run.parent is None and run.record.started_ns is not None and not run.is_archived
        )
    open_ids = [run.run_id for run in runs if run.record.ended_ns is None]
    newest = reader.newest_ns(open_ids)
    stays = [_stay(run, newest.get(run.run_id, 0)) for run in runs]
    if limits is not None:
        stays = [s for s in stays if s.end_s >= limits.start and s.start_s < limits.end]
    by_place: dict[tuple[str, str], list[_Stay]] = {}
    # Keep rows of a workload in the order of their letters: they start within milliseconds.
    for stay in sorted(stays, key=lambda stay: (stay.run.origin_ns, stay.run.ordinal)):
        for place in _places(stay.run, nodes):
            by_place.setdefault(place, []).append(stay)
    places = [_place(*place, by_place[place]) for place in sorted(by_place, key=_natural)]
    shown = tuple(stay.run for stay in stays)
    return MachineTimeline(tuple(places), shown, _whole(stays, limits), _most_at_once(stays))


def _experiments(reader: StoreReader, limits: AxisRange) -> list[str]:
    values = {"start_ns": round(limits.start * 1e9), "end_ns": round(limits.end * 1e9)}
    with reader.snapshot() as connection:
        return [str(row[0]) for row in connection.execute(_EXPERIMENTS, values)]


def _stay(run: RunEntry, newest_ns: int) -> _Stay:
    """Return the stay of a run; of an unfinished one, until its newest sample."""
    start_ns = run.record.started_ns or run.record.created_ns
    end_ns = run.record.ended_ns or newest_ns
    return _Stay(run, start_ns / 1e9, max(start_ns, end_ns) / 1e9)


def _places(run: RunEntry, nodes: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return the machines and devices of a run, which may have several GPUs or nodes."""
    gpus = indices(run.record.devices)
    if run.run_id in nodes:
        # Its GPU numbers are indices within its job, not those of the node.
        device = "GPUs" if gpus else _device(run)
        return [(host, device) for host in nodes[run.run_id]]
    host = run.record.host or _UNKNOWN_HOST
    return [(host, f"GPU {index}") for index in gpus] or [(host, _device(run))]


def _device(run: RunEntry) -> str:
    return "CPU" if run.record.devices.lower() == "cpu" else run.record.devices


def _natural(place: tuple[str, str]) -> tuple[object, ...]:
    """Sort ``node2`` before ``node10``, and GPUs before CPUs."""
    host, device = place
    return natural(host), not device.startswith("GPU"), natural(device), host


def _place(host: str, device: str, stays: Sequence[_Stay]) -> TimelineDevice:
    lanes: list[list[_Stay]] = []
    for stay in stays:
        for lane in lanes:
            if lane[-1].end_s <= stay.start_s:
                lane.append(stay)
                break
        else:
            lanes.append([stay])
    starts = [[stay.start_s for stay in lane] for lane in lanes]
    ends = [[stay.end_s for stay in lane] for lane in lanes]

    def beside(stay: _Stay) -> list[str]:
        return [
            other.run.short
            for lane, of_starts, of_ends in zip(lanes, starts, ends, strict=True)
            for other in lane[
                bisect_right(of_ends, stay.start_s) : bisect_left(of_starts, stay.end_s)
            ]
            if other.run is not stay.run
        ]

    return TimelineDevice(
        host,
        device,
        tuple(tuple(_bar(stay, beside(stay)) for stay in lane) for lane in lanes),
        tuple(tuple(_end(s) for s in lane if s.run.record.status not in _WORKS) for lane in lanes),
    )


def _bar(stay: _Stay, beside: Sequence[str]) -> LaneSpan:
    run, record = stay.run, stay.run.record
    start, end = (datetime.fromtimestamp(at).astimezone() for at in (stay.start_s, stay.end_s))
    until = "" if start.date() == end.date() else f"{end.day} {end:%b} "
    lines = [
        run.title,
        f"{STATUS_WORDS[record.status]} · {units.duration(stay.end_s - stay.start_s)}",
        f"{start.day} {start:%b %H:%M:%S} – {until}{end:%H:%M:%S}",
        f"beside {units.listed(beside, _MOST_BESIDE)}" if beside else "nothing beside it",
    ]
    return LaneSpan(
        BarKind.ALIVE,
        stay.start_s,
        stay.end_s,
        "\n".join(lines),
        run.workload_name,
        is_open=record.ended_ns is None,
        key=record.workload_id,
        hue=run.ordinal,
        mark=run.mark,
    )


def _end(stay: _Stay) -> LaneSpan:
    word = STATUS_WORDS[stay.run.record.status]
    told = f"{stay.run.short}: {word}: {stay.run.record.end_reason}".removesuffix(": ")
    key = stay.run.record.workload_id
    return LaneSpan(BarKind.EVENT, stay.end_s, stay.end_s, told, word, key=key)


def _whole(stays: Iterable[_Stay], limits: AxisRange | None) -> AxisRange:
    stays = list(stays)
    start_s = min((stay.start_s for stay in stays), default=0.0)
    end_s = max((stay.end_s for stay in stays), default=0.0)
    if limits is not None:
        start_s, end_s = max(start_s, limits.start), min(end_s, limits.end)
    return AxisRange(start_s, max(end_s, start_s + _SHORTEST_S))


def _most_at_once(stays: Iterable[_Stay]) -> int:
    """Return the maximum number of simultaneous runs."""
    changes = [(at, step) for s in stays for at, step in ((s.start_s, 1), (s.end_s, -1))]
    most = now = 0
    for _, step in sorted(changes):
        now += step
        most = max(most, now)
    return most


def _start(bar: LaneSpan) -> float:
    return bar.start_s
