"""The manifest of a run: `run.json` in its folder, written before the run's first value.

Any process that finds the folder can record the run from it, whatever became of the collector, its
store and the runtime folder. A runner that ends a run without a collector adds `end.json`. Both are
removed once the store has all of the run. The lock of `run.json` is held by the process that stores
the run's journals. Imports the standard library only.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from radt.clock import Clock
from radt.collector.protocol import RunRequest, from_json
from radt.errors import JournalError
from radt.files import lock, write_whole
from radt.home import Home, RunDir, runtime_dir
from radt.journal.format import LABELS_FOLDER
from radt.masking import masked
from radt.model import RunStatus
from radt.procfs import ProcessId, boot_id, is_shortage, own_start_ticks, pid_namespace

MANIFEST_FILE = "run.json"
END_FILE = "end.json"
FORMAT_VERSION = 1
#: Errors of file systems without locks, where it is unknown whether another process holds the run.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run, as described by the script or runner that began it.

    ``boot``, ``pid_namespace`` (empty if unknown) and ``start_ticks`` identify its process;
    ``offset_ns`` added to its monotonic times gives wall-clock times.
    """

    run: RunRequest
    boot: str
    start_ticks: int
    offset_ns: int
    version: int = FORMAT_VERSION
    pid_namespace: str = ""

    @classmethod
    def of_this_process(cls, run: RunRequest) -> Manifest:
        """Describe a run of the calling process, without the secrets of environment and URIs."""
        registration = replace(
            run.registration,
            env={},
            tracking_uri=masked(run.registration.tracking_uri),
            store_uri=masked(run.registration.store_uri),
        )
        run = replace(run, registration=registration)
        return cls(
            run,
            boot_id(),
            own_start_ticks(),
            Clock.at_hand().offset_ns,
            pid_namespace=pid_namespace(),
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Return the manifest in a run's folder; None if there is none.

        The folder may have moved since. The run's store, its spool and the tracking URI of the
        folder's own MLflow database are set to the current place.

        Raises:
            JournalError: The manifest cannot be parsed.
            OSError: This process is out of descriptors or memory (`is_shortage`).
        """
        path = folder / MANIFEST_FILE
        try:
            known = from_json(cls, json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            if is_shortage(error):
                raise
            raise JournalError(
                f"{path} cannot be read: {error}", "The disk may be damaged"
            ) from error
        run = known.run
        if known.version > FORMAT_VERSION or run.registration.run_id != folder.name:
            raise JournalError(
                f"{path} describes no run that can be recorded from there",
                "Use one version of radt for training and for collecting",
            )
        home, former = Home(folder.parent.parent), Home(Path(run.registration.store_path).parent)
        registration = replace(run.registration, spool=str(folder), store_path=str(home.store_path))
        if registration.tracking_uri == former.default_tracking_uri:
            registration = replace(registration, tracking_uri=home.default_tracking_uri)
        return replace(known, run=replace(run, registration=registration))

    def write(self) -> None:
        """Write the manifest into the run's folder, atomically.

        Raises:
            OSError: The disk is full, or the folder is not writable.
        """
        path = Path(self.run.registration.spool) / MANIFEST_FILE
        write_whole(path, json.dumps(asdict(self)), mode=0o600)

    @property
    def owner(self) -> ProcessId:
        """Return the process that ends the run: the script's, or the runner's."""
        return ProcessId(self.run.pid, self.start_ticks)

    @property
    def clock(self) -> Clock:
        """Return the clock of the run's times; after a reboot, the current one differs."""
        return Clock(self.offset_ns)

    @property
    def alive(self) -> bool:
        """Return whether its process is running, as far as this process can tell."""
        return self.boot == boot_id() and self.owner.alive

    @property
    def is_seen_dead(self) -> bool:
        """Return whether its process has certainly ended: this process would see it otherwise."""
        here = self.boot == boot_id() and self.pid_namespace == pid_namespace() != ""
        return here and not self.owner.alive


@dataclass(frozen=True, slots=True)
class RunnersEnd:
    """Outcome of a runner's run whose end no collector received; times are monotonic.

    ``pid`` and ``started_ns`` are None if it never started. ``tags`` became known after its
    manifest was written.
    """

    status: RunStatus
    ended_ns: int
    reason: str = ""
    exit_code: int | None = None
    pid: int | None = None
    started_ns: int | None = None
    tags: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> RunnersEnd | None:
        """Return the end noted in a run's folder; None if there is none."""
        try:
            return from_json(cls, json.loads((folder / END_FILE).read_bytes()))
        except (OSError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into the run's folder, atomically.

        Raises:
            OSError: The disk is full, or the folder is not writable.
        """
        write_whole(folder / END_FILE, json.dumps(asdict(self)), mode=0o600)


def has_journals(folder: Path) -> bool:
    """Return whether a run's folder holds a journal that was not read to its end.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        names = os.listdir(folder / "journal")  # noqa: PTH208 - for up to 10,000 runs
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name != LABELS_FOLDER and name[0] != "." for name in names)


def mark_ended(folder: Path) -> None:
    """Mark a run's folder as ended: processes that begin from now on are not part of the run.

    Raises:
        OSError: The folder cannot be written. A folder that no longer exists counts as marked.
    """
    with suppress(FileNotFoundError):
        RunDir(folder).ended.touch()


def has_ended(folder: Path) -> bool:
    """Return whether a run has ended according to its folder; False if that is unknown."""
    try:
        if not folder.is_dir() or RunDir(folder).ended.exists() or (folder / END_FILE).exists():
            return True
        manifest = Manifest.read(folder)
    except (JournalError, OSError):
        return False
    return manifest is not None and manifest.is_seen_dead


def forget(folder: Path) -> None:
    """Remove the manifest of an ended run that is completely in the store.

    Raises:
        OSError: The file cannot be removed.
    """
    mark_ended(folder)
    if not has_journals(folder):
        (folder / END_FILE).unlink(missing_ok=True)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)


class Claim:
    """The exclusive right to store a run's journals; it ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST_FILE
        self._descriptor = -1

    @property
    def is_locked(self) -> bool:
        """Return whether the kernel enforces the claim; not without a manifest."""
        return self._descriptor >= 0

    def take(self) -> bool:
        """Return whether the caller now has the claim; also True for a run without a manifest.

        Raises:
            OSError: The file exists but cannot be opened.
        """
        if self.is_locked:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        taken = False
        try:
            taken = lock(descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return True
        finally:
            if not taken:
                os.close(descriptor)
        self._descriptor = descriptor if taken else -1
        return taken

    def release(self) -> None:
        """Release the claim. Idempotent."""
        if self.is_locked:
            os.close(self._descriptor)
            self._descriptor = -1


# Runs that wait for a collector -------------------------------------------------------------------


def ask_for_collection(folder: Path) -> None:
    """Leave a request to record a run, for a collector that did not respond.

    Raises:
        OSError, UsageError: The runtime folder cannot be written.
    """
    waiting = runtime_dir() / "waiting"
    waiting.mkdir(mode=0o700, exist_ok=True)
    (waiting / folder.name).symlink_to(folder)


def asked_for() -> Iterator[Path]:
    """Yield the folders of runs that wait for the collector; remove each request afterwards."""
    waiting = runtime_dir() / "waiting"
    try:
        names = os.listdir(waiting)  # noqa: PTH208 - called every second
    except FileNotFoundError:
        return
    for name in names:
        try:
            folder = Path(os.readlink(waiting / name))  # noqa: PTH115
        except OSError:
            continue  # not one of our requests
        yield folder
        (waiting / name).unlink(missing_ok=True)
