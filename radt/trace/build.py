"""Build a run's trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from radt import __version__
from radt.model import Scope
from radt.store.reader import StoreReader
from radt.store.records import GapRecord, RunRecord, Samples
from radt.trace.chrome import BrokenTraceError, TraceFile, written
from radt.trace.gather import Curve, FolderOf, Gathered, TracedRun, folder_as_stored, gather
from radt.trace.torch_trace import ClockMap, TorchMerger, TorchTrace
from radt.trace.tracks import merged, steps, unit_of, write_rows

#: Values in a whole file. Perfetto opens about ten times as many, using a gigabyte of memory.
MAX_POINTS = 1_000_000


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


#: Positions in the list of processes: a run, then its PyTorch processes, then the next run.
_PLACES_A_RUN = 10
#: Maximum number of marks per series for values that are not finite.
_MAX_STRANGE = 20


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
        alone: Omit the other runs of its workload.
        max_points: Maximum number of values of series in the file.
        folder_of: Returns the folder with the files of a run.

    Raises:
        UsageError: The run has no data yet, or the file cannot be written.
    """
    gathered = gather(reader, run, alone=alone, folder_of=folder_of)
    contents = Contents(runs=len(gathered.runs))
    contents.limit = fair_limit([curve.points for curve in gathered.curves], max_points)
    traces = [_looked_at(run, contents) for run in gathered.runs]
    torch_ns = [trace.first_ns for of_run in traces for trace in of_run if trace.first_ns]
    with written(path) as text:
        file = TraceFile(text, min([gathered.first_ns, *torch_ns]))
        _Builder(reader, file, gathered, contents).write(traces)
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


def _looked_at(run: TracedRun, contents: Contents) -> list[TorchTrace]:
    contents.foreign.extend(run.foreign)
    traces = []
    for path in run.torch:
        try:
            traces.append(TorchTrace.look(path, run.offset_ns))
        except BrokenTraceError as error:
            contents.broken[path] = str(error)
        except OSError as error:
            contents.broken[path] = error.strerror or str(error)
    return traces


class _Builder:
    """Writes the gathered data, one process after the other."""

    def __init__(
        self, reader: StoreReader, file: TraceFile, gathered: Gathered, contents: Contents
    ) -> None:
        self._reader = reader
        self._file = file
        self._gathered = gathered
        self._contents = contents
        self._gaps: list[GapRecord] = [gap for run in gathered.runs for gap in run.gaps]

    def write(self, traces: Sequence[Sequence[TorchTrace]]) -> None:
        """Write all runs; ``traces`` are the PyTorch traces of each."""
        devices = len(self._gathered.shared)
        end_ns = max(run.end_ns for run in self._gathered.runs)
        for number, run in enumerate(self._gathered.runs):
            # The devices come between the run and its neighbours.
            order = number * _PLACES_A_RUN + (devices if number else 0)
            self._run(run, order)
            merger = TorchMerger(self._file, run.name, order + 1)
            for trace in traces[number]:
                events = merger.write(trace, len(self._contents.torch))
                self._contents.torch.append(MergedTorch(trace.path, events, trace.clock))
            if number == 0:
                for place, (device, curves) in enumerate(self._gathered.shared.items()):
                    pid = self._file.process(device, _PLACES_A_RUN + place)
                    for curve in curves:
                        self._curve(pid, curve, end_ns)

    def _run(self, run: TracedRun, order: int) -> None:
        title = f"{run.name} [{run.record.status.value}] {run.record.run_id[:8]}"
        pid = self._file.process(title, order)
        rows = write_rows(self._file, pid, run, self._reader.params(run.record.run_id))
        self._contents.markers += rows.markers
        self._contents.gaps += rows.gaps
        for curve in run.curves:
            self._curve(pid, curve, run.end_ns)

    def _curve(self, pid: int, curve: Curve, end_ns: int) -> None:
        series, limit = curve.series, self._contents.limit
        parts = [
            self._reader.samples(part.series.run_id, part.series.series_no) for part in curve.parts
        ]
        samples = merged(parts)
        if series.scope is Scope.RUN:
            self._strange(pid, curve.name, samples)
        of_series = {(part.series.run_id, part.series.series_no) for part in curve.parts}
        holes_ns = [
            gap.start_ns
            for gap in self._gaps
            if gap.listener == series.counted_as
            and ((gap.run_id, gap.series_no) in of_series or self._is_of_all(gap, curve))
        ]
        drawn = steps(samples, series, holes_ns, end_ns, limit)
        if not len(drawn):
            return
        self._file.counter(pid, curve.name, unit_of(series), drawn.points())
        self._contents.series += 1
        self._contents.points += len(samples)
        self._contents.shortened += len(samples) > max(limit, 1)

    def _is_of_all(self, gap: GapRecord, curve: Curve) -> bool:
        return gap.series_no < 0 and any(part.series.run_id == gap.run_id for part in curve.parts)

    def _strange(self, pid: int, name: str, samples: Samples) -> None:
        """Mark values that are not finite: counters cannot show a loss that diverged."""
        strange = ~np.isfinite(samples.values)
        if not strange.any():
            return
        begins = np.flatnonzero(strange & ~np.append(False, strange[:-1]))[:_MAX_STRANGE]
        track = self._file.track(pid, f"{name}: not a number")
        for place in begins.tolist():
            step = None if samples.steps is None else int(samples.steps[place])
            value = str(float(samples.values[place]))
            at_ns = int(samples.times_ns[place])
            self._file.instant(track, f"{name} is {value}", at_ns, "value", {"step": step})
