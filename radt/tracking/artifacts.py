"""Files of a run on their way to MLflow's artifact store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radt.home import RunDir
from radt.tracking.names import clean_text


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file to deliver: ``path`` is where it lands in the run's artifacts, with ``/``."""

    path: str
    file: Path

    @property
    def stored_path(self) -> str:
        """``path`` as a database takes it: names on disk may hold any bytes."""
        return clean_text(self.path)

    @property
    def folder(self) -> str | None:
        """The folder part of ``path``; None at the top."""
        return self.path.rpartition("/")[0] or None


def artifact_files(spool: RunDir) -> Iterator[ArtifactFile]:
    """Everything below the spool's artifacts, then the run's output.

    Only regular files: a named pipe would block for ever, a link to a folder could lead anywhere.
    A link to a file counts as the file.
    """
    root = spool.artifacts
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file():
                yield ArtifactFile(file.relative_to(root).as_posix(), file)
    if spool.output_log.is_file():
        yield ArtifactFile(spool.output_log.name, spool.output_log)
