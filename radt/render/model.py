"""Documents of notes, tables and bar charts, independent of their format.

Reports, comparisons and advice fill a `Document`; `radt.render.terminal` and `radt.render.markup`
write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """Emphasis of a text; colour only adds to the words."""

    NORMAL = "normal"
    STRONG = "strong"
    DIM = "dim"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Role(StrEnum):
    """Role of a column when a table is split to fit a terminal."""

    HEADING = "heading"  # on a terminal, a line above its rows
    KEY = "key"  # repeated in each part
    LEAD = "lead"  # repeated in the parts that have values of its scope
    VALUE = "value"


class Scope(StrEnum):
    """Subject of the values of a column."""

    ROW = "row"
    GROUP = "group"  # several consecutive rows; the value is in the first of them


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text with its unit, for terminals.
        number: The number in the unit of the column, for tables that name the unit in the head; if
            empty, the text is shown.
        spread: The confidence interval after the number.
        explanation: Shown when the reader points at the cell.
        tone: Its emphasis.
        heat: Intensity of the background colour, from 0 to 1.
    """

    text: str = ""
    number: str = ""
    spread: str = ""
    explanation: str = ""
    tone: Tone = Tone.NORMAL
    heat: float = 0.0

    @property
    def text_in_unit(self) -> str:
        """Return the number with its spread, in the unit of the column."""
        return f"{self.number} {self.spread}".rstrip() if self.number else self.text


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column."""

    title: str
    unit: str = ""
    role: Role = Role.VALUE
    scope: Scope = Scope.ROW
    is_number: bool = True
    explanation: str = ""
    #: Words are folded at this width on a terminal, even if it has more room.
    widest: int = 34

    @property
    def head(self) -> str:
        """Return title and unit: ``time/epoch [s]``."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Row:
    """One cell per column; ``note`` is a remark on the row."""

    cells: Sequence[Cell]
    is_first: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    explanation: str = ""

    def lead(self, values: Sequence[Column]) -> list[Column]:
        """Return the columns to the left of these values."""
        scopes = {column.scope for column in values} or {column.scope for column in self.values}
        scope = Scope.GROUP if scopes == {Scope.GROUP} else Scope.ROW
        return [
            column
            for column in self.columns
            if column.role in (Role.HEADING, Role.KEY)
            or (column.role is Role.LEAD and column.scope is scope)
        ]

    @property
    def values(self) -> list[Column]:
        """Return the columns that hold values."""
        return [column for column in self.columns if column.role is Role.VALUE]

    def part(self, values: Sequence[Column]) -> Table:
        """Return a table of some of the values, without rows that have none of them."""
        columns = [*self.lead(values), *values]
        of_groups = bool(values) and all(column.scope is Scope.GROUP for column in values)
        indexes = [
            next(place for place, known in enumerate(self.columns) if known is column)
            for column in columns
        ]
        rows = [
            Row([row.cells[place] for place in indexes], row.is_first, row.note)
            for row in self.rows
            if row.is_first or not of_groups
        ]
        return Table(columns, rows, self.title, self.explanation)

    @property
    def whole(self) -> Table:
        """Return all values in one table."""
        return self.part(self.values)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence; ``mark`` precedes it, ``details`` follow below."""

    text: str
    tone: Tone = Tone.NORMAL
    mark: str = ""
    details: Sequence[str] = ()

    @property
    def line(self) -> str:
        """Return the mark and the text."""
        return f"{self.mark} {self.text}" if self.mark else self.text


@dataclass(frozen=True, slots=True)
class Notes:
    """A list of sentences."""

    notes: Sequence[Note]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart, in the chart's unit.

    Attributes:
        label: Text below the bar.
        value: Its height; None for a run without a value.
        low: Lower end of the confidence interval, None without one; ``high`` likewise.
        text: Text above the bar; the status in place of a bar without a value.
        style: Class of the colour.
        block: Heading of the group of bars.
        explanation: Shown when the reader points at the bar.
        is_estimated: Drawn paler.
    """

    label: str
    value: float | None
    text: str
    style: str
    block: str
    explanation: str
    low: float | None = None
    high: float | None = None
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars of one quantity."""

    title: str
    unit: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side, for formats with pictures; ``legend`` names colours by their class."""

    charts: Sequence[BarChart]
    legend: Sequence[tuple[str, str]] = ()


Block = Notes | Table | Charts


@dataclass(frozen=True, slots=True)
class Document:
    """A title, facts in one line below it, and blocks in order."""

    title: str
    facts: Sequence[str]
    blocks: Sequence[Block]

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks that have any content."""
        for block in self.blocks:
            match block:
                case Notes(notes=()) | Charts(charts=()) | Table(rows=()):
                    continue
                case _:
                    yield block


def printable(text: str) -> str:
    """Return the text with control characters spelled out: ``\\n``, ``\\x1b``."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
