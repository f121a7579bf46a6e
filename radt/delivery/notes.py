"""Send notes from a Postgres store to MLflow, because no uploader does that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import text

from radt.delivery.archive import FileMissingError
from radt.delivery.archive.locations import MlflowLocation
from radt.errors import ArchiveError
from radt.model import SHORT_ID_CHARS
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import EDITED, YES

#: Other edits of the tag wait until the end of the transaction.
_LOCKED_TAG = text("SELECT value FROM tag WHERE run_id = :run_id AND key = :key FOR UPDATE")


def send_notes(store: StoreAddress, run_ids: Sequence[str]) -> None:
    """Send notes that MLflow does not have yet to the MLflow server of the settings.

    Does nothing for a store in a file, whose runs are uploaded again instead
    (`radt.store.notes.edit_notes`). Notes that could not be sent wait for the next call.

    Raises:
        ArchiveError: MLflow cannot be reached, or no longer has a run.
    """
    if store.path is not None:
        return
    with StoreReader(store) as reader:
        records, tags_of = reader.runs(run_ids=run_ids), reader.tags_of(run_ids)
    unsent: dict[str, tuple[MlflowLocation, dict[str, str]]] = {}
    for record in records:
        tags = tags_of.get(record.run_id, {})
        edited = {
            key.removeprefix(EDITED)
            for key, sent in tags.items()
            if sent != YES and key.startswith(EDITED)
        }
        if edited and (mlflow := MlflowLocation.of(record)) is not None:
            unsent[record.run_id] = mlflow, {key: tags[key] for key in edited}
    problem: ArchiveError | None = None
    for run_id, (mlflow, tags) in list(unsent.items()):
        try:
            mlflow.set_tags(tags)
        except ArchiveError as error:
            problem = error
            if not isinstance(error, FileMissingError):
                break  # the notes of other runs would fail, too
        else:
            _mark_sent(store, run_id, tags)
            del unsent[run_id]
    if problem is not None:
        raise ArchiveError(
            f"saved, but not in MLflow: {problem.message}",
            "When MLflow answers and has the runs, send it with: "
            f"radt note {' '.join(run_id[:SHORT_ID_CHARS] for run_id in unsent)}",
        ) from problem


def _mark_sent(store: StoreAddress, run_id: str, tags: Mapping[str, str]) -> None:
    """Mark the tags that are still as they were sent."""
    with StoreWriter(store) as writer:
        for key, value in tags.items():
            with writer.adding(run_id) as connection:
                row = {"run_id": run_id, "key": key}
                if connection.execute(_LOCKED_TAG, row).scalar() == value:
                    writer.put_tags(run_id, {f"{EDITED}{key}": YES})
