"""Shipments: rows of one or several runs that become visible at once; and whether they arrived."""

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

#: A shipment of about this size is sent before more is added.
FULL_BYTES = 2_000_000
#: What a row of ``chunk`` takes besides its blobs.
_ROW_BYTES = 200

Row = tuple[Value, ...]
_POINTS = text(
    "SELECT run_id, series_no, SUM(point_count), SUM(finite_count), MIN(first_ns), MAX(last_ns), "
    "MIN(value_min), MAX(value_max) FROM chunk WHERE run_id IN :ids GROUP BY run_id, series_no"
).bindparams(bindparam("ids", expanding=True))
#: A remainder: sums of times would overflow.
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

    ``unless`` is the condition on which an existing row stays, as a copy of a store that fell
    behind (a backup, a folder on two machines) must not undo what the newer one has said.
    """

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    replace: bool = True
    unless: str = "FALSE"

    @classmethod
    def of(cls, table: Table[Any], unless: str = "FALSE") -> Kind:
        return cls(table.name, table.fields, table.keys, unless=unless)

    @cached_property
    def statement(self) -> str:
        """With ``%s`` for all rows. What is there as it should be is not written again."""
        insert = (
            f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES %s "  # noqa: S608
            f"ON CONFLICT ({', '.join(self.keys)}) DO "
        )
        if not self.replace:
            return f"{insert}NOTHING"
        rest = [name for name in self.columns if name not in self.keys]
        changes = ", ".join(f"{name} = excluded.{name}" for name in rest)
        old = ", ".join(f"{self.name}.{name}" for name in rest)
        new = ", ".join(f"excluded.{name}" for name in rest)
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
RUN = Kind.of(RUNS, "run.ended_ns IS NOT NULL AND excluded.ended_ns IS NULL")
PARAM = Kind("param", ("run_id", "key", "value"), ("run_id", "key"))
TAG = Kind("tag", ("run_id", "key", "value"), ("run_id", "key"))
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
    """Chunks of a series from a number on, that others take the place of."""

    run_id: str
    series_no: int
    first_chunk_no: int


@dataclass(slots=True)
class Shipment:
    """What one transaction writes.

    ``revisions`` holds for every run in it the revision that the other side must be at, None where
    the run must not be there yet: else somebody else has written meanwhile, and nothing of this
    shipment is. ``durable`` is False for what is sent again if the other side forgets it in a
    crash: the next answer tells.
    """

    revisions: dict[str, int | None] = field(default_factory=dict)
    rows: dict[Kind, dict[Row, Row]] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    chunks: list[dict[str, Value]] = field(default_factory=list)
    durable: bool = False
    size_bytes: int = 0

    def add(self, kind: Kind, row: Row) -> None:
        self.rows.setdefault(kind, {})[kind.key(row)] = row  # one statement takes a key once
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
    """A run in numbers, from headers alone.

    ``points`` has for each series number the count of points, of finite ones, the first and last
    time, minimum and maximum; ``markers`` their number, that of those with an end, and a checksum
    of the ends; ``rows`` numbers of rows of the small tables.
    """

    points: dict[int, Numbers] = field(default_factory=dict)
    markers: Numbers = (0, 0, 0)
    rows: list[int] = field(default_factory=lambda: [0] * len(_TABLES))


def contents(connection: Connection, run_ids: Sequence[str]) -> dict[str, Content]:
    """Return runs in numbers, from a store of either kind."""
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
    """What a copy lacks, or has otherwise, compared with the original.

    ``series`` are series numbers whose points are as many and yet not the same. What the copy has
    more of is no difference: this side may have lost or thinned it, and there it stays.
    """

    missing_points: bool = False
    series: tuple[int, ...] = ()
    markers: bool = False
    rows: bool = False

    @property
    def none(self) -> bool:
        return not (self.missing_points or self.series or self.markers or self.rows)


def compare(original: Content, copy: Content) -> Difference:
    """Return what is still to be done before a copy holds all of a run."""
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
