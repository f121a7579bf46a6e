"""Runs of an MLflow server, database or folder, read through MLflow's own client.

Importing this module imports MLflow, which takes seconds, so only import processes do it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sys import intern
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient
from mlflow.utils.rest_utils import http_request
from mlflow.utils.search_utils import SearchUtils
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind, translated_errors
from radt.delivery.mlflow.limits import pages
from radt.delivery.mlflow.target import MlflowTarget
from radt.delivery.mlflow.variables import FOR_COMMANDS, set_client_defaults
from radt.errors import TrackingError, UsageError
from radt.importers.below import first_link
from radt.importers.source import (
    MlflowRefusedError,
    RunFacts,
    SourcePiece,
    SourceRun,
    SourceSeries,
    Stored,
)
from radt.masking import masked
from radt.model import RunStatus, Scope
from radt.store.records import Samples
from radt.tags import MLFLOW_PARENT_RUN_ID, MLFLOW_SOURCE_NAME, RUN_ID, WORKLOAD_ID

#: Runs per request; the response includes their last metrics, parameters and tags.
RUNS_PER_PAGE = 500
#: Points per request: MLflow's maximum.
POINTS_PER_PAGE = 25_000
#: A page of runs or points takes a server longer than requests of other commands.
_PATIENCE = {**FOR_COMMANDS, "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
#: MLflow's replacement for infinity in its databases (mlflow/store/tracking/sqlalchemy_store.py).
_LARGEST = 1.7976931348623157e308
NS_PER_MS = 1_000_000
#: Number of metrics that are read concurrently.
_THREADS = 8
#: Endpoint for points of one metric of up to 100 runs; used by MLflow's pages but not by its
#: client.
_BULK = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
_request: Any = http_request
_page_token: Any = SearchUtils.create_page_token
#: Some programs log nanoseconds although MLflow expects milliseconds; such times would overflow, so
#: they are clipped.
_MAX_MS = 2**63 // NS_PER_MS - 1
_SHORT_ID = 8
#: Folders of a file store that an import does not read.
_NOT_READ = frozenset({"artifacts", "models", ".trash"})
_STATUSES = {
    "SCHEDULED": RunStatus.SCHEDULED,
    "RUNNING": RunStatus.RUNNING,
    "FINISHED": RunStatus.FINISHED,
    "FAILED": RunStatus.FAILED,
    "KILLED": RunStatus.KILLED,
}


@dataclass(frozen=True, slots=True)
class MlflowRun(SourceRun):
    """A run of MLflow; its digest changes with status, parameters, tags and last points.

    ``is_of_radt``: radt recorded it, as a run (``radt_run_id``) or as the workload of its runs.
    """

    radt_run_id: str = ""
    is_of_radt: bool = False
    metrics: tuple[str, ...] = ()


@dataclass(slots=True)
class _Metric:
    """A metric that is being read, and the position in its points."""

    key: str
    series: SourceSeries
    first: int
    has_steps: bool


class MlflowSource:
    """The runs of an MLflow store that radt did not record. Call `connect` first.

    Args:
        uri: ``http(s)://…``, ``sqlite:///FILE``, ``postgresql://…``, or the folder of a file store.
        wanted: Names of the experiments to read; empty for all.
    """

    #: Points may be deleted in MLflow.
    grows_only = False
    left_out = ()

    def __init__(self, uri: str, wanted: Sequence[str] = ()) -> None:
        self.uri = uri
        self.where = masked(uri)
        #: Runs that radt recorded, as found by `runs`.
        self.recorded: list[MlflowRun] = []
        self._wanted = wanted
        self._target = MlflowTarget(uri)
        #: Reads several metrics concurrently.
        self._pool = ThreadPoolExecutor(_THREADS)
        self._histories: dict[str, dict[str, Samples]] = {}

    def connect(self) -> None:
        """Connect to the server, or open the database.

        Raises:
            UsageError: The file or folder does not exist, and MLflow would create it; or links in
                the folder lead elsewhere.
            TrackingError: The server or database does not respond.
        """
        path = _path_in(self.uri)
        is_database = self.uri.lower().startswith("sqlite:")
        if path is not None and not (path.is_file() if is_database else path.is_dir()):
            raise UsageError(
                f"{self.where} does not exist",
                "Give an MLflow server (http://…), database (sqlite:///FILE, postgresql://…) or "
                "folder (mlruns)",
            )
        if path is not None and path.is_dir() and (link := first_link(path, _NOT_READ)):
            raise UsageError(
                f"{link} is a link, which MLflow would follow out of {self.where}",
                "Replace it with its target, or delete it",
            )
        set_client_defaults(_PATIENCE)
        with self._errors():
            self._target.connect()

    def experiments(self) -> dict[str, str]:
        """Return the ids of all undeleted experiments, by name."""
        search = partial(self._client.search_experiments, ViewType.ACTIVE_ONLY)
        return {str(each.name): str(each.experiment_id) for each in self._all(search)}

    def runs(self) -> Sequence[MlflowRun]:
        """Return all runs that radt did not record, without points; others go to `recorded`."""
        foreign: list[MlflowRun] = []
        self.recorded = []
        for name, experiment_id in self.experiments().items():
            if self._wanted and name not in self._wanted:
                continue
            search = partial(
                self._client.search_runs,
                [experiment_id],
                run_view_type=ViewType.ACTIVE_ONLY,
                max_results=RUNS_PER_PAGE,
            )
            for found in self._all(search):
                run = self._run_of(found, name)
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
        answers = self._pool.map(self.histories, several.values(), several)
        for metric, answer in zip(several, answers, strict=True):
            for run_id, samples in answer.items():
                self._histories.setdefault(run_id, {})[metric] = samples

    def read(
        self, run: SourceRun, stored: Stored, facts: RunFacts, whole: Collection[SourceSeries] = ()
    ) -> Iterator[SourcePiece]:
        """Yield a run's points page by page, several metrics concurrently."""
        fresh, entity = self.details(run.run_id, run.experiment)
        facts.status = fresh.status or RunStatus.RUNNING
        if facts.status is not RunStatus.SCHEDULED:
            facts.started_ns = fresh.started_ns
        facts.ended_ns, facts.digest = fresh.ended_ns, fresh.digest
        facts.params, facts.tags = dict(entity.data.params), dict(entity.data.tags)
        # If the run has changed meanwhile, the points read ahead are outdated.
        ahead = self._histories.get(run.run_id, {}) if fresh.digest == run.digest else {}
        waiting = list(self._changed(last_points(entity), stored, facts.status.ended, whole))
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

    def _changed(
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
            return self.history(run_id, metric.key, metric.first)
        except MlflowRefusedError:
            if not metric.first:
                raise
            # Servers of older MLflow versions do not have pages and return all points at once.
            metric.first = 0
            return self.history(run_id, metric.key, 0)

    def _all(self, search: Callable[..., Any]) -> Iterator[Any]:
        """Yield the results of a search, page by page."""
        with self._errors():
            for page in pages(search):
                yield from page

    def details(self, run_id: str, experiment: str) -> tuple[MlflowRun, Run]:
        """Return a run as `runs` does, together with MLflow's own object."""
        with self._errors():
            run = self._client.get_run(run_id)
        return self._run_of(run, experiment), run

    def history(self, run_id: str, metric: str, first: int) -> tuple[Samples, bool]:
        """Return up to `POINTS_PER_PAGE` points of a metric, and whether more follow.

        Args:
            run_id: MLflow's id.
            metric: The metric's key.
            first: Number of points to skip; MLflow orders them by time, step and value (a file
                store in the order of logging).
        """
        token = _page_token(first) if first else None
        with self._errors():
            # The client reads all pages; only its store can start at a given page.
            page = self._client._tracking_client.store.get_metric_history(  # noqa: SLF001
                run_id, metric, max_results=POINTS_PER_PAGE, page_token=token
            )
        return samples_of(page), bool(page.token)

    def histories(self, run_ids: Sequence[str], metric: str) -> dict[str, Samples]:
        """Return all points of a metric by run, for runs whose points fit in one response.

        One request for 100 short runs takes a database about as long as for one run: SQLite
        searches all points of the metric each time.
        """
        store = self._client._tracking_client.store  # noqa: SLF001
        try:
            with self._errors():
                if self._target.is_server:
                    query = {"run_id": list(run_ids), "metric_key": metric}
                    answer = _request(store.get_host_creds(), _BULK, "GET", params=query)
                    points = [
                        (metric["run_id"], SimpleNamespace(**metric))
                        for metric in json.loads(answer.content)["metrics"]
                    ]
                elif hasattr(store, "get_metric_history_bulk"):
                    many = store.get_metric_history_bulk(list(run_ids), metric, POINTS_PER_PAGE)
                    points = [(point.run_id, point) for point in many]
                else:
                    return {}
        except (MlflowRefusedError, KeyError, ValueError):
            return {}
        points_of: dict[str, list[Any]] = {}
        for run_id, point in points:
            points_of.setdefault(str(run_id), []).append(point)
        if len(points) >= POINTS_PER_PAGE:
            points_of.popitem()  # sorted by run, so the last run may be incomplete
        return {run_id: samples_of(of_run) for run_id, of_run in points_of.items()}

    def _run_of(self, run: Run, experiment: str) -> MlflowRun:
        info, data = run.info, run.data
        latest = sorted(
            (metric.key, metric.timestamp, metric.step, repr(float(metric.value)))
            for metric in data.to_proto().metrics
        )
        content = [
            *(info.status, info.start_time, info.end_time, info.run_name),
            *(sorted(data.params.items()), sorted(data.tags.items()), latest),
        ]
        digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
        run_id, tags = str(info.run_id), data.tags
        started_ns = _clipped(info.start_time or 0) * NS_PER_MS
        status = _STATUSES.get(str(info.status), RunStatus.RUNNING)
        ended_ns = None
        if status.ended:
            end_ms = info.end_time
            ended_ns = started_ns if end_ms is None else _clipped(end_ms) * NS_PER_MS
        command = str(tags.get(MLFLOW_SOURCE_NAME, ""))
        return MlflowRun(
            run_id,
            experiment,
            str(info.run_name or "") or run_id[:_SHORT_ID],
            digest,
            name=command.rpartition("/")[2],
            status=status,
            started_ns=started_ns,
            ended_ns=ended_ns,
            parent_id=str(tags.get(MLFLOW_PARENT_RUN_ID, "")),
            has_series=bool(data.metrics),
            command=command,
            tracking_uri=self.where,
            experiment_id=str(info.experiment_id),
            radt_run_id=str(tags.get(RUN_ID, "")),
            is_of_radt=bool(tags.get(RUN_ID) or tags.get(WORKLOAD_ID)),
            metrics=tuple(map(intern, sorted(data.metrics))),
        )

    @property
    def _client(self) -> MlflowClient:
        return self._target.client

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors of requests.

        Raises:
            MlflowRefusedError: MLflow refuses this request, or no longer has the run.
            TrackingError: MLflow does not respond.
        """
        try:
            with translated_errors():
                yield
        except DeliveryError as error:
            message = f"cannot read from MLflow at {self.where}: {error.message}"
            if error.kind in (ErrorKind.GONE, ErrorKind.REFUSED):
                raise MlflowRefusedError(message) from error
            raise TrackingError(
                message, "Check the address, the credentials, and that the server is running"
            ) from error


def _with_steps(metric: _Metric, samples: Samples) -> Samples:
    """Drop steps that are all 0, MLflow's default, unless a metric begins with a single point."""
    steps = samples.steps
    metric.has_steps |= steps is not None and bool(
        steps.any() or (not metric.first and len(steps) == 1)
    )
    return samples if metric.has_steps else Samples(samples.times_ns, samples.values)


def last_points(run: Run) -> dict[str, Samples]:
    """Return the last point of each metric of a run."""
    return {str(metric.key): samples_of([metric]) for metric in run.data.to_proto().metrics}


def samples_of(metrics: Sequence[Any]) -> Samples:
    """Return MLflow's points as columns, in MLflow's order."""
    times_ms = np.array([_clipped(metric.timestamp) for metric in metrics], dtype=np.int64)
    values = np.array([metric.value for metric in metrics], dtype=np.float64)
    steps = np.array([metric.step for metric in metrics], dtype=np.int64)
    large = np.abs(values) >= _LARGEST
    values[large] = np.copysign(np.inf, values[large])
    return Samples(times_ms * NS_PER_MS, values, steps)


def _clipped(time_ms: int) -> int:
    return max(-_MAX_MS, min(_MAX_MS, int(time_ms)))


def _path_in(uri: str) -> Path | None:
    """Return the file or folder of a URI; None for a server."""
    parts = urlsplit(uri)
    if parts.scheme.lower() == "sqlite":
        try:
            return Path(make_url(uri).database or "")
        except (ArgumentError, ValueError):
            return Path()
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(uri)


# -- system metrics -------------------------------------------------------------------------------

# MLflow's system metrics have their unit and device in their names, as documented in
# https://mlflow.org/docs/latest/ml/tracking/system-metrics and ``mlflow/system_metrics``. Names and
# values stay as in MLflow; metrics that it does not document have no unit here. ``metric`` is the
# same name for all devices: ``system/gpu_utilization_percentage``.

#: ``listener`` of metrics that MLflow itself measures.
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
