"""The files of a run on this machine: its log and its artifacts.

A store may come from another machine, and scripts choose file names freely. So a folder is accepted
as a run's only if it looks like one and the run belongs to this machine. Links below it are not
followed at any level, so that no path and no script can reach a file outside.
"""

from __future__ import annotations

import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from radt import beneath
from radt.errors import RunNotFoundError
from radt.home import Home, RunDir
from radt.store.backend import StoreAddress
from radt.store.records import RunRecord

#: Further files are counted, not listed.
MAX_LISTED = 1000
#: Number of bytes read from the end of a log.
_TAIL_BYTES = 96 * 1024
_MAX_LINE = 2000
# Escape sequences for colours and cursor movements (ECMA-48), and for terminal titles.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class FilesLocation(StrEnum):
    """Location of a run's files."""

    SPOOL = "spool"  # the run's folder on the machine that ran it
    DELIVERED = "delivered"  # MLflow's artifacts, in a folder on this machine
    REMOTE = "remote"  # MLflow's artifacts elsewhere (`radt.frontend.data.remote_files`)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with files of a run. ``path`` has no links, ``place`` is its kind."""

    path: Path
    place: FilesLocation


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file below a run's artifacts: its relative path with ``/``, its size in bytes."""

    path: str
    size_bytes: int
    place: FilesLocation


@dataclass(frozen=True, slots=True)
class Listing:
    """Artifacts by path. ``left_out`` counts those above the requested maximum."""

    files: tuple[Artifact, ...] = ()
    left_out: int = 0


def spool_of(record: RunRecord, store: StoreAddress) -> RunDir | None:
    """Return the run's folder on this machine; None if it is not here.

    It is beside the store's file, or where the store says if that is a folder ``runs/RUN_ID`` of a
    run of this machine: a store that others write must not name arbitrary folders.
    """
    if not re.fullmatch(r"[0-9A-Za-z_-]{8,64}", record.run_id):
        return None
    candidates = []
    if store.path is not None:
        candidates.append(Home(store.path.parent).run_dir(record.run_id).path)
    if record.spool and record.host == platform.node():
        named = Path(record.spool)
        if named.is_absolute() and named.name == record.run_id and named.parent.name == "runs":
            candidates.append(named)
    for path in candidates:
        with suppress(OSError):
            # Check only the folder itself, as data folders are often reached through a link.
            if stat.S_ISDIR(path.lstat().st_mode):
                return RunDir(path)
    return None


def delivered_to(record: RunRecord, store: StoreAddress) -> Path | None:
    """Return the folder of the run's MLflow artifacts if it is beside the store."""
    mlflow_id = record.mlflow_run_id or ""
    if store.path is None or not re.fullmatch(r"[0-9a-f]{32}", mlflow_id):
        return None
    folder = Home(store.path.parent).artifacts / mlflow_id / "artifacts"
    with suppress(OSError):
        if stat.S_ISDIR(folder.lstat().st_mode):
            return folder
    return None


def folders_of(record: RunRecord, store: StoreAddress) -> list[Folder]:
    """Return the folders that may hold artifacts of the run, the spool first."""
    folders = []
    if (spool := spool_of(record, store)) is not None:
        folders.append(Folder(spool.artifacts, FilesLocation.SPOOL))
    if (delivered := delivered_to(record, store)) is not None:
        folders.append(Folder(delivered, FilesLocation.DELIVERED))
    return folders


def list_artifacts(record: RunRecord, store: StoreAddress, max_files: int = MAX_LISTED) -> Listing:
    """Return all regular files of the run, each path once, sorted by path."""
    artifacts: dict[str, Artifact] = {}
    count = 0
    for folder in folders_of(record, store):
        for path, size_bytes in beneath.list_files(folder.path):
            if path in artifacts:
                continue
            count += 1
            if len(artifacts) < max_files:
                artifacts[path] = Artifact(path, size_bytes, folder.place)
    files = tuple(sorted(artifacts.values(), key=lambda artifact: artifact.path))
    return Listing(files, count - len(files))


@contextmanager
def opened(root: Path, relative: str) -> Iterator[BinaryIO]:
    """Open a regular file below ``root`` for reading. No link is followed below it.

    Raises:
        RunNotFoundError: There is no such file, or it may not be shown.
    """
    file = open_below(root, relative)
    try:
        yield file
    finally:
        file.close()


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a file like `opened`. The caller closes it.

    Raises:
        RunNotFoundError: As `opened`.
    """
    try:
        return beneath.open_below(root, relative)
    except (OSError, ValueError) as error:
        raise RunNotFoundError(
            f"the run has no file {relative[:200]!r} here", "It may have been moved or deleted"
        ) from error


def tail_of(file: BinaryIO, max_lines: int) -> list[str]:
    """Return the last lines of a log as a terminal would have shown them, without colours.

    Only the end of the log is read.
    """
    start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
    file.seek(start)
    data = file.read(_TAIL_BYTES)
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if start and len(lines) > 1:
        lines = lines[1:]  # the first line is incomplete
    return [shown_line(line) for line in lines[-max_lines:]]


def shown_line(line: str) -> str:
    """Return a line without escape sequences; for a progress bar, its last state."""
    line = _ESCAPES.sub("", line)
    parts = [part for part in line.split("\r") if part]
    line = _CONTROLS.sub("�", parts[-1] if parts else "")
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"
