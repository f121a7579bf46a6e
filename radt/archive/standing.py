"""What a store knows of a run that its archive goes by."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from radt.errors import RunNotFoundError
from radt.store.reader import StoreReader

_STANDING = text("SELECT revision, delivery_done_ns IS NOT NULL FROM run WHERE run_id = :run_id")


@dataclass(frozen=True, slots=True)
class Standing:
    """``revision`` is higher whenever anything was written of the run; ``delivered``: MLflow has
    all of it, or never will."""

    revision: int
    delivered: bool


def standing_of(reader: StoreReader, run_id: str) -> Standing:
    """
    Raises:
        RunNotFoundError: There is no such run.
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        found = connection.execute(_STANDING, {"run_id": run_id}).first()
    if found is None:
        raise RunNotFoundError(f"there is no run {run_id} in the store")
    return Standing(int(found[0]), bool(found[1]))
