"""Stores for tests: filled as collectors fill them, and compared with their copies run by run."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from radt.collector.routing import Numbering
from radt.collector.totals import total_batches
from radt.model import SOFTWARE, MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.summaries import SUMMARIES, summarised
from radt.store.writer import StoreWriter
from radt.usage import TOTALS, usage_file

START_NS = 1_790_000_000_000_000_000
NS_PER_S = 1_000_000_000


@dataclass
class WrittenRun:
    """A run that a test writes, a stretch at a time, as a collector would.

    All series of a listener are read at the same instants; values are noise of a precision that
    drivers give. Series 0 is the script's ``loss``, with steps.
    """

    writer: StoreWriter
    run_id: str
    series_count: int
    interval_s: float = 1.0
    ticks: int = 0
    steps: int = 0
    next_marker_no: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def begin(self) -> None:
        """Series, parameters and a status."""
        series = [
            SeriesRecord(self.run_id, 0, SOFTWARE, "loss", "1", Scope.RUN, SeriesKind.GAUGE),
            *(
                SeriesRecord(
                    *(self.run_id, number, f"listener{number % 3}", f"metric{number}", "W"),
                    *(Scope.GPU, SeriesKind.GAUGE, "gpu0", self.interval_s, "read", False, 2.0**32),
                )
                for number in range(1, self.series_count + 1)
            ),
        ]
        with self.writer.transaction():
            self.writer.add_series(series)
            self.writer.put_params(self.run_id, {"lr": "0.1", "Zoë's\tnote": "100 % {x} \\ 'y'"})
            self.writer.put_tags(self.run_id, {"radt.listeners": "top+smi"})
            self.writer.update_run(self.run_id, status=RunStatus.RUNNING, pid=4242)

    def record(self, ticks: int, *, flush: int = 0, odd: bool = True) -> None:
        """So many readings of every listener, ``flush`` of them in each transaction (0: all)."""
        left = ticks
        while left:
            count = min(left, flush or left)
            left -= count
            with self.writer.transaction():
                self.writer.append(self.run_id, list(self._batches(count, odd=odd)))
                self.ticks += count
                for listener in range(min(3, self.series_count)):
                    self.writer.put_ledger(
                        LedgerRecord(
                            *(self.run_id, f"listener{listener}", self.interval_s),
                            *(self.ticks, self.ticks, 0, self.ticks * 1000),
                        )
                    )

    def log(self, values: Sequence[float]) -> None:
        """Values of the script."""
        first = self.now_ns
        steps = np.arange(self.steps, self.steps + len(values), dtype=np.int64)
        self.steps += len(values)
        times = first + np.arange(len(values), dtype=np.int64) * 1000
        samples = Samples(times, np.array(values, np.float64), steps)
        self.writer.append(self.run_id, [SeriesBatch(0, samples)])

    def mark(self, count: int = 1, kind: MarkerKind = MarkerKind.EVENT) -> list[MarkerRecord]:
        """Markers, spans of which are open."""
        new = [
            MarkerRecord(self.run_id, self.next_marker_no + n, kind, f"{kind} {n}", self.now_ns + n)
            for n in range(count)
        ]
        self.next_marker_no += count
        self.writer.put_markers(new)
        return new

    def close(self, markers: Sequence[MarkerRecord]) -> None:
        """Spans get their ends."""
        self.writer.put_markers([replace(one, end_ns=one.start_ns + 1000) for one in markers])

    def miss(self) -> None:
        """A gap."""
        end_ns = self.now_ns + NS_PER_S
        gap = GapRecord(self.run_id, "listener1", -1, self.now_ns, end_ns, MissingReason.LOST)
        self.writer.put_gaps([gap])

    def end(self, status: RunStatus = RunStatus.FINISHED) -> None:
        self.writer.end_run(self.run_id, status, self.now_ns, 0)
        self.writer.seal(self.run_id)

    @property
    def now_ns(self) -> int:
        """When it is, for this run."""
        return START_NS + round(self.ticks * self.interval_s * NS_PER_S)

    def _batches(self, count: int, *, odd: bool) -> Iterator[SeriesBatch]:
        step_ns = round(self.interval_s * NS_PER_S)
        late_ns = self.random.integers(0, 200_000, (3, count))
        plan_ns = self.now_ns + np.arange(count, dtype=np.int64) * step_ns
        for number in range(1, self.series_count + 1):
            times = plan_ns + late_ns[number % 3]
            values = np.round(50 + self.random.normal(0, 3, count), 3)
            if odd and number == 1 and count > 3:
                values[:4] = [np.nan, np.inf, -0.0, -np.inf]
            if odd and number == 2 and count > 1:
                times = times.copy()
                times[-1] -= 3600 * NS_PER_S  # the clock was set back
            yield SeriesBatch(number, Samples(times, values))


def add_totals(writer: StoreWriter, run_id: str) -> dict[str, float]:
    """Totals as the collector stores them at a run's end; returns them."""
    totals = {total.key: 1000.25 + number for number, total in enumerate(TOTALS)}
    with tempfile.TemporaryDirectory() as folder, StoreReader(writer.address) as reader:
        usage_file(Path(folder)).write_text(json.dumps(totals))
        numbering = Numbering(run_id, reader.series([run_id]), [])
        batches = list(total_batches(Path(folder), numbering, START_NS, START_NS + NS_PER_S))
    with writer.transaction():
        writer.add_series(numbering.new_series())
        writer.append(run_id, batches)
    return totals


def add_runs(
    writer: StoreWriter,
    count: int = 1,
    *,
    series: int = 6,
    interval_s: float = 1.0,
    experiment: str = "digits",
    host: str = "here",
) -> list[WrittenRun]:
    """A workload of so many runs that have begun."""
    workload_id = secrets.token_hex(16)
    writer.put_workload(
        WorkloadRecord(workload_id, experiment, "1", START_NS, RunStatus.RUNNING, "sqlite:///m.db")
    )
    runs = []
    for index in range(count):
        run_id = secrets.token_hex(16)
        writer.put_run(
            RunRecord(
                *(run_id, workload_id, experiment, "1", chr(97 + index % 26), f"cnn {index}"),
                START_NS + index,
                host=host,
                command="python train.py --name 'a b'",
                spool=f"/data/runs/{run_id}",
            )
        )
        run = WrittenRun(writer, run_id, series, interval_s, random=np.random.default_rng(index))
        run.begin()
        runs.append(run)
    return runs


def differences(
    original: StoreAddress | Path | str,
    copy: StoreAddress | Path | str,
    run_ids: Sequence[str] | None = None,
) -> list[str]:
    """What a copy of a store lacks or has otherwise, a line each; what it has besides is its own.

    Everything is compared, every point bit for bit and in the order it was written.
    """
    with closing(StoreReader(original)) as ours, closing(StoreReader(copy)) as theirs:
        runs = ours.runs(run_ids=run_ids)
        ids = [run.run_id for run in runs]
        found = _compared("run", runs, theirs.runs(run_ids=ids))
        wanted = {run.workload_id for run in runs}
        found += _compared(
            "workload",
            [one for one in ours.workloads() if one.workload_id in wanted],
            [one for one in theirs.workloads() if one.workload_id in wanted],
        )
        names = {one.name for one in theirs.experiments()}
        found += [f"experiment {run.experiment}" for run in runs if run.experiment not in names]
        for name in ("series", "ledger", "gaps", "markers"):
            here, there = getattr(ours, name)(ids), getattr(theirs, name)(ids)
            found += _compared(name, here, there)
        for name in ("params_of", "tags_of"):
            if getattr(ours, name)(ids) != getattr(theirs, name)(ids):
                found.append(name)
        for one in ours.series(ids):
            found += _compared_points(ours, theirs, one)
        for reader in (ours, theirs):
            found += wrong_summaries(reader, ids)
        return found


def wrong_summaries(reader: StoreReader, run_ids: Sequence[str]) -> list[str]:
    """The summaries that are not those of all points, a line each; no run may be thinned."""
    found = []
    summaries = {summary.series: summary for summary in reader.summary(run_ids)}
    for series, summary in summaries.items():
        expected = summarised(series, reader.samples(series.run_id, series.series_no))
        for name in SUMMARIES.fields:
            value, plain = getattr(summary, name), getattr(expected, name)
            if value != plain and not np.isclose(value, plain, rtol=1e-9, equal_nan=True):
                found.append(f"{series.run_id}, {series.series_no}: {name} {value}, not {plain}")
    found += [
        f"{series.run_id}, {series.series_no}: no summary"
        for series in reader.series(run_ids)
        if series not in summaries and len(reader.samples(series.run_id, series.series_no))
    ]
    return found


def _compared(what: str, here: Sequence[Any], there: Sequence[Any]) -> list[str]:
    missing = list(dict.fromkeys(here).keys() - set(there))
    extra = list(dict.fromkeys(there).keys() - set(here))
    return [f"{what} missing: {one}" for one in missing[:5]] + [
        f"{what} too much: {one}" for one in extra[:5]
    ]


def _compared_points(ours: StoreReader, theirs: StoreReader, series: SeriesRecord) -> list[str]:
    key, everything = (series.run_id, series.series_no), 2**40
    here = ours.points_after(*key, 0, everything)
    there = theirs.points_after(*key, 0, everything)
    name = f"series {series.series_no} of {series.run_id}"
    if len(here) != len(there):
        return [f"{name}: {len(there)} points instead of {len(here)}"]
    columns = [(here.times_ns, there.times_ns), (_bits(here.values), _bits(there.values))]
    if here.steps is not None or there.steps is not None:
        if here.steps is None or there.steps is None:
            return [f"{name}: steps"]
        columns.append((here.steps, there.steps))
    return [f"{name}: other points" for one, two in columns if not np.array_equal(one, two)]


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.int64)
