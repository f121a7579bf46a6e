"""The columns of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.experiment.table import Record


class Column(StrEnum):
    """What radt reads, in the original's order. Only ``File`` must be there."""

    EXPERIMENT = "Experiment"
    WORKLOAD = "Workload"
    NAME = "Name"
    STATUS = "Status"
    RUN = "Run"
    DEVICES = "Devices"
    COLLOCATION = "Collocation"
    LISTENERS = "Listeners"
    FILE = "File"
    PARAMS = "Params"


#: What radt itself writes; the rest says what a row is.
WRITTEN = (Column.STATUS, Column.RUN)
#: The columns that make two rows the same run, whatever their status.
IDENTITY = tuple(column for column in Column if column not in WRITTEN)

_BY_NAME: Mapping[str, Column] = {column.lower(): column for column in Column}


@dataclass(frozen=True, slots=True)
class Header:
    """Where each column stands; ``unknown`` and ``repeated`` are positions of headers in excess.

    A header without a name is none of these: trailing commas make such columns, and they may be
    there as long as they are empty.
    """

    record: Record
    positions: Mapping[Column, int]
    unknown: Sequence[int]
    repeated: Sequence[int]

    @classmethod
    def of(cls, record: Record) -> Header:
        positions: dict[Column, int] = {}
        unknown: list[int] = []
        repeated: list[int] = []
        for index, cell in enumerate(record.cells):
            name = cell.value.strip()
            column = _BY_NAME.get(name.lower())
            if column is None:
                if name:
                    unknown.append(index)
            elif column in positions:
                repeated.append(index)
            else:
                positions[column] = index
        return cls(record, positions, unknown, repeated)

    def name(self, index: int) -> str | None:
        """The header over this position, None beyond the last or where it is empty."""
        if index >= len(self.record.cells):
            return None
        return self.record.cells[index].value.strip() or None

    def value(self, row: Record, column: Column) -> str:
        """The row's cell in this column; empty where the file or the row lacks it."""
        index = self.positions.get(column)
        return row.cells[index].value if index is not None and index < len(row.cells) else ""

    def identity(self, row: Record) -> tuple[str, ...]:
        """The cells by which a row is found again, whatever its line and status."""
        return tuple(self.value(row, column).strip() for column in IDENTITY)
