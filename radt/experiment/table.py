"""Splits the text of an experiment file into records and cells that know their positions.

The ``csv`` module reports neither physical lines of cells nor their positions in the text. Both are
needed here: for messages that point at a line, and to write one cell without changing the others.
The rules are those of the ``csv`` module with ``skipinitialspace``: cells are separated by commas;
a cell in double quotes may contain commas, newlines and doubled quotes; blanks around it are
ignored; a quote within an unquoted cell is an ordinary character.

There are two additions. A line that starts with ``#`` is a comment, even if a spreadsheet has
quoted it and added empty cells. A line of blanks, or of empty cells only, is not a record.

Experiment files are read as a whole (`parse_table`), in UTF-8 and with commas only, because radt
writes into them. Logs of other programs may be long and come in any dialect (`TableStream`).
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO

BOM = "\ufeff"
UTF_16 = "utf-16"
#: Possible separators of cells; experiment files have commas.
SEPARATORS = (",", ";", "\t")

_NEWLINE = re.compile(r"\r\n|\n|\r")
_COMMENT = re.compile(r"[ \t]*#[^\r\n]*")
_BLANK = re.compile(r"[^\S\r\n]*(?=[\r\n]|\Z)")
#: A line without these consists of separators and plain cells.
_SPECIAL = re.compile('["#]')
#: Excel writes this line to declare the separator.
_SEPARATOR_HINT = re.compile(r'\s*"?sep=(.?)"?[\s,]*\Z', re.IGNORECASE)
#: Limits of a line, and of a record over several lines: a larger text is not a table.
_MAX_LINE_CHARS = 2**20
_MAX_RECORD_CHARS = 2**16
_MAX_TRIES = 50


@dataclass(frozen=True, slots=True)
class _Patterns:
    """The patterns of cells with one separator."""

    unquoted: re.Pattern[str]
    quoted: re.Pattern[str]
    opens_quote: re.Pattern[str]
    after_cell: re.Pattern[str]


@cache
def _patterns(separator: str) -> _Patterns:
    blank = " " if separator == "\t" else r"[ \t]"
    ends = rf"{re.escape(separator)}\r\n"
    return _Patterns(
        re.compile(rf"[^{ends}]*"),
        # Possessive, so that a cell of megabytes does not backtrack.
        re.compile(rf'{blank}*"((?:[^"]|"")*+)"{blank}*+'),
        re.compile(rf'{blank}*"'),
        re.compile(rf"[{ends}]|\Z"),
    )


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell: ``text[start:end]`` with its blanks; ``value`` without blanks and quotes.

    ``line`` is the physical line on which it begins.
    """

    start: int
    end: int
    value: str
    quoted: bool
    line: int


@dataclass(frozen=True, slots=True)
class Record:
    """The cells between two line ends outside quotes; ``line`` is the first physical line."""

    line: int
    cells: tuple[TableCell, ...]

    @property
    def start(self) -> int:
        return self.cells[0].start

    @property
    def end(self) -> int:
        return self.cells[-1].end

    @property
    def has_data(self) -> bool:
        """Return False if all cells are empty, or if they are a comment."""
        # `# note, with a comma` comes back from a spreadsheet as `"# note, with a comma",,,`.
        first, *others = self.cells
        is_comment = bool(others) and first.value.startswith("#")
        return any(cell.value for cell in (others if is_comment else self.cells))


@dataclass(frozen=True, slots=True)
class QuoteDefect:
    """A place where quotes do not match; ``index`` is the cell's position in its record."""

    line: int
    index: int
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A file's text and the records in it; ``header`` is the first one with data, if any."""

    text: str
    header: Record | None
    rows: tuple[Record, ...]
    defects: tuple[QuoteDefect, ...]


def parse_table(text: str) -> CsvTable:
    """Split the whole text. Never fails: problems with quotes are in ``defects``."""
    reader = _Reader(text)
    records = [record for record in reader.records() if record.has_data]
    if records and _SEPARATOR_HINT.match(text, records[0].start, records[0].end):
        del records[0]
    return CsvTable(
        text=text,
        header=records[0] if records else None,
        rows=tuple(records[1:]),
        defects=tuple(reader.defects),
    )


def encoding_of(start: bytes) -> str:
    """Return the encoding that a byte order mark names; without one, UTF-8."""
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return UTF_16 if start.startswith(marks) else "utf-8-sig"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A record without the positions of its cells; ``line`` is its first physical line."""

    line: int
    cells: list[str]


class TableStream:
    """The records of a table in any dialect, one at a time, so that it may be long.

    A byte order mark determines the encoding, a line ``sep=`` or the header itself the separator.
    Undecodable bytes become U+FFFD.

    Args:
        stream: A file at its start.
        at_rest: True if the file is no longer written to. Otherwise a last line without a line end
            is left out, because the rest of it is still to come.

    Attributes:
        comments: The comments above the header.
        header: The first record; None if there is none.
        separator: The separator of cells.
        defects: Unmatched quotes in the part read so far; their rows are left out.
    """

    def __init__(self, stream: BinaryIO, *, at_rest: bool = True) -> None:
        encoding = encoding_of(stream.read(len(codecs.BOM_UTF16_LE)))
        stream.seek(0)
        self._text = io.TextIOWrapper(stream, encoding, errors="replace", newline="")
        self._at_rest = at_rest
        self._is_cut = False
        self.comments: list[str] = []
        self.separator = ""
        self.defects: list[QuoteDefect] = []
        self.header: TableRow | None = None
        self._rows = self._read()
        self.header = next(self._rows, None)

    def rows(self) -> Iterator[TableRow]:
        """Yield the records below the header."""
        return self._rows

    def _read(self) -> Iterator[TableRow]:
        first, held, size, tries = 1, list[str](), 0, 0
        while (line := self._line(first + len(held))) or (held and self._at_rest):
            if self.header is None and not held and self._is_above(line):
                first += 1
                continue
            if self.header is not None and not held and not _SPECIAL.search(line):
                cells = [cell.strip() for cell in line.split(self.separator)]
                if any(cells):
                    yield TableRow(first, cells)
                first += 1
                continue
            held.append(line)
            size += len(line)
            may_go_on = bool(line) and size < _MAX_RECORD_CHARS and tries < _MAX_TRIES
            if may_go_on and tries and '"' not in line.replace('""', ""):
                continue  # this line does not close the quote
            text = "".join(held)
            if self.separator not in SEPARATORS:
                firsts = {each: next(_Reader(text, each).records()) for each in SEPARATORS}
                self.separator = max(SEPARATORS, key=lambda each: len(firsts[each].cells))
            reader = _Reader(text, self.separator, first)
            records = list(reader.records())
            if reader.is_open and may_go_on:
                tries += 1  # a cell continues on the next line, or a quote is never closed
                continue
            self.defects += reader.defects
            yield from self._sound(records, {defect.line for defect in reader.defects})
            first, held, size, tries = first + len(held), [], 0, 0

    def _sound(self, records: Sequence[Record], defective: Collection[int]) -> Iterator[TableRow]:
        for record in records:
            if record.has_data and (
                self.header is None or not any(cell.line in defective for cell in record.cells)
            ):
                yield TableRow(record.line, [cell.value for cell in record.cells])

    def _line(self, number: int) -> str:
        """Return the next line; "" at the end of the readable part."""
        line = "" if self._is_cut else self._text.readline(_MAX_LINE_CHARS)
        if line.endswith(("\n", "\r")):
            return line
        if len(line) == _MAX_LINE_CHARS:
            self._is_cut = True
            cause = f"the line has more than {_MAX_LINE_CHARS:,} characters"
            self.defects.append(QuoteDefect(number, 0, cause, "Split it"))
        return line if self._at_rest and not self._is_cut else ""

    def _is_above(self, line: str) -> bool:
        """Return whether a line precedes the header, and keep its information."""
        if _COMMENT.match(line):
            self.comments.append(line.strip())
        elif hint := _SEPARATOR_HINT.match(line):
            self.separator = hint[1]
        else:
            return not line.strip()
        return True


class _Reader:
    """A parser at ``position`` in the text that counts physical lines."""

    def __init__(self, text: str, separator: str = ",", line: int = 1) -> None:
        self.text = text
        self.position = len(BOM) if text.startswith(BOM) else 0
        self.line = line
        self.defects: list[QuoteDefect] = []
        #: True if no quote follows one that opens a cell.
        self.is_open = False
        self._separator = separator
        self._patterns = _patterns(separator)

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
        while self.text.startswith(self._separator, self.position):
            self.position += 1
            cells.append(self._cell(len(cells)))
        return Record(line, tuple(cells))

    def _cell(self, index: int) -> TableCell:
        start, line, patterns = self.position, self.line, self._patterns
        if patterns.opens_quote.match(self.text, start) is None:
            end = self._skip(patterns.unquoted)
            return TableCell(start, end, self.text[start:end].strip(), False, line)
        quoted = patterns.quoted.match(self.text, start)
        if quoted is not None and patterns.after_cell.match(self.text, quoted.end()) is not None:
            self.position = quoted.end()
            self.line += len(_NEWLINE.findall(quoted.group()))
            return TableCell(start, quoted.end(), quoted.group(1).replace('""', '"'), True, line)
        return self._badly_quoted(quoted, index)

    def _badly_quoted(self, quoted: re.Match[str] | None, index: int) -> TableCell:
        """Record the defect; continue at the next comma or, if that is far away, the next line."""
        start, line = self.position, self.line
        if quoted is not None and _NEWLINE.search(quoted.group()) is None:
            cause = "text follows the closing quote"
            remedy = 'Quote the whole cell and double the quotes within: "--name ""a b"""'
            self.position = quoted.end()
            end = self._skip(self._patterns.unquoted)
        else:
            # A quote that would close it belongs to a later cell. Skip only this line, so that
            # problems of the following lines are found in the same pass.
            cause = "the quote that opens here is never closed"
            remedy = 'Close it with ", or remove it'
            self.is_open |= quoted is None
            newline = _NEWLINE.search(self.text, start)
            end = self.position = newline.start() if newline is not None else len(self.text)
        self.defects.append(QuoteDefect(line, index, cause, remedy))
        return TableCell(start, end, self.text[start:end].strip(), False, line)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.position)
        assert match is not None  # both patterns match the empty string
        self.position = match.end()
        return self.position
