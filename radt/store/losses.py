"""Logged values that are missing from a store: how many the ledger counts, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import text

from radt.home import Home, RunDir
from radt.model import SOFTWARE
from radt.store.reader import StoreReader
from radt.units import plural

_LOSSES = text(
    "SELECT run_id, missed, reason FROM ledger WHERE listener = :listener AND missed > 0 "
    "ORDER BY run_id"
)


def losses(reader: StoreReader, home: Home | None) -> Mapping[str, str]:
    """Return a description of what runs have lost of their logged values, by run id.

    Args:
        home: The data folder; for its runs, the text also says where damaged files are kept.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        rows = connection.execute(_LOSSES, {"listener": SOFTWARE}).all()
    by_run = {
        str(run_id): f"{plural(int(missed), 'logged value')} missing: {reason}"
        for run_id, missed, reason in rows
    }
    for run_id, folder in ({} if home is None else kept(home)).items():
        # A damaged line with params or tags costs no value.
        what = by_run.get(run_id, "a file of its journal was damaged")
        by_run[run_id] = f"{what}; damaged files are in {folder}"
    return by_run


def kept(home: Home) -> dict[str, Path]:
    """Return the folders with damaged files, by the ids of their runs."""
    folders = sorted(home.path.glob(f"runs/*/{RunDir(Path()).damaged}"))
    return {folder.parent.name: folder for folder in folders}
