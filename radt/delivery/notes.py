"""Send notes from a Postgres store to MLflow: nobody delivers runs from there."""

from __future__ import annotations

from collections.abc import Iterable

from radt.delivery.archive.locations import MlflowLocation
from radt.errors import ArchiveError
from radt.store.backend import StoreAddress
from radt.store.notes import Edit
from radt.store.records import RunRecord


def send_notes(store: StoreAddress, records: Iterable[RunRecord], edit: Edit) -> None:
    """Change the notes of runs in the MLflow of the settings, if the store does not deliver them.

    An embedded store's runs are delivered again instead (`radt.store.notes.edit_notes`).

    Raises:
        ArchiveError: MLflow cannot be asked, or a run is gone there.
    """
    if store.path is not None:
        return
    try:
        for record in records:
            if (mlflow := MlflowLocation.of(record)) is not None:
                mlflow.set_tags(edit.stored)
    except ArchiveError as error:
        raise ArchiveError(f"saved, but not in MLflow: {error.message}", error.remedy) from error
