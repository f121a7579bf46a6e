"""Build the trace of a run and of the runs that shared its machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from radt import __version__
from radt.errors import UsageError
from radt.home import REPORTS, RunDir
from radt.model import Scope
from radt.run_name import family_of, letter_order
from radt.store.reader import StoreReader
from radt.store.records import GapRecord, MarkerRecord, RunRecord, Samples, SeriesRecord
from radt.store.summaries import SeriesSummary
from radt.tags import PARENT
from radt.trace.chrome import BrokenTraceError, TraceFile, TraceSpan, written
from radt.trace.torch_trace import ClockMap, TorchMerger, TorchTrace, torch_traces
from radt.trace.tracks import (
    gap_spans,
    life,
    marker_spans,
    merged,
    steps,
    unit_of,
    write_rows,
)
from radt.usage import KERNEL

#: Maximum number of values in a file. Perfetto opens about ten times as many, with 1 GB of memory.
MAX_POINTS = 1_000_000
#: Spacing of positions in the list of processes: a run, its PyTorch processes, then the next run.
_PLACES_A_RUN = 10
#: Maximum number of marks per series for values that are not finite.
_MAX_STRANGE = 20
#: Reports in formats that only other programs open.
_FOREIGN_REPORTS = ("*.nsys-rep", "*.ncu-rep")
_SHARED = (Scope.HOST, Scope.GPU, Scope.MIG)

#: Returns the folder with a run's files; None if they are missing or must not be read.
FolderOf = Callable[[RunRecord], Path | None]


def folder_as_stored(run: RunRecord) -> Path | None:
    """Return the folder recorded in the store; only for stores from a trusted writer."""
    return Path(run.spool) if run.spool else None


@dataclass(frozen=True, slots=True)
class MergedTorch:
    """A PyTorch trace in the file."""

    path: Path
    events: int
    clock: ClockMap


@dataclass(slots=True)
class Contents:
    """Content of a trace file in numbers, and omitted data.

    ``shortened`` series keep ``limit`` points each, including their extremes. ``broken`` are
    unreadable PyTorch traces with the reasons; ``foreign`` are reports for other programs.
    """

    runs: int = 0
    markers: int = 0
    series: int = 0
    points: int = 0
    shortened: int = 0
    limit: int = 0
    gaps: int = 0
    torch: list[MergedTorch] = field(default_factory=list)
    broken: dict[Path, str] = field(default_factory=dict)
    foreign: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class _Curve:
    """A counter track: a series, or the series of a device in several runs."""

    name: str
    parts: list[SeriesSummary] = field(default_factory=list)

    @property
    def series(self) -> SeriesRecord:
        """Return the series, or the one read least often: its interval determines what is a gap."""
        return max((part.series for part in self.parts), key=lambda s: s.interval_s or 0.0)


#: Curves by listener, metric and entity.
_Curves = dict[tuple[str, str, str], _Curve]


@dataclass(frozen=True, slots=True)
class _TracedRun:
    """A run with its markers, gaps, curves and PyTorch traces."""

    record: RunRecord
    first_ns: int
    end_ns: int
    markers: Sequence[MarkerRecord]
    gaps: Sequence[GapRecord]
    curves: _Curves
    torch: Sequence[TorchTrace]

    @property
    def name(self) -> str:
        """Return workload, letter and name: ``1a resnet50``, ``1a ↳ lenet`` for a child."""
        record = self.record
        row, child = family_of(record.letter)
        name = f"↳ {child}" if child else record.name
        return f"{record.workload}{row} {name}".strip() or record.run_id[:8]


def write_trace(
    reader: StoreReader,
    run: RunRecord,
    path: Path,
    *,
    alone: bool = False,
    max_points: int,
    folder_of: FolderOf = folder_as_stored,
) -> Contents:
    """Write one file for ui.perfetto.dev and chrome://tracing; it appears when it is complete.

    Args:
        reader: The store.
        run: The run.
        path: The file; it is compressed if the name ends in .gz.
        alone: Omit the other runs of its workload, but not runs within it.
        max_points: Maximum number of values of series in the file.
        folder_of: Returns the folder with the files of a run.

    Raises:
        UsageError: The run has no data yet, or the file cannot be written.
    """
    contents = Contents()
    devices: dict[str, _Curves] = {}
    runs = [
        _gather(reader, record, folder_of(record), devices, contents)
        for record in _records(reader, run, alone=alone)
    ]
    if not (runs[0].markers or runs[0].curves or devices or runs[0].torch or contents.broken):
        raise UsageError(
            f"run {run.run_id[:12]} has neither samples nor epochs nor a PyTorch trace",
            "Wait until it has begun, or choose another: `radt ls` lists the runs",
        )
    contents.runs = len(runs)
    counts = [
        sum(part.count for part in curve.parts)
        for curves in (*(run.curves for run in runs), *devices.values())
        for curve in curves.values()
    ]
    contents.limit = fair_limit(counts, max_points)
    with written(path) as text:
        file = TraceFile(text, min(run.first_ns for run in runs))
        _Builder(reader, file, contents, runs).write(dict(sorted(devices.items())))
        file.close(
            {
                "radt": __version__,
                "run_id": run.run_id,
                "experiment": run.experiment,
                "workload": run.workload,
                "time_0": datetime.fromtimestamp(file.base_ns / 1e9, UTC).isoformat(),
                "time_0_ns": str(file.base_ns),
                "not_measured": "counters are 0 where nothing was measured; see the rows of gaps",
            }
        )
    return contents


def fair_limit(counts: Sequence[int], total: int = MAX_POINTS) -> int:
    """Return the maximum number of points per series for ``total`` points of all series.

    Short series stay whole; long series share the rest.

    >>> fair_limit([10, 100, 100], 150), fair_limit([10, 20], 150)
    (70, 20)
    """
    left = total
    ordered = sorted(counts)
    for place, count in enumerate(ordered):
        share = left // (len(ordered) - place)
        if count > share:
            return share
        left -= count
    return max(ordered, default=0)


# -- gathering: no values are read ----------------------------------------------------------------


def _records(reader: StoreReader, run: RunRecord, *, alone: bool) -> list[RunRecord]:
    """Return the run, then its children, then the other runs of its workload."""
    parents = reader.tagged(PARENT, run.experiment)
    others = [
        other
        for other in reader.runs(workload_id=run.workload_id)
        if other.run_id != run.run_id and other.started_ns
    ]
    children = [other for other in others if parents.get(other.run_id) == run.run_id]
    neighbours = [] if alone else [other for other in others if other not in children]
    return [run, *children, *sorted(neighbours, key=lambda other: letter_order(other.letter))]


def _gather(
    reader: StoreReader,
    record: RunRecord,
    folder: Path | None,
    devices: dict[str, _Curves],
    contents: Contents,
) -> _TracedRun:
    """Return a run; series of devices that runs share go to ``devices``."""
    ids = [record.run_id]
    markers = reader.markers(ids)
    times_ns = [record.started_ns or record.created_ns]
    times_ns += [time_ns for m in markers for time_ns in (m.start_ns, m.end_ns or m.start_ns)]
    own: _Curves = {}
    for summary in reader.summary(ids):
        series = summary.series
        if series.listener == KERNEL:  # totals are not curves
            continue
        times_ns += [summary.first_ns, summary.last_ns]
        curves, entity = own, series.entity
        if series.scope in _SHARED:
            device, entity = _device(record, series)
            curves = devices.setdefault(device, {})
        curve = curves.setdefault((series.listener, series.metric, entity), _Curve(series.metric))
        curve.parts.append(summary)
    end_ns = max(*times_ns, record.ended_ns or 0)
    torch = [] if folder is None else list(_torch_traces(folder, contents))
    times_ns += [trace.first_ns for trace in torch if trace.first_ns]
    return _TracedRun(record, min(times_ns), end_ns, markers, reader.gaps(ids), own, torch)


def _torch_traces(folder: Path, contents: Contents) -> Iterator[TorchTrace]:
    profiles = RunDir(folder).artifacts / REPORTS
    contents.foreign += sorted(p for pattern in _FOREIGN_REPORTS for p in profiles.rglob(pattern))
    for path in torch_traces(folder):
        try:
            yield TorchTrace.look(path)
        except BrokenTraceError as error:
            contents.broken[path] = str(error)
        except OSError as error:
            contents.broken[path] = error.strerror or str(error)


def _device(record: RunRecord, series: SeriesRecord) -> tuple[str, str]:
    """Return the process that shows a device, and the rest of the series' entity."""
    host = series.node or record.host
    if series.scope is Scope.HOST:
        return f"host {host}".rstrip(), series.entity_there
    card, _, part = series.entity_there.partition("/")
    return f"{card or 'GPU'}{f' of {host}' if host else ''}", part


def _name(curves: _Curves) -> None:
    """Give each track of a process a unique name.

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


# -- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Builder:
    """Writes the gathered data, one process after the other."""

    reader: StoreReader
    file: TraceFile
    contents: Contents
    runs: Sequence[_TracedRun]

    def write(self, devices: Mapping[str, _Curves]) -> None:
        """Write all runs; the devices come between the run and its neighbours."""
        for number, run in enumerate(self.runs):
            order = number * _PLACES_A_RUN + (len(devices) if number else 0)
            self._run(run, order)
            if number == 0:
                end_ns = max(run.end_ns for run in self.runs)
                for place, (device, curves) in enumerate(devices.items()):
                    pid = self.file.process(device, _PLACES_A_RUN + place)
                    self._curves(pid, curves, end_ns)

    def _run(self, run: _TracedRun, order: int) -> None:
        record, contents = run.record, self.contents
        title = f"{run.name} [{record.status.value}] {record.run_id[:8]}"
        pid = self.file.process(title, order)
        rows: dict[str, list[TraceSpan]] = {}
        if record.started_ns is not None:
            params = self.reader.params(record.run_id)
            rows["run"] = [life(record, run.name, run.end_ns, params)]
        rows |= marker_spans(run.markers, run.end_ns)
        _name(run.curves)
        names = {
            part.series.series_no: curve.name
            for curve in run.curves.values()
            for part in curve.parts
        }
        rows["gaps"] = gap_spans(run.gaps, names)
        write_rows(self.file, pid, rows)
        contents.markers += len(run.markers)
        contents.gaps += len(rows["gaps"])
        self._curves(pid, run.curves, run.end_ns)
        merger = TorchMerger(self.file, run.name, order + 1)
        for trace in run.torch:
            events = merger.write(trace, len(contents.torch))
            contents.torch.append(MergedTorch(trace.path, events, trace.clock))

    def _curves(self, pid: int, curves: _Curves, end_ns: int) -> None:
        _name(curves)
        for curve in curves.values():
            self._curve(pid, curve, end_ns)

    def _curve(self, pid: int, curve: _Curve, end_ns: int) -> None:
        series, limit, contents = curve.series, self.contents.limit, self.contents
        parts = [(part.series.run_id, part.series.series_no) for part in curve.parts]
        samples = merged([self.reader.samples(*part) for part in parts])
        if series.scope is Scope.RUN:
            self._strange(pid, curve.name, samples)
        # Series number -1 means a gap in all series of the listener.
        wanted = {*parts, *((run_id, -1) for run_id, _ in parts)}
        holes_ns = [
            gap.start_ns
            for run in self.runs
            for gap in run.gaps
            if gap.listener == series.counted_as and (gap.run_id, gap.series_no) in wanted
        ]
        drawn = steps(samples, series, holes_ns, end_ns, limit)
        if len(drawn):
            self.file.counter(pid, curve.name, unit_of(series), drawn)
            contents.series += 1
            contents.points += len(samples)
            contents.shortened += len(samples) > max(limit, 1)

    def _strange(self, pid: int, name: str, samples: Samples) -> None:
        """Mark values that are not finite, such as a diverged loss: counters cannot show them."""
        strange = ~np.isfinite(samples.values)
        if not strange.any():
            return
        begins = np.flatnonzero(strange & ~np.append(False, strange[:-1]))[:_MAX_STRANGE]
        tid = self.file.track(pid, f"{name}: not a number")
        for place in begins.tolist():
            step = None if samples.steps is None else int(samples.steps[place])
            text = f"{name} is {float(samples.values[place])}"
            at_ns = int(samples.times_ns[place])
            self.file.slice(pid, tid, TraceSpan(text, at_ns, None, "value", {"step": step}))
