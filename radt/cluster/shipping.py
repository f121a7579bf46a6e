"""Brings what a job records from its node's disk into the shared folder.

What is new of a run travels as one file under a new name (`radt.cluster.spool` shows the folder):
it appears complete or not at all, and a folder that is full or away costs nothing but time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from radt.backoff import Backoff
from radt.cluster.spool import Attempt
from radt.delivery.archive.manifest import MANIFEST_FILE
from radt.delivery.archive.spool import ArchiveSpool, Outcome, progress_of
from radt.errors import ArchiveError, RadtError
from radt.home import Home, RunDir
from radt.store.reader import StoreReader
from radt.store.records import RunRecord

#: With so many files of a run, nobody looks at present: the next one has all of its archive.
MOST_WAITING = 30
OUTPUT_LOG = "output.log"
ARTIFACTS = "artifacts"
_LONGEST_BACKOFF_S = 30.0
_LOOK_S = 0.2
_NAME = re.compile(r"(part|whole|files)\.(\d+)\.tar")


class CargoKind(StrEnum):
    """What a file of a run has in it."""

    PART = "part"  # what the archive has got since the file before, with its manifest
    WHOLE = "whole"  # all of the archive: earlier ones are not needed
    FILES = "files"  # the run's output.log and artifacts


@dataclass(frozen=True, slots=True, order=True)
class Cargo:
    """A file that travels; ``number`` counts up within its run."""

    number: int
    kind: CargoKind

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.number}.tar"


def cargo_in(folder: Path) -> list[Cargo]:
    """Return the files of a run that are there, by number; none if there is no such folder."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    matches = filter(None, map(_NAME.fullmatch, names))
    return sorted(Cargo(int(match[2]), CargoKind(match[1])) for match in matches)


@dataclass(slots=True)
class _Sent:
    """What the shared folder has got of a run: its revision in the node's store, and its parts."""

    revision: int = -1
    parts: set[str] = field(default_factory=set)
    number: int = 0
    files: bool = False


class Shipper:
    """Sends the runs of a job from a thread of its own, until `finish`.

    Args:
        home: The job's, on the node's disk.
        attempt: Where they go.
        interval_s: Between two parts of a run.
        with_files: Also send output and artifacts of runs that have ended.
        on_arrived: Called with the id of a run that has ended, and whose archive is there.
    """

    def __init__(
        self,
        home: Home,
        attempt: Attempt,
        interval_s: float,
        *,
        with_files: bool = True,
        on_arrived: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._home = home
        self._attempt = attempt
        self._interval_s = interval_s
        self._with_files = with_files
        self._on_arrived = on_arrived
        self._archives = _Archives(home.store_path, home.path / "archives")
        self._sent: dict[str, _Sent] = {}
        self._ending = threading.Event()
        self._is_dropped = False
        #: What keeps runs from being sent; "" for nothing.
        self.problem = ""
        #: Artifacts that cannot be read.
        self.left_out: list[str] = []
        self._thread = threading.Thread(target=self._work, name="shipping", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def finish(self, deadline_s: Callable[[], float], is_hurried: Callable[[], bool]) -> str:
        """Send what is left, and try until it is there; return what kept it, "" for nothing.

        Args:
            deadline_s: Until when to try, by the monotonic clock; asked again and again.
            is_hurried: Whether there is no time to leave few files.
        """
        self._ending.set()
        while self._thread.is_alive() and time.monotonic() < deadline_s():
            self._thread.join(_LOOK_S)
        if self._thread.is_alive():
            return "the shared folder does not answer"
        backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        while self._send_all(is_tidy=not is_hurried()):
            again_s = time.monotonic() + backoff.next_s()
            while time.monotonic() < min(again_s, deadline_s()):
                time.sleep(_LOOK_S)
            if time.monotonic() >= deadline_s():
                break
        self._archives.close()
        return self.problem

    def drop(self) -> None:
        """Send nothing any more."""
        self._is_dropped = True
        self._ending.set()
        self._archives.close()

    def _work(self) -> None:
        backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        wait_s = self._interval_s
        while not self._ending.wait(wait_s):
            if self._send_all():
                wait_s = min(backoff.next_s(), self._interval_s)
            else:
                backoff, wait_s = Backoff(longest_s=_LONGEST_BACKOFF_S), self._interval_s

    def _send_all(self, *, is_tidy: bool = False) -> str:
        problem = self.problem = ""
        if not self._home.store_path.exists():
            return ""  # nothing was recorded
        try:
            with StoreReader(self._home.store_path) as reader:
                for run in reader.runs():
                    if self._is_dropped:
                        break
                    try:
                        self._send(reader, run, is_tidy=is_tidy)
                    except (RadtError, OSError) as error:
                        problem = _said(error)
        except RadtError as error:
            problem = _said(error)
        self.problem = problem
        return problem

    def _send(self, reader: StoreReader, run: RunRecord, *, is_tidy: bool) -> None:
        sent = self._sent.setdefault(run.run_id, _Sent())
        folder = self._attempt.run_folder(run.run_id)
        revision = progress_of(reader, run.run_id).revision
        if revision != sent.revision or is_tidy:
            waiting = [cargo for cargo in cargo_in(folder) if cargo.kind is not CargoKind.FILES]
            if revision != sent.revision:
                self._archives.write(run.run_id)
                is_whole = len(waiting) >= (1 if is_tidy else MOST_WAITING)
                self._send_archive(run, sent, folder, waiting if is_whole else None)
            elif len(waiting) > 1:
                self._send_archive(run, sent, folder, waiting)
        if self._with_files and run.status.ended and not sent.files:
            self._send_files(run, sent, folder)

    def _send_archive(
        self, run: RunRecord, sent: _Sent, folder: Path, replaced: Sequence[Cargo] | None
    ) -> None:
        """Send what is new; or all of it in the place of what waits there."""
        spool = self._archives.spool(run.run_id)
        with spool.locked(wait=True):
            manifest = spool.manifest()
            if manifest is None:
                raise ArchiveError(f"the archive of run {run.run_id} cannot be read")
            paths = [part.path for part in manifest.parts]
            if replaced is None:
                paths = [path for path in paths if path not in sent.parts]
            cargo = Cargo(sent.number + 1, CargoKind.PART if replaced is None else CargoKind.WHOLE)
            files = [(spool.manifest_file, MANIFEST_FILE)]
            pack(folder / cargo.name, files + [(spool.path / path, path) for path in paths])
        sent.number, sent.revision = cargo.number, manifest.revision
        sent.parts.update(paths)
        if manifest.complete:
            self._on_arrived(run.run_id)
        # The last one first: what is left has no gap in it.
        for old in reversed(replaced or ()):
            (folder / old.name).unlink(missing_ok=True)

    def _send_files(self, run: RunRecord, sent: _Sent, folder: Path) -> None:
        cargo = Cargo(sent.number + 1, CargoKind.FILES)
        run_dir = RunDir(Path(run.spool))
        if files := list(self._readable(files_of(run_dir))):
            pack(folder / cargo.name, files)
            sent.number = cargo.number
        sent.files = True

    def _readable(self, files: Iterable[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
        for file, name in files:
            if os.access(file, os.R_OK):
                yield file, name
            else:
                self.left_out.append(name)


def files_of(run_dir: RunDir) -> Iterator[tuple[Path, str]]:
    """Yield the output and the artifacts of a run, with their paths in its folder.

    Regular files only: a named pipe would block for ever.
    """
    if run_dir.output_log.is_file():
        yield run_dir.output_log, OUTPUT_LOG
    for folder, folders, names in os.walk(run_dir.artifacts):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file():
                yield file, f"{ARTIFACTS}/{file.relative_to(run_dir.artifacts)}"


def pack(path: Path, files: Iterable[tuple[Path, str]]) -> None:
    """Write files into one of ``runs/RUN``, which appears complete or not at all.

    Raises:
        OSError: A file cannot be read, the disk is full, or the folder ``runs`` is missing.
    """
    # Not its parents: where the shared folder is away, they would be on the node's own disk.
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    try:
        with temporary.open("wb") as packed:
            with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
                for file, name in files:
                    tar.add(file, name, recursive=False)
            packed.flush()
            os.fsync(packed.fileno())
        temporary.chmod(0o600)
        temporary.replace(path)
    except BaseException:
        _remove(temporary)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # the folder is away; the next file of this name takes its place


def _said(error: RadtError | OSError) -> str:
    if isinstance(error, RadtError):
        return error.message
    return f"{error.filename or 'the shared folder'}: {error.strerror or error}"


class _Archives:
    """The process that writes the archives of a store, and ends with this one. For one thread."""

    def __init__(self, store: Path, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def spool(self, run_id: str) -> ArchiveSpool:
        """Return the folder with the archive of a run."""
        return ArchiveSpool(self._folder / run_id)

    def write(self, run_id: str) -> None:
        """Bring the archive of a run up to date.

        Raises:
            ArchiveError: That failed.
            OSError: There is no room for the process.
        """
        if self._process is None:
            self._process = self._started()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{run_id}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise ArchiveError("the archive process has ended")
        outcome = Outcome.parse(line)
        if outcome.problem:
            raise ArchiveError(outcome.problem)

    def close(self) -> None:
        """End the process. Idempotent; harmless while another thread waits for it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "radt.delivery.archive", "--store"]
        return subprocess.Popen(
            [*command, str(self._store), "--into", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a signal to this process's group is not for it
        )
