"""Import runs from MLflow; those that radt recorded come completely from their archives.

The unit and device of a system metric follow from its name, as MLflow documents them
(https://mlflow.org/docs/latest/ml/tracking/system-metrics and ``mlflow/system_metrics``). Names and
values stay as in MLflow; metrics that it does not document have no unit here. ``metric`` is the
same name for all devices: ``system/gpu_utilization_percentage``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from radt.delivery.archive import FileMissingError
from radt.delivery.archive.read import Archive, find_archive, import_archive
from radt.errors import ArchiveError
from radt.importers.importing import Import, ImportResult, Progress, ignore, is_ours, known_runs
from radt.importers.mlflow import MlflowReader, MlflowRun, last_points
from radt.importers.source import (
    RefusedError,
    RunFacts,
    SourcePiece,
    SourceRun,
    SourceSeries,
    Stored,
)
from radt.model import RunStatus, Scope
from radt.store.reader import StoreReader
from radt.store.records import Samples
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

#: ``listener`` of metrics that MLflow itself measures.
MLFLOW = "mlflow"
#: Number of metrics that are read concurrently.
_THREADS = 8

_INCOMPLETE = "incomplete"
_PREFIX = "system/"
_GPU = re.compile(r"gpu_(\d+)_")
_UNITS = {"percentage": "%", "megabytes": "MB", "gigabytes": "GB", "watts": "W"}
_HOST_METRICS = frozenset(
    {
        "cpu_utilization_percentage",
        "system_memory_usage_megabytes",
        "system_memory_usage_percentage",
        "disk_usage_percentage",
        "disk_usage_megabytes",
        "disk_available_megabytes",
        "network_receive_megabytes",
        "network_transmit_megabytes",
    }
)
_GPU_METRICS = frozenset(
    {
        "memory_usage_percentage",
        "memory_usage_megabytes",
        "memory_usage_gigabytes",
        "utilization_percentage",
        "power_usage_watts",
        "power_usage_percentage",
    }
)
_OF_NETWORK = "MLflow read it; since the run began"
_OF_OTHERS = "MLflow read it"


def meaning(key: str) -> SourceSeries:
    """Return the series of an MLflow key; for anything but a system metric, the key is the metric.

    >>> meaning("system/gpu_1_power_usage_watts").entity
    'gpu1'
    """
    if not key.startswith(_PREFIX):
        return SourceSeries(key)
    node, _, name = key.removeprefix(_PREFIX).rpartition("/")
    unit = _UNITS.get(name.rpartition("_")[2], "")
    if name in _HOST_METRICS:
        method = _OF_NETWORK if name.startswith("network") else _OF_OTHERS
        return SourceSeries(f"{_PREFIX}{name}", Scope.HOST, MLFLOW, unit, node, method)
    if (gpu := _GPU.match(name)) and name[gpu.end() :] in _GPU_METRICS:
        entity = f"{node} gpu{gpu[1]}".strip()
        metric = f"{_PREFIX}gpu_{name[gpu.end() :]}"
        return SourceSeries(metric, Scope.GPU, MLFLOW, unit, entity, _OF_OTHERS)
    return SourceSeries(key)


@dataclass(slots=True)
class _Metric:
    """A metric that is being read, and the position in its points."""

    key: str
    series: SourceSeries
    first: int
    has_steps: bool


class MlflowSource:
    """Runs of one MLflow that radt did not record.

    Args:
        reader: Connected reader.
        pool: Reads several metrics concurrently.
        experiments: Names of the experiments to read; empty for all.
    """

    #: Points may be deleted in MLflow.
    grows_only = False
    left_out = ()

    def __init__(
        self, reader: MlflowReader, pool: ThreadPoolExecutor, experiments: Sequence[str] = ()
    ) -> None:
        self.where = reader.where
        #: Runs that radt recorded, as found by `runs`.
        self.recorded: list[MlflowRun] = []
        self._reader = reader
        self._pool = pool
        self._experiments = experiments
        self._histories: dict[str, dict[str, Samples]] = {}

    def runs(self) -> Sequence[MlflowRun]:
        """Return all runs that radt did not record, and remember the others."""
        foreign: list[MlflowRun] = []
        self.recorded = []
        for name, experiment_id in self._reader.experiments().items():
            if self._experiments and name not in self._experiments:
                continue
            for run in self._reader.runs(experiment_id, name):
                if run.radt_run_id:
                    self.recorded.append(run)
                elif not run.is_of_radt:
                    foreign.append(run)
        return foreign

    def prepare(self, runs: Sequence[SourceRun]) -> None:
        """Read the points of several new runs where few requests suffice."""
        self._histories = {}
        run_ids: dict[str, list[str]] = {}
        for run in runs:
            assert isinstance(run, MlflowRun)
            for metric in run.metrics:
                run_ids.setdefault(metric, []).append(run.run_id)
        several = {metric: ids for metric, ids in run_ids.items() if len(ids) > 1}
        answers = self._pool.map(self._reader.histories, several.values(), several)
        for metric, answer in zip(several, answers, strict=True):
            for run_id, samples in answer.items():
                self._histories.setdefault(run_id, {})[metric] = samples

    def read(
        self, run: SourceRun, stored: Stored, facts: RunFacts, whole: Collection[SourceSeries] = ()
    ) -> Iterator[SourcePiece]:
        """Yield a run's points page by page, several metrics concurrently."""
        fresh, entity = self._reader.details(run.run_id, run.experiment)
        facts.status = fresh.status or RunStatus.RUNNING
        if facts.status is not RunStatus.SCHEDULED:
            facts.started_ns = fresh.started_ns
        facts.ended_ns, facts.digest = fresh.ended_ns, fresh.digest
        facts.params, facts.tags = dict(entity.data.params), dict(entity.data.tags)
        # If the run has changed meanwhile, the points read ahead are outdated.
        ahead = self._histories.get(run.run_id, {}) if fresh.digest == run.digest else {}
        waiting = list(self._wanted(last_points(entity), stored, facts.status.ended, whole))
        while waiting:
            turn, waiting = waiting[:_THREADS], waiting[_THREADS:]
            pages = self._pool.map(lambda metric: self._page(run.run_id, metric, ahead), turn)
            for metric, (samples, more) in zip(turn, pages, strict=True):
                if len(samples):
                    yield SourcePiece(metric.series, metric.first, _with_steps(metric, samples))
                if more:
                    # The last point is read again, to show that no point was inserted before it.
                    metric.first += len(samples) - 1
                    waiting.append(metric)

    def _wanted(
        self,
        last: Mapping[str, Samples],
        stored: Stored,
        ended: bool,
        whole: Collection[SourceSeries],
    ) -> Iterator[_Metric]:
        """Yield the metrics that may have new points, each from its last stored point on."""
        for key in sorted(last):
            series = meaning(key)
            count = stored.count(series)
            has_steps = bool(count) and stored.has_steps(series)
            if whole:
                if series in whole:
                    yield _Metric(key, series, 0, has_steps)
            # For an ended run, all metrics are read: MLflow's last point is the one with the
            # highest step, and others may have come later.
            elif ended or not count or not stored.has(series, last[key]):
                yield _Metric(key, series, max(0, count - 1), has_steps)

    def _page(
        self, run_id: str, metric: _Metric, ahead: Mapping[str, Samples]
    ) -> tuple[Samples, bool]:
        if metric.key in ahead and not metric.first:
            return ahead[metric.key], False
        try:
            return self._reader.history(run_id, metric.key, metric.first)
        except RefusedError:
            if not metric.first:
                raise
            # Servers of older MLflow versions do not have pages and return all points at once.
            metric.first = 0
            return self._reader.history(run_id, metric.key, 0)


def _with_steps(metric: _Metric, samples: Samples) -> Samples:
    """Remove the steps if all are 0, MLflow's value for points without a step."""
    steps = samples.steps
    metric.has_steps |= steps is not None and bool(
        steps.any() or (not metric.first and len(steps) == 1)
    )
    return samples if metric.has_steps else Samples(samples.times_ns, samples.values)


@dataclass(slots=True)
class MlflowImport:
    """Imports from one MLflow into one store; `run` may be called repeatedly.

    Attributes:
        source: Connected reader.
        writer: The store.
        experiments: Names of the experiments to import; empty for all.
        progress: Called with the number of finished runs and of all runs.
    """

    source: MlflowReader
    writer: StoreWriter
    experiments: Sequence[str] = ()
    progress: Progress = ignore
    #: Digests of ended runs without an archive: it is uploaded before a run ends in MLflow.
    _without_archive: dict[str, str] = field(default_factory=dict)

    def run(self) -> ImportResult:
        """Import new data, the newest runs first and archives last.

        A run that is in the store without having been imported was recorded there and is left
        unchanged.

        Raises:
            TrackingError: MLflow does not answer.
            StoreError: The store cannot be written.
        """
        with ThreadPoolExecutor(_THREADS) as pool:
            source = MlflowSource(self.source, pool, self.experiments)
            result = Import(source, self.writer, self.progress).run()
        with StoreReader(self.writer.address) as reader:
            known = known_runs(reader)
        recorded = [run for run in source.recorded if is_ours(run.radt_run_id, known)]
        done = result.done
        for run in sorted(recorded, key=lambda candidate: candidate.started_ns, reverse=True):
            self.progress(result.done, done + len(recorded))
            self._import_archive(run, known, result)
        self.progress(done + len(recorded), done + len(recorded))
        return result

    def _import_archive(
        self, run: MlflowRun, known: Mapping[str, str | None], result: ImportResult
    ) -> None:
        run_id, ended = run.radt_run_id, run.ended_ns is not None
        before = known.get(run_id)
        if ended and before == run.digest:
            result.unchanged += 1
            return
        if ended and self._without_archive.get(run.run_id) == run.digest:
            result.without_archive += 1
            return
        try:
            archive = find_archive(f"runs:/{run.run_id}", self.source.uri)
            _check_is_of(run_id, archive)
            state = f"{_INCOMPLETE} {archive.version}"
            if before == state:
                result.unchanged += 1
                return
            # Written first: a run without this tag would count as recorded here.
            self.writer.put_tags(run_id, {IMPORTED: _INCOMPLETE})
            imported = import_archive(archive, self.writer)
            self.writer.put_tags(run_id, {IMPORTED: run.digest if imported.is_complete else state})
        except FileMissingError:
            self._without_archive[run.run_id] = run.digest
            result.without_archive += 1
        except ArchiveError as error:
            result.failed.append((f"run {run_id}", error))
        else:
            result.imported += imported.is_new
            result.updated += not imported.is_new


def _check_is_of(run_id: str, archive: Archive) -> None:
    """Check that an archive belongs to a run.

    Raises:
        ArchiveError: The archive is that of another run, which somebody has copied there.
    """
    if archive.run_id != run_id:
        raise ArchiveError(
            f"expected the archive of run {run_id} in {archive.location}, "
            f"got that of {archive.run_id}",
            "Delete the copied artifacts (folder radt) in MLflow",
        )
