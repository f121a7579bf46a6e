"""Gather the data for the trace of a run and of the runs that shared its machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radt.errors import UsageError
from radt.home import RunDir
from radt.journal.format import META_FILE, JournalMeta
from radt.model import Scope
from radt.run_name import family_of, letter_order
from radt.store.reader import StoreReader
from radt.store.records import GapRecord, MarkerRecord, RunRecord, SeriesRecord
from radt.tags import PARENT
from radt.trace.torch_trace import torch_traces
from radt.usage import KERNEL

#: Reports that only their own programs can open.
_FOREIGN_REPORTS = ("*.nsys-rep", "*.ncu-rep")
_SHARED = (Scope.HOST, Scope.GPU, Scope.MIG)

#: Returns the folder with a run's files; None if they are missing or must not be read.
FolderOf = Callable[[RunRecord], Path | None]


def folder_as_stored(run: RunRecord) -> Path | None:
    """Return the folder recorded in the store; only for stores from a trusted writer."""
    return Path(run.spool) if run.spool else None


@dataclass(frozen=True, slots=True)
class Stored:
    """A series of one run with the number of its points."""

    series: SeriesRecord
    points: int


@dataclass(slots=True)
class Curve:
    """A counter track: a series, or the series of a device in several runs."""

    name: str
    parts: list[Stored] = field(default_factory=list)

    @property
    def series(self) -> SeriesRecord:
        """Return the series, or the one read least often: its interval defines a pause."""
        return max((part.series for part in self.parts), key=lambda s: s.interval_s or 0.0)

    @property
    def points(self) -> int:
        return sum(part.points for part in self.parts)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run with its markers, gaps, curves and files."""

    record: RunRecord
    last_ns: int
    markers: Sequence[MarkerRecord]
    gaps: Sequence[GapRecord]
    curves: Sequence[Curve]
    torch: Sequence[Path]
    foreign: Sequence[Path]
    offset_ns: int | None

    @property
    def name(self) -> str:
        """Return workload, letter and name: ``1a resnet50``, ``1a ↳ lenet`` for a child."""
        record = self.record
        row, child = family_of(record.letter)
        name = f"↳ {child}" if child else record.name
        numbered = f"{record.workload}{row} {name}".strip()
        return numbered or record.run_id[:8]

    @property
    def end_ns(self) -> int:
        """Return the end of the run, or its last recorded time."""
        return max(self.last_ns, self.record.ended_ns or 0)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The run, its children, then its neighbours, and the series of shared devices, by device."""

    runs: Sequence[TracedRun]
    shared: Mapping[str, Sequence[Curve]]
    first_ns: int

    @property
    def curves(self) -> Iterable[Curve]:
        for run in self.runs:
            yield from run.curves
        for curves in self.shared.values():
            yield from curves


def gather(
    reader: StoreReader,
    run: RunRecord,
    *,
    alone: bool = False,
    folder_of: FolderOf = folder_as_stored,
) -> Gathered:
    """Find the runs, markers, series and files; no values are read.

    Args:
        reader: The store.
        run: The run.
        alone: Omit the other runs of its workload, but not runs within it.
        folder_of: Returns the folder with the files of a run.

    Raises:
        UsageError: The run has no data yet.
    """
    parents = reader.tagged(PARENT, run.experiment)
    others = [
        other
        for other in reader.runs(workload_id=run.workload_id)
        if other.run_id != run.run_id and other.started_ns
    ]
    children = [other for other in others if parents.get(other.run_id) == run.run_id]
    neighbours = [] if alone else [other for other in others if other not in children]
    neighbours.sort(key=lambda other: letter_order(other.letter))
    records = [run, *children, *neighbours]
    first_ns: list[int] = []
    shared: dict[str, dict[tuple[str, ...], Curve]] = {}
    runs = [_traced(reader, record, folder_of(record), first_ns, shared) for record in records]
    for curves in shared.values():
        _name(curves)
    if not (runs[0].markers or runs[0].curves or shared or runs[0].torch):
        raise UsageError(
            f"run {run.run_id[:12]} has neither samples nor epochs nor a PyTorch trace",
            "Wait until it has begun, or choose another: `radt ls` lists the runs",
        )
    devices = {name: tuple(curves.values()) for name, curves in sorted(shared.items())}
    return Gathered(runs, devices, min(first_ns))


def _traced(
    reader: StoreReader,
    record: RunRecord,
    folder: Path | None,
    first_ns: list[int],
    shared: dict[str, dict[tuple[str, ...], Curve]],
) -> TracedRun:
    ids = [record.run_id]
    markers = reader.markers(ids)
    last_ns = [record.started_ns or record.created_ns]
    first_ns.append(record.started_ns or record.created_ns)
    for marker in markers:
        first_ns.append(marker.start_ns)
        last_ns.append(marker.end_ns or marker.start_ns)
    own: dict[tuple[str, ...], Curve] = {}
    for summary in reader.summary(ids):
        if summary.series.listener == KERNEL:  # totals are not curves
            continue
        first_ns.append(summary.first_ns)
        last_ns.append(summary.last_ns)
        series = summary.series
        if series.scope in _SHARED:
            device, entity = _device(record, series)
            curves = shared.setdefault(device, {})
        else:
            curves, entity = own, series.entity
        key = (series.listener, series.metric, entity)
        if key not in curves:
            curves[key] = Curve(series.metric)
        curves[key].parts.append(Stored(series, summary.count))
    _name(own)
    return TracedRun(
        record,
        max(last_ns),
        markers,
        reader.gaps(ids),
        tuple(own.values()),
        [] if folder is None else torch_traces(folder),
        [] if folder is None else _foreign_reports(folder),
        None if folder is None else _offset_ns(folder),
    )


def _foreign_reports(spool: Path) -> list[Path]:
    profiles = RunDir(spool).artifacts / "profiles"
    return sorted(path for pattern in _FOREIGN_REPORTS for path in profiles.rglob(pattern))


def _device(record: RunRecord, series: SeriesRecord) -> tuple[str, str]:
    """Return the process that shows a device, and the rest of the series' entity."""
    host = series.node or record.host
    if series.scope is Scope.HOST:
        return f"host {host}".rstrip(), series.entity_there
    card, _, part = series.entity_there.partition("/")
    return f"{card or 'GPU'}{f' of {host}' if host else ''}", part


def _name(curves: Mapping[tuple[str, ...], Curve]) -> None:
    """Give each track of a process its own name.

    A metric that two listeners read includes the listener's name; the sum over a machine's devices
    is called total.
    """
    readers = Counter((metric, entity) for _, metric, entity in curves)
    divided = {(listener, metric) for listener, metric, entity in curves if entity}
    for (listener, metric, entity), curve in curves.items():
        is_total = curve.series.scope is Scope.HOST and (listener, metric) in divided
        remarks = [
            *(["estimated"] if curve.series.estimated else []),
            *([listener] if readers[metric, entity] > 1 else []),
        ]
        part = entity or ("total" if is_total else "")
        words = (metric, part, f"({', '.join(remarks)})" if remarks else "")
        curve.name = " ".join(filter(None, words))


def _offset_ns(spool: Path) -> int | None:
    """Return wall-clock minus monotonic time of radt's clock; None without the run's journal."""
    for path in sorted(RunDir(spool).journal.glob(f"*/{META_FILE}")):
        try:
            meta = JournalMeta.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # of a process that was killed while starting, or just removed
        return meta.offset_ns
    return None
