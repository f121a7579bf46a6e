"""Brings what a run recorded to its MLflow run: texts, points, summary, files, end.

How far each series and which files were delivered is in the store, so a courier that was killed
goes on where it was. What it sent but had no time to note is sent again: MLflow keeps a point that
is the same in key, time, step and value only once, and all else is an overwrite.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from radt.home import RunDir
from radt.model import SOFTWARE, RunStatus, SeriesKind
from radt.store.counters import total_of
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord, SummaryRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tracking.archive_courier import ArchiveCourier
from radt.tracking.archiving import Archiving, archive_spool
from radt.tracking.artifacts import artifact_files, clean_spool
from radt.tracking.batches import BatchSize
from radt.tracking.mlflow_target import MAX_PARAMS, MAX_POINTS, MlflowTarget
from radt.tracking.names import unique_keys
from radt.tracking.points import (
    NS_PER_MS,
    NS_PER_S,
    Point,
    epoch_points,
    hardware_means,
    look_back_ns,
    series_names,
    software_points,
    summary_values,
)
from radt.tracking.registrar import delete_lost_runs
from radt.tracking.texts import deliverable_params, deliverable_tags
from radt.tracking.trouble import DeliveryError, Trouble

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
#: No server's limit is below this: who refuses so little for its size is set up wrongly.
_SMALL_BYTES = 1000


@dataclass(slots=True)
class _Sent:
    """Texts of a run that this process has sent; after a restart they are sent again."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    summary: bool = False
    #: Artifacts that MLflow will never have. Not noted in the store: who comes next must not take
    #: them for delivered, and remove them.
    hopeless: set[str] = field(default_factory=set)


class Courier:
    """Delivers runs that have their MLflow run.

    Args:
        before_request: Called before each request; may wait until others are done.
        archiving: Has archives written; None for none.
    """

    def __init__(
        self,
        target: MlflowTarget,
        reader: StoreReader,
        writer: StoreWriter,
        before_request: Callable[[], object] = lambda: None,
        archiving: Archiving | None = None,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._before_request = before_request
        self._archives: ArchiveCourier | None = None
        if archiving is not None:
            self._archives = ArchiveCourier(target, reader, archiving, before_request, writer)
        self._point_batch = BatchSize(MAX_POINTS)
        self._text_batch = BatchSize(MAX_PARAMS)
        self._sent: dict[str, _Sent] = {}

    def deliver(self, run: RunRecord) -> None:
        """Send what is new of a run; if it has ended, all that is left, and end it in MLflow.

        Raises:
            DeliveryError: MLflow failed; what was delivered until then is noted. A run that was
                deleted in MLflow raises nothing: that is noted, and the run given up.
            StoreError: The store failed.
        """
        assert run.mlflow_run_id is not None
        sent = self._sent.setdefault(run.run_id, _Sent())
        try:
            self._send_content(run, run.mlflow_run_id, sent)
        except DeliveryError as error:
            if error.trouble is not Trouble.GONE:
                raise
            sent.notes[self._note_of_loss(run.workload_id, error)] = None
            log.warning("run %s given up: %s", run.run_id, error.message)
        else:
            if not run.status.ended:
                return
        if run.spool and not sent.notes:
            clean_spool(RunDir(Path(run.spool)), self._reader.delivered_artifacts(run.run_id))
            # Before the mark, behind which nobody would look here again.
            archive_spool(run).remove()
        self._writer.mark_run_delivered(run.run_id, "; ".join(sent.notes))
        del self._sent[run.run_id]

    def _note_of_loss(self, workload_id: str, error: DeliveryError) -> str:
        """What is noted of a run that was deleted in MLflow.

        Raises:
            DeliveryError: It was not deleted: a server that was started with another database has
                not even its experiment.
        """
        experiment_id = self._reader.workload(workload_id).mlflow_experiment_id
        if experiment_id is not None and self._target.experiment_by_id(experiment_id) is None:
            raise DeliveryError(
                Trouble.BUSY,
                f"it has neither the run nor its experiment {experiment_id}: is it started with "
                "another database?",
            ) from error
        return f"deleted in MLflow: {error.message}"

    def _send_content(self, run: RunRecord, mlflow_id: str, sent: _Sent) -> None:
        series = self._reader.series([run.run_id])
        names = series_names(series)
        keys = unique_keys(names.values())
        self._send_texts(run, mlflow_id, sent, keys)
        key_of = {number: keys[name] for number, name in names.items()}
        self._send_points(run, mlflow_id, sent, series, key_of)
        if not run.status.ended:
            if self._archives is not None:
                self._archives.keep_up(run, mlflow_id)
            return
        if not sent.summary:
            self._send_summary(run, mlflow_id, sent)
            sent.summary = True
        artifact_trouble: DeliveryError | None = None
        try:
            self._send_artifacts(run, mlflow_id, sent)
        except DeliveryError as error:
            if error.trouble is not Trouble.BUSY:
                raise
            artifact_trouble = error  # no reason to leave the run RUNNING meanwhile
        self._before_request()
        self._target.terminate(mlflow_id, run.status, (run.ended_ns or 0) // NS_PER_MS)
        if artifact_trouble is not None:
            raise artifact_trouble
        if self._archives is not None and (note := self._archives.complete(run, mlflow_id)):
            sent.notes[note] = None

    # -- texts ------------------------------------------------------------------------------------

    def _send_texts(
        self,
        run: RunRecord,
        mlflow_id: str,
        sent: _Sent,
        keys: Mapping[str, str],
    ) -> None:
        params = deliverable_params(self._reader.params(run.run_id), ended=run.status.ended)
        tags = deliverable_tags(run, self._reader.tags(run.run_id), keys)
        self._send_new(params, sent.params, partial(self._target.log_params, mlflow_id), sent)
        self._send_new(tags, sent.tags, partial(self._target.set_tags, mlflow_id), sent)

    def _send_new(
        self,
        texts: Mapping[str, str],
        known: dict[str, str],
        send: Callable[[Sequence[tuple[str, str]]], None],
        sent: _Sent,
    ) -> None:
        new = [(key, text) for key, text in texts.items() if known.get(key) != text]
        while new:
            count = self._text_batch.limit
            part, new = new[:count], new[count:]
            self._send_all(part, send, sent, self._text_batch)
            known.update(part)

    def _send_all(
        self,
        items: Sequence[_Item],
        send: Callable[[Sequence[_Item]], None],
        sent: _Sent,
        batch: BatchSize,
    ) -> None:
        """Send all that MLflow accepts: of a request that it refuses, each half by itself."""
        self._before_request()
        try:
            send(items)
        except DeliveryError as error:
            if error.slow:
                batch.slow(len(items))
            if error.trouble is not Trouble.REFUSED:
                raise
            if error.too_large:
                batch.too_large(len(items))
            if len(items) == 1:
                if error.too_large and len(repr(items[0])) < _SMALL_BYTES:
                    batch.nonsense()
                    raise DeliveryError(
                        Trouble.BUSY, "it refuses requests of any size as too large (413)"
                    ) from error
                log.warning("MLflow refused %.200r: %s", items[0], error.message)
                sent.notes[f"refused: {items[0]!r:.200}"] = None
                return
            middle = len(items) // 2
            self._send_all(items[:middle], send, sent, batch)
            self._send_all(items[middle:], send, sent, batch)
        else:
            batch.worked(len(items))

    # -- points -----------------------------------------------------------------------------------

    def _send_points(
        self,
        run: RunRecord,
        mlflow_id: str,
        sent: _Sent,
        series: Sequence[SeriesRecord],
        key_of: Mapping[int, str],
    ) -> None:
        """All new points, several series in one request; how far is noted after each request."""
        points: list[Point] = []
        marks: dict[int, int] = {}

        def flush() -> None:
            self._log_points(points, mlflow_id, sent)
            self._writer.mark_delivered(run.run_id, marks)
            points.clear()
            marks.clear()

        def room() -> int:
            return max(1, self._point_batch.limit - len(points))

        for series_no, piece, until in self._pieces(run, series, key_of, room):
            points += piece
            marks[series_no] = until
            if len(points) >= self._point_batch.limit:
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

    def _send_summary(self, run: RunRecord, mlflow_id: str, sent: _Sent) -> None:
        epochs = epoch_points(self._reader.markers([run.run_id]))
        summaries = self._reader.summary([run.run_id])
        ledger = self._reader.ledger([run.run_id])
        values = summary_values(run, summaries, epochs, ledger, self._totals(summaries))
        keys = unique_keys(values)
        ended_ms = (run.ended_ns or 0) // NS_PER_MS
        points = epochs + [Point(keys[name], value, ended_ms, 0) for name, value in values.items()]
        self._log_points(points, mlflow_id, sent)

    def _totals(self, summaries: Sequence[SummaryRecord]) -> dict[int, float]:
        """How much each counter of a run grew, which only all of its readings tell."""
        totals: dict[int, float] = {}
        for series in (summary.series for summary in summaries):
            if series.kind is SeriesKind.COUNTER and series.listener != SOFTWARE:
                samples = self._reader.samples(series.run_id, series.series_no)
                if (total := total_of(samples, series)) is not None:
                    totals[series.series_no] = total
        return totals

    def _log_points(self, points: Sequence[Point], mlflow_id: str, sent: _Sent) -> None:
        send = partial(self._target.log_points, mlflow_id)
        start = 0
        while start < len(points):
            part = points[start : start + self._point_batch.limit]
            self._send_all(part, send, sent, self._point_batch)
            start += len(part)

    # -- files ------------------------------------------------------------------------------------

    def _send_artifacts(self, run: RunRecord, mlflow_id: str, sent: _Sent) -> None:
        if not run.spool:
            return
        delivered = self._reader.delivered_artifacts(run.run_id)
        for artifact in artifact_files(RunDir(Path(run.spool))):
            if artifact.path in delivered or artifact.path in sent.hopeless:
                continue
            self._before_request()
            try:
                with artifact.named() as file:
                    self._target.log_artifact(mlflow_id, file, artifact.folder)
            except OSError as error:
                if os.access(artifact.file, os.R_OK):
                    raise DeliveryError(
                        Trouble.BUSY, f"artifact {artifact.path}: {error}"
                    ) from error
                sent.notes[f"artifact {artifact.path} cannot be read"] = None
                sent.hopeless.add(artifact.path)
            except DeliveryError as error:
                if error.trouble is not Trouble.REFUSED:
                    raise
                log.warning("artifact %s refused: %s", artifact.path, error.message)
                sent.notes[f"artifact {artifact.path} refused: {error.message}"] = None
                sent.hopeless.add(artifact.path)
            else:
                self._writer.mark_artifacts(run.run_id, [artifact.path])

    # -- workloads --------------------------------------------------------------------------------

    def close_workload(self, workload_id: str) -> bool:
        """End a workload's MLflow run if all of its runs have ended; whether it is done with.

        Raises:
            DeliveryError: MLflow failed.
            StoreError: The store failed.
        """
        runs = self._reader.runs(workload_id=workload_id)
        if not runs or not all(run.status.ended and run.mlflow_run_id for run in runs):
            return False
        workload = self._reader.workload(workload_id)  # only now does it surely have its id
        note = ""
        if self._target.is_server and (lost := delete_lost_runs(self._target, workload, runs)):
            log.warning("workload %s: %d MLflow runs were made twice; deleted", workload_id, lost)
        if workload.mlflow_run_id is not None:
            try:
                self._end_parent(workload, workload.mlflow_run_id, runs)
            except DeliveryError as error:
                if error.trouble is not Trouble.GONE:
                    raise
                note = self._note_of_loss(workload_id, error)
        self._writer.mark_workload_delivered(workload_id, note)
        return True

    def _end_parent(
        self, workload: WorkloadRecord, mlflow_id: str, runs: Sequence[RunRecord]
    ) -> None:
        status = RunStatus.worst(run.status for run in runs)
        ended_ms = max(run.ended_ns or 0 for run in runs) // NS_PER_MS
        self._before_request()
        if workload.start_skew_ns is not None:
            skew_s = workload.start_skew_ns / 1e9
            self._target.log_points(mlflow_id, [Point("summary/start_skew_s", skew_s, ended_ms, 0)])
        self._target.set_tags(mlflow_id, [("radt.status", status.value)])  # MLflow has fewer
        self._target.terminate(mlflow_id, status, ended_ms)
