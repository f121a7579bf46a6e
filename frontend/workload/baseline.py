"""How much slower runs were than alone.

The rule of `radt.report.baselines`: a run's baseline is the run of the same experiment that had the
same file, parameters, devices and machine and ran alone, not beside a profiler, on an undivided
device if there is such a run; repeats are averaged and the newest workload wins. Here for the runs
of one workload, so that only candidates are read, and without starts that others stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from radt.frontend.catalog import RunEntry, WorkloadEntry
from radt.frontend.source import Source
from radt.frontend.workload.subject import Subject
from radt.model import MarkerKind, RunStatus
from radt.report.attempts import NO_COLLOCATION, Attempt, standing_attempts
from radt.report.baselines import BaselineKey, is_undivided, ran_alone
from radt.report.windowing import after_first
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord

#: In an experiment with more solo workloads than these the newest are looked at.
_MAX_CANDIDATES = 500


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A run against its baseline: seconds an epoch of both, and the workload of the baseline."""

    epoch_s: float
    solo_s: float
    solo: WorkloadEntry

    @property
    def ratio(self) -> float:
        return self.epoch_s / self.solo_s


def slowdowns(source: Source, subject: Subject) -> dict[str, Slowdown]:
    """By run id; runs without baseline, or without an ended epoch, are left out.

    Runs that did not finish have none, as in reports; those that still run have what is known.

    Raises:
        StoreError: The store cannot be read.
    """
    key = ("workload-slowdowns", subject.workload_id)
    return source.remember(key, lambda reader: _read(reader, subject))


def _read(reader: StoreReader, subject: Subject) -> dict[str, Slowdown]:
    compared = [
        run
        for run in subject.workload.runs
        if run.record.status in (RunStatus.FINISHED, RunStatus.RUNNING) and run.remote is None
    ]
    candidates = _candidates(subject, compared)
    if not candidates:
        return {}
    baselines = _baselines(reader, subject, candidates)
    ids = [run.run_id for run in compared]
    params, epochs = reader.params_of(ids), _epochs(reader, ids)
    found: dict[str, Slowdown] = {}
    for run in compared:
        known = baselines.get(BaselineKey.of(run.record, params.get(run.run_id, {})))
        mine_s = after_first(epochs.get(run.run_id, ())).time_per_epoch_s
        if known is None or mine_s is None or known[1].record.workload_id == subject.workload_id:
            continue
        found[run.run_id] = Slowdown(mine_s, *known)
    return found


def _candidates(subject: Subject, compared: Sequence[RunEntry]) -> list[WorkloadEntry]:
    places = {(run.record.devices, run.record.host) for run in compared}
    runs = subject.workload.runs
    alone = len(runs) == 1 and runs[0].record.collocation in NO_COLLOCATION
    if alone and not subject.workload.is_profiled:
        return []  # it is a baseline itself
    found = [
        workload
        for workload in subject.catalog.workloads
        if len(workload.runs) == 1
        and not workload.is_profiled
        and workload.runs[0].remote is None
        and workload.runs[0].record.status is RunStatus.FINISHED
        and (workload.runs[0].record.devices, workload.runs[0].record.host) in places
    ]
    return found[-_MAX_CANDIDATES:]


def _baselines(
    reader: StoreReader, subject: Subject, candidates: Sequence[WorkloadEntry]
) -> dict[BaselineKey, tuple[float, WorkloadEntry]]:
    labels = {workload.record.label for workload in candidates}
    of_labels = [w for w in subject.catalog.workloads if w.record.label in labels]
    records = [run.record for w in of_labels for run in w.runs if run.remote is None]
    tags = reader.tags_of([record.run_id for record in records])
    entries = {run.run_id: run for w in of_labels for run in w.runs}
    by_workload = {w.record.workload_id: w for w in of_labels}
    standing = [repeats for repeats in standing_attempts(records, tags) if ran_alone(repeats)]
    standing.sort(key=is_undivided)  # the last one counts
    finished = [_finished(repeats) for repeats in standing]
    ids = [run_id for of_row in finished for run_id in of_row]
    params, epochs = reader.params_of(ids), _epochs(reader, ids)
    found: dict[BaselineKey, tuple[float, WorkloadEntry]] = {}
    for of_row in finished:
        times = [after_first(epochs.get(run_id, ())).time_per_epoch_s for run_id in of_row]
        known = [time_s for time_s in times if time_s is not None]
        if known:
            newest = entries[of_row[-1]]
            key = BaselineKey.of(newest.record, params.get(newest.run_id, {}))
            found[key] = (fmean(known), by_workload[newest.record.workload_id])
    return found


def _finished(repeats: Sequence[Attempt]) -> list[str]:
    return [
        run.run_id
        for attempt in repeats
        for run in attempt.runs
        if run.status is RunStatus.FINISHED
    ]


def _epochs(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, list[MarkerRecord]]:
    found: dict[str, list[MarkerRecord]] = {}
    for marker in reader.markers(run_ids):
        if marker.kind is MarkerKind.EPOCH and not marker.process:
            found.setdefault(marker.run_id, []).append(marker)
    return found
