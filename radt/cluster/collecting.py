"""Collects what jobs have sent into this host's data folder, from which it is uploaded.

It can be interrupted at any point: a file is removed from the shared folder only after all of it
has been stored, and storing it again changes nothing.
"""

from __future__ import annotations

import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from radt.cluster.attempt import JobAttempt
from radt.cluster.shipping import archives_in, bundles_in
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey
from radt.collector.client import CollectorClient
from radt.delivery.archive.spool import progress_of
from radt.errors import ArchiveError, CollectorError, RadtError, RunNotFoundError
from radt.home import Home, RunDir
from radt.model import RunStatus
from radt.store import bundle
from radt.store.applying import OwnershipTransfer, apply
from radt.store.copy import Batch, Position, position_of
from radt.store.reader import StoreReader
from radt.store.records import MARKERS_OF_A_NODE, SERIES_OF_A_NODE, RunRecord
from radt.store.writer import StoreWriter
from radt.tags import (
    CLUSTER_ATTEMPT,
    CLUSTER_JOB,
    CLUSTER_NODE,
    CLUSTER_SUBMISSION,
    CLUSTER_SUPERSEDED,
    PARENT,
)


@dataclass(slots=True)
class Collected:
    """The result of one collection, in order: runs with new data, and problems.

    ``problems`` say what could not be stored and is retried by the next collection. So are ``late``
    runs, which their node has announced and the folder does not show yet.
    """

    runs: dict[str, None] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    late: dict[str, None] = field(default_factory=dict)


class Collection:
    """Collects the runs of one submission. Use as a context manager, from one thread.

    Args:
        spool: The submission.
        home: The data folder that gets its runs.
        tracking_uri: MLflow's address for uploads from this host, "" for none.
        store_uri: The Postgres database for uploads from this host, "" for none.
        client: The collector asked to upload new data; None to leave that to `radt sync`.
    """

    def __init__(
        self,
        spool: Spool,
        home: Home,
        *,
        tracking_uri: str = "",
        store_uri: str = "",
        client: CollectorClient | None = None,
    ) -> None:
        self._spool = spool
        self._home = home
        #: Nodes upload runs to MLflow; those of dead nodes are left to this host.
        self._nodes_deliver = spool.submission.reaches_mlflow
        self._tracking_uri = tracking_uri
        self._store_uri = store_uri
        self._client = client
        #: Ended attempts that are completely collected.
        self._done: set[tuple[JobKey, int]] = set()
        #: Attempts whose superseded predecessors are marked.
        self._superseded: set[tuple[JobKey, int]] = set()
        #: Runs in the store by job; None until the store was read.
        self._runs: dict[str, set[str]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in ("_reader", "_writer"):
            if store in vars(self):
                vars(self).pop(store).close()

    @cached_property
    def _writer(self) -> StoreWriter:
        return StoreWriter(self._home.create().store_path)

    @cached_property
    def _reader(self) -> StoreReader:
        _ = self._writer  # creates the store
        return StoreReader(self._home.store_path)

    def collect(self, jobs: Iterable[JobKey] | None = None) -> Collected:
        """Collect new data.

        Args:
            jobs: Those that may have new data: running, or running at the last collection. None for
                all. Jobs that have not begun then cost nothing.

        Raises:
            StoreError: The store of the data folder cannot be opened.
        """
        look = Collected()
        for job in sorted(self._spool.started_jobs()) if jobs is None else jobs:
            self._collect_job(job, look)
        if look.runs and self._client is not None and (self._tracking_uri or self._store_uri):
            try:
                self._client.deliver(self._home.store_path, self._tracking_uri, self._store_uri)
            except CollectorError as error:
                look.problems[str(error)] = None
        return look

    def end_lost(self, job: JobKey, reason: str) -> tuple[str, ...]:
        """End the runs of a job that will send no more data; return their ids.

        If more data comes after all, a run's own end replaces this one.

        Raises:
            StoreError: The store cannot be read or written.
        """
        self.collect([job])
        lost = []
        for run in self._of_job(job):
            if not run.status.ended:
                self._end(run, reason)
                lost.append(run.run_id)
        return tuple(lost)

    # Attempts -------------------------------------------------------------------------------------

    def _collect_job(self, job: JobKey, look: Collected) -> None:
        before = len(look.runs)
        try:
            attempts = self._spool.attempts(job)
            for attempt in attempts:
                if (job, attempt.number) not in self._done:
                    self._collect_attempt(job, attempt, look)
            if len(attempts) > 1:
                newest = attempts[-1]
                if len(look.runs) > before or (job, newest.number) not in self._superseded:
                    self._supersede(job, newest, look)
        except (RadtError, OSError) as error:
            look.problems[f"job {job}: {error}"] = None

    def _collect_attempt(self, job: JobKey, attempt: JobAttempt, look: Collected) -> None:
        nodes = {0: attempt} | attempt.parts()
        views = [of.view() for of in nodes.values()]  # before listing: their runs were sent earlier
        left = False
        folders = [(node, folder) for node, of in nodes.items() for folder in of.run_folders()]
        for node, folder in folders:
            try:
                self._collect_run(folder, look, node)
            except FileNotFoundError:  # the node has just merged several files into one
                left = True
            except (RadtError, OSError, tarfile.TarError) as error:
                left = True
                text = error.message if isinstance(error, RadtError) else str(error)
                look.problems[f"run {folder.name}: {text}"] = None
        if views[0].ended and not left:
            count = self._spool.submission.arrays[job.array].shape.nodes
            kept = sorted(views[0].kept or ())
            late = [run_id for run_id in kept if not self._has_all_of(run_id, count)]
            look.late |= dict.fromkeys(late)
            if not late and all(view.ended for view in views):
                self._done.add((job, attempt.number))

    def _has_all_of(self, run_id: str, nodes: int) -> bool:
        """Return True if an ended and sent run is complete here: a listing may be a minute old."""
        reader = self._reader
        run = next(iter(reader.runs(run_ids=[run_id])), None)
        if run is None or not run.status.ended:
            return False
        if self._nodes_deliver or PARENT in reader.tags(run_id):
            return True
        run_dir = self._home.run_dir(run_id)
        if not run_dir.output_log.exists():
            return False
        # Files are deleted here once MLflow has them.
        of_nodes = all(_of_node(run_dir, node).is_dir() for node in range(1, nodes))
        return of_nodes or progress_of(reader, run_id).delivered

    def _supersede(self, job: JobKey, newest: JobAttempt, look: Collected) -> None:
        """Mark runs of earlier attempts that the newest attempt does not keep."""
        kept = newest.view().kept
        if kept is None:
            return  # it has not reported yet
        number = str(newest.number)
        for run in self._of_job(job):
            tags = self._reader.tags(run.run_id)
            is_marked = run.status is RunStatus.KILLED and tags.get(CLUSTER_SUPERSEDED) == number
            if run.run_id not in kept and tags[CLUSTER_ATTEMPT] != number and not is_marked:
                self._end(run, f"superseded by attempt {number}", number)
                look.runs[run.run_id] = None
        self._superseded.add((job, newest.number))

    def _end(self, run: RunRecord, reason: str, by_attempt: str = "") -> None:
        """End a run that no node will end; a finished one that does not count becomes KILLED."""
        writer, reader = self._writer, self._reader
        with writer.transaction():
            if by_attempt:
                writer.put_tags(run.run_id, {CLUSTER_SUPERSEDED: by_attempt})
            if not run.status.ended:
                writer.end_run(run.run_id, RunStatus.KILLED, time.time_ns(), reason=reason)
            elif run.status is not RunStatus.KILLED:
                writer.update_run(run.run_id, status=RunStatus.KILLED, end_reason=reason)
            for child in reader.runs(workload_id=run.workload_id):
                if not child.status.ended and reader.tags(child.run_id).get(PARENT) == run.run_id:
                    writer.end_run(child.run_id, RunStatus.KILLED, time.time_ns(), reason=reason)
            writer.end_workload(run.workload_id)
            if self._nodes_deliver:  # the node that was to upload it is gone
                writer.update_run(
                    run.run_id,
                    spool=str(self._home.run_dir(run.run_id).path),
                    tracking_uri=self._tracking_uri,
                )
                writer.deliver_again(run.run_id)
        self._deliver_again(run.run_id)

    def _of_job(self, job: JobKey) -> list[RunRecord]:
        """Return the stored runs of a job."""
        if self._runs is None:
            self._runs = self._known_runs()
        run_ids = sorted(self._runs.get(str(job), ()))
        return self._reader.runs(run_ids=run_ids) if run_ids else []

    def _known_runs(self) -> dict[str, set[str]]:
        submission, reader = self._spool.submission, self._reader
        known: dict[str, set[str]] = {}
        for experiment in {
            key.experiment for job in submission.jobs for key in submission.workloads(job)
        }:
            own = reader.tagged(CLUSTER_SUBMISSION, experiment)
            for run_id, job in reader.tagged(CLUSTER_JOB, experiment).items():
                if own.get(run_id) == submission.submission_id:
                    known.setdefault(job, set()).add(run_id)
        return known

    # Runs -----------------------------------------------------------------------------------------

    def _collect_run(self, folder: Path, look: Collected, node: int) -> None:
        """Collect new data of a run from a node.

        Raises:
            RadtError: Some of it cannot be stored now.
            OSError: The same.
        """
        run_dir = self._home.run_dir(folder.name)
        bundles = bundles_in(folder)
        # Files before the run's end: after that, the deliverers look for them.
        for archive in archives_in(folder):
            self._take_files(archive, run_dir, node)
            look.runs[folder.name] = None
        for bundle_file in bundles:
            self._take_bundle(bundle_file, run_dir, node)
            look.runs[folder.name] = None
        with suppress(OSError):  # not empty: the node has sent more
            folder.rmdir()

    def _take_files(self, file: Path, run_dir: RunDir, node: int) -> None:
        self._home.create()
        run_dir.create()
        with _unpacked(file, run_dir) as unpacked:
            for source in filter(Path.is_file, sorted(unpacked.rglob("*"))):
                target = run_dir.path / source.relative_to(unpacked)
                if node:
                    inside = target.is_relative_to(run_dir.artifacts)
                    base = run_dir.artifacts if inside else run_dir.path
                    target = _of_node(run_dir, node) / target.relative_to(base)
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
        self._deliver_again(run_dir.path.name)
        file.unlink(missing_ok=True)

    def _take_bundle(self, file: Path, run_dir: RunDir, node: int) -> None:
        run_id = run_dir.path.name
        self._home.create()
        run_dir.create()
        with bundle.open(file) as opened:
            rows = opened.rows
            if rows.run.run_id != run_id:
                raise ArchiveError(f"{file} is of run {rows.run.run_id}")
            part = None
            if node and PARENT not in rows.tags:  # a child run belongs to one node's process
                part = NodePart(rows.tags.get(CLUSTER_NODE, ""), node)
            since = opened.since if part is None else part.position(opened.since)
            if not position_of(self._reader, run_id).covers(since):
                raise ArchiveError(f"{file} continues a file that is not there yet")
            transfer = None
            if not self._nodes_deliver:
                transfer = OwnershipTransfer(run_dir.path, self._tracking_uri)
            for batch in opened.batches():
                if part is not None:
                    batch = part.batch(batch)
                apply(self._writer, batch, transfer=transfer, is_part=part is not None)
            self._deliver_again(run_id)
        if self._runs is not None:
            self._runs.setdefault(rows.tags.get(CLUSTER_JOB, ""), set()).add(run_id)
        file.unlink(missing_ok=True)

    def _deliver_again(self, run_id: str) -> None:
        try:
            delivered = progress_of(self._reader, run_id).delivered
        except RunNotFoundError:
            return  # its archive follows
        if delivered and not self._nodes_deliver:
            self._writer.deliver_again(run_id)


def _of_node(run_dir: RunDir, node: int) -> Path:
    """Return the folder for files from a node other than the run's first."""
    return run_dir.artifacts / f"node-{node}"


@contextmanager
def _unpacked(file: Path, run_dir: RunDir) -> Iterator[Path]:
    """Unpack a file into a folder of the run for the duration of the context."""
    folder = run_dir.path / "collected"
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir(mode=0o700)
    try:
        with tarfile.open(file) as tar:
            # Available from Python 3.11.4 on.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(folder)  # noqa: S202 - from this user's own jobs
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class NodePart:
    """The part of a run that one node has recorded, with the node's name and number from 1."""

    node: str
    number: int

    def batch(self, batch: Batch) -> Batch:
        """Convert a batch of the node to a batch of the whole run."""
        rows, shift, named = batch.rows, self._shift, self._named
        return replace(
            batch,
            rows=replace(
                rows,
                series=[
                    replace(row, series_no=row.series_no + shift, entity=named(row.entity))
                    for row in rows.series
                ],
                ledgers=[replace(row, listener=named(row.listener)) for row in rows.ledgers],
                points=self._points(rows.points),
            ),
            until=self.position(batch.until),
            pieces=[replace(piece, series_no=piece.series_no + shift) for piece in batch.pieces],
            markers=[
                replace(
                    row, marker_no=row.marker_no + self._marker_shift, process=named(row.process)
                )
                for row in batch.markers
            ],
            gaps=[
                replace(
                    row,
                    listener=named(row.listener),
                    series_no=row.series_no if row.series_no < 0 else row.series_no + shift,
                )
                for row in batch.gaps
            ],
        )

    def position(self, position: Position) -> Position:
        """Convert a position in the node's numbering to that of the whole run."""
        return replace(
            position,
            points=self._points(position.points),
            markers={
                node + self.number: number + self._marker_shift
                for node, number in position.markers.items()
            },
            open_markers=frozenset(number + self._marker_shift for number in position.open_markers),
        )

    @property
    def _shift(self) -> int:
        return self.number * SERIES_OF_A_NODE

    @property
    def _marker_shift(self) -> int:
        return self.number * MARKERS_OF_A_NODE

    def _points(self, points: Mapping[int, int]) -> dict[int, int]:
        return {number + self._shift: count for number, count in points.items()}

    def _named(self, name: str) -> str:
        return "/".join(filter(None, (self.node, name)))
