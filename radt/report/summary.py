"""Time per epoch, throughput and load of each workload, and what collocation cost it.

Method: the first epoch is warm-up and left out if there is another one. Times come from epoch
markers, load from the samples inside the epochs that count. Repeats of a row are averaged. A run's
baseline is the run of the same experiment that had the same file, parameters, devices and machine
and ran alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.report.attempts import Attempt, profiled_runs, standing_attempts
from radt.report.energy import WorkloadEnergy, workload_energy
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord, SeriesRecord
from radt.store.tags import PROFILED, PROFILED_BESIDE
from radt.units import plural

#: What scripts call their throughput, in samples per second.
THROUGHPUT_METRICS = ("samples_per_s", "samples_per_second", "throughput")
CPU_METRIC = "process.cpu.utilization"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One row in numbers, the means of its finished repeats; None where it was not measured.

    ``profiled`` says which profiler it ran under, or beside.

    ``cpu_cores`` is the mean CPU time per time of the process tree. ``run`` is the newest repeat's,
    and ``repeats`` 0 where none finished.
    """

    run: RunRecord
    time_per_epoch_s: float | None
    samples_per_s: float | None
    cpu_cores: float | None
    baseline_key: tuple[str, ...]
    repeats: int = 1
    profiled: str = ""

    @property
    def status(self) -> RunStatus:
        """FINISHED if one repeat did."""
        return RunStatus.FINISHED if self.repeats else self.run.status


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The like runs of a workload together: mean of their times, sum of their throughput and CPU.

    ``slowdown`` is their time per epoch over that of the same run alone, None without one. Runs
    that did not finish have a group of their own, without numbers; its ``status`` says how they
    ended.
    """

    name: str
    runs: Sequence[RunSummary]
    status: RunStatus
    time_per_epoch_s: float | None
    slowdown: float | None
    samples_per_s: float | None
    cpu_cores: float | None

    @property
    def repeats(self) -> int:
        """How many times each of them finished, at least."""
        return min(run.repeats for run in self.runs)


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One workload in numbers."""

    label: str
    groups: Sequence[GroupSummary]
    energy: WorkloadEnergy
    host: str = ""

    @property
    def run_count(self) -> int:
        return sum(len(group.runs) for group in self.groups)


def profiled_count(reader: StoreReader, experiment: str) -> int:
    """How many runs of an experiment `summarise` leaves out: profiled ones and their neighbours.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = reader.runs(experiment=experiment)
    return len(profiled_runs(runs, reader.tags_of([run.run_id for run in runs])))


def left_out_text(count: int) -> str:
    """What is said of them."""
    were = "was" if count == 1 else "were"
    return f"{plural(count, 'run')} {were} slowed down by a profiler and left out"


def summarise(
    reader: StoreReader, experiment: str, *, profiled: bool = False
) -> list[WorkloadSummary]:
    """The runs that stand for the rows of an experiment, workload by workload.

    Args:
        reader: The store.
        experiment: The experiment's name.
        profiled: Include workloads that a profiler slowed down. They are no baseline to others.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = reader.runs(experiment=experiment)
    tags = reader.tags_of([run.run_id for run in runs])
    standing = standing_attempts(runs, tags, profiled=profiled)
    summaries = _summarise_runs(
        reader, [run for repeats in standing for attempt in repeats for run in attempt.runs]
    )
    summaries = {
        run_id: replace(summary, profiled=_profiled(tags.get(run_id, {})))
        for run_id, summary in summaries.items()
    }
    workloads = [[*map(_mean_of_repeats, _rows(repeats, summaries))] for repeats in standing]
    solo = [all(attempt.solo for attempt in repeats) for repeats in standing]
    measured_alone = [
        alone and not repeats[0].is_profiled for repeats, alone in zip(standing, solo, strict=True)
    ]
    baselines = _baselines(
        [rows for rows, own in zip(workloads, measured_alone, strict=True) if own]
    )
    return [
        WorkloadSummary(
            label=rows[0].run.workload or "–",
            groups=[
                _group(like, None if is_baseline else baselines.get(like[0].baseline_key))
                for like in _alike(rows)
            ],
            energy=workload_energy(reader, repeats),
            host=repeats[-1].host,
        )
        for rows, repeats, is_baseline in zip(workloads, standing, measured_alone, strict=True)
    ]


def _rows(
    repeats: Sequence[Attempt], summaries: Mapping[str, RunSummary]
) -> Iterable[Sequence[RunSummary]]:
    """The repeats of each row, the oldest first."""
    rows: dict[str, list[RunSummary]] = {}
    for attempt in repeats:
        for run in attempt.runs:
            rows.setdefault(run.letter, []).append(summaries[run.run_id])
    return rows.values()


def _mean_of_repeats(row: Sequence[RunSummary]) -> RunSummary:
    finished = [one for one in row if one.repeats]
    if not finished:
        return row[-1]
    return RunSummary(
        run=finished[-1].run,
        time_per_epoch_s=_mean(one.time_per_epoch_s for one in finished),
        samples_per_s=_mean(one.samples_per_s for one in finished),
        cpu_cores=_mean(one.cpu_cores for one in finished),
        baseline_key=finished[-1].baseline_key,
        repeats=len(finished),
        profiled=finished[-1].profiled,
    )


def _summarise_runs(reader: StoreReader, runs: Sequence[RunRecord]) -> dict[str, RunSummary]:
    run_ids = [run.run_id for run in runs]
    series: dict[str, list[SeriesRecord]] = {run_id: [] for run_id in run_ids}
    for record in reader.series(run_ids):
        series[record.run_id].append(record)
    epochs: dict[str, list[MarkerRecord]] = {run_id: [] for run_id in run_ids}
    for marker in reader.markers(run_ids):
        if marker.kind is MarkerKind.EPOCH and marker.end_ns is not None and not marker.process:
            epochs[marker.run_id].append(marker)
    params = reader.params_of(run_ids)
    return {
        run.run_id: _summarise_run(
            reader, run, series[run.run_id], epochs[run.run_id], params.get(run.run_id, {})
        )
        for run in runs
    }


def _summarise_run(
    reader: StoreReader,
    run: RunRecord,
    series: Sequence[SeriesRecord],
    epochs: Sequence[MarkerRecord],
    params: Mapping[str, str],
) -> RunSummary:
    baseline_key = (params.get("File", ""), params.get("Params", ""), run.devices, run.host)
    if run.status is not RunStatus.FINISHED:
        return RunSummary(run, None, None, None, baseline_key, repeats=0)
    counted = list(epochs[1:] or epochs)
    start_ns = counted[0].start_ns if counted else run.started_ns
    end_ns = counted[-1].end_ns if counted else run.ended_ns

    def mean(names: Iterable[str], listener: str | None) -> float | None:
        for name in names:
            for record in series:
                if record.metric == name and (listener is None or record.listener == listener):
                    value = reader.mean(
                        run.run_id, record.series_no, start_ns=start_ns, end_ns=end_ns
                    )
                    if value is not None:
                        return value
        return None

    return RunSummary(
        run=run,
        time_per_epoch_s=fmean(_length_s(epoch) for epoch in counted) if counted else None,
        samples_per_s=mean(THROUGHPUT_METRICS, SOFTWARE),
        cpu_cores=mean([CPU_METRIC], None),
        baseline_key=baseline_key,
    )


def _length_s(epoch: MarkerRecord) -> float:
    assert epoch.end_ns is not None
    return (epoch.end_ns - epoch.start_ns) / 1e9


def _alike(runs: Sequence[RunSummary]) -> list[list[RunSummary]]:
    groups: dict[tuple[object, ...], list[RunSummary]] = {}
    for run in runs:
        groups.setdefault((run.baseline_key, run.status, run.profiled), []).append(run)
    return list(groups.values())


def _profiled(tags: Mapping[str, str]) -> str:
    beside = tags.get(PROFILED_BESIDE, "")
    return tags.get(PROFILED, "") or (f"beside {beside}" if beside else "")


def _baselines(
    workloads: Iterable[Sequence[RunSummary]],
) -> dict[tuple[str, ...], float]:
    """Time per epoch of what ran alone; the newest wins."""
    return {
        runs[0].baseline_key: runs[0].time_per_epoch_s
        for runs in workloads
        if runs[0].time_per_epoch_s is not None
    }


def _group(runs: Sequence[RunSummary], baseline_s: float | None) -> GroupSummary:
    time_s = _mean(run.time_per_epoch_s for run in runs)
    name = ", ".join(dict.fromkeys(run.run.name for run in runs))
    return GroupSummary(
        name=f"{name} ({runs[0].profiled})" if runs[0].profiled else name,
        runs=runs,
        status=runs[0].status,
        time_per_epoch_s=time_s,
        slowdown=time_s / baseline_s if time_s is not None and baseline_s else None,
        samples_per_s=_total(run.samples_per_s for run in runs),
        cpu_cores=_total(run.cpu_cores for run in runs),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
