"""The manifest of a run without a runner: `run.json` in its folder, written before its first value.

With the manifest, any collector can record the run, even if the first collector, its store or the
runtime folder is gone. It is deleted when the store has all of the run. Its lock belongs to the
process that stores the run's journals. Imports the standard library only.
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
from radt.procfs import ProcessId, boot_id, own_start_ticks

MANIFEST_FILE = "run.json"
FORMAT_VERSION = 1
#: Error numbers of file systems without locks: whether others hold the run is unknown there.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run, as described by the script that began it.

    ``boot`` and ``start_ticks`` identify its process; ``offset_ns`` added to its monotonic times
    gives wall-clock times.
    """

    run: StandaloneRun
    boot: str
    start_ticks: int
    offset_ns: int
    version: int = FORMAT_VERSION

    @classmethod
    def of_this_process(cls, run: StandaloneRun) -> Manifest:
        """Describe a run of the calling process without its environment (it may hold secrets)."""
        run = replace(run, registration=replace(run.registration, env={}))
        return cls(run, boot_id(), own_start_ticks(), Clock.at_hand().offset_ns)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Return the manifest in a run's folder, None if there is none.

        The folder may have moved since: the run's store and spool are taken from its current place.

        Raises:
            JournalError: The manifest cannot be parsed.
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
        """Write it into the run's folder, completely or not at all.

        Raises:
            OSError: The disk is full, or the folder is not writable.
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
        """Return the script's process."""
        return ProcessId(self.run.pid, self.start_ticks)

    @property
    def clock(self) -> Clock:
        """Return its clock, which is another one after a reboot."""
        return Clock(self.offset_ns)

    @property
    def alive(self) -> bool:
        """Return whether its process runs, as far as this process can see."""
        return self.boot == boot_id() and self.owner.alive


def has_journals(folder: Path) -> bool:
    """Return whether a run's folder holds a journal that was not read to its end.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        names = os.listdir(folder / "journal")  # noqa: PTH208 - of ten thousand runs
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name != LABELS_FOLDER and name[0] != "." for name in names)


def forget(folder: Path) -> None:
    """Remove the manifest of a run that is completely in the store.

    Raises:
        OSError: The file cannot be removed.
    """
    if not has_journals(folder):
        (folder / MANIFEST_FILE).unlink(missing_ok=True)


class Claim:
    """The exclusive right to store a run's journals; it ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST_FILE
        self._descriptor = -1

    def take(self) -> bool:
        """Return whether the caller now has the claim; also True for a run without a manifest.

        Raises:
            OSError: The file exists but cannot be opened.
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
        """Release the claim. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# Runs that wait for a collector -------------------------------------------------------------------


def ask_for_collection(folder: Path) -> None:
    """Leave a request for the collector, which did not respond, to record a run.

    Raises:
        OSError, UsageError: The runtime folder cannot be written.
    """
    waiting = runtime_dir() / "waiting"
    waiting.mkdir(mode=0o700, exist_ok=True)
    (waiting / folder.name).symlink_to(folder)


def asked_for() -> list[Path]:
    """Return the folders of the runs that wait for the collector, and remove their requests."""
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
            continue  # not a request of ours
        (waiting / name).unlink(missing_ok=True)
    return folders
