"""The columns of an experiment file."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from radt.errors import UsageError
from radt.experiment.table import Record

SCHEMA_NAME = "experiment.schema.json"


@dataclass(frozen=True, slots=True)
class Field:
    """The schema of one column.

    ``title`` is what one value of it is called; ``if_empty`` what an empty cell means, as an absent
    column does; ``missing`` are the texts that count as empty; ``max_length`` counts characters.
    """

    name: str
    title: str
    description: str
    if_empty: str
    example: str
    missing: frozenset[str]
    pattern: re.Pattern[str] | None = None
    max_length: int | None = None

    def is_missing(self, text: str) -> bool:
        """Return whether a cell with this text counts as empty."""
        return text.strip().lower() in self.missing

    def check(self, text: str) -> None:
        """Check a cell that is not empty against the constraints.

        Raises:
            UsageError: It breaks one of them.
        """
        value = text.strip()
        if self.max_length is not None and len(value) > self.max_length:
            raise UsageError(
                f"{len(value):,} characters are too many for the {self.title}",
                f"Write at most {self.max_length:,}",
            )
        if self.pattern is not None and self.pattern.fullmatch(value) is None:
            raise UsageError(
                f"{value!r} is not a valid {self.title}", f"Write it like {self.example}"
            )


@functools.cache
def fields() -> Mapping[str, Field]:
    """Return the fields by column name, in the schema's order; the schema is read once."""
    text = (resources.files("radt.schemas") / SCHEMA_NAME).read_text(encoding="utf-8")
    schema = json.loads(text)
    everywhere = schema["missingValues"]
    return {descriptor["name"]: _field(descriptor, everywhere) for descriptor in schema["fields"]}


def _field(descriptor: Mapping[str, Any], missing_everywhere: list[str]) -> Field:
    constraints = descriptor.get("constraints", {})
    pattern = constraints.get("pattern")
    return Field(
        name=descriptor["name"],
        title=descriptor["title"],
        description=descriptor["description"],
        if_empty=descriptor["ifEmpty"],
        example=descriptor["example"],
        missing=frozenset(descriptor.get("missingValues", missing_everywhere)),
        pattern=None if pattern is None else re.compile(pattern),
        max_length=constraints.get("maxLength"),
    )


class Column(StrEnum):
    """The columns of radt, as ``schemas/experiment.schema.json`` describes them, in its order.

    Other columns are the user's own.
    """

    EXPERIMENT = "Experiment"
    WORKLOAD = "Workload"
    NAME = "Name"
    STATUS = "Status"
    RUN = "Run"
    DEVICES = "Devices"
    COLLOCATION = "Collocation"
    ENVIRONMENT = "Environment"
    CPUS = "Cpus"
    TIMEOUT = "Timeout"
    MODEL = "Model"
    DATA = "Data"
    LISTENERS = "Listeners"
    FILE = "File"
    PARAMS = "Params"

    @property
    def field(self) -> Field:
        """The schema of the column."""
        return fields()[self]

    @classmethod
    def named(cls, name: str) -> Column | None:
        """Return the column with this name, in any case."""
        return _BY_NAME.get(name.strip().lower())


_BY_NAME: Mapping[str, Column] = {column.lower(): column for column in Column}

#: The columns of every table that radt writes.
IN_EVERY_TABLE = (
    *(Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.STATUS, Column.RUN),
    *(Column.DEVICES, Column.COLLOCATION, Column.LISTENERS, Column.FILE, Column.PARAMS),
)
#: What radt itself writes; the rest, with the user's own columns, says what a row is.
WRITTEN = frozenset((Column.STATUS, Column.RUN))
#: A row needs one of these to say what it runs.
PROGRAM = frozenset((Column.FILE, Column.MODEL))
#: Columns that radt reads and that are logged as parameters like the user's own.
LOGGED = (Column.MODEL, Column.DATA)


@dataclass(frozen=True, slots=True)
class Header:
    """The positions of columns.

    ``others`` are the user's own columns by the name in the header; ``repeated`` are positions of
    headers in excess. A header without a name is none of these: trailing commas make such columns,
    and they may be there as long as they are empty.
    """

    record: Record
    positions: Mapping[Column, int]
    others: Mapping[str, int]
    repeated: Sequence[int]

    @classmethod
    def of(cls, record: Record) -> Header:
        positions: dict[Column, int] = {}
        others: dict[str, int] = {}
        repeated: list[int] = []
        seen: set[str] = set()
        for index, cell in enumerate(record.cells):
            name = cell.value.strip()
            column = Column.named(name)
            if name.lower() in seen:
                repeated.append(index)
            elif column is not None:
                positions[column] = index
            elif name:
                others[name] = index
            if name:
                seen.add(name.lower())
        return cls(record, positions, others, repeated)

    @property
    def names_programs(self) -> bool:
        """Whether it has a column that says what a row runs; a header needs one."""
        return not PROGRAM.isdisjoint(self.positions)

    def name(self, index: int) -> str | None:
        """Return the header at this position, None beyond the last or where it is empty."""
        if index >= len(self.record.cells):
            return None
        return self.record.cells[index].value.strip() or None

    def value(self, row: Record, column: Column) -> str:
        """Return the row's cell in this column, "" if the file or the row lacks it."""
        index = self.positions.get(column)
        return "" if index is None else _cell(row, index)

    def values(self, row: Record) -> dict[Column, str]:
        """Return the row's cells in radt's columns, as far as the file has them."""
        return {column: _cell(row, index) for column, index in self.positions.items()}

    def logged(self, row: Record) -> dict[str, str]:
        """Return the row's cells that are logged unchanged, by the name in the header."""
        cells: dict[str, str] = {}
        for column in LOGGED:
            if column in self.positions:
                value = self.value(row, column)
                name = self.name(self.positions[column]) or column
                cells[name] = "" if column.field.is_missing(value) else value.strip()
        return cells | {name: _cell(row, index).strip() for name, index in self.others.items()}

    def identity(self, row: Record) -> tuple[str, ...]:
        """Return all that the user wrote in a row, which identifies it when its line changes.

        Columns may be moved, and empty ones added, without a row becoming another one.
        """
        cells = {
            column.lower(): index
            for column, index in self.positions.items()
            if column not in WRITTEN
        }
        cells |= {name.lower(): index for name, index in self.others.items()}
        values = {name: _cell(row, index).strip() for name, index in cells.items()}
        return tuple(f"{name}\0{value}" for name, value in sorted(values.items()) if value)


def _cell(row: Record, index: int) -> str:
    return row.cells[index].value if index < len(row.cells) else ""
