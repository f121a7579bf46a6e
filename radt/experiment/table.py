"""Split the text of an experiment file into records and cells that know their place.

The ``csv`` module gives neither physical lines of cells nor their place in the text; both are
needed here, for messages that point at a line and for writing one cell without touching the
others. The rules are the ``csv`` module's with ``skipinitialspace``: cells are separated by
commas; a cell in double quotes may hold commas, newlines and doubled quotes; blanks around it do
not count; a quote within an unquoted cell is an ordinary character.

Two things are added. A line that starts with ``#`` is a comment, also where a spreadsheet has put
it in quotes and added empty cells. A line of blanks, or of empty cells alone, is no record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

BOM = "\ufeff"

_NEWLINE = re.compile(r"\r\n|\n|\r")
_COMMENT = re.compile(r"[ \t]*#[^\r\n]*")
_BLANK = re.compile(r"[^\S\r\n]*(?=[\r\n]|\Z)")
_UNQUOTED = re.compile(r"[^,\r\n]*")
# Possessive, so that a cell of megabytes does not backtrack.
_QUOTED = re.compile(r'[ \t]*"((?:[^"]|"")*+)"[ \t]*+')
_OPENS_QUOTE = re.compile(r'[ \t]*"')
_AFTER_CELL = re.compile(r"[,\r\n]|\Z")
#: Excel writes this line to say what separates cells.
_SEPARATOR_HINT = re.compile(r'\s*"?sep=.?"?[\s,]*\Z', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: ``text[start:end]`` with its blanks; ``value`` without blanks and quotes.

    ``line`` is the physical line on which it begins.
    """

    start: int
    end: int
    value: str
    quoted: bool
    line: int


class RecordKind(Enum):
    """The kind of a record."""

    DATA = "data"
    COMMENT = "comment"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Record:
    """The cells between two line ends outside quotes; ``line`` is the first physical line."""

    line: int
    cells: tuple[Cell, ...]
    kind: RecordKind

    @property
    def start(self) -> int:
        return self.cells[0].start

    @property
    def end(self) -> int:
        return self.cells[-1].end


@dataclass(frozen=True, slots=True)
class Defect:
    """A place where quotes do not match; ``index`` is the cell's position in its record."""

    line: int
    index: int
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Table:
    """A file's text and the records in it; ``header`` is the first one with data, if any."""

    text: str
    header: Record | None
    rows: tuple[Record, ...]
    defects: tuple[Defect, ...]


def parse_table(text: str) -> Table:
    """Split the whole text; this never fails: problems with quotes are in ``defects``."""
    reader = _Reader(text)
    records = [record for record in reader.records() if record.kind is RecordKind.DATA]
    if records and _SEPARATOR_HINT.match(text, records[0].start, records[0].end):
        del records[0]
    return Table(
        text=text,
        header=records[0] if records else None,
        rows=tuple(records[1:]),
        defects=tuple(reader.defects),
    )


class _Reader:
    """A pass over the text, from ``position``, that counts physical lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = len(BOM) if text.startswith(BOM) else 0
        self.line = 1
        self.defects: list[Defect] = []

    def records(self) -> Iterator[Record]:
        while self.position < len(self.text):
            outside = _COMMENT.match(self.text, self.position) or _BLANK.match(
                self.text, self.position
            )
            if outside is not None:
                self.position = outside.end()
            else:
                yield self._record()
            self._end_line()

    def _end_line(self) -> None:
        newline = _NEWLINE.match(self.text, self.position)
        if newline is not None:
            self.position = newline.end()
            self.line += 1

    def _record(self) -> Record:
        line = self.line
        cells = [self._cell(0)]
        while self.text.startswith(",", self.position):
            self.position += 1
            cells.append(self._cell(len(cells)))
        return Record(line, tuple(cells), _kind_of(cells))

    def _cell(self, index: int) -> Cell:
        start, line = self.position, self.line
        if _OPENS_QUOTE.match(self.text, start) is None:
            end = self._skip(_UNQUOTED)
            return Cell(start, end, self.text[start:end].strip(), False, line)
        quoted = _QUOTED.match(self.text, start)
        closed = quoted is not None and _AFTER_CELL.match(self.text, quoted.end()) is not None
        if quoted is not None and closed:
            self.position = quoted.end()
            self.line += len(_NEWLINE.findall(quoted.group()))
            return Cell(start, quoted.end(), quoted.group(1).replace('""', '"'), True, line)
        return self._badly_quoted(quoted, index)

    def _badly_quoted(self, quoted: re.Match[str] | None, index: int) -> Cell:
        """Record the defect, and go on at the next comma or, if that is far off, the next line."""
        start, line = self.position, self.line
        if quoted is not None and _NEWLINE.search(quoted.group()) is None:
            self.defects.append(
                Defect(
                    line,
                    index,
                    "text follows the closing quote",
                    'Quote the whole cell and double the quotes within: "--name ""a b"""',
                )
            )
            self.position = quoted.end()
            end = self._skip(_UNQUOTED)
        else:
            # What closes it, if anything, is some later cell's quote. Only this line is given up,
            # so that problems of the following ones are found in the same go.
            self.defects.append(
                Defect(
                    line,
                    index,
                    "the quote that opens here is never closed",
                    'Close it with ", or remove it',
                )
            )
            newline = _NEWLINE.search(self.text, start)
            end = self.position = newline.start() if newline is not None else len(self.text)
        return Cell(start, end, self.text[start:end].strip(), False, line)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.position)
        assert match is not None  # both patterns match the empty string
        self.position = match.end()
        return self.position


def _kind_of(cells: list[Cell]) -> RecordKind:
    filled = [cell for cell in cells if cell.value]
    if not filled:
        return RecordKind.EMPTY
    # `# note, with a comma` comes back from a spreadsheet as `"# note, with a comma",,,`.
    if filled == cells[:1] and len(cells) > 1 and cells[0].value.startswith("#"):
        return RecordKind.COMMENT
    return RecordKind.DATA
