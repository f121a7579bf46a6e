"""The writer's statements that are no plain upsert of a record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, TextClause, text

from radt.errors import RunNotFoundError
from radt.store.records import SeriesRecord
from radt.store.tables import SERIES, Row, Table, Value, to_column

END_RUN = text(
    "UPDATE run SET status = :status, ended_ns = :ended_ns, exit_code = :exit_code, "
    "end_reason = :reason WHERE run_id = :run_id AND ended_ns IS NULL"
)
RUN_ENDS = text("SELECT status, ended_ns FROM run WHERE workload_id = :workload_id")
END_WORKLOAD = text(
    "UPDATE workload SET status = :status, ended_ns = :ended_ns "
    "WHERE workload_id = :workload_id AND ended_ns IS NULL"
)
PUT_DELIVERED = text(
    "INSERT INTO delivery (run_id, series_no, delivered) VALUES (:run_id, :series_no, :delivered) "
    "ON CONFLICT (run_id, series_no) DO UPDATE SET delivered = excluded.delivered"
)
PUT_ARTIFACT = text(
    "INSERT INTO artifact_delivered (run_id, path) VALUES (:run_id, :path) "
    "ON CONFLICT (run_id, path) DO NOTHING"
)
_RAISE_RUN = text("UPDATE run SET revision = revision + 1 WHERE run_id = :key")
_RAISE_WORKLOAD = text("UPDATE workload SET revision = revision + 1 WHERE workload_id = :key")
_PUT_EXPERIMENT = text(
    "INSERT INTO experiment (name, created_ns) VALUES (:name, :created_ns) "
    "ON CONFLICT (name) DO NOTHING"
)


def _put_text(table: str) -> TextClause:
    return text(
        f"INSERT INTO {table} (run_id, key, value) VALUES (:run_id, :key, :value) "  # noqa: S608
        "ON CONFLICT (run_id, key) DO UPDATE SET value = excluded.value"
    )


PUT_PARAM = _put_text("param")
PUT_TAG = _put_text("tag")


def text_rows(run_id: str, texts: Mapping[str, str]) -> list[Row]:
    """Parameters of `PUT_PARAM` and `PUT_TAG`."""
    return [
        {"run_id": run_id, "key": to_column(key), "value": to_column(value)}
        for key, value in texts.items()
    ]


def put_experiment(connection: Connection, name: str, created_ns: int) -> None:
    """Insert an experiment unless it is there."""
    row = {"name": to_column(name), "created_ns": created_ns}
    connection.execute(_PUT_EXPERIMENT, row)


def raise_revisions(
    connection: Connection, run_ids: Collection[str], workload_ids: Collection[str]
) -> None:
    """Say of runs and workloads that something of them was written; in order, so that two writers
    never wait for each other."""
    if run_ids:
        connection.execute(_RAISE_RUN, [{"key": key} for key in sorted(run_ids)])
    if workload_ids:
        connection.execute(_RAISE_WORKLOAD, [{"key": key} for key in sorted(workload_ids)])


def mark_done(table: Table[Any]) -> TextClause:
    """Mark a run or workload as wholly delivered."""
    return text(
        f"UPDATE {table.name} SET delivery_done_ns = :now_ns, delivery_note = :note "  # noqa: S608
        f"WHERE {table.keys[0]} = :key"
    )


def update(
    connection: Connection, table: Table[Any], key: str, changes: Mapping[str, Value]
) -> None:
    """Change columns of one row; the names are checked (`Table.changes`).

    Raises:
        RunNotFoundError: There is no such row.
    """
    if changes:
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        statement = text(
            f"UPDATE {table.name} SET {assignments} "  # noqa: S608 - checked names
            f"WHERE {table.keys[0]} = :key"
        )
        if connection.execute(statement, {**changes, "key": key}).rowcount:
            return
    check_exists(connection, table, key)


def check_exists(connection: Connection, table: Table[Any], key: str) -> None:
    """Make sure that a row is there.

    Raises:
        RunNotFoundError: It is not.
    """
    statement = text(
        f"SELECT 1 FROM {table.name} WHERE {table.keys[0]} = :key"  # noqa: S608 - our own names
    )
    if connection.execute(statement, {"key": key}).first() is None:
        raise RunNotFoundError(f"there is no {table.name} {key} in the store")


def series_of(connection: Connection, run_id: str) -> list[SeriesRecord]:
    """The series declared for a run."""
    rows = connection.execute(text(f"{SERIES.select} WHERE run_id = :run_id"), {"run_id": run_id})
    return [SERIES.read(row) for row in rows]
