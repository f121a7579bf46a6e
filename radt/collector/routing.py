"""Which run a reading belongs to, and the numbers of its series and markers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from radt.collector.outgoing import SeriesKey
from radt.errors import ListenerError
from radt.listeners.api import Metric, Occurrence, Reading
from radt.model import MarkerKind, Scope
from radt.store.records import MarkerRecord, SeriesRecord


class SortedReadings:
    """What a listener has read at one instant, looked through once for all runs.

    A value of the host concerns every run, one of a device the runs on it, one of a process tree
    its run only.

    Raises:
        ListenerError: A reading of a device or a process tree does not say of which.
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
        """What a run on these devices gets, each of it once.

        Two devices of a run may be instances of one card, which is read for both.
        """
        yield from self._everybody
        yield from self._by_run.get(run_id, ())
        if len(devices) == 1:
            yield from self._by_gpu.get(devices[0], ())
            return
        told: set[tuple[str, str]] = set()
        for device in devices:
            for reading in self._by_gpu.get(device, ()):
                if _what(reading) not in told:
                    yield reading
            told |= {_what(reading) for reading in self._by_gpu.get(device, ())}


def _what(reading: Reading | Occurrence) -> tuple[str, str]:
    if isinstance(reading, Occurrence):
        return reading.name, reading.detail
    return reading.metric, reading.entity


def _scope_of(occurrence: Occurrence) -> Scope:
    if occurrence.run_id is not None:
        return Scope.PROCESS
    return Scope.HOST if occurrence.gpu is None else Scope.GPU


class Numbering:
    """The series and markers that a run has so far. Used by the store's thread only."""

    def __init__(
        self, run_id: str, series: Sequence[SeriesRecord], markers: Sequence[MarkerRecord]
    ) -> None:
        self._run_id = run_id
        self._series = {
            SeriesKey(one.listener, one.metric, one.entity): one.series_no for one in series
        }
        self._next_series = 1 + max((one.series_no for one in series), default=-1)
        self._next_marker = 1 + max((one.marker_no for one in markers), default=-1)
        self._open = {one.marker_no: one for one in markers if _may_end(one)}
        self._new_series: list[SeriesRecord] = []

    def series(
        self, key: SeriesKey, metric: Metric, interval_s: float | None, method: str = ""
    ) -> int:
        """The number of a series, a new one if it has none."""
        number = self._series.get(key)
        if number is None:
            number = self._series[key] = self._next_series
            self._next_series += 1
            self._new_series.append(
                SeriesRecord(
                    run_id=self._run_id,
                    series_no=number,
                    listener=key.listener,
                    metric=key.metric,
                    unit=metric.unit,
                    scope=metric.scope,
                    kind=metric.kind,
                    entity=key.entity,
                    interval_s=interval_s,
                    method=method or metric.method,
                    estimated=metric.estimated,
                    wraps_at=metric.wraps_at,
                )
            )
        return number

    def new_series(self) -> Sequence[SeriesRecord]:
        """Series that the store does not have yet."""
        return tuple(self._new_series)

    def stored(self, series: Sequence[SeriesRecord]) -> None:
        """The store has these."""
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
        """A new marker, open if its kind is one that ends."""
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
        """The marker with its end."""
        self._open.pop(marker.marker_no, None)
        return replace(marker, end_ns=max(end_ns, marker.start_ns))

    def find_open(
        self, kind: MarkerKind, name: str, step: int | None, process: str
    ) -> MarkerRecord | None:
        """The last begun of the open markers that look like this."""
        for marker in sorted(self._open.values(), key=lambda one: -one.marker_no):
            wanted = kind, name, step, process
            if (marker.kind, marker.name, marker.step, marker.process) == wanted:
                return marker
        return None

    def open_markers(self) -> Sequence[MarkerRecord]:
        return tuple(self._open.values())


def _may_end(marker: MarkerRecord) -> bool:
    return marker.end_ns is None and marker.kind is not MarkerKind.EVENT
