"""Upload the data of a run: params, tags, points, summary, files, and outcome.

The position in each series and the uploaded files are recorded in the store, so a new uploader
continues after a killed one. Unrecorded data is sent again: MLflow keeps points with the same key,
time, step and value only once, and overwrites everything else.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlalchemy import text

from radt.delivery.archive.spool import progress_of
from radt.delivery.mlflow.archives import ArchiveUploader, archive_spool
from radt.delivery.mlflow.artifacts import ArtifactFile, artifact_files, clean_spool
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.limits import (
    MAX_TEXTS,
    BatchSender,
    Notes,
    deliverable_params,
    deliverable_tags,
    unique_keys,
)
from radt.delivery.mlflow.points import SUMMARY_FILE, SUMMARY_PREFIX, PointUploader, series_names
from radt.delivery.mlflow.runs import delete_lost_runs
from radt.delivery.mlflow.target import NS_PER_MS, MlflowPoint, MlflowTarget
from radt.home import RunDir
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_ATTEMPT, CLUSTER_SUPERSEDED, PARENT, STATUS
from radt.units import in_json
from radt.usage import KERNEL

log = logging.getLogger(__name__)

_WORKLOAD_REVISION = text("SELECT revision FROM workload WHERE workload_id = :workload_id")


@dataclass(slots=True)
class _Sent:
    """Texts of a run that this process has sent; after a restart they are sent again."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    notes: Notes = field(default_factory=dict)
    #: The run's revision in the store when its data was last read.
    revision: int = -1
    #: Summary values of that revision, once the run has ended and MLflow has those that are
    #: metrics.
    summary: dict[str, float] | None = None
    #: Artifacts that MLflow will never have. Not recorded in the store: the next uploader must not
    #: treat them as uploaded and remove them.
    hopeless: set[str] = field(default_factory=set)


class Uploader:
    """Uploads runs that exist in MLflow, with their archives if ``archives`` is given."""

    def __init__(
        self,
        target: MlflowTarget,
        reader: StoreReader,
        writer: StoreWriter,
        archives: ArchiveUploader | None = None,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self.archives = archives
        self._points = PointUploader(target, reader, writer)
        self._texts = BatchSender(MAX_TEXTS)
        self._sent: dict[str, _Sent] = {}

    def deliver(self, run: RunRecord) -> None:
        """Send the new data of a run; if the run has ended, send the rest and end it in MLflow.

        Raises:
            DeliveryError: MLflow failed, or the run was written meanwhile; the progress is
                recorded. A run that was deleted in MLflow does not raise: the run is given up,
                which is recorded.
            StoreError: The store failed.
        """
        sent = self._sent.setdefault(run.run_id, _Sent())
        # Read before the data, so that later writes are uploaded again rather than missed.
        revision = progress_of(self._reader, run.run_id).revision
        if revision != sent.revision:
            sent.revision, sent.summary = revision, None
        run = self._reader.run(run.run_id)
        assert run.mlflow_run_id is not None
        try:
            self._send_content(run, run.mlflow_run_id, sent)
        except DeliveryError as error:
            if error.kind is not ErrorKind.GONE:
                raise
            sent.notes[self._note_of_loss(run.workload_id, error)] = None
            log.warning("stopped delivering run %s: %s", run.run_id, error.message)
        else:
            if not run.status.ended:
                return
        if progress_of(self._reader, run.run_id).revision != revision:
            raise _written_meanwhile()  # the spool is still needed
        if run.spool and not sent.notes:
            clean_spool(RunDir(Path(run.spool)), self._reader.delivered_artifacts(run.run_id))
            # Before the mark, after which the run would not be checked again.
            archive_spool(run).remove()
        if not self._writer.mark_run_delivered(run.run_id, "; ".join(sent.notes), revision):
            raise _written_meanwhile()
        del self._sent[run.run_id]

    def _note_of_loss(self, workload_id: str, error: DeliveryError) -> str:
        """Return the note on a run that was deleted in MLflow.

        Raises:
            DeliveryError: The run was not deleted: a server that was started with another database
                lacks even its experiment.
        """
        experiment_id = self._reader.workload(workload_id).mlflow_experiment_id
        if experiment_id is not None and self._target.experiment_by_id(experiment_id) is None:
            raise DeliveryError(
                ErrorKind.BUSY,
                f"it has neither the run nor its experiment {experiment_id}; it may have been "
                "started with another database",
            ) from error
        return f"deleted in MLflow: {error.message}"

    def _send_content(self, run: RunRecord, mlflow_id: str, sent: _Sent) -> None:
        # Totals are not curves: they are in the summary.
        series = [
            record for record in self._reader.series([run.run_id]) if record.listener != KERNEL
        ]
        names = series_names(series)
        keys = unique_keys(names.values())
        self._send_texts(run, mlflow_id, sent, keys)
        key_of = {number: keys[name] for number, name in names.items()}
        self._points.send_new(run, mlflow_id, series, key_of, sent.notes)
        if not run.status.ended:
            return
        if sent.summary is None:
            sent.summary = self._points.send_summary(run, mlflow_id, sent.notes)
        file_error: DeliveryError | None = None
        try:
            self._send_artifacts(run, mlflow_id, sent)
            # Importers look for the archive of a run that has ended in MLflow.
            if self.archives is not None and (note := self.archives.complete(run, mlflow_id)):
                sent.notes[note] = None
        except DeliveryError as error:
            if error.kind is not ErrorKind.BUSY:
                raise
            file_error = error  # raised later, so that the run does not stay RUNNING in MLflow
        if self._is_superseded(run, mlflow_id):
            raise _written_meanwhile()  # its tags and archive have changed
        self._target.terminate(mlflow_id, run.status, (run.ended_ns or 0) // NS_PER_MS)
        if file_error is not None:
            raise file_error

    def _is_superseded(self, run: RunRecord, mlflow_id: str) -> bool:
        """Return whether MLflow knows, but not the store, that a newer attempt superseded the run.

        That happens on a node that reaches MLflow but not the shared folder. The run is then
        KILLED.
        """
        tags = self._reader.tags(run.run_id)
        if CLUSTER_ATTEMPT not in tags or CLUSTER_SUPERSEDED in tags:
            return False
        number = self._target.tags(mlflow_id).get(CLUSTER_SUPERSEDED)
        if number is None:
            return False
        reason = f"superseded by attempt {number}"
        with self._writer.transaction():
            self._writer.put_tags(run.run_id, {CLUSTER_SUPERSEDED: number})
            self._writer.update_run(run.run_id, status=RunStatus.KILLED, end_reason=reason)
        return True

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
        self._texts.send(new, send, sent.notes)
        known.update(new)

    # -- files ------------------------------------------------------------------------------------

    def _send_artifacts(self, run: RunRecord, mlflow_id: str, sent: _Sent) -> None:
        if not run.spool:
            return
        delivered = self._reader.delivered_artifacts(run.run_id)
        with tempfile.TemporaryDirectory(prefix="radt-summary-") as folder:
            summary = Path(folder) / SUMMARY_FILE
            summary.write_text(json.dumps(in_json(sent.summary or {}), indent=1))
            files = [
                ArtifactFile(SUMMARY_FILE, summary),
                *artifact_files(RunDir(Path(run.spool))),
            ]
            for artifact in files:
                if artifact.path not in delivered and artifact.path not in sent.hopeless:
                    self._send_file(run, mlflow_id, sent, artifact)

    def _send_file(
        self, run: RunRecord, mlflow_id: str, sent: _Sent, artifact: ArtifactFile
    ) -> None:
        try:
            with artifact.named() as file:
                self._target.log_artifact(mlflow_id, file, artifact.folder)
        except OSError as error:
            if os.access(artifact.file, os.R_OK):
                raise DeliveryError(ErrorKind.BUSY, f"artifact {artifact.path}: {error}") from error
            note = f"artifact {artifact.path} cannot be read"
        except DeliveryError as error:
            if error.kind is not ErrorKind.REFUSED:
                raise
            note = f"artifact {artifact.path} refused: {error.message}"
        else:
            self._writer.mark_artifacts(run.run_id, [artifact.path])
            return
        log.warning("run %s: %s", run.run_id, note)
        sent.notes[note] = None
        sent.hopeless.add(artifact.path)

    # -- workloads --------------------------------------------------------------------------------

    def close_workload(self, workload_id: str) -> bool:
        """End a workload's MLflow run if all of its runs have ended; return whether it is done.

        Raises:
            DeliveryError: MLflow failed, or the workload was written meanwhile.
            StoreError: The store failed.
        """
        with self._reader.snapshot() as connection:
            row = {"workload_id": workload_id}
            revision = connection.execute(_WORKLOAD_REVISION, row).scalar()
        runs = self._reader.runs(workload_id=workload_id)
        if not runs or not all(run.status.ended and run.mlflow_run_id for run in runs):
            return False
        workload = self._reader.workload(workload_id)  # only now its id is certain to exist
        note = ""
        if self._target.is_server and (lost := delete_lost_runs(self._target, workload, runs)):
            log.warning("workload %s: deleted %d duplicate MLflow runs", workload_id, lost)
        if workload.mlflow_run_id is not None:
            try:
                self._end_parent(workload, workload.mlflow_run_id, runs)
            except DeliveryError as error:
                if error.kind is not ErrorKind.GONE:
                    raise
                note = self._note_of_loss(workload_id, error)
        if not self._writer.mark_workload_delivered(workload_id, note, revision):
            raise _written_meanwhile()
        return True

    def _end_parent(
        self, workload: WorkloadRecord, mlflow_id: str, runs: Sequence[RunRecord]
    ) -> None:
        status = RunStatus.worst(
            run.status for run in runs if PARENT not in self._reader.tags(run.run_id)
        )
        ended_ms = max(run.ended_ns or 0 for run in runs) // NS_PER_MS
        if workload.start_skew_ns is not None:
            skew_s = workload.start_skew_ns / 1e9
            skew = MlflowPoint(f"{SUMMARY_PREFIX}start_skew_s", skew_s, ended_ms, 0)
            self._target.log_points(mlflow_id, [skew])
        self._target.set_tags(mlflow_id, [(STATUS, status.value)])  # MLflow has fewer statuses
        self._target.terminate(mlflow_id, status, ended_ms)


def _written_meanwhile() -> DeliveryError:
    return DeliveryError(ErrorKind.BUSY, "it was written during its upload")
