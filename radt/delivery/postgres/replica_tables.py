"""Small tables of the database: how rows are inserted, and which existing rows are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.summaries import SUMMARIES
from radt.store.tables import GAPS, LEDGERS, MARKERS, RUNS, SERIES, WORKLOADS, Table, Value
from radt.tags import CLUSTER_SUPERSEDED, EDITED, MLFLOW_RUN_NAME

Row = tuple[Value, ...]
#: Placeholder for an array of run ids in statements whose rows have numbers of runs.
RUN_IDS = "{run_ids}"


@dataclass(frozen=True)
class ReplicaTable:
    """A small table: rows are inserted, or replace those with the same key.

    ``unless`` is the condition for keeping an existing row, because a copy of an outdated store (a
    backup, a folder on two machines) must not undo newer values; ``name_unless`` is the condition
    for keeping its name. ``derived`` are columns that are not sent, with the expressions that they
    are computed from; such a row has, instead of its run's id, the number of the run in `RUN_IDS`,
    from 1.
    """

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    replace: bool = True
    unless: str = "FALSE"
    name_unless: str = ""
    derived: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, table: Table[Any], unless: str = "FALSE", name_unless: str = "") -> ReplicaTable:
        return cls(table.name, table.fields, table.keys, unless=unless, name_unless=name_unless)

    @cached_property
    def statement(self) -> str:
        """Return the statement, with ``%s`` for all rows. Identical rows are not rewritten."""
        columns = (*self.columns, *(name for name, _ in self.derived))
        source = "VALUES %s"
        if self.derived:
            values = (*self.columns[1:], *(made for _, made in self.derived))
            sent = ", ".join(("run_no", *self.columns[1:]))
            source = (
                f"SELECT runs.run_id, {', '.join(values)} FROM (VALUES %s) AS sent ({sent}) "  # noqa: S608
                f"JOIN unnest({RUN_IDS}) WITH ORDINALITY AS runs (run_id, no) ON no = run_no"
            )
        insert = (
            f"INSERT INTO {self.name} ({', '.join(columns)}) {source} "
            f"ON CONFLICT ({', '.join(self.keys)}) DO "
        )
        if not self.replace:
            return f"{insert}NOTHING"
        rest = [name for name in columns if name not in self.keys]
        news = {name: f"excluded.{name}" for name in rest}
        if self.name_unless:
            news["name"] = (
                f"CASE WHEN {self.name_unless} THEN {self.name}.name ELSE excluded.name END"
            )
        changes = ", ".join(f"{name} = {new}" for name, new in news.items())
        old = ", ".join(f"{self.name}.{name}" for name in rest)
        new = ", ".join(news.values())
        return (
            f"{insert}UPDATE SET {changes} "
            f"WHERE ({old}) IS DISTINCT FROM ({new}) AND NOT ({self.unless})"
        )

    def row(self, values: Mapping[str, Value]) -> Row:
        return tuple(values[name] for name in self.columns)

    def key(self, row: Row) -> Row:
        return tuple(row[self.columns.index(name)] for name in self.keys)


EXPERIMENT = ReplicaTable("experiment", ("name", "created_ns"), ("name",), replace=False)
WORKLOAD = ReplicaTable.of(WORKLOADS, "workload.ended_ns IS NOT NULL AND excluded.ended_ns IS NULL")


def _is_edited(key: str) -> str:
    """Return the SQL condition that a tag was edited in the database and has to be kept."""
    return (
        f"EXISTS (SELECT 1 FROM tag AS edit WHERE edit.key = '{EDITED}' || {key} "  # noqa: S608 - our own names
        "AND edit.run_id = excluded.run_id)"
    )


#: Once a newer attempt of its job has superseded a run, its end is kept, too, even if a node that
#: does not know this sends another one later.
RUN = ReplicaTable.of(
    RUNS,
    "run.ended_ns IS NOT NULL AND (excluded.ended_ns IS NULL OR EXISTS (SELECT 1 FROM tag "  # noqa: S608 - our own names
    f"WHERE tag.run_id = run.run_id AND tag.key = '{CLUSTER_SUPERSEDED}' "
    "AND excluded.status <> run.status))",
    _is_edited(f"'{MLFLOW_RUN_NAME}'"),
)
PARAM = ReplicaTable("param", ("run_id", "key", "value"), ("run_id", "key"))
TAG = ReplicaTable(
    "tag", ("run_id", "key", "value"), ("run_id", "key"), unless=_is_edited("excluded.key")
)
SERIES_TABLE = ReplicaTable.of(SERIES)
MARKER = ReplicaTable.of(MARKERS)
SUMMARY = ReplicaTable(
    "series_summary", ("run_id", "series_no", *SUMMARIES.fields), ("run_id", "series_no")
)
_PLAIN = (
    *(("stored_count", "count"), ("finite_count", "count")),
    *(("first_finite_ns", "first_ns"), ("last_finite_ns", "last_ns")),
    *(("first_finite", "first"), ("last_finite", "last")),
    *(("growth", "NULL"), ("lowest_step", "NULL"), ("highest_step", "NULL")),
)
#: A gauge without steps whose values are all finite, in half of the bytes: there is one such row
#: for each series and piece.
PLAIN_SUMMARY = ReplicaTable(
    SUMMARY.name,
    tuple(name for name in SUMMARY.columns if name not in dict(_PLAIN)),
    SUMMARY.keys,
    derived=_PLAIN,
)
LEDGER = ReplicaTable.of(LEDGERS, "ledger.expected > excluded.expected")
GAP = ReplicaTable.of(GAPS)
TABLE_OF: Mapping[type, tuple[ReplicaTable, Table[Any]]] = {
    WorkloadRecord: (WORKLOAD, WORKLOADS),
    RunRecord: (RUN, RUNS),
    SeriesRecord: (SERIES_TABLE, SERIES),
    MarkerRecord: (MARKER, MARKERS),
    LedgerRecord: (LEDGER, LEDGERS),
    GapRecord: (GAP, GAPS),
}


def summary_row(row: Mapping[str, Value]) -> tuple[ReplicaTable, Row]:
    """Return the row of a summary and its table."""
    is_plain = all(row[name] == row.get(made) for name, made in PLAIN_SUMMARY.derived)
    replica = PLAIN_SUMMARY if is_plain else SUMMARY
    return replica, replica.row(row)


def row_of(record: object) -> tuple[ReplicaTable, Row]:
    """Return the row of a record and its table."""
    replica, table = TABLE_OF[type(record)]
    return replica, replica.row(table.row(record))
