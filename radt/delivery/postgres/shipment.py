"""Shipments: rows of one or several runs that become visible at once; and their verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, bindparam, text

from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.tables import GAPS, LEDGERS, MARKERS, RUNS, SERIES, WORKLOADS, Table, Value
from radt.tags import CLUSTER_SUPERSEDED, EDITED, MLFLOW_RUN_NAME

#: A shipment of about this size is sent before more is added.
FULL_BYTES = 2_000_000
#: Approximate size of a row of ``chunk`` without its blobs.
_ROW_BYTES = 200

Row = tuple[Value, ...]
_POINTS = text(
    "SELECT run_id, series_no, SUM(point_count), SUM(finite_count), MIN(first_ns), MAX(last_ns), "
    "MIN(value_min), MAX(value_max) FROM chunk WHERE run_id IN :ids GROUP BY run_id, series_no"
).bindparams(bindparam("ids", expanding=True))
#: Modulo: sums of times would overflow.
_MARKERS = text(
    "SELECT run_id, COUNT(*), COUNT(end_ns), SUM(COALESCE(end_ns, 0) % 1000003) "
    "FROM marker WHERE run_id IN :ids GROUP BY run_id"
).bindparams(bindparam("ids", expanding=True))
_TABLES = ("run", "param", "tag", "series", "ledger", "gap")
_ROWS = text(
    " UNION ALL ".join(
        f"SELECT {number}, run_id, COUNT(*) FROM {table} "  # noqa: S608 - our own names
        "WHERE run_id IN :ids GROUP BY run_id"
        for number, table in enumerate(_TABLES)
    )
).bindparams(bindparam("ids", expanding=True))

Numbers = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """A small table: rows are inserted, or replace those with the same key.

    ``unless`` is the condition for keeping an existing row, as a copy of an outdated store (a
    backup, a folder on two machines) must not undo newer values; ``name_unless`` the one for
    keeping its name.
    """

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    replace: bool = True
    unless: str = "FALSE"
    name_unless: str = ""

    @classmethod
    def of(cls, table: Table[Any], unless: str = "FALSE", name_unless: str = "") -> Kind:
        return cls(table.name, table.fields, table.keys, unless=unless, name_unless=name_unless)

    @cached_property
    def statement(self) -> str:
        """Return the statement, with ``%s`` for all rows. Identical rows are not rewritten."""
        insert = (
            f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES %s "  # noqa: S608
            f"ON CONFLICT ({', '.join(self.keys)}) DO "
        )
        if not self.replace:
            return f"{insert}NOTHING"
        rest = [name for name in self.columns if name not in self.keys]
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


EXPERIMENT = Kind("experiment", ("name", "created_ns"), ("name",), replace=False)
WORKLOAD = Kind.of(WORKLOADS, "workload.ended_ns IS NOT NULL AND excluded.ended_ns IS NULL")


def _is_edited(key: str) -> str:
    """Return the condition, in SQL, that somebody has changed a tag there, which then stays."""
    return (
        f"EXISTS (SELECT 1 FROM tag AS edit WHERE edit.key = '{EDITED}' || {key} "  # noqa: S608 - our own names
        "AND edit.run_id = excluded.run_id)"
    )


#: The end of a run that a newer attempt of its job has superseded stays, too, whatever a node that
#: does not know of that brings later.
RUN = Kind.of(
    RUNS,
    "run.ended_ns IS NOT NULL AND (excluded.ended_ns IS NULL OR EXISTS (SELECT 1 FROM tag "  # noqa: S608 - our own names
    f"WHERE tag.run_id = run.run_id AND tag.key = '{CLUSTER_SUPERSEDED}' "
    "AND excluded.status <> run.status))",
    _is_edited(f"'{MLFLOW_RUN_NAME}'"),
)
PARAM = Kind("param", ("run_id", "key", "value"), ("run_id", "key"))
TAG = Kind("tag", ("run_id", "key", "value"), ("run_id", "key"), unless=_is_edited("excluded.key"))
SERIES_KIND = Kind.of(SERIES)
MARKER = Kind.of(MARKERS)
LEDGER = Kind.of(LEDGERS, "ledger.expected > excluded.expected")
GAP = Kind.of(GAPS)
KIND_OF: Mapping[type, tuple[Kind, Table[Any]]] = {
    WorkloadRecord: (WORKLOAD, WORKLOADS),
    RunRecord: (RUN, RUNS),
    SeriesRecord: (SERIES_KIND, SERIES),
    MarkerRecord: (MARKER, MARKERS),
    LedgerRecord: (LEDGER, LEDGERS),
    GapRecord: (GAP, GAPS),
}


def row_of(record: object) -> tuple[Kind, Row]:
    """Return the row of a record and its table."""
    kind, table = KIND_OF[type(record)]
    return kind, kind.row(table.row(record))


@dataclass(frozen=True, slots=True)
class Cut:
    """Chunks of a series to replace, from a number on."""

    run_id: str
    series_no: int
    first_chunk_no: int


@dataclass(slots=True)
class Shipment:
    """Content of one transaction.

    ``revisions`` holds for every run in it the expected revision on the other side, None if the run
    must not exist yet: otherwise another process has written to it, and nothing of this shipment is
    written. ``durable`` is False for data that is sent again if the other side loses it in a crash,
    which its next response reveals.
    """

    revisions: dict[str, int | None] = field(default_factory=dict)
    rows: dict[Kind, dict[Row, Row]] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    chunks: list[dict[str, Value]] = field(default_factory=list)
    durable: bool = False
    size_bytes: int = 0

    def add(self, kind: Kind, row: Row) -> None:
        self.rows.setdefault(kind, {})[kind.key(row)] = row  # one statement accepts a key only once
        self.size_bytes += sum(len(value) if isinstance(value, str) else 8 for value in row)

    def add_chunks(self, rows: Sequence[dict[str, Value]]) -> None:
        self.chunks += rows
        for row in rows:
            blobs = (row["time_data"], row["value_data"], row["step_data"])
            self.size_bytes += _ROW_BYTES + sum(len(b) for b in blobs if isinstance(b, bytes))

    @property
    def full(self) -> bool:
        return self.size_bytes >= FULL_BYTES

    @property
    def empty(self) -> bool:
        return not (self.rows or self.cuts or self.chunks)


@dataclass(slots=True)
class Content:
    """Summary of a run from headers alone.

    ``points`` has for each series number the number of points and of finite ones, the first and
    last time, minimum and maximum; ``markers`` their number, the number with an end, and a checksum
    of the ends; ``rows`` the numbers of rows in the small tables.
    """

    points: dict[int, Numbers] = field(default_factory=dict)
    markers: Numbers = (0, 0, 0)
    rows: list[int] = field(default_factory=lambda: [0] * len(_TABLES))


def contents(connection: Connection, run_ids: Sequence[str]) -> dict[str, Content]:
    """Return summaries of runs from a store of either kind."""
    content_of = {run_id: Content() for run_id in run_ids}
    ids = {"ids": list(run_ids)}
    for run_id, series_no, count, finite, *rest in connection.execute(_POINTS, ids):
        content_of[run_id].points[int(series_no)] = (int(count), int(finite), *rest)
    for run_id, *numbers in connection.execute(_MARKERS, ids):
        content_of[run_id].markers = tuple(int(number) for number in numbers)
    for table, run_id, count in connection.execute(_ROWS, ids):
        content_of[run_id].rows[int(table)] = int(count)
    return content_of


@dataclass(frozen=True, slots=True)
class Difference:
    """Parts of a copy that are missing or different from the original.

    ``series`` are the numbers of series with equally many but different points. Additional data in
    the copy is not a difference: this side may have lost or thinned it, and the copy keeps it.
    """

    missing_points: bool = False
    series: tuple[int, ...] = ()
    markers: bool = False
    rows: bool = False

    @property
    def none(self) -> bool:
        return not (self.missing_points or self.series or self.markers or self.rows)


def compare(original: Content, copy: Content) -> Difference:
    """Return what a copy lacks to hold all of a run."""
    nothing = (0,)
    missing = any(
        copy.points.get(number, nothing)[0] < numbers[0]
        for number, numbers in original.points.items()
    )
    different = tuple(
        number
        for number, numbers in original.points.items()
        if (theirs := copy.points.get(number, nothing))[0] == numbers[0] and theirs != numbers
    )
    fewer = any(theirs < ours for ours, theirs in zip(original.rows, copy.rows, strict=True))
    markers = copy.markers[0] <= original.markers[0] and copy.markers != original.markers
    return Difference(missing, different, markers, fewer)
