"""Documents of notes, tables and bar charts, independent of their format.

Reports, comparisons and advice fill a `Document`; `radt.render.terminal` and `radt.render.markup`
render it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radt.analysis.estimates import Estimate
    from radt.render.bars import BarChart
    from radt.render.report_content import SharingMode


class Tone(StrEnum):
    """Emphasis of a text. Colour never adds information to the words."""

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
    LEAD = "lead"  # repeated in the parts with values of its scope
    VALUE = "value"


class Scope(StrEnum):
    """Subject of the values of a column."""

    ROW = "row"
    GROUP = "group"  # several consecutive rows, with the value in the first


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text with its unit, for terminals.
        number: The number in the unit of the column, for tables with units in the head. If empty,
            the text is shown.
        spread: The confidence interval after the number.
        explanation: Tooltip of the cell.
        tone: Its emphasis.
        heat: Intensity of the background colour, from 0 to 1.
        estimate: The exact value of a cell with heat.
        href: Target of a link on the text, in HTML.
        colours: Colours of a mark before the text in HTML, on light and on dark paper.
    """

    text: str = ""
    number: str = ""
    spread: str = ""
    explanation: str = ""
    tone: Tone = Tone.NORMAL
    heat: float = 0.0
    estimate: Estimate | None = None
    href: str = ""
    colours: tuple[str, str] | None = None

    @property
    def text_in_unit(self) -> str:
        """Return the number with its spread, in the unit of the column."""
        return f"{self.number} {self.spread}".rstrip() if self.number else self.text


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """The head of a column. In HTML, a column with ``sort`` is a button with that name.

    ``order`` is the sort order of the rows by it: ``ascending``, ``descending`` or empty.
    """

    title: str
    unit: str = ""
    role: Role = Role.VALUE
    scope: Scope = Scope.ROW
    is_number: bool = True
    explanation: str = ""
    #: On a terminal, words wrap at this width even if there is more room.
    widest: int = 34
    sort: str = ""
    order: str = ""

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

    columns: Sequence[ColumnHead]
    rows: Sequence[Row]
    title: str = ""
    explanation: str = ""

    @property
    def last_words(self) -> int:
        """Return the index of the last column of words, which has the remarks on rows."""
        return max(place for place, column in enumerate(self.columns) if not column.is_number)

    @property
    def values(self) -> list[ColumnHead]:
        """Return the columns that hold values."""
        return [column for column in self.columns if column.role is Role.VALUE]

    def part(self, values: Sequence[ColumnHead], scope: Scope | None = None) -> Table:
        """Return a table of some of the values, and the columns to the left of them.

        Args:
            values: The columns of values.
            scope: List rows, or groups of rows. By default groups, if all the values belong to
                groups.
        """
        scopes = {column.scope for column in values or self.values}
        scope = scope or (Scope.GROUP if scopes == {Scope.GROUP} else Scope.ROW)
        lead = [
            column
            for column in self.columns
            if column.role in (Role.HEADING, Role.KEY)
            or (column.role is Role.LEAD and column.scope is scope)
        ]
        columns = [*lead, *values]
        indexes = [
            next(place for place, known in enumerate(self.columns) if known is column)
            for column in columns
        ]
        rows = [
            Row([row.cells[place] for place in indexes], row.is_first, row.note)
            for row in self.rows
            if row.is_first or scope is Scope.ROW or not values
        ]
        return Table(columns, rows, self.title, self.explanation)

    @property
    def whole(self) -> Table:
        """Return all values in one table."""
        return self.part(self.values)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence, preceded by ``mark`` and followed by ``details``."""

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
class Charts:
    """Charts side by side, for formats with pictures. ``legend`` names their colours."""

    charts: Sequence[BarChart]
    legend: Sequence[SharingMode] = ()


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
