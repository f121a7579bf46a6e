"""Repair a data folder that was renamed, moved or copied.

The databases of a data folder hold absolute paths into it: MLflow's locations of artifacts, and the
spool and the tracking URI of each run. A file ``place`` notes which folder these paths refer to.
The first writer that opens the store compares the note with the folder's current path, and replaces
that prefix in both databases. Paths to other places, such as another folder or S3, are unchanged.

Readers change nothing: a container may see the folder of a running experiment at another path.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from radt.files import whole_file
from radt.home import Home
from radt.store.tables import Value, to_column

log = logging.getLogger(__name__)

NOTE_FILE = "place"
#: End reason of an unfinished run in a copy of the data folder; the original run continues.
COPIED = "its data folder was copied during the run"
_TIMEOUT_S = 20.0

#: The data folders in the spool paths of runs, and the runs.
_RECORDED = text(
    "SELECT substr(spool, 1, length(spool) - length(run_id) - 6), run_id FROM run "
    "WHERE substr(spool, -length(run_id) - 6) = '/runs/' || run_id"
)
_SPOOL = text(
    "UPDATE run SET spool = :here || '/runs/' || run_id, "
    # Copies in Postgres get the new spool, unless the former folder still exists.
    "revision = revision + (CASE WHEN :is_move AND host = :host THEN 1 ELSE 0 END), "
    "summary_revision = summary_revision "
    "+ (CASE WHEN :is_move AND host = :host THEN 1 ELSE 0 END) "
    "WHERE spool = :there || '/runs/' || run_id"
)
_TRACKING_URIS = [
    text(f"UPDATE {table} SET tracking_uri = :here WHERE tracking_uri = :there")  # noqa: S608
    for table in ("run", "workload")
]
#: Only the original uploads the end of a run to an address that both share.
_OWN_URI = "tracking_uri = CASE WHEN tracking_uri = :here THEN :here ELSE '' END"
_LEAVE_TO_ORIGINAL = [
    text(f"UPDATE run SET end_reason = :copied, {_OWN_URI} WHERE ended_ns IS NULL"),  # noqa: S608
    text(f"UPDATE workload SET {_OWN_URI} WHERE ended_ns IS NULL"),  # noqa: S608
]
#: Tables and columns of MLflow with file locations, and a condition for the rows that have one.
_LOCATIONS = (
    ("experiments", "artifact_location", "1"),
    ("runs", "artifact_uri", "1"),
    ("logged_models", "artifact_location", "1"),
    ("model_versions", "source", "1"),
    ("model_versions", "storage_location", "1"),
    ("trace_tags", "value", "key = 'mlflow.artifactLocation'"),
)
#: The last condition skips rows that an interrupted repair has already changed.
_MOVE_LOCATION = (
    "UPDATE {0} SET {1} = :here || substr({1}, length(:there) + 1) WHERE {2} "
    "AND substr({1} || '/', 1, length(:there) + 1) = :there || '/' "
    "AND substr({1} || '/', 1, length(:here) + 1) <> :here || '/'"
)


def repair(store: Path, engine: Engine) -> None:
    """Replace the former path of a data folder in its databases by its current path.

    Reads one small file if the folder has not moved. May be interrupted, and run by several
    processes at once: it changes each database in a transaction, and the note last. If MLflow's
    database cannot be written, the next call tries again: values must reach the store even so.

    Args:
        store: The store; one that is not in a data folder is left unchanged.
        engine: A writer's, which begins transactions by locking the store.
    """
    home = Home(store.parent)
    note = home.path / NOTE_FILE
    if store != home.store_path or (noted := _content(note)) == home.path:
        return
    with engine.begin() as connection:
        recorded = connection.execute(_RECORDED).all()
    # An imported run may name the folder of another store; then its spool does not exist here.
    named = {Path(folder) for folder, run_id in recorded if home.run_dir(run_id).path.is_dir()}
    others = {path for path in {noted} | named if path != home.path and path.is_absolute()}
    # A folder that is reached by several names, such as a symbolic link, has not moved.
    former = [Home(path) for path in sorted(others) if not _is_same(path, home.path)]
    for each in former:
        log.info("the data folder %s was moved or copied from %s", home.path, each.path)
    try:
        _repair_mlflow(home, former)
    except sqlite3.Error as error:
        log.warning("%s cannot be repaired: %s", home.mlflow_database, error)
        return
    with engine.begin() as connection:
        for each in former:
            _repair_runs(connection, home, each)
    if len(former) == len(others):
        with suppress(OSError), whole_file(note) as file:
            file.write_bytes(os.fsencode(home.path))


def _content(note: Path) -> Path:
    try:
        return Path(os.fsdecode(note.read_bytes()))
    except OSError:
        return Path()  # new, or last used by an earlier version of radt


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _repair_runs(connection: Connection, home: Home, former: Home) -> None:
    is_move = not former.store_path.exists()
    spools = _change(str(home.path), str(former.path))
    connection.execute(_SPOOL, spools | {"is_move": is_move, "host": platform.node()})
    uris = _change(home.default_tracking_uri, former.default_tracking_uri)
    for statement in _TRACKING_URIS if is_move else (*_TRACKING_URIS, *_LEAVE_TO_ORIGINAL):
        connection.execute(statement, uris | {"copied": COPIED})


def _change(here: str, there: str) -> dict[str, Value]:
    return {"here": to_column(here), "there": to_column(there)}


def _repair_mlflow(home: Home, former: Sequence[Home]) -> None:
    if not former or not home.mlflow_database.exists():
        return
    with closing(sqlite3.connect(home.mlflow_database, timeout=_TIMEOUT_S)) as database, database:
        database.execute("BEGIN IMMEDIATE")
        for table, column, condition in _LOCATIONS:
            known = database.execute(f"PRAGMA table_info({table})").fetchall()
            if column not in {row[1] for row in known}:
                continue  # another version of MLflow
            statement = _MOVE_LOCATION.format(table, column, condition)
            for each in former:
                database.execute(statement, _change(str(home.path), str(each.path)))
                database.execute(statement, _change(home.path.as_uri(), each.path.as_uri()))
