"""MLflow as a source of runs.

System metrics get their unit and device from their name, as MLflow documents them
(https://mlflow.org/docs/latest/ml/tracking/system-metrics and ``mlflow/system_metrics``). Names and
values stay as MLflow has them; what it does not document has no unit here. ``metric`` is one name
for all devices: ``system/gpu_utilization_percentage``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from radt.importers.mlflow import MlflowReader, MlflowRun, last_points
from radt.importers.source import Piece, RefusedError, RunFacts, SourceRun, SourceSeries, Stored
from radt.model import RunStatus, Scope
from radt.store.records import Samples

#: The ``listener`` of what MLflow itself has measured.
MLFLOW = "mlflow"
#: Metrics that are read at the same time.
THREADS = 8

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
    """Return what a key stands for; of others than system metrics it is only a name.

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
    """A metric of the run that is read, and how many of its points were."""

    key: str
    series: SourceSeries
    first: int
    has_steps: bool


class MlflowSource:
    """Runs of one MLflow that radt did not record.

    Args:
        reader: Connected.
        pool: Reads several metrics at a time.
        experiments: Names of those to read; all without any.
    """

    #: Points may be deleted in MLflow.
    grows_only = False
    left_out = ()

    def __init__(
        self, reader: MlflowReader, pool: ThreadPoolExecutor, experiments: Sequence[str] = ()
    ) -> None:
        self.where = reader.where
        #: Runs that radt recorded, as `runs` found them.
        self.recorded: list[MlflowRun] = []
        self._reader = reader
        self._pool = pool
        self._experiments = experiments
        self._histories: dict[str, dict[str, Samples]] = {}

    def runs(self) -> Sequence[MlflowRun]:
        """Return all runs that are not radt's, and note those that are."""
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
        """Read the points of several new runs, where few requests give them."""
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
    ) -> Iterator[Piece]:
        """Yield a run's points page by page, several metrics at a time."""
        fresh, entity = self._reader.details(run.run_id, run.experiment)
        facts.status = fresh.status or RunStatus.RUNNING
        if facts.status is not RunStatus.SCHEDULED:
            facts.started_ns = fresh.started_ns
        facts.ended_ns, facts.digest = fresh.ended_ns, fresh.digest
        facts.params, facts.tags = dict(entity.data.params), dict(entity.data.tags)
        # If it went on meanwhile, what was read ahead is old.
        ahead = self._histories.get(run.run_id, {}) if fresh.digest == run.digest else {}
        waiting = list(self._wanted(last_points(entity), stored, facts.status.ended, whole))
        while waiting:
            turn, waiting = waiting[:THREADS], waiting[THREADS:]
            pages = self._pool.map(lambda metric: self._page(run.run_id, metric, ahead), turn)
            for metric, (samples, more) in zip(turn, pages, strict=True):
                if len(samples):
                    yield Piece(metric.series, metric.first, _with_steps(metric, samples))
                if more:
                    # The last point comes again, and shows that none came before it meanwhile.
                    metric.first += len(samples) - 1
                    waiting.append(metric)

    def _wanted(
        self,
        last: Mapping[str, Samples],
        stored: Stored,
        ended: bool,
        whole: Collection[SourceSeries],
    ) -> Iterator[_Metric]:
        """Yield the metrics that may have new points, each from the last point that is stored."""
        for key in sorted(last):
            series = meaning(key)
            count = stored.count(series)
            has_steps = bool(count) and stored.has_steps(series)
            if whole:
                if series in whole:
                    yield _Metric(key, series, 0, has_steps)
            # Of a run that has ended all are looked at: MLflow's last point is that of the highest
            # step, and others may have come later.
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
            # Servers of an older MLflow have no pages: all points come at once.
            metric.first = 0
            return self._reader.history(run_id, metric.key, 0)


def _with_steps(metric: _Metric, samples: Samples) -> Samples:
    """Return points without steps where all of them are 0: MLflow has that where none was given."""
    steps = samples.steps
    metric.has_steps |= steps is not None and bool(
        steps.any() or (not metric.first and len(steps) == 1)
    )
    return samples if metric.has_steps else Samples(samples.times_ns, samples.values)
