"""Brings the points of runs to their MLflow runs, and what sums them up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from radt.model import SOFTWARE, SeriesKind
from radt.store.counters import total_of
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord, SummaryRecord
from radt.store.writer import StoreWriter
from radt.tracking.batches import BatchSize
from radt.tracking.mlflow_target import MAX_POINTS, MlflowTarget
from radt.tracking.names import unique_keys
from radt.tracking.points import (
    NS_PER_MS,
    NS_PER_S,
    Point,
    epoch_points,
    hardware_means,
    look_back_ns,
    software_points,
    summary_values,
)
from radt.tracking.sending import Notes, Sender


class PointCourier:
    """A part of `radt.tracking.courier.Courier`, and as thread-safe."""

    def __init__(
        self, target: MlflowTarget, reader: StoreReader, writer: StoreWriter, sender: Sender
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._sender = sender
        self._batch = BatchSize(MAX_POINTS)

    def send_new(
        self,
        run: RunRecord,
        mlflow_id: str,
        series: Sequence[SeriesRecord],
        key_of: Mapping[int, str],
        notes: Notes,
    ) -> None:
        """All new points, several series in one request; how far is noted after each request.

        Args:
            run: As it is in the store.
            mlflow_id: Of its MLflow run.
            series: All of the run's.
            key_of: MLflow's key of each, by its number.
            notes: Gets what MLflow refused.

        Raises:
            DeliveryError: MLflow failed.
            StoreError: The store failed.
        """
        points: list[Point] = []
        marks: dict[int, int] = {}

        def flush() -> None:
            self._log_points(points, mlflow_id, notes)
            self._writer.mark_delivered(run.run_id, marks)
            points.clear()
            marks.clear()

        def room() -> int:
            return max(1, self._batch.limit - len(points))

        for series_no, piece, until in self._pieces(run, series, key_of, room):
            points += piece
            marks[series_no] = until
            if len(points) >= self._batch.limit:
                flush()
        if marks:
            flush()

    def _pieces(
        self,
        run: RunRecord,
        series: Sequence[SeriesRecord],
        key_of: Mapping[int, str],
        room: Callable[[], int],
    ) -> Iterator[tuple[int, list[Point], int]]:
        """New points, as many as there is room for, by series: number, points, how far that is."""
        delivered = self._reader.delivered(run.run_id)
        counts = self._reader.point_counts(run.run_id)
        for one in series:
            number, key = one.series_no, key_of[one.series_no]
            done = delivered.get(number, 0)
            if one.listener != SOFTWARE:
                for piece, until_ns in self._new_means(run, one, key, done, room):
                    yield number, piece, until_ns
                continue
            while done < counts.get(number, 0):
                samples = self._reader.points_after(run.run_id, number, done, room())
                if not len(samples):
                    break  # pruned meanwhile
                piece = software_points(key, samples, done)
                done += len(samples)
                yield number, piece, done

    def _new_means(
        self,
        run: RunRecord,
        series: SeriesRecord,
        key: str,
        since_ns: int,
        room: Callable[[], int],
    ) -> Iterator[tuple[list[Point], int]]:
        """Means, as there is room for them, and up to which time they cover the series."""
        if run.started_ns is None and not run.status.ended:
            return  # seconds are counted from the start, which is not known yet
        origin_ns = run.started_ns or run.created_ns
        samples = self._reader.samples(
            run.run_id, series.series_no, start_ns=since_ns - look_back_ns(series)
        )
        points, until_ns = hardware_means(
            key,
            series,
            samples,
            origin_ns=origin_ns,
            since_ns=since_ns,
            final=run.status.ended,
        )
        while len(points) > (count := room()):
            piece, points = points[:count], points[count:]
            yield piece, origin_ns + piece[-1].step * NS_PER_S
        if until_ns > since_ns:
            yield points, until_ns

    def send_summary(self, run: RunRecord, mlflow_id: str, notes: Notes) -> None:
        """The run in a few numbers, and how long its epochs took.

        Raises:
            DeliveryError: MLflow failed.
            StoreError: The store failed.
        """
        epochs = epoch_points(self._reader.markers([run.run_id]))
        summaries = self._reader.summary([run.run_id])
        ledger = self._reader.ledger([run.run_id])
        values = summary_values(run, summaries, epochs, ledger, self._totals(summaries))
        keys = unique_keys(values)
        ended_ms = (run.ended_ns or 0) // NS_PER_MS
        points = epochs + [Point(keys[name], value, ended_ms, 0) for name, value in values.items()]
        self._log_points(points, mlflow_id, notes)

    def _totals(self, summaries: Sequence[SummaryRecord]) -> dict[int, float]:
        """How much each counter of a run grew, which only all of its readings tell."""
        totals: dict[int, float] = {}
        for series in (summary.series for summary in summaries):
            if series.kind is SeriesKind.COUNTER and series.listener != SOFTWARE:
                samples = self._reader.samples(series.run_id, series.series_no)
                if (total := total_of(samples, series)) is not None:
                    totals[series.series_no] = total
        return totals

    def _log_points(self, points: Sequence[Point], mlflow_id: str, notes: Notes) -> None:
        send = partial(self._target.log_points, mlflow_id)
        start = 0
        while start < len(points):
            part = points[start : start + self._batch.limit]
            self._sender.send(part, send, notes, self._batch)
            start += len(part)
