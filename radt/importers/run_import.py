"""Import one run of MLflow: its points, parameters, tags and status.

System metrics get their unit and device from their name, as MLflow documents them
(https://mlflow.org/docs/latest/ml/tracking/system-metrics and ``mlflow/system_metrics``). Names and
values stay as in MLflow; undocumented metrics have no unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from mlflow.entities import Run

from radt.errors import StoreError
from radt.importers.mlflow import MlflowReader, RefusedError, last_points
from radt.importers.mlflow_runs import MlflowRun, Placed
from radt.model import NO_STEP, SOFTWARE, Scope, SeriesKind
from radt.store.chunks import joined, sliced
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED

#: The ``listener`` of MLflow's own measurements.
MLFLOW = "mlflow"

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


@dataclass(frozen=True, slots=True)
class Meaning:
    """Meaning of an MLflow metric. ``entity`` is the device, with the machine if it is named.

    ``metric`` is one name for all devices: ``system/gpu_utilization_percentage``.
    """

    metric: str
    scope: Scope = Scope.RUN
    listener: str = SOFTWARE
    unit: str = ""
    entity: str = ""
    method: str = ""


def meaning(key: str) -> Meaning:
    """Return the meaning of a key; only system metrics have more than a name.

    >>> meaning("system/gpu_1_power_usage_watts").entity
    'gpu1'
    """
    if not key.startswith(_PREFIX):
        return Meaning(key)
    node, _, name = key.removeprefix(_PREFIX).rpartition("/")
    unit = _UNITS.get(name.rpartition("_")[2], "")
    if name in _HOST_METRICS:
        method = _OF_NETWORK if name.startswith("network") else _OF_OTHERS
        return Meaning(f"{_PREFIX}{name}", Scope.HOST, MLFLOW, unit, node, method)
    if (gpu := _GPU.match(name)) and name[gpu.end() :] in _GPU_METRICS:
        entity = f"{node} gpu{gpu[1]}".strip()
        metric = f"{_PREFIX}gpu_{name[gpu.end() :]}"
        return Meaning(metric, Scope.GPU, MLFLOW, unit, entity, _OF_OTHERS)
    return Meaning(key)


#: Number of metrics that are read at the same time.
THREADS = 8
#: Approximate number of points held in memory and written in one transaction.
_POINTS_PER_TRANSACTION = 400_000
#: Maximum number of restarts for a run that another importer changes meanwhile.
_TRIES = 5


class _ChangedError(StoreError):
    """Another process imports the same run."""


@dataclass(slots=True)
class _Metric:
    """A metric of the run, and the number of its points in the store."""

    key: str
    series: SeriesRecord
    stored: int
    is_new: bool
    has_steps: bool = False


class RunImport:
    """Imports one run from its metrics.

    Args:
        source: A connected reader.
        writer: The store.
        reader: A reader of the same store.
        pool: Reads several metrics at a time.
        place: The run and where it belongs.
        histories: Points by metric that were read since the run was listed.
    """

    def __init__(
        self,
        source: MlflowReader,
        writer: StoreWriter,
        reader: StoreReader,
        pool: ThreadPoolExecutor,
        place: Placed,
        histories: Mapping[str, Samples],
    ) -> None:
        self._source = source
        self._writer = writer
        self._reader = reader
        self._pool = pool
        self._place = place
        self._histories = histories
        self._run_id = place.record.run_id
        self._metrics: list[_Metric] = []
        self._counts: dict[int, int] = {}
        self._batches: list[SeriesBatch] = []

    def run(self) -> None:
        """Import its new data; restart if another importer was faster."""
        for left in reversed(range(_TRIES)):
            try:
                self._import()
            except _ChangedError:
                if not left:
                    raise
            else:
                return

    def _import(self) -> None:
        mlflow, run = self._source.details(self._run_id, self._place.mlflow.experiment)
        if mlflow.digest != self._place.mlflow.digest:
            self._histories = {}  # it continued meanwhile
        last = last_points(run)
        self._counts = self._reader.point_counts(self._run_id)
        self._metrics = self._numbered(sorted(last))
        self._batches = []
        ended = mlflow.run_status.ended
        waiting = [
            metric
            for metric in self._metrics
            # All metrics of an ended run are checked: MLflow's last point is that of the highest
            # step, and others may have come later.
            if ended or metric.is_new or not self._has(metric, last[metric.key])
        ]
        while waiting:
            turn, waiting = waiting[:THREADS], waiting[THREADS:]
            for metric, more in self._pool.map(self._read, turn):
                if more:
                    waiting.append(metric)
            if sum(len(batch.samples) for batch in self._batches) >= _POINTS_PER_TRANSACTION:
                with self._writer.transaction():
                    self._write_points()
                self._advance()
        with self._writer.transaction():
            self._write_points()
            self._write_rows(mlflow, run)
            if ended and self._batches:
                self._writer.seal(self._run_id)

    # -- reading ----------------------------------------------------------------------------------

    def _numbered(self, keys: Sequence[str]) -> list[_Metric]:
        """Return the run's metrics with their series; new ones get the next numbers."""
        known = {_identity(record): record for record in self._reader.series([self._run_id])}
        number = max((record.series_no for record in known.values()), default=-1) + 1
        metrics = []
        for key in keys:
            series = self._series(key, number)
            stored = known.get(_identity(series))
            if stored is None:
                number += 1
            series = stored or series
            count = self._counts.get(series.series_no, 0)
            metrics.append(_Metric(key, series, count, stored is None))
        return metrics

    def _series(self, key: str, number: int) -> SeriesRecord:
        means = meaning(key)
        record = self._place.record
        entity = means.entity
        if means.scope is not Scope.RUN and record.workload_id != record.run_id:
            # MLflow does not record which runs of a workload share a machine.
            entity = f"{entity} {record.letter}".strip()
        return SeriesRecord(
            self._run_id,
            number,
            means.listener,
            means.metric,
            means.unit,
            means.scope,
            SeriesKind.GAUGE,
            entity,
            method=means.method,
        )

    def _has(self, metric: _Metric, last: Samples) -> bool:
        """Return whether the store has MLflow's last point of a metric."""
        at_ns = int(last.times_ns[0])
        stored = self._reader.samples(
            self._run_id, metric.series.series_no, start_ns=at_ns, end_ns=at_ns
        )
        return _points(last)[0] in _points(stored)

    def _read(self, metric: _Metric) -> tuple[_Metric, bool]:
        """Read the next page of a metric; return it, and whether there is another."""
        first = metric.stored
        samples, more = self._page(metric, max(0, first - 1))
        if first:
            before = self._stored(metric, first - 1)
            metric.has_steps |= before.steps is not None
            if _points(samples)[:1] == _points(before):
                samples = sliced(samples, 1)
            else:  # earlier points came late
                samples, more = self._lacking(metric), False
        steps = samples.steps
        # MLflow stores step 0 for a missing step.
        metric.has_steps |= steps is not None and bool(
            steps.any() or (not first and len(steps) == 1)
        )
        if not metric.has_steps:
            samples = Samples(samples.times_ns, samples.values)
        if len(samples):
            self._batches.append(SeriesBatch(metric.series.series_no, samples))
            metric.stored += len(samples)
        return metric, more

    def _page(self, metric: _Metric, first: int) -> tuple[Samples, bool]:
        if metric.key in self._histories and not first:
            return self._histories[metric.key], False
        try:
            return self._source.history(self._run_id, metric.key, first)
        except RefusedError:
            if not first:
                raise
            # Older MLflow servers have no pages: all points come at once.
            return self._source.history(self._run_id, metric.key, 0)

    def _stored(self, metric: _Metric, first: int, limit: int = 1) -> Samples:
        """Return points of the store, including those not yet written."""
        number = metric.series.series_no
        committed = self._counts.get(number, 0)
        parts = [batch.samples for batch in self._batches if batch.series_no == number]
        if first < committed:
            parts.insert(0, self._reader.points_after(self._run_id, number, first, committed))
        else:
            first -= committed
            parts = [sliced(joined(parts), first)]
        return sliced(joined(parts), 0, limit)

    def _lacking(self, metric: _Metric) -> Samples:
        """Return the points of a metric that the store lacks, in any position."""
        pages = []
        first, more = 0, True
        while more:
            samples, more = self._page(metric, first)
            pages.append(samples)
            first += len(samples)
        samples = joined(pages)
        stored = Counter(_points(self._stored(metric, 0, metric.stored)))
        lacking = np.zeros(len(samples), dtype=np.bool_)
        for place, point in enumerate(_points(samples)):
            lacking[place] = not stored[point]
            stored[point] -= 1
        steps = None if samples.steps is None else samples.steps[lacking]
        return Samples(samples.times_ns[lacking], samples.values[lacking], steps)

    # -- writing ----------------------------------------------------------------------------------

    def _write_points(self) -> None:
        """
        Raises:
            _ChangedError: Another importer has written points of the run since it was read.
        """
        self._writer.append(self._run_id, [])  # locks the run
        if self._reader.point_counts(self._run_id) != self._counts:
            raise _ChangedError(
                f"run {self._run_id} is being imported by several processes", "Wait for the others"
            )
        self._writer.add_series([metric.series for metric in self._metrics if metric.is_new])
        self._writer.append(self._run_id, self._batches)

    def _advance(self) -> None:
        self._counts = self._reader.point_counts(self._run_id)
        self._batches = []
        for metric in self._metrics:
            metric.is_new = False

    def _write_rows(self, mlflow: MlflowRun, run: Run) -> None:
        record = mlflow.updated(self._place.record)
        known = next(iter(self._reader.runs(run_ids=[self._run_id])), None)
        self._writer.put_workload(self._place.workload)
        self._writer.put_params(self._run_id, run.data.params)
        self._writer.put_tags(self._run_id, {**run.data.tags, IMPORTED: mlflow.digest})
        if record != known:
            self._writer.put_run(record)
        # It comes from MLflow, so it is not delivered there.
        self._writer.mark_workload_delivered(record.workload_id)
        self._writer.mark_run_delivered(self._run_id)


def _identity(series: SeriesRecord) -> tuple[str, ...]:
    return series.listener, series.metric, series.scope, series.entity


def _points(samples: Samples) -> list[tuple[int, int, int]]:
    """Return points as time, value (its bits) and step, with 0 for a missing step as in MLflow."""
    values = np.where(np.isnan(samples.values), np.nan, samples.values) + 0.0
    steps = np.zeros(len(samples), dtype=np.int64) if samples.steps is None else samples.steps
    steps = np.where(steps == NO_STEP, 0, steps)
    bits = values.view(np.int64)
    return list(zip(samples.times_ns.tolist(), bits.tolist(), steps.tolist(), strict=True))
