"""Rows on their way, of one run or of several, that become visible all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from radt.masking import masked
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
    """The row of a record, and its table; without passwords, as many read what it goes to."""
    kind, table = KIND_OF[type(record)]
    values = table.row(record)
    if isinstance(record, RunRecord | WorkloadRecord):
        values["tracking_uri"] = masked(record.tracking_uri)
    return kind, kind.row(values)


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
        self.size_bytes += sum(len(one) if isinstance(one, str) else 8 for one in row)

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
