"""Takes what jobs have sent into this host's data folder, whose deliverers bring it on.

All of it can be interrupted anywhere: a file is removed from the shared folder once all of it is
here, and taking it again changes nothing.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from radt.cluster.merging import part_of_run
from radt.cluster.shipping import ARTIFACTS, OUTPUT_LOG, CargoKind, cargo_in
from radt.cluster.spool import Attempt, JobKey, Spool
from radt.collector.client import CollectorClient
from radt.delivery.archive.importing import Adoption, import_archive
from radt.delivery.archive.locations import LocalFolder
from radt.delivery.archive.manifest import MANIFEST_FILE, Manifest
from radt.delivery.archive.read import Archive
from radt.delivery.archive.spool import progress_of
from radt.errors import ArchiveError, CollectorError, RadtError, RunNotFoundError
from radt.home import Home, RunDir
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from radt.tags import (
    CLUSTER_ATTEMPT,
    CLUSTER_JOB,
    CLUSTER_SUBMISSION,
    CLUSTER_SUPERSEDED,
    PARENT,
)


@dataclass(frozen=True, slots=True)
class Collected:
    """What one look brought: runs with something new, and what could not be taken, with the reason.

    What could not be taken waits for the next look, as do those that are announced by their node
    and that the folder does not show yet: ``late``.
    """

    runs: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    late: tuple[str, ...] = ()


@dataclass(slots=True)
class _Look:
    runs: dict[str, None] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    late: dict[str, None] = field(default_factory=dict)


class Collection:
    """Takes the runs of one submission. Use as a context manager; for one thread.

    Args:
        spool: The submission.
        home: The data folder that gets its runs.
        tracking_uri: MLflow's address that runs are brought to from here, "" for none.
        store_uri: The same of Postgres.
        client: Asked to deliver what is new; None for whoever delivers it later (`radt sync`).
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
        #: Nodes bring runs to MLflow; those that have died leave theirs to this host.
        self._nodes_deliver = spool.submission.reaches_mlflow
        self._tracking_uri = tracking_uri
        self._store_uri = store_uri
        self._client = client
        self._writer: StoreWriter | None = None
        self._reader: StoreReader | None = None
        #: Attempts that have ended, and of which nothing is left to take.
        self._done: set[tuple[JobKey, int]] = set()
        #: Attempts whose predecessors are marked.
        self._prevailed: set[tuple[JobKey, int]] = set()
        #: Runs in the store by their jobs; None before the store was asked.
        self._runs: dict[str, set[str]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        if self._writer is not None and self._reader is not None:
            self._reader.close()
            self._writer.close()
        self._writer = self._reader = None

    def collect(self, jobs: Iterable[JobKey] | None = None) -> Collected:
        """Take what is new.

        Args:
            jobs: Those that can have something new, which run or have run since the last look; None
                for all. A job that has not begun costs nothing then.

        Raises:
            StoreError: The store of the data folder cannot be opened.
        """
        look = _Look()
        for job in self._begun() if jobs is None else jobs:
            self._collect_job(job, look)
        if look.runs and self._client is not None and (self._tracking_uri or self._store_uri):
            try:
                self._client.deliver(self._home.store_path, self._tracking_uri, self._store_uri)
            except CollectorError as error:
                look.problems[str(error)] = None
        return Collected(tuple(look.runs), tuple(look.problems), tuple(look.late))

    def end_lost(self, job: JobKey, reason: str) -> tuple[str, ...]:
        """End the runs of a job of which no more will come; return their ids.

        If more comes all the same, a run's own end takes the place of this one.

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

    def _begun(self) -> Iterator[JobKey]:
        return iter(sorted(self._spool.started_jobs()))

    def _collect_job(self, job: JobKey, look: _Look) -> None:
        before = len(look.runs)
        try:
            attempts = self._spool.attempts(job)
            for attempt in attempts:
                if (job, attempt.number) not in self._done:
                    self._collect_attempt(job, attempt, look)
            if len(attempts) > 1:
                newest = attempts[-1]
                if len(look.runs) > before or (job, newest.number) not in self._prevailed:
                    self._supersede(job, newest, look)
        except (RadtError, OSError) as error:
            look.problems[f"job {job}: {error}"] = None

    def _collect_attempt(self, job: JobKey, attempt: Attempt, look: _Look) -> None:
        nodes = {0: attempt} | attempt.parts()
        views = [of.view() for of in nodes.values()]  # asked first: all that they know of was sent
        left = False
        folders = [(node, folder) for node, of in nodes.items() for folder in of.run_folders()]
        for node, folder in folders:
            try:
                left |= self._collect_run(folder, look, node)
            except FileNotFoundError:  # the node has just put one file in the place of several
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
        """Whether a run that has ended, and was sent, is here: a listing may be a minute old."""
        reader = self._store()[1]
        run = next(iter(reader.runs(run_ids=[run_id])), None)
        if run is None or not run.status.ended:
            return False
        if self._nodes_deliver or PARENT in reader.tags(run_id):
            return True
        run_dir = self._home.run_dir(run_id)
        if not run_dir.output_log.exists():
            return False
        # Files that MLflow has got are here no more.
        of_nodes = all(_of_node(run_dir, node).is_dir() for node in range(1, nodes))
        return of_nodes or progress_of(reader, run_id).delivered

    def _supersede(self, job: JobKey, newest: Attempt, look: _Look) -> None:
        """Mark the runs of earlier attempts that the newest does not go on from."""
        kept = newest.view().kept
        if kept is None:
            return  # it has not said yet
        number = str(newest.number)
        for run in self._of_job(job):
            tags = self._store()[1].tags(run.run_id)
            is_marked = run.status is RunStatus.KILLED and tags.get(CLUSTER_SUPERSEDED) == number
            if run.run_id not in kept and tags[CLUSTER_ATTEMPT] != number and not is_marked:
                self._end(run, f"superseded by attempt {number}", number)
                look.runs[run.run_id] = None
        self._prevailed.add((job, newest.number))

    def _end(self, run: RunRecord, reason: str, by_attempt: str = "") -> None:
        """End a run that nobody else ends; one that has finished in vain is KILLED then, too."""
        writer, reader = self._store()
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
            if self._nodes_deliver:  # the one that had it is gone
                writer.update_run(
                    run.run_id,
                    spool=str(self._home.run_dir(run.run_id).path),
                    tracking_uri=self._tracking_uri,
                )
                writer.deliver_again(run.run_id)
        self._deliver_again(reader, writer, run.run_id)

    def _of_job(self, job: JobKey) -> list[RunRecord]:
        """Return the runs of a job that are in the store."""
        if self._runs is None:
            self._runs = self._known_runs()
        run_ids = sorted(self._runs.get(str(job), ()))
        return self._store()[1].runs(run_ids=run_ids) if run_ids else []

    def _known_runs(self) -> dict[str, set[str]]:
        submission, (_, reader) = self._spool.submission, self._store()
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

    def _collect_run(self, folder: Path, look: _Look, node: int) -> bool:
        """Take what has come of a run from a node; return whether anything of it is left.

        Raises:
            RadtError: Something of it cannot be taken now.
            OSError: The same.
        """
        waiting = cargo_in(folder)
        run_dir = self._home.run_dir(folder.name)
        # Before the run's end, after which the deliverers look for files: they find them then.
        for cargo in waiting:
            if cargo.kind is CargoKind.FILES:
                self._take_files(folder / cargo.name, run_dir, node)
                look.runs[folder.name] = None
        whole = max((c.number for c in waiting if c.kind is CargoKind.WHOLE), default=0)
        for cargo in waiting:
            if cargo.kind is CargoKind.FILES:
                continue
            if cargo.number >= whole:
                self._take_archive(folder / cargo.name, run_dir, node)
                look.runs[folder.name] = None
            else:
                (folder / cargo.name).unlink(missing_ok=True)
        with suppress(OSError):  # the node may send more
            folder.rmdir()
        return False

    def _take_files(self, file: Path, run_dir: RunDir, node: int) -> None:
        self._home.create()
        run_dir.create()
        with _unpacked(file, run_dir) as unpacked:
            for source, name in unpacked.files():
                target = run_dir.output_log if name == OUTPUT_LOG else run_dir.path / name
                if node:
                    target = _of_node(run_dir, node) / name.removeprefix(f"{ARTIFACTS}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
        writer, reader = self._store()
        self._deliver_again(reader, writer, run_dir.path.name)
        file.unlink(missing_ok=True)

    def _take_archive(self, file: Path, run_dir: RunDir, node: int) -> None:
        self._home.create()
        run_dir.create()
        with _unpacked(file, run_dir) as unpacked:
            manifest = Manifest.from_json(
                (unpacked.path / MANIFEST_FILE).read_bytes(), f"{file.name}/{MANIFEST_FILE}"
            )
            if manifest.run.run_id != run_dir.path.name:
                raise ArchiveError(f"{file} is of run {manifest.run.run_id}")
            writer, reader = self._store()
            adoption = None
            if not self._nodes_deliver:
                adoption = Adoption(run_dir.path, self._tracking_uri)
            tags = manifest.tags or {}
            archive = Archive(LocalFolder(unpacked.path), manifest)
            is_part = node > 0 and PARENT not in tags  # a child is a run of one node's process
            import_archive(
                part_of_run(archive, node) if is_part else archive,
                writer,
                parts=frozenset(name for _, name in unpacked.files()),
                adoption=adoption,
                is_part=is_part,
            )
            self._deliver_again(reader, writer, manifest.run.run_id)
        if self._runs is not None:
            job = tags.get(CLUSTER_JOB, "")
            self._runs.setdefault(job, set()).add(manifest.run.run_id)
        file.unlink(missing_ok=True)

    def _deliver_again(self, reader: StoreReader, writer: StoreWriter, run_id: str) -> None:
        try:
            delivered = progress_of(reader, run_id).delivered
        except RunNotFoundError:
            return  # its archive comes next
        if delivered and not self._nodes_deliver:
            writer.deliver_again(run_id)

    def _store(self) -> tuple[StoreWriter, StoreReader]:
        if self._writer is None or self._reader is None:
            self._home.create()
            self._writer = StoreWriter(self._home.store_path)
            self._reader = StoreReader(self._home.store_path)
        return self._writer, self._reader


def _of_node(run_dir: RunDir, node: int) -> Path:
    """Return where files of another node than the run's first are."""
    return run_dir.artifacts / f"node-{node}"


def collect(
    spool: Spool,
    home: Home,
    *,
    tracking_uri: str = "",
    store_uri: str = "",
    client: CollectorClient | None = None,
) -> Collected:
    """Take what is new of a submission, once; see `Collection`."""
    with Collection(
        spool, home, tracking_uri=tracking_uri, store_uri=store_uri, client=client
    ) as collection:
        return collection.collect()


class _unpacked:  # noqa: N801 - used as a function
    """The content of a file that came, in the run's folder while inside."""

    def __init__(self, file: Path, run_dir: RunDir) -> None:
        self._file = file
        self.path = run_dir.path / "collected"

    def __enter__(self) -> Self:
        shutil.rmtree(self.path, ignore_errors=True)  # of who was killed
        self.path.mkdir(mode=0o700)
        inside = self.path.resolve()
        with tarfile.open(self._file) as tar:
            for member in tar:  # extractall() has its filter from Python 3.11.4 on
                file = (inside / member.name).resolve()
                content = tar.extractfile(member) if member.isfile() or member.islnk() else None
                if content is None or not file.is_relative_to(inside):
                    raise tarfile.TarError(f"{member.name} is not a file of the run")
                file.parent.mkdir(parents=True, exist_ok=True)
                with content, file.open("wb") as target:
                    shutil.copyfileobj(content, target)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def files(self) -> Iterator[tuple[Path, str]]:
        """Yield all files, with their paths there."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = Path(folder) / name
                yield file, str(file.relative_to(self.path))
