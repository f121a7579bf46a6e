"""How records become rows and rows records: columns are named like the fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from numbers import Integral
from typing import Any, Generic, TypeVar

from sqlalchemy import TextClause, text

from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    SeriesRecord,
    WorkloadRecord,
)

RecordT = TypeVar("RecordT")

Value = str | int | float | bytes | None
Row = Mapping[str, Value]


def to_column(value: object) -> Value:
    """A field's value as the database takes it."""
    if isinstance(value, str):
        return _storable(str(value))
    if isinstance(value, tuple):
        return json.dumps(value)
    if isinstance(value, Integral):
        return int(value)  # numpy's integers too, which the driver would refuse
    if value is None or isinstance(value, float | bytes):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _storable(value: str) -> str:
    """Paths may hold bytes that are no UTF-8, and Postgres takes no NUL: both are shown escaped."""
    if "\0" in value:
        value = value.replace("\0", "\\x00")
    if value.isascii():
        return value
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _names(column: str) -> tuple[str, ...]:
    return tuple(json.loads(column))


@dataclass(frozen=True)
class Table(Generic[RecordT]):
    """A table whose rows are one kind of record.

    ``decoders`` turn columns back into fields where that takes more than the driver does;
    ``extra_keys`` are key columns that are no fields of the record.
    """

    name: str
    record: Callable[..., RecordT]
    keys: tuple[str, ...]
    decoders: Mapping[str, Callable[[Any], Any]]
    extra_keys: tuple[str, ...] = ()

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self.record))  # type: ignore[arg-type]

    @cached_property
    def select(self) -> str:
        """``SELECT … FROM table`` in the order of the record's fields."""
        return f"SELECT {', '.join(self.fields)} FROM {self.name}"  # noqa: S608 - our own names

    @cached_property
    def upsert(self) -> TextClause:
        """Insert a row, or replace the one with the same key."""
        columns = (*self.extra_keys, *self.fields)
        keys = (*self.extra_keys, *self.keys)
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
        return text(
            f"INSERT INTO {self.name} ({', '.join(columns)}) "  # noqa: S608 - our own names
            f"VALUES ({', '.join(f':{name}' for name in columns)}) "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
        )

    def row(self, record: RecordT) -> dict[str, Value]:
        """The parameters of `upsert` for a record."""
        return {name: to_column(getattr(record, name)) for name in self.fields}

    @cached_property
    def _decoded_fields(self) -> tuple[tuple[int, Callable[[Any], Any]], ...]:
        return tuple((self.fields.index(name), make) for name, make in self.decoders.items())

    def read(self, row: Sequence[Any]) -> RecordT:
        """The record of a row of `select`."""
        values = list(row)
        for index, make in self._decoded_fields:
            values[index] = make(values[index])
        return self.record(*values)

    def changes(self, given: Mapping[str, object]) -> dict[str, Value]:
        """Columns to update, checked.

        Raises:
            TypeError: A name is no field of the record or is part of its key.
        """
        wrong = [name for name in given if name not in self.fields or name in self.keys]
        if wrong:
            raise TypeError(f"{', '.join(wrong)} cannot be updated in {self.name}")
        return {name: to_column(value) for name, value in given.items()}


def _by_value(enum: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Like calling the enum, several times as fast: lists of runs have thousands of them."""
    members = {member.value: member for member in enum}
    return members.__getitem__


WORKLOADS = Table("workload", WorkloadRecord, ("workload_id",), {"status": _by_value(RunStatus)})
RUNS = Table("run", RunRecord, ("run_id",), {"status": _by_value(RunStatus)})
SERIES = Table(
    "series",
    SeriesRecord,
    ("run_id", "series_no"),
    {"scope": _by_value(Scope), "kind": _by_value(SeriesKind), "estimated": bool},
)
MARKERS = Table("marker", MarkerRecord, ("run_id", "marker_no"), {"kind": _by_value(MarkerKind)})
LEDGERS = Table("ledger", LedgerRecord, ("run_id", "listener"), {})
GAPS = Table(
    "gap",
    GapRecord,
    ("run_id", "listener", "series_no", "start_ns"),
    {"reason": _by_value(MissingReason)},
)
CURSORS = Table(
    "journal_cursor", JournalCursor, ("journal",), {"names": _names}, extra_keys=("run_id",)
)
