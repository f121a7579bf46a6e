"""The columns of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.experiment import schema
from radt.experiment.table import Record


class Column(StrEnum):
    """What radt reads, in the order of ``schemas/experiment.schema.json``, which describes them.

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
    def field(self) -> schema.Field:
        """What the schema says of it."""
        return schema.fields()[self]

    @classmethod
    def named(cls, name: str) -> Column | None:
        """The column with this name, in any case."""
        return _BY_NAME.get(name.strip().lower())


_BY_NAME: Mapping[str, Column] = {column.lower(): column for column in Column}

#: What radt itself writes; the rest, with the user's own columns, says what a row is.
WRITTEN = frozenset((Column.STATUS, Column.RUN))
#: A row needs one of these to say what it runs.
PROGRAM = frozenset((Column.FILE, Column.MODEL))
#: Columns that radt reads and that are logged as parameters like the user's own.
LOGGED = (Column.MODEL, Column.DATA)


@dataclass(frozen=True, slots=True)
class Header:
    """Where each column stands.

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
        """Whether it has a column that says what a row runs; without one it is no header."""
        return not PROGRAM.isdisjoint(self.positions)

    def name(self, index: int) -> str | None:
        """The header over this position, None beyond the last or where it is empty."""
        if index >= len(self.record.cells):
            return None
        return self.record.cells[index].value.strip() or None

    def value(self, row: Record, column: Column) -> str:
        """The row's cell in this column; empty where the file or the row lacks it."""
        index = self.positions.get(column)
        return "" if index is None else _cell(row, index)

    def values(self, row: Record) -> dict[Column, str]:
        """The row's cells in the columns that radt reads and that the file has."""
        return {column: _cell(row, index) for column, index in self.positions.items()}

    def logged(self, row: Record) -> dict[str, str]:
        """The row's cells that are logged as they are, by the name in the header."""
        cells: dict[str, str] = {}
        for column in LOGGED:
            if column in self.positions:
                value = self.value(row, column)
                name = self.name(self.positions[column]) or column
                cells[name] = "" if column.field.is_missing(value) else value.strip()
        return cells | {name: _cell(row, index).strip() for name, index in self.others.items()}

    def identity(self, row: Record) -> tuple[str, ...]:
        """What a row is found again by, whatever its line and status: all that the user wrote.

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
