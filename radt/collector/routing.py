"""Route readings to runs: a run's columns, the readings that apply to it, and series numbers.

Also collects the newest values for live tables. Times are monotonic.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from radt.collector.ledger import MissedStretch
from radt.collector.protocol import LiveView
from radt.errors import ListenerError
from radt.listeners.api import Metric, Occurrence, Reading
from radt.model import THROUGH_MLFLOW, MarkerKind, MissingReason, Scope
from radt.store.records import LedgerRecord, MarkerRecord, SeriesRecord


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Identity of a series within a run."""

    listener: str
    metric: str
    entity: str = ""


@dataclass(slots=True)
class PendingPoints:
    """Points of one series that are not in the store yet."""

    metric: Metric
    interval_s: float | None
    method: str = ""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Event:
    """An event during the run that radt noticed."""

    name: str
    at_ns: int
    detail: str = ""


@dataclass(slots=True)
class Gap:
    """A stretch of a series without values from ``start_ns`` to ``end_ns``; to now if it is open.

    ``stored_ns`` is its end when it was last stored.
    """

    key: SeriesKey
    metric: Metric
    interval_s: float | None
    start_ns: int
    end_ns: int
    reason: MissingReason
    method: str = ""
    stored_ns: int = 0


@dataclass(frozen=True, slots=True)
class PendingSamples:
    """Data that a run passes to the store in one transaction."""

    columns: Mapping[SeriesKey, PendingPoints] = field(default_factory=dict)
    missing: Sequence[Gap] = ()
    events: Sequence[Event] = ()
    ledgers: Sequence[LedgerRecord] = ()
    stretches: Mapping[str, Sequence[MissedStretch]] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(len(column.times_ns) for column in self.columns.values())

    @property
    def empty(self) -> bool:
        return not (self.columns or self.missing or self.events or self.ledgers or self.stretches)


@dataclass(frozen=True, slots=True)
class LogUpdate:
    """Values that a script has logged since the last read; None for no change."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    points: int = 0
    epoch: int | None = None
    epochs_total: int | None = None


@dataclass(slots=True)
class LiveState:
    """Collects the values of a `LiveView`. Not thread-safe."""

    #: For each metric and entity, the listener that read it and its value.
    _hardware: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    _metrics: dict[str, float] = field(default_factory=dict)
    _epoch: int | None = None
    _epochs_total: int | None = None
    _samples: int = 0

    def hardware(self, listener: str, metric: str, entity: str, value: float) -> None:
        """Record a value that a listener has read."""
        self._hardware.setdefault(metric, {})[entity] = listener, value
        self._samples += 1

    def missing(self, listener: str, metric: str, entity: str) -> None:
        """Drop a value that a listener could not read again."""
        values = self._hardware.get(metric)
        if values is not None and values.get(entity, ("",))[0] == listener:
            del values[entity]

    def silent(self, listener: str) -> None:
        """Drop all values of a listener that stopped reading."""
        for values in self._hardware.values():
            for entity in [entity for entity, (name, _) in values.items() if name == listener]:
                del values[entity]

    def software(self, update: LogUpdate) -> None:
        """Record logged values of the script."""
        self._metrics.update(update.metrics)
        self._samples += update.points
        if update.epoch is not None:
            self._epoch = update.epoch
        if update.epochs_total is not None:
            self._epochs_total = update.epochs_total

    def view(self) -> LiveView:
        return LiveView(
            cpu_cores=self._sum("process.cpu.utilization"),
            rss_bytes=self._sum("process.memory.rss"),
            gpu_utilization=self._mean("gpu.utilization"),
            gpu_memory_bytes=self._sum("process.gpu.memory"),
            metrics=dict(self._metrics),
            epoch=self._epoch,
            epochs_total=self._epochs_total,
            samples=self._samples,
        )

    def _sum(self, metric: str) -> float | None:
        values = self._values(metric)
        return sum(values) if values else None

    def _mean(self, metric: str) -> float | None:
        values = self._values(metric)
        return sum(values) / len(values) if values else None

    def _values(self, metric: str) -> list[float]:
        return [value for _, value in self._hardware.get(metric, {}).values()]


class SortedReadings:
    """The readings of a listener at one instant, sorted once for all runs.

    Values of the host belong to every run, values of a device to the runs on it, values of a
    process tree to its run.

    Raises:
        ListenerError: A reading of a device or process tree does not name it.
    """

    def __init__(
        self, readings: Iterable[Reading | Occurrence], metrics: Mapping[str, Metric]
    ) -> None:
        self._everybody: list[Reading | Occurrence] = []
        self._by_run: dict[str | None, list[Reading | Occurrence]] = {}
        self._by_gpu: dict[str | None, list[Reading | Occurrence]] = {}
        for reading in readings:
            if isinstance(reading, Occurrence):
                scope = _scope_of(reading)
            else:
                scope = metrics[reading.metric].scope
            if scope is Scope.HOST:
                self._everybody.append(reading)
            elif (reading.run_id if scope is Scope.PROCESS else reading.gpu) is None:
                assert isinstance(reading, Reading)
                lack = "run_id" if scope is Scope.PROCESS else "gpu"
                raise ListenerError(f"its {reading.metric} (scope {scope}) comes without {lack}")
            elif scope is Scope.PROCESS:
                self._by_run.setdefault(reading.run_id, []).append(reading)
            else:
                self._by_gpu.setdefault(reading.gpu, []).append(reading)

    def concerning(self, run_id: str, devices: Sequence[str]) -> Iterator[Reading | Occurrence]:
        """Yield the readings that apply to a run on these devices, each once.

        Two devices of a run may be instances of one GPU, whose readings apply to both.
        """
        yield from self._everybody
        yield from self._by_run.get(run_id, ())
        if len(devices) == 1:
            yield from self._by_gpu.get(devices[0], ())
            return
        seen: set[tuple[str, str]] = set()
        for device in devices:
            for reading in self._by_gpu.get(device, ()):
                if _key(reading) not in seen:
                    yield reading
            seen |= {_key(reading) for reading in self._by_gpu.get(device, ())}


def _key(reading: Reading | Occurrence) -> tuple[str, str]:
    if isinstance(reading, Occurrence):
        return reading.name, reading.detail
    return reading.metric, reading.entity


def _scope_of(occurrence: Occurrence) -> Scope:
    if occurrence.run_id is not None:
        return Scope.PROCESS
    return Scope.HOST if occurrence.gpu is None else Scope.GPU


class Numbering:
    """Series and marker numbers of a run. For the store's thread only."""

    def __init__(
        self, run_id: str, series: Sequence[SeriesRecord], markers: Sequence[MarkerRecord]
    ) -> None:
        self._run_id = run_id
        self._series = {SeriesKey(row.listener, row.metric, row.entity): row for row in series}
        self._next_series = 1 + max((row.series_no for row in series), default=-1)
        self._next_marker = 1 + max((row.marker_no for row in markers), default=-1)
        self._open = {row.marker_no: row for row in markers if _may_end(row)}
        self._new_series: list[SeriesRecord] = []

    def has(self, listener: str) -> bool:
        """Return whether a listener has series."""
        return any(key.listener == listener for key in self._series)

    def series(
        self, key: SeriesKey, metric: Metric, interval_s: float | None, method: str = ""
    ) -> int:
        """Return the number of a series, assigning one if needed.

        A script may log a metric both through MLflow and through radt: the series then belongs to
        radt and is uploaded completely. MLflow keeps a single copy of points that it already has.
        """
        method = method or metric.method
        record = self._series.get(key)
        if record is None:
            record = self._series[key] = SeriesRecord(
                run_id=self._run_id,
                series_no=self._next_series,
                listener=key.listener,
                metric=key.metric,
                unit=metric.unit,
                scope=metric.scope,
                kind=metric.kind,
                entity=key.entity,
                interval_s=interval_s,
                method=method,
                estimated=metric.estimated,
                wraps_at=metric.wraps_at,
            )
            self._next_series += 1
            self._new_series.append(record)
        elif record.method == THROUGH_MLFLOW != method:
            record = self._series[key] = replace(record, method=method)
            self._new_series.append(record)
        return record.series_no

    def new_series(self) -> Sequence[SeriesRecord]:
        """Return the series that the store does not have yet."""
        return tuple(self._new_series)

    def stored(self, series: Sequence[SeriesRecord]) -> None:
        """Record that the store has these series."""
        del self._new_series[: len(series)]

    def marker(
        self,
        kind: MarkerKind,
        name: str,
        start_ns: int,
        *,
        step: int | None = None,
        process: str = "",
        detail: str = "",
    ) -> MarkerRecord:
        """Create a marker, open if its kind has an end."""
        marker = MarkerRecord(
            run_id=self._run_id,
            marker_no=self._next_marker,
            kind=kind,
            name=name,
            start_ns=start_ns,
            step=step,
            process=process,
            detail=detail,
        )
        self._next_marker += 1
        if _may_end(marker):
            self._open[marker.marker_no] = marker
        return marker

    def close(self, marker: MarkerRecord, end_ns: int) -> MarkerRecord:
        """Return the marker with its end."""
        self._open.pop(marker.marker_no, None)
        return replace(marker, end_ns=max(end_ns, marker.start_ns))

    def find_open(
        self, kind: MarkerKind, name: str, step: int | None, process: str
    ) -> MarkerRecord | None:
        """Return the newest open marker with these properties."""
        wanted = kind, name, step, process
        for _, marker in sorted(self._open.items(), reverse=True):
            if (marker.kind, marker.name, marker.step, marker.process) == wanted:
                return marker
        return None

    def open_markers(self) -> Sequence[MarkerRecord]:
        return tuple(self._open.values())


def _may_end(marker: MarkerRecord) -> bool:
    return marker.end_ns is None and marker.kind is not MarkerKind.EVENT
