"""Convert records to rows and back; define the longer statements of reader and writer.

Columns have the names of the fields.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, cached_property
from numbers import Integral
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, TextClause, bindparam, text

from radt.errors import RunNotFoundError
from radt.masking import masked
from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.backend import Dialect
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    SavedView,
    SeriesRecord,
    WorkloadRecord,
)

RecordT = TypeVar("RecordT")

Value = str | int | float | bytes | None
Row = Mapping[str, Value]
_TRACKING_URI = "tracking_uri"


def of_runs(statement: str, *lists: str, **parameters: object) -> TextClause:
    """Return a statement about runs, whose ids it has as the list ``:ids``.

    Args:
        statement: Its text.
        lists: Names of further list parameters.
        parameters: Values of further parameters.
    """
    return text(statement).bindparams(
        *(bindparam(name, expanding=True) for name in ("ids", *lists)), **parameters
    )


def to_column(value: object) -> Value:
    """Return a field's value in the database's type."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value  # SQLite cannot hold NaN
    if isinstance(value, str):
        return _storable(str(value))
    if isinstance(value, int | Integral):
        return int(value)  # also converts numpy's integers, which the driver would refuse
    if isinstance(value, tuple):
        return json.dumps(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _storable(value: str) -> str:
    """Escape bytes of paths that are not UTF-8, and NUL, which Postgres refuses."""
    if "\0" in value:
        value = value.replace("\0", "\\x00")
    if value.isascii():
        return value
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _names(column: str) -> tuple[str, ...]:
    return tuple(json.loads(column))


@dataclass(frozen=True)
class RecordTable(Generic[RecordT]):
    """Table whose rows are one kind of record.

    ``decoders`` turn columns back into fields if the driver's conversion does not suffice;
    ``extra_keys`` are key columns that are not fields of the record.
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
        """Return ``SELECT … FROM table`` in the order of the record's fields."""
        return f"SELECT {', '.join(self.fields)} FROM {self.name}"  # noqa: S608 - our own names

    @cached_property
    def upsert(self) -> TextClause:
        """Return the statement that inserts a row or replaces the one with the same key."""
        columns = (*self.extra_keys, *self.fields)
        keys = (*self.extra_keys, *self.keys)
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
        return text(
            f"INSERT INTO {self.name} ({', '.join(columns)}) "  # noqa: S608 - our own names
            f"VALUES ({', '.join(f':{name}' for name in columns)}) "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
        )

    def row(self, record: RecordT) -> dict[str, Value]:
        """Return the parameters of `upsert` for a record."""
        return _without_password({name: to_column(getattr(record, name)) for name in self.fields})

    @cached_property
    def _decoded_fields(self) -> tuple[tuple[int, Callable[[Any], Any]], ...]:
        return tuple((self.fields.index(name), make) for name, make in self.decoders.items())

    def read(self, row: Sequence[Any]) -> RecordT:
        """Return the record of a row of `select`."""
        return self.record(*self.values(row))

    def values(self, row: Sequence[Any]) -> list[Any]:
        """Return the fields of a row of `select`."""
        values = list(row)
        for index, make in self._decoded_fields:
            values[index] = make(values[index])
        return values

    def changes(self, given: Mapping[str, object]) -> dict[str, Value]:
        """Return the columns to update after checking them.

        Raises:
            TypeError: A name is not a field of the record or is part of its key.
        """
        wrong = [name for name in given if name not in self.fields or name in self.keys]
        if wrong:
            raise TypeError(f"{', '.join(wrong)} cannot be updated in {self.name}")
        return _without_password({name: to_column(value) for name, value in given.items()})


def _without_password(row: dict[str, Value]) -> dict[str, Value]:
    """Hide the password of the tracking URI: many people read the database."""
    if _TRACKING_URI in row:
        row[_TRACKING_URI] = to_column(masked(str(row[_TRACKING_URI])))
    return row


def hide_passwords(connection: Connection) -> None:
    """Hide the passwords of tracking URIs that earlier versions have stored."""
    for (uri,) in connection.execute(_ADDRESSES).all():
        if (shown := masked(str(uri))) != uri:
            for hide in _HIDE:
                connection.execute(hide, {"uri": uri, "shown": shown})


def _by_value(enum: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Return a lookup by value, several times as fast as calling the enum."""
    members = {member.value: member for member in enum}
    return members.__getitem__


WORKLOADS = RecordTable(
    "workload", WorkloadRecord, ("workload_id",), {"status": _by_value(RunStatus)}
)
RUNS = RecordTable("run", RunRecord, ("run_id",), {"status": _by_value(RunStatus)})
SERIES = RecordTable(
    "series",
    SeriesRecord,
    ("run_id", "series_no"),
    {"scope": _by_value(Scope), "kind": _by_value(SeriesKind), "estimated": bool},
)
MARKERS = RecordTable(
    "marker", MarkerRecord, ("run_id", "marker_no"), {"kind": _by_value(MarkerKind)}
)
SAVED_VIEWS = RecordTable("saved_view", SavedView, ("name",), {})
LEDGERS = RecordTable("ledger", LedgerRecord, ("run_id", "listener"), {})
GAPS = RecordTable(
    "gap",
    GapRecord,
    ("run_id", "listener", "series_no", "start_ns"),
    {"reason": _by_value(MissingReason)},
)
CURSORS = RecordTable(
    "journal_cursor", JournalCursor, ("journal",), {"names": _names}, extra_keys=("run_id",)
)

#: All tables with rows of a run, the run itself last.
TABLES_OF_RUNS = (
    *("chunk", "series", "marker", "ledger", "gap", "param", "tag"),
    *("series_summary", "journal_cursor", "delivery", "artifact_delivered", "run"),
)

EXPERIMENTS = text("SELECT name, created_ns FROM experiment")

RUN_COUNTS = text(
    "SELECT experiment, status, COUNT(*), "
    "MAX(COALESCE(ended_ns, started_ns, created_ns)) FROM run GROUP BY experiment, status"
)

#: Two selects, because SQLite otherwise would not use both indexes.
FIND_RUN = text(
    f"{RUNS.select} WHERE run_id >= :first AND run_id < :last "
    f"UNION {RUNS.select} WHERE mlflow_run_id >= :first AND mlflow_run_id < :last LIMIT 5"
)

REVISIONS = text("SELECT run_id, revision FROM run WHERE experiment = :experiment")

TAGGED = text(
    "SELECT tag.run_id, tag.value FROM run JOIN tag ON tag.run_id = run.run_id AND tag.key = :key "
    "WHERE run.experiment = :experiment"
)

HAS_TAG = text("SELECT 1 FROM tag WHERE key = :key AND value = :value LIMIT 1")

NUMBERED_NAMES = text("SELECT name FROM run WHERE experiment = :experiment AND name LIKE '% #%'")

_ADDRESSES = text("SELECT tracking_uri FROM workload UNION SELECT tracking_uri FROM run")
_HIDE = [
    text(f"UPDATE {table} SET tracking_uri = :shown WHERE tracking_uri = :uri")  # noqa: S608
    for table in ("workload", "run")
]
TO_DELIVER = "WHERE tracking_uri = :uri AND delivery_done_ns IS NULL ORDER BY created_ns"

BEGIN_RUN = text(
    "UPDATE run SET status = CASE WHEN ended_ns IS NULL THEN :status ELSE status END, "
    "pid = :pid, started_ns = :started_ns WHERE run_id = :run_id"
)
END_RUN = text(
    "UPDATE run SET status = :status, ended_ns = :ended_ns, exit_code = :exit_code, "
    "end_reason = :reason WHERE run_id = :run_id AND ended_ns IS NULL"
)
#: Children's statuses are NULL, because they do not affect their parent's workload.
RUN_ENDS = text(
    "SELECT CASE WHEN tag.value IS NULL THEN run.status END, run.ended_ns "
    "FROM run LEFT JOIN tag ON tag.run_id = run.run_id AND tag.key = :parent_key "
    "WHERE run.workload_id = :workload_id"
)
END_WORKLOAD = text(
    "UPDATE workload SET status = :status, ended_ns = :ended_ns "
    "WHERE workload_id = :workload_id AND (ended_ns IS NULL OR ended_ns < :ended_ns)"
)
DELIVERED = of_runs("SELECT series_no, delivered FROM delivery WHERE run_id IN :ids")
DELIVERED_ARTIFACTS = of_runs("SELECT path FROM artifact_delivered WHERE run_id IN :ids")
PUT_DELIVERED = text(
    "INSERT INTO delivery (run_id, series_no, delivered) VALUES (:run_id, :series_no, :delivered) "
    "ON CONFLICT (run_id, series_no) DO UPDATE SET delivered = excluded.delivered"
)
PUT_ARTIFACT = text(
    "INSERT INTO artifact_delivered (run_id, path) VALUES (:run_id, :path) "
    "ON CONFLICT (run_id, path) DO NOTHING"
)
PUT_REPLICATED = text(
    "INSERT INTO replicated (target, key, revision) VALUES (:target, :key, :revision) "
    "ON CONFLICT (target, key) DO UPDATE SET revision = excluded.revision"
)
FORGET_REPLICATED = text("DELETE FROM replicated WHERE target = :target")
PUT_REPLICA = text(
    "INSERT INTO replica (target, label, reached_ns) VALUES (:target, :label, :now_ns) "
    "ON CONFLICT (target) DO UPDATE SET label = excluded.label, "
    "reached_ns = COALESCE(excluded.reached_ns, replica.reached_ns)"
)
FORGET_OTHER_REPLICAS = text("DELETE FROM replica WHERE label = :label AND target <> :target")
#: Also raises the revision of summaries: for writers that update them (`radt.store.summaries`).
RAISED = "revision = run.revision + 1, summary_revision = run.summary_revision + 1"
#: A run whose summaries have to be computed again.
INCOMPLETE = text("SELECT run_id FROM run WHERE summary_revision <> revision LIMIT 1")
_RAISE_RUN = text(f"UPDATE run SET {RAISED} WHERE run_id = :key")  # noqa: S608 - our own names
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
    """Return the parameters of `PUT_PARAM` and `PUT_TAG`."""
    return [
        {"run_id": run_id, "key": to_column(key), "value": to_column(value)}
        for key, value in texts.items()
    ]


def execute_rows(connection: Connection, statement: TextClause, rows: Sequence[Row]) -> None:
    """Execute a statement for many rows.

    SQLite's driver accepts named parameters directly. SQLAlchemy would convert each row, which
    takes as long as writing it.
    """
    if Dialect.of(connection) is Dialect.SQLITE:
        connection.exec_driver_sql(statement.text, rows)
    else:
        connection.execute(statement, rows)


def put_experiment(connection: Connection, name: str, created_ns: int) -> None:
    """Insert an experiment unless it exists."""
    row = {"name": to_column(name), "created_ns": created_ns}
    connection.execute(_PUT_EXPERIMENT, row)


def raise_revisions(
    connection: Connection, run_ids: Collection[str], workload_ids: Collection[str]
) -> None:
    """Raise the revisions of written runs and workloads, in order to avoid deadlocks."""
    if run_ids:
        connection.execute(_RAISE_RUN, [{"key": key} for key in sorted(run_ids)])
    if workload_ids:
        connection.execute(_RAISE_WORKLOAD, [{"key": key} for key in sorted(workload_ids)])


FORGET_VIEW = text("DELETE FROM saved_view WHERE name = :name")

NOT_DELIVERED = text("UPDATE run SET delivery_done_ns = NULL WHERE run_id = :run_id")
WORKLOAD_NOT_DELIVERED = text(
    "UPDATE workload SET delivery_done_ns = NULL, revision = revision + 1 "
    "WHERE workload_id = (SELECT workload_id FROM run WHERE run_id = :run_id)"
)


def mark_done(table: RecordTable[Any]) -> TextClause:
    """Return the statement that marks a run or workload as completely delivered.

    With a revision that is not NULL, only if it is still at that revision.
    """
    return text(
        f"UPDATE {table.name} SET delivery_done_ns = :now_ns, delivery_note = :note "  # noqa: S608
        f"WHERE {table.keys[0]} = :key AND revision = COALESCE(:revision, revision)"
    )


def update(
    connection: Connection, table: RecordTable[Any], key: str, changes: Mapping[str, Value]
) -> None:
    """Change columns of one row; the names are checked (`RecordTable.changes`).

    Raises:
        RunNotFoundError: The row does not exist.
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


def find(connection: Connection, table: RecordTable[RecordT], key: str) -> RecordT | None:
    """Return the record with a key, if there is one."""
    statement = text(f"{table.select} WHERE {table.keys[0]} = :key")
    row = connection.execute(statement, {"key": key}).one_or_none()
    return None if row is None else table.read(row)


def check_exists(connection: Connection, table: RecordTable[Any], key: str) -> None:
    """Raise RunNotFoundError unless the row exists."""
    if find(connection, table, key) is None:
        raise RunNotFoundError(f"there is no {table.name} {key} in the store")


def declared_series(connection: Connection, run_id: str) -> list[SeriesRecord]:
    """Return the series declared for a run."""
    rows = connection.execute(text(f"{SERIES.select} WHERE run_id = :run_id"), {"run_id": run_id})
    return [SERIES.read(row) for row in rows]


# -- records from untrusted data ---------------------------------------------------------------

#: Errors raised when reading anything but the expected data.
WRONG = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
#: Ids are names of runs' folders, so their characters are limited.
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_IDS = ("run_id", "workload_id")
_LARGEST = 2**63


def record_of(table: RecordTable[RecordT], data: Mapping[str, Any]) -> RecordT:
    """Build a record from the known fields: older versions write fewer fields, newer ones more.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: The data is not a record.
    """
    decoders: Mapping[str, Callable[[Any], Any]] = table.decoders
    return table.record(
        **{
            name: decoders[name](data[name])
            if name in decoders
            else _checked(name, data[name], hint)
            for name, hint in _hints(table.record).items()
            if name in data
        }
    )


def texts_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Return params or tags as text; raise ValueError if they are not valid text."""
    return {_text(str(key)): _text(str(value)) for key, value in data.items()}


@cache
def _hints(record: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, bool) or not (
        isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    ):
        raise TypeError(f"{name} cannot be {value!r:.100}")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"{name} cannot be {value!r:.100}")
    if isinstance(value, str):
        _text(value)
        if name in _IDS and not _ID.fullmatch(value):
            raise ValueError(f"{name} cannot be {value!r:.100}")
    return value


def _text(value: str) -> str:
    value.encode()  # a lone surrogate is not valid text: UnicodeEncodeError is a ValueError
    return value
