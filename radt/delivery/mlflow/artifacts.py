"""Artifacts: a run's files to upload, their paths, and copies to local folders."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from radt.delivery.archive import ARCHIVE_FOLDER
from radt.delivery.mlflow.limits import clean_text
from radt.files import whole_file
from radt.home import RunDir

#: MLflow puts paths into URLs unquoted: a file named ``a#b`` would be stored as ``a``, over an
#: actual ``a``. A single quote breaks its client's query for listing a folder. Some stores refuse
#: control characters and backslashes.
_FORBIDDEN = re.compile(r"[#?%'\\\x00-\x1f\x7f]")

#: Folder of profiler output in a run's artifacts.
PROFILES = "profiles"


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file to upload; ``path`` is its path in the run's artifacts, with ``/``."""

    path: str
    file: Path

    @property
    def folder(self) -> str | None:
        """Return the folder part of ``path``; None at the top."""
        return self.path.rpartition("/")[0] or None

    @contextmanager
    def named(self) -> Iterator[Path]:
        """Yield the file under its artifact name, because MLflow takes the name from the file."""
        name = self.path.rpartition("/")[2]
        if name == self.file.name:
            yield self.file
            return
        with tempfile.TemporaryDirectory(prefix="radt-artifact-") as folder:
            link = Path(folder) / name
            link.symlink_to(self.file)
            yield link


def artifact_files(spool: RunDir) -> Iterator[ArtifactFile]:
    """Yield everything below the spool's artifacts, then the run's output; no path twice."""
    taken: set[str] = set()
    for file in spool.files():
        relative = file.name if file == spool.output_log else file.relative_to(spool.artifacts)
        path = plain = _beside_archive(artifact_path(str(relative)))
        number = 1
        while path in taken:
            number += 1
            stem, dot, suffix = plain.rpartition(".")
            path = f"{stem}-{number}.{suffix}" if dot else f"{plain}-{number}"
        taken.add(path)
        yield ArtifactFile(path, file.absolute())


def clean_spool(spool: RunDir, delivered: Collection[str]) -> None:
    """Remove uploaded files, and folders that are then empty.

    The run's output is kept, because users and messages refer to it. So are files that `radt trace`
    reads and files that cannot be removed.
    """
    kept = spool.artifacts / PROFILES
    for artifact in list(artifact_files(spool)):
        if artifact.path not in delivered or artifact.file == spool.output_log.absolute():
            continue
        if kept.absolute() in artifact.file.parents:
            continue
        with suppress(OSError):
            artifact.file.unlink()
    for folder, _, _ in os.walk(spool.artifacts, topdown=False):
        if Path(folder) not in (spool.artifacts, kept):
            with suppress(OSError):
                Path(folder).rmdir()


def artifact_path(relative: str) -> str:
    """Return a path that all artifact stores keep unchanged.

    >>> artifact_path("plots/loss #1.png"), artifact_path("100 %?")
    ('plots/loss _1.png', '100 __')
    """
    return _FORBIDDEN.sub("_", clean_text(relative))


def _beside_archive(path: str) -> str:
    """Rename a script's folder that has the archive's name, so that their files do not mix."""
    if path == ARCHIVE_FOLDER or path.startswith(f"{ARCHIVE_FOLDER}/"):
        return path.replace(ARCHIVE_FOLDER, f"{ARCHIVE_FOLDER}_", 1)
    return path


# -- local folders --------------------------------------------------------------------------------


def copy_whole(file: Path, target: Path) -> None:
    """Copy or link a file atomically, replacing an existing one.

    Raises:
        OSError: The file cannot be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name, so that the next process replaces the file of a killed one.
    mark = hashlib.sha256(target.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    partial = target.with_name(f".radt-{mark}.part")
    with whole_file(target, mode=0o600, durable=True, temporary=partial):
        partial.unlink()
        if not _linked(file, partial):
            shutil.copy2(file, partial)


def _linked(file: Path, other: Path) -> bool:
    """Create a hard link to a file; return False if it is on another file system.

    Uploaded files leave the spool, or stay there as a link at no cost. A user's symbolic link leads
    to the user's own file, which may still change.
    """
    if file.is_symlink():
        return False
    try:
        os.link(file, other)
    except OSError:
        return False
    return True


def shares_folder(folder: Path) -> bool:
    """Return whether this machine shares the artifact folder that a server names.

    ``folder`` is ``ROOT/EXPERIMENT/RUN/artifacts``. A server with a plain folder means its own
    machine's folder. Files in a local folder of the same name would be lost, unless it is shared
    (NFS): then the folder of the experiments exists here, too.
    """
    return any(parent.is_dir() for parent in folder.parents[:3] if parent != Path(parent.anchor))
