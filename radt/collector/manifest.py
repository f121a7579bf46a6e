"""What a run without a runner says of itself before its first value: `run.json` in its folder.

Whoever finds the folder can record the run from it, whatever became of the collector, its store
and the runtime folder. It goes when all of the run is in the store. Its lock belongs to whoever
stores what the run's journals hold. Imports the standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from radt.clock import Clock
from radt.collector.protocol import StandaloneRun
from radt.errors import JournalError
from radt.home import runtime_dir
from radt.journal.format import LABELS_FOLDER
from radt.masking import masked
from radt.procfs import ProcessId, boot_id, own_start_ticks

MANIFEST_FILE = "run.json"
FORMAT_VERSION = 1
#: File systems that know no locks: what others may do there cannot be known.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run, as the script that began it describes it.

    ``boot`` and ``start_ticks`` tell its process from all others; ``offset_ns`` added to its
    monotonic times makes wall-clock times.
    """

    run: StandaloneRun
    boot: str
    start_ticks: int
    offset_ns: int
    version: int = FORMAT_VERSION

    @classmethod
    def of_this_process(cls, run: StandaloneRun) -> Manifest:
        """Describe a run of the calling process, without the secrets of environment and URIs."""
        registration = replace(
            run.registration,
            env={},
            tracking_uri=masked(run.registration.tracking_uri),
            store_uri=masked(run.registration.store_uri),
        )
        run = replace(run, registration=registration)
        return cls(run, boot_id(), own_start_ticks(), Clock.at_hand().offset_ns)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Return what a run's folder says of it, None if it says nothing.

        The folder may have been moved since: the run's store and spool are where it lies now.

        Raises:
            JournalError: It cannot be understood.
        """
        path = folder / MANIFEST_FILE
        try:
            data = json.loads(path.read_bytes())
            run = StandaloneRun.from_json(data["run"])
            boot, ticks = str(data["boot"]), int(data["start_ticks"])
            offset_ns, version = int(data["offset_ns"]), int(data["version"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise JournalError(
                f"{path} cannot be read: {error}", "The disk may be damaged"
            ) from error
        if version > FORMAT_VERSION or run.registration.run_id != folder.name:
            raise JournalError(
                f"{path} describes no run that can be recorded from there",
                "Use one version of radt for training and for collecting",
            )
        registration = replace(
            run.registration, spool=str(folder), store_path=str(folder.parent.parent / "radt.db")
        )
        return cls(replace(run, registration=registration), boot, ticks, offset_ns, version)

    def write(self) -> None:
        """Write it into the run's folder, whole or not at all.

        Raises:
            OSError: There is no room, or the folder cannot be written.
        """
        path = Path(self.run.registration.spool) / MANIFEST_FILE
        temporary = path.with_suffix(".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
            os.replace(temporary, path)  # noqa: PTH105 - atomic, and says so
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    @property
    def owner(self) -> ProcessId:
        """The script's process."""
        return ProcessId(self.run.pid, self.start_ticks)

    @property
    def clock(self) -> Clock:
        """Its clock, which is another one after a restart of the machine."""
        return Clock(self.offset_ns)

    @property
    def alive(self) -> bool:
        """Whether its process runs, as far as can be seen from here."""
        return self.boot == boot_id() and self.owner.alive


def has_journals(folder: Path) -> bool:
    """Whether a run's folder holds a journal that was not read to its end.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        names = os.listdir(folder / "journal")  # noqa: PTH208 - of ten thousand runs
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name != LABELS_FOLDER and name[0] != "." for name in names)


def forget(folder: Path) -> None:
    """Remove what a run says of itself, all of the run being in the store.

    Raises:
        OSError: The disk refuses.
    """
    if not has_journals(folder):
        (folder / MANIFEST_FILE).unlink(missing_ok=True)


class Claim:
    """The right to store a run's journals: one process has it, and loses it with its life."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST_FILE
        self._descriptor = -1

    def take(self) -> bool:
        """Return whether it is the caller's now; True also where a run says nothing of itself.

        Raises:
            OSError: The file is there and cannot be opened.
        """
        if self._descriptor >= 0:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
            return True
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it back; harmless if it was not had."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# Runs that wait for a collector -------------------------------------------------------------------


def ask_for_collection(folder: Path) -> None:
    """Leave word for the collector that a run waits for it, which did not answer.

    Raises:
        OSError, UsageError: The runtime folder cannot be written.
    """
    waiting = runtime_dir() / "waiting"
    waiting.mkdir(mode=0o700, exist_ok=True)
    (waiting / folder.name).symlink_to(folder)


def asked_for() -> list[Path]:
    """Return the folders of the runs that wait for the collector, and forget them."""
    waiting = runtime_dir() / "waiting"
    try:
        names = os.listdir(waiting)  # noqa: PTH208 - every second
    except FileNotFoundError:
        return []
    folders = []
    for name in names:
        try:
            folders.append(Path(os.readlink(waiting / name)))  # noqa: PTH115
        except OSError:
            continue  # not a word of ours
        (waiting / name).unlink(missing_ok=True)
    return folders
