"""The ledger of everything that radt creates on this machine and must remove, written in advance.

::

    RUNTIME_DIR/created/KIND-ID.json     one object: its kind, its owner, details of the driver

An entry is on disk before its object is created (`CreatedLedger.intend`), gets the object's ids
once they are known (`LedgerEntry.confirm`) and is removed with the object (`LedgerEntry.done`). A
runner that is killed in between leaves an entry without a living owner:
`radt.collocation.setup.clean_up` removes exactly that object, and nothing similar.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from radt import procfs
from radt.errors import DeviceError
from radt.files import write_whole
from radt.home import RUNTIME_VARIABLE, runtime_dir

_FORMAT = 1
_SUFFIX = ".json"
_UNFINISHED = ".tmp"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance with its compute instances.

    ``start`` and ``size`` are its placement in memory slices. ``existing`` are the ids of earlier
    GPU instances, to distinguish an instance whose id was never recorded. ``gpu_instance`` is known
    after its creation.
    """

    kind: ClassVar[str] = "mig-instance"

    gpu_uuid: str
    profile: str
    start: int
    size: int
    existing: tuple[int, ...] = ()
    gpu_instance: int | None = None

    def __str__(self) -> str:
        return f"MIG instance {self.profile} at slice {self.start} of {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A control daemon of NVIDIA's Multi-Process Service, with its server.

    ``devices`` are UUIDs of GPUs or of a MIG device. ``folder`` holds its pipe and log
    directories, with short names, as a socket's path is limited. ``pid`` and ``start_ticks`` are
    known once it runs.
    """

    kind: ClassVar[str] = "mps-daemon"

    devices: tuple[str, ...]
    folder: str
    pid: int | None = None
    start_ticks: int | None = None

    @property
    def pipes(self) -> Path:
        return Path(self.folder) / "p"

    @property
    def logs(self) -> Path:
        return Path(self.folder) / "l"

    def __str__(self) -> str:
        pid = f" (pid {self.pid})" if self.pid is not None else ""
        return f"MPS daemon{pid} of {', '.join(self.devices)}"


@dataclass(frozen=True, slots=True)
class Container:
    """A container by its name; ``tool`` is the command that created it (docker, podman)."""

    kind: ClassVar[str] = "container"

    name: str
    tool: str = "docker"

    def __str__(self) -> str:
        return f"container {self.name}"


Thing = MigInstance | MpsDaemon | Container
_TYPES: Mapping[str, type[MigInstance | MpsDaemon | Container]] = {
    type_.kind: type_ for type_ in (MigInstance, MpsDaemon, Container)
}


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Process that owns an object; process ids are meaningless in other namespaces."""

    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: str

    @classmethod
    def me(cls) -> Self:
        return cls(os.getpid(), procfs.own_start_ticks(), procfs.boot_id(), procfs.pid_namespace())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the `str` of an owner; raise ValueError if it is not one."""
        pid, ticks, boot_id, pid_namespace = text.split(" ")
        return cls(int(pid), int(ticks), boot_id, pid_namespace)

    def __str__(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.boot_id} {self.pid_namespace}"

    @property
    def rebooted(self) -> bool:
        """Return whether the machine has been rebooted since."""
        return self.boot_id != procfs.boot_id()

    @property
    def visible(self) -> bool:
        """Return whether its process would be visible from here if it were alive."""
        return self.rebooted or self.pid_namespace == procfs.pid_namespace()

    @property
    def alive(self) -> bool:
        """Return whether it is alive; an invisible process counts as alive."""
        if self.rebooted:
            return False
        return not self.visible or procfs.start_ticks(self.pid) == self.start_ticks


@dataclass(slots=True)
class LedgerEntry:
    """A ledger entry; ``thing`` is the object as far as known."""

    path: Path
    thing: Thing
    owner: ProcessOwner
    run_id: str = ""
    workload_id: str = ""

    @property
    def orphaned(self) -> bool:
        """Return whether no process is left to remove the object."""
        return not self.owner.alive

    def confirm(self, **details: object) -> None:
        """Record details of the created object: ``entry.confirm(pid=123)``.

        Raises:
            DeviceError: The details cannot be written; the object can still be found by its
                intended properties.
        """
        changes: dict[str, Any] = details
        self.thing = dataclasses.replace(self.thing, **changes)
        _save(self)

    def done(self) -> None:
        """Remove the entry of a removed object. Idempotent.

        Raises:
            DeviceError: The file cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error


@dataclass(frozen=True, slots=True)
class Damaged:
    """A ledger file that cannot be parsed; radt removes nothing because of it."""

    path: Path
    reason: str


class CreatedLedger:
    """All entries of this user and machine, by default in ``created`` in the runtime folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else runtime_dir() / "created"

    def intend(self, thing: Thing, *, run_id: str = "", workload_id: str = "") -> LedgerEntry:
        """Record an object to be created; create it only after this has returned.

        Raises:
            DeviceError: The entry cannot be written, so the object must not be created.
        """
        name = f"{thing.kind}-{uuid.uuid4().hex[:12]}{_SUFFIX}"
        entry = LedgerEntry(self.folder / name, thing, ProcessOwner.me(), run_id, workload_id)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.folder, error) from error
        _save(entry)
        return entry

    def entries(self) -> list[LedgerEntry]:
        """Return all readable entries, in order of their names."""
        return [entry for entry in self._read() if isinstance(entry, LedgerEntry)]

    def damaged(self) -> list[Damaged]:
        """Return the files that cannot be parsed."""
        return [entry for entry in self._read() if isinstance(entry, Damaged)]

    def _read(self) -> list[LedgerEntry | Damaged]:
        try:
            paths = sorted(self.folder.glob(f"*{_SUFFIX}"))
        except FileNotFoundError:
            return []
        return [entry for path in paths if (entry := _read_entry(path)) is not None]


def _save(entry: LedgerEntry) -> None:
    content = {
        "format": _FORMAT,
        "kind": entry.thing.kind,
        "thing": dataclasses.asdict(entry.thing),
        "owner": dataclasses.asdict(entry.owner),
        "run_id": entry.run_id,
        "workload_id": entry.workload_id,
    }
    unfinished = entry.path.with_name(f".{entry.path.name}{_UNFINISHED}")
    try:
        text = json.dumps(content, ensure_ascii=False, indent=1)
        write_whole(entry.path, text, durable=True, temporary=unfinished)
    except OSError as error:
        raise _unusable(entry.path, error) from error


def _read_entry(path: Path) -> LedgerEntry | Damaged | None:
    """Parse a file; return None if it has just been removed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            return Damaged(path, f"written by another radt, in format {content['format']}")
        if content["kind"] not in _TYPES:
            return Damaged(path, f"unknown kind {content['kind']}")
        kind = _TYPES[content["kind"]]
        known = {field.name for field in dataclasses.fields(kind)}
        details: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in content["thing"].items()
            if name in known  # other versions of radt record more
        }
        thing: Thing = kind(**details)
        owner = ProcessOwner(**content["owner"])
        return LedgerEntry(path, thing, owner, content["run_id"], content["workload_id"])
    except FileNotFoundError:
        return None
    except OSError as error:
        return Damaged(path, error.strerror or str(error))
    except json.JSONDecodeError:
        return Damaged(path, "incomplete")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Damaged(path, f"{type(error).__name__}: {error}")


def _unusable(path: Path, error: OSError) -> DeviceError:
    return DeviceError(
        f"{path} cannot be written: {error.strerror or error}",
        f"radt creates only what it can remove again. Set {RUNTIME_VARIABLE} to a folder "
        "with a short path, on a local disk with free space",
    )
