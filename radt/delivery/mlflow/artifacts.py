"""Artifacts: which files of a run are uploaded, under which path, and copies to local folders."""

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

from radt.delivery.archive.manifest import ARCHIVE_FOLDER
from radt.delivery.mlflow.limits import clean_text
from radt.home import RunDir

#: MLflow puts paths into URLs unquoted: a file named ``a#b`` would be stored as ``a``, over a real
#: ``a``; a single quote breaks the query its client makes to list a folder. Control characters and
#: backslashes are refused by some stores.
_FORBIDDEN = re.compile(r"[#?%'\\\x00-\x1f\x7f]")

#: Folder of what profilers wrote, among a run's artifacts.
PROFILES = "profiles"


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file to deliver: ``path`` is where it lands in the run's artifacts, with ``/``."""

    path: str
    file: Path

    @property
    def folder(self) -> str | None:
        """The folder part of ``path``; None at the top."""
        return self.path.rpartition("/")[0] or None

    @contextmanager
    def named(self) -> Iterator[Path]:
        """Yield the file under the name it shall have, as MLflow takes the name from the file."""
        name = self.path.rpartition("/")[2]
        if name == self.file.name:
            yield self.file
            return
        with tempfile.TemporaryDirectory(prefix="radt-artifact-") as folder:
            link = Path(folder) / name
            link.symlink_to(self.file)
            yield link


def artifact_files(spool: RunDir) -> Iterator[ArtifactFile]:
    """Everything below the spool's artifacts, then the run's output; no path twice.

    Only regular files: a named pipe would block for ever, a link to a folder could lead anywhere.
    A link to a file counts as the file.
    """
    taken: set[str] = set()
    for file in _regular_files(spool):
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
    """Remove the files that have been delivered, and the folders that are empty then.

    What the run printed stays, where people and messages look for it; so does what `radt trace`
    reads. A file that cannot be removed stays, too.
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
    """Return a path that all artifact stores keep as it is.

    >>> artifact_path("plots/loss #1.png"), artifact_path("100 %?")
    ('plots/loss _1.png', '100 __')
    """
    return _FORBIDDEN.sub("_", clean_text(relative))


def _beside_archive(path: str) -> str:
    """A folder that a script has named like that of the archive must not get between its files."""
    if path == ARCHIVE_FOLDER or path.startswith(f"{ARCHIVE_FOLDER}/"):
        return path.replace(ARCHIVE_FOLDER, f"{ARCHIVE_FOLDER}_", 1)
    return path


def _regular_files(spool: RunDir) -> Iterator[Path]:
    for folder, folders, names in os.walk(spool.artifacts):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file():
                yield file
    if spool.output_log.is_file():
        yield spool.output_log


# -- into folders of this machine -----------------------------------------------------------------


def copy_whole(file: Path, target: Path) -> None:
    """Copy or link a file, over what may be there; others see all of it or none.

    Raises:
        OSError: It cannot be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # The same name each time: what a killed process left is taken over by the next one.
    mark = hashlib.sha256(target.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    partial = target.with_name(f".radt-{mark}.part")
    try:
        partial.unlink(missing_ok=True)
        if not _linked(file, partial):
            shutil.copyfile(file, partial)
            shutil.copystat(file, partial)
        with partial.open("rb") as copied:
            os.fsync(copied.fileno())
        partial.replace(target)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _linked(file: Path, other: Path) -> bool:
    """Give a file a second name; False where that cannot be: it is on another file system.

    What is delivered leaves the spool, or stays there under the first name at no cost. A link that
    a user has put there leads to a file of theirs, which they may go on changing.
    """
    if file.is_symlink():
        return False
    try:
        os.link(file, other)
    except OSError:
        return False
    return True


def shares_folder(folder: Path) -> bool:
    """Return whether this machine has the folder of a run's artifacts that a server names.

    ``folder`` is ``ROOT/EXPERIMENT/RUN/artifacts``. A server that was given a plain folder means
    its own. Writing to a folder of the same name here would lose the files where nobody looks,
    unless it is shared (NFS): then the folder of the experiments is here, too.
    """
    return any(parent.is_dir() for parent in folder.parents[:3] if parent != Path(parent.anchor))
