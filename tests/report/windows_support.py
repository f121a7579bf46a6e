"""Runs whose every second is known, for what counts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radt.analysis.measures import RunMeasures, WorkloadMeasures, measure
from radt.analysis.selection import attempts_of, current_attempts
from radt.analysis.window_spec import WindowSpec
from radt.model import SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

S = 1_000_000_000
BEGAN_NS = 1_780_000_000 * S

#: From and to in seconds since the workload's start.
Seconds = tuple[float, float]
#: Values from each second on to the next one given.
Levels = Mapping[float, float]


@dataclass
class Planted:
    """One run.

    Attributes:
        ran: From and to; None for a run of which that is not known.
        epochs: From and to of each, by number.
        spans: Likewise by name, a ``phase:`` or ``child 1:`` before it for what is no span of the
            first process.
        gauges: Levels by metric, read at the middle of each 100 ms.
        counters: How much they grow per second, likewise, read each full second.
    """

    letter: str = "a"
    ran: Seconds | None = (0.0, 100.0)
    epochs: Sequence[tuple[int, Seconds]] = ()
    spans: Sequence[tuple[str, Seconds]] = ()
    gauges: Mapping[str, Levels] = field(default_factory=dict)
    counters: Mapping[str, Levels] = field(default_factory=dict)
    status: RunStatus = RunStatus.FINISHED


_OF_GPU = frozenset({"gpu.energy", "gpu.power", "gpu.sm.active", "gpu.pcie.io.rx"})


class Study:
    """Writes workloads; each begins when the one before has long ended."""

    def __init__(self, store: Path | str) -> None:
        self.store = store
        self.writer = StoreWriter(store)
        self.count = 0

    def workload(self, *runs: Planted, chunks: int = 3) -> str:
        """One start of a workload, its series in several chunks; returns its id."""
        self.count += 1
        workload_id = f"{self.count:032x}"
        origin_ns = BEGAN_NS + self.count * 100_000 * S
        label = f"w{self.count}"
        with self.writer.transaction():
            self.writer.put_workload(WorkloadRecord(workload_id, "study", label, origin_ns))
            for run in runs:
                self._run(run, workload_id, label, origin_ns, chunks)
        return workload_id

    @staticmethod
    def run_id(workload_id: str, letter: str = "a") -> str:
        return workload_id[8:] + f"{ord(letter):02x}" * 4

    def measured(self, window: str = "", *, overlap: bool = False) -> list[WorkloadMeasures]:
        """What all workloads measured, in their order."""
        with StoreReader(self.store) as reader:
            current = current_attempts(attempts_of(reader.runs(experiment="study"), {}))
            return list(measure(reader, current, WindowSpec.parse(window, overlap=overlap)))

    def one(self, window: str = "", *, overlap: bool = False, letter: str = "a") -> RunMeasures:
        """What a run of the only workload measured."""
        (workload,) = self.measured(window, overlap=overlap)
        (run,) = workload.rows[letter]
        assert run is not None
        return run

    def _run(self, run: Planted, workload_id: str, label: str, origin_ns: int, chunks: int) -> None:
        run_id = self.run_id(workload_id, run.letter)

        def at(seconds: float) -> int:
            return origin_ns + round(seconds * S)

        ended = run.ran is not None and run.status.ended
        self.writer.put_run(
            RunRecord(
                *(run_id, workload_id, "study", label, run.letter, "net", origin_ns, run.status),
                started_ns=at(run.ran[0]) if run.ran else None,
                ended_ns=at(run.ran[1]) if run.ran and ended else None,
            )
        )
        markers = [
            MarkerRecord(run_id, place, MarkerKind.EPOCH, "epoch", at(start), at(end), number)
            for place, (number, (start, end)) in enumerate(run.epochs)
        ]
        for name, (start, end) in run.spans:
            head, colon, rest = name.partition(":")
            kind = MarkerKind.PHASE if head == "phase" else MarkerKind.SPAN
            process = head if colon and head != "phase" else ""
            named = (run_id, len(markers), kind, rest if colon else name)
            markers.append(MarkerRecord(*named, at(start), at(end), process=process))
        self.writer.put_markers(markers)
        first, last = run.ran or (0.0, 100.0)
        found: list[tuple[SeriesRecord, Samples]] = []
        for metric, levels in run.gauges.items():
            times = np.arange(round(first * 10), round(last * 10)) / 10 + 0.05
            values = _levels(levels, times)
            found.append(_series(run_id, len(found), metric, SeriesKind.GAUGE, times, values))
        for metric, levels in run.counters.items():
            times = np.arange(round(first), round(last) + 1, dtype=float)
            values = np.concatenate([[0.0], np.cumsum(_levels(levels, times[:-1] + 0.5))])
            found.append(_series(run_id, len(found), metric, SeriesKind.COUNTER, times, values))
        self.writer.add_series([series for series, _ in found])
        for part in range(chunks):
            batches = []
            for series, samples in found:
                bounds = [len(samples) * part // chunks, len(samples) * (part + 1) // chunks]
                some = slice(*bounds)
                times_ns = samples.times_ns[some] + origin_ns
                batches.append(
                    SeriesBatch(series.series_no, Samples(times_ns, samples.values[some]))
                )
            self.writer.append(run_id, [one for one in batches if len(one.samples)])


def _levels(levels: Levels, times: np.ndarray) -> np.ndarray:
    starts = np.array(sorted(levels))
    return np.array([levels[start] for start in starts])[
        np.searchsorted(starts, times, "right") - 1
    ]


def _series(
    run_id: str, number: int, metric: str, kind: SeriesKind, times: np.ndarray, values: np.ndarray
) -> tuple[SeriesRecord, Samples]:
    scope, entity = (Scope.GPU, "gpu0") if metric in _OF_GPU else (Scope.PROCESS, "")
    listener = "smi" if entity else "top"
    if metric == "samples_per_s":
        scope, listener = Scope.RUN, SOFTWARE
    record = SeriesRecord(run_id, number, listener, metric, "", scope, kind, entity)
    return record, Samples(np.round(times * S).astype(np.int64), values)
