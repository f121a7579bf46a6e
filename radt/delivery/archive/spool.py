"""The spool of an archive: folder ``archive`` in the spool folder of its run.

::

    runs/RUN_ID/archive/
    ├── run.json             the manifest: what has been written so far. The parts that it lists
    │                        and that are not here have been delivered
    ├── run.json.delivered   which manifest was delivered last: inode, size, time of writing
    ├── markers.npz          which markers are in the parts, to find those that changed since
    ├── samples/             parts that wait to be delivered
    ├── markers-00001.parquet
    └── lock                 held by the process that writes or delivers parts

Parts become valid when the manifest is replaced: parts left by a killed writer are overwritten
under the same names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sqlalchemy import text

from radt.delivery.archive.manifest import ARCHIVE_FOLDER, MANIFEST_FILE, Manifest
from radt.errors import ArchiveError, RunNotFoundError
from radt.home import RunDir
from radt.store.reader import StoreReader
from radt.store.whole_file import whole_file

_PROGRESS = text("SELECT revision, delivery_done_ns IS NOT NULL FROM run WHERE run_id = :run_id")


class ArchiveBusyError(ArchiveError):
    """Another process is writing or delivering this archive."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file to be delivered; ``path`` is relative to the run's artifacts."""

    path: str
    file: Path


@dataclass(frozen=True, slots=True)
class ArchiveSpool:
    """The archive's spool folder. Use it within `locked`."""

    path: Path

    @classmethod
    def of(cls, spool: RunDir) -> ArchiveSpool:
        return cls(spool.path / "archive")

    @property
    def manifest_file(self) -> Path:
        return self.path / MANIFEST_FILE

    @property
    def prints_file(self) -> Path:
        return self.path / "markers.npz"

    @property
    def _delivered_file(self) -> Path:
        return self.path / f"{MANIFEST_FILE}.delivered"

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the folder; with `wait`, block until the lock is free.

        Raises:
            ArchiveBusyError: Another process holds the lock.
            OSError: The folder cannot be created.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise ArchiveBusyError(f"the archive {self.path} is being written") from error
            yield

    def manifest(self) -> Manifest | None:
        """Return the manifest of the parts written so far; None if missing or unreadable."""
        try:
            text = self.manifest_file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return Manifest.from_json(text, str(self.manifest_file))
        except ArchiveError:
            return None  # an upgrade or a broken disk: the archive is rewritten from the start

    def waiting(self) -> list[Waiting]:
        """Return the files to deliver, in order: the manifest follows the files that it lists."""
        stamp = self._stamp()
        if not stamp or self._delivered() == stamp:
            return []
        manifest = self.manifest()
        if manifest is None:
            return []
        files = [
            Waiting(f"{ARCHIVE_FOLDER}/{part.path}", self.path / part.path)
            for part in manifest.parts
            if (self.path / part.path).is_file()
        ]
        files.append(Waiting(f"{ARCHIVE_FOLDER}/{MANIFEST_FILE}", self.manifest_file))
        return files

    def delivered(self, waiting: Waiting) -> None:
        """Record that a file has been delivered, and delete it."""
        if waiting.file == self.manifest_file:
            self._delivered_file.write_text(self._stamp(), encoding="ascii")
        else:
            waiting.file.unlink()

    def restore(self, manifest: bytes) -> None:
        """Adopt the delivered manifest as the written one: the spool itself has lost its state."""
        # Describes markers in parts that were never delivered.
        self.prints_file.unlink(missing_ok=True)
        with whole_file(self.manifest_file) as temporary:
            temporary.write_bytes(manifest)
        self.delivered(Waiting("", self.manifest_file))

    def discard_unfinished(self) -> None:
        """Remove unfinished files of killed writers."""
        manifest = self.manifest()
        known = {part.path for part in manifest.parts} if manifest is not None else set()
        for file in self.path.rglob("*.parquet*"):
            if str(file.relative_to(self.path)) not in known:
                file.unlink(missing_ok=True)

    def is_complete(self, run_id: str, revision: int) -> bool:
        """Return whether an ended run is completely written, up to a revision in the store."""
        manifest = self.manifest()
        return (
            manifest is not None
            and manifest.complete
            and (manifest.run.run_id, manifest.revision) == (run_id, revision)
        )

    def remove(self) -> None:
        """Delete the folder after everything has been delivered."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _stamp(self) -> str:
        """Return a stamp that identifies the manifest; empty without one.

        Its time alone is not enough: the wall clock may be set back.
        """
        try:
            status = self.manifest_file.stat()
        except FileNotFoundError:
            return ""
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"

    def _delivered(self) -> str:
        try:
            return self._delivered_file.read_text(encoding="ascii")
        except FileNotFoundError:
            return ""


def settle(path: Path) -> None:
    """Flush a file or a folder's entries to disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """``revision`` increases with every write; ``delivered``: MLflow has all, or never will."""

    revision: int
    delivered: bool


def progress_of(reader: StoreReader, run_id: str) -> RunProgress:
    """Return a run's revision and whether it is delivered.

    Raises:
        RunNotFoundError: The run does not exist.
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        row = connection.execute(_PROGRESS, {"run_id": run_id}).first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id} in the store")
    return RunProgress(int(row[0]), bool(row[1]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """``problem`` is empty if the archive is up to date; ``final``: a retry will not help."""

    run_id: str
    problem: str = ""
    final: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse a line; raise ValueError if it is not an outcome."""
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"{line!r} is not a result") from error
