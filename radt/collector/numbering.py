"""Numbers of series and markers within a run: given once, kept across restarts of the collector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radt.collector.outgoing import SeriesKey
from radt.listeners.api import Metric
from radt.model import MarkerKind
from radt.store.records import MarkerRecord, SeriesRecord


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
