"""What a run says of itself before its first value: `run.json` in its folder.

Whoever finds the folder can record the run from it, whatever became of the collector, its store
and the runtime folder. A runner that ends a run without a collector adds `end.json`. Both go when
all of the run is in the store. The lock of `run.json` belongs to whoever stores what the run's
journals hold. Imports the standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from radt.clock import Clock
from radt.collector.protocol import StandaloneRun
from radt.errors import JournalError
from radt.home import Home, RunDir, runtime_dir
from radt.journal.format import LABELS_FOLDER
from radt.masking import masked
from radt.model import RunStatus
from radt.procfs import ProcessId, boot_id, is_shortage, own_start_ticks, pid_namespace

MANIFEST_FILE = "run.json"
END_FILE = "end.json"
FORMAT_VERSION = 1
#: Error numbers of file systems without locks: whether others hold the run is unknown there.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run, as the script or the runner that began it describes it.

    ``boot``, ``pid_namespace`` (empty if unknown) and ``start_ticks`` identify its process;
    ``offset_ns`` added to its monotonic times gives wall-clock times.
    """

    run: StandaloneRun
    boot: str
    start_ticks: int
    offset_ns: int
    version: int = FORMAT_VERSION
    pid_namespace: str = ""

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
        return cls(
            run,
            boot_id(),
            own_start_ticks(),
            Clock.at_hand().offset_ns,
            pid_namespace=pid_namespace(),
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Return the manifest in a run's folder, None if there is none.

        The folder may have moved since: the run's store, its spool and the tracking URI of the
        folder's own MLflow are those of its current place.

        Raises:
            JournalError: It cannot be understood.
            OSError: There is no free descriptor to look with (`is_shortage`).
        """
        path = folder / MANIFEST_FILE
        try:
            data = json.loads(path.read_bytes())
            run = StandaloneRun.from_json(data["run"])
            boot, ticks = str(data["boot"]), int(data["start_ticks"])
            offset_ns, version = int(data["offset_ns"]), int(data["version"])
            namespace = str(data.get("pid_namespace", ""))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            if is_shortage(error):
                raise
            raise JournalError(
                f"{path} cannot be read: {error}", "The disk may be damaged"
            ) from error
        if version > FORMAT_VERSION or run.registration.run_id != folder.name:
            raise JournalError(
                f"{path} describes no run that can be recorded from there",
                "Use one version of radt for training and for collecting",
            )
        home, former = Home(folder.parent.parent), Home(Path(run.registration.store_path).parent)
        registration = replace(run.registration, spool=str(folder), store_path=str(home.store_path))
        if registration.tracking_uri == former.default_tracking_uri:
            registration = replace(registration, tracking_uri=home.default_tracking_uri)
        return cls(
            replace(run, registration=registration), boot, ticks, offset_ns, version, namespace
        )

    def write(self) -> None:
        """Write it into the run's folder, completely or not at all.

        Raises:
            OSError: The disk is full, or the folder is not writable.
        """
        _write(Path(self.run.registration.spool) / MANIFEST_FILE, asdict(self))

    @property
    def owner(self) -> ProcessId:
        """The process that ends the run: the script's, or the runner's."""
        return ProcessId(self.run.pid, self.start_ticks)

    @property
    def clock(self) -> Clock:
        """Return its clock, which is another one after a reboot."""
        return Clock(self.offset_ns)

    @property
    def alive(self) -> bool:
        """Return whether its process runs, as far as this process can see."""
        return self.boot == boot_id() and self.owner.alive

    @property
    def is_seen_dead(self) -> bool:
        """Return whether its process has ended, and this process would see it otherwise."""
        here = self.boot == boot_id() and self.pid_namespace == pid_namespace() != ""
        return here and not self.owner.alive


@dataclass(frozen=True, slots=True)
class RunnersEnd:
    """How a run of a runner went whose end no collector took; times of the monotonic clock.

    ``pid`` and ``started_ns`` are None if it never started. ``tags`` are those that became known
    after its manifest was written.
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
        """Return what a run's folder says of its end; None if that is nothing."""
        try:
            data = json.loads((folder / END_FILE).read_bytes())
            return cls(**data | {"status": RunStatus(data["status"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into the run's folder, whole or not at all.

        Raises:
            OSError: There is no room, or the folder cannot be written.
        """
        _write(folder / END_FILE, asdict(self))


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(temporary, path)  # noqa: PTH105 - atomic, and says so
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


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


def mark_ended(folder: Path) -> None:
    """Mark a run's folder: what begins from now on is not part of the run, wherever it runs.

    Raises:
        OSError: The folder cannot be written. A folder that is gone counts as marked.
    """
    with suppress(FileNotFoundError):
        RunDir(folder).ended.touch()


def has_ended(folder: Path) -> bool:
    """Return whether a run has ended, as its folder says it; False where it does not."""
    if not folder.is_dir() or RunDir(folder).ended.exists() or (folder / END_FILE).exists():
        return True
    try:
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


def asked_for() -> Iterator[Path]:
    """Yield the folders of the runs that wait for the collector; each is forgotten after it."""
    waiting = runtime_dir() / "waiting"
    try:
        names = os.listdir(waiting)  # noqa: PTH208 - every second
    except FileNotFoundError:
        return
    for name in names:
        try:
            folder = Path(os.readlink(waiting / name))  # noqa: PTH115
        except OSError:
            continue  # not a word of ours
        yield folder
        (waiting / name).unlink(missing_ok=True)
