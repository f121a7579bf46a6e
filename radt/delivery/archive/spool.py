"""Files of an archive that wait for their upload: folder ``archive`` of a run's spool folder.

::

    runs/RUN_ID/archive/
    ├── written.json        number of the last bundle, and the position of the run after it
    ├── RUN.3.radt          a bundle that waits to be uploaded
    ├── export_kills        number of exports in a row that were killed
    └── export-47/          samples.parquet and run.json as of the run's revision 47

A bundle only counts once it is recorded in ``written.json``: one left by a killed process is
written again under the same name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from sqlalchemy import text

from radt.delivery.archive import DESCRIPTION_FILE, SAMPLES_FILE
from radt.errors import RunNotFoundError
from radt.files import write_whole
from radt.store import bundle
from radt.store.copy import Position, changes, position_of
from radt.store.reader import StoreReader

_PROGRESS = text("SELECT revision, delivery_done_ns IS NOT NULL FROM run WHERE run_id = :run_id")


@dataclass(frozen=True, slots=True)
class Written:
    """Progress of a run's bundles: the number of the last one (0 for none), and its end."""

    number: int = 0
    position: Position = field(default_factory=Position)


@dataclass(frozen=True, slots=True)
class ArchiveSpool:
    """The archive's spool folder; one process at a time writes to it."""

    path: Path

    @property
    def written_file(self) -> Path:
        return self.path / "written.json"

    def written(self) -> Written | None:
        """Return the recorded position; None if it is unknown."""
        try:
            data = json.loads(self.written_file.read_bytes())
            return Written(int(data["number"]), Position.from_json(data["position"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None  # a lost folder or a broken disk

    def note(self, written: Written) -> None:
        """Record the written position; the record survives a power failure.

        Raises:
            OSError: The folder cannot be written.
            UsageError: The same.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        data = {"number": written.number, "position": written.position.to_json()}
        write_whole(self.written_file, json.dumps(data), durable=True)

    def write_bundle(self, reader: StoreReader, run_id: str) -> Written:
        """Write the data of the run since the last bundle as the next one, if there is any.

        Raises:
            ArchiveError: A series of the run is damaged.
            PrunedError: The run was pruned: the store no longer has all of it.
            StoreError: The store cannot be read.
            OSError: The folder cannot be written.
            UsageError: The same.
        """
        written = self.written() or Written()
        since = written.position
        if not position_of(reader, run_id).covers(since):
            since = Position()  # the store was replaced, so write a bundle with the whole run
        batches = changes(reader, run_id, since)
        first = next(batches, None)
        if first is None:
            return written
        self.path.mkdir(parents=True, exist_ok=True)
        name = bundle.name_of(run_id, written.number + 1)
        until = bundle.write(chain([first], batches), self.path / name, since)
        assert until is not None
        written = Written(written.number + 1, until)
        self.note(written)
        return written

    def waiting(self, run_id: str) -> Iterator[Path]:
        """Yield the bundles to upload, in order."""
        written = self.written()
        numbers = [
            named[1]
            for file in self.path.glob(f"*{bundle.SUFFIX}")
            if (named := bundle.number_of(file.name)) is not None and named[0] == run_id
        ]
        for number in sorted(numbers):
            if written is not None and number <= written.number:
                yield self.path / bundle.name_of(run_id, number)

    @property
    def kills_file(self) -> Path:
        return self.path / "export_kills"

    @property
    def export_kills(self) -> int:
        """Return how many exports in a row ended without success or failure."""
        try:
            return int(self.kills_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0  # none, or a power failure

    def exported(self, revision: int) -> list[Path]:
        """Return the files for people without radt as of a revision; none if incomplete."""
        folder = self.export_folder(revision)
        files = [folder / SAMPLES_FILE, folder / DESCRIPTION_FILE]
        # The description is written last.
        return [file for file in files if file.exists()] if files[-1].exists() else []

    def export_folder(self, revision: int) -> Path:
        return self.path / f"export-{revision}"

    def remove(self) -> None:
        """Delete the folder after everything has been uploaded."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Upload state of a run.

    ``revision`` increases with every write; ``delivered``: MLflow has all of the run, or never
    will.
    """

    revision: int
    delivered: bool


def progress_of(reader: StoreReader, run_id: str) -> RunProgress:
    """Return a run's revision and whether it is delivered.

    Raises:
        RunNotFoundError: The run does not exist.
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        row = connection.execute(_PROGRESS, {"run_id": run_id}).first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id} in the store")
    return RunProgress(int(row[0]), bool(row[1]))
