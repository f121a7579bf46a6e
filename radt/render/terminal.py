"""Documents on a terminal: tables are split into parts that fit its width.

Nothing is omitted or truncated for lack of width. Works without colour.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from radt.render.model import Charts, ColumnHead, Document, Role, Row, Scope, Table, Tone, printable

_GAP, _INDENT = 2, 2
#: Minimum width of columns of words before a table is split.
_NARROWEST = 16
_MIN_WIDTH = 40
_WORD = re.compile(r"\S+\s*")
_PART = re.compile(r"[^-._/]*[-._/]+|[^-._/]+")
_STYLES = {
    Tone.NORMAL: "",
    Tone.STRONG: "bold",
    Tone.DIM: "dim",
    Tone.GOOD: "green",
    Tone.WARNING: "yellow",
    Tone.BAD: "red",
}


def print_document(console: Console, document: Document) -> None:
    """Print a document; sentences are wrapped on a terminal, but not in a file or a pipe."""
    for line in document_lines(document, console.width, wrap=console.is_terminal):
        console.print(line, soft_wrap=True)


def document_lines(document: Document, width: int, *, wrap: bool) -> Iterator[Text]:
    """Yield the lines of a document, with a blank line before, between, and after its blocks.

    Tables have this width in characters; `wrap` also wraps sentences at it.
    """

    def wrapped(text: str, style: str, indent: int) -> Iterator[Text]:
        lead, hanging = " " * indent, " " * (indent + _INDENT)
        room = max(_MIN_WIDTH, width) if wrap else len(lead + text) + 1
        for line in textwrap.wrap(
            text, room, initial_indent=lead, subsequent_indent=hanging, break_on_hyphens=False
        ):
            yield Text(line, style)

    yield Text()
    if document.title:
        yield from wrapped(printable(document.title), "bold", 0)
        yield from wrapped(" · ".join(document.facts), "dim", _INDENT)
        yield Text()
    for block in document:
        if isinstance(block, Charts):  # the tables have the numbers
            continue
        if block.title:
            yield from wrapped(printable(block.title), "bold", _INDENT)
        if isinstance(block, Table):
            yield from wrapped(printable(block.explanation), "dim", _INDENT)
            yield from table_lines(block, width)
        else:
            indent = 2 * _INDENT if block.title else _INDENT
            for note in block.notes:
                yield from wrapped(printable(note.line), _STYLES[note.tone], indent)
                for detail in note.details:
                    yield from wrapped(printable(detail), "dim", indent + _INDENT)
        yield Text()


def table_lines(table: Table, width: int) -> Iterator[Text]:
    """Yield the lines of a table, in parts that fit into the width."""
    for place, (part, widths) in enumerate(_parts(table, width - _INDENT)):
        if place:
            yield Text()
        yield from _lines(part, widths)


def _parts(table: Table, width: int) -> Iterator[tuple[Table, list[int]]]:
    """Yield the table in parts that fit, each with the widths of its columns.

    The first part takes as many values as fit. The rest is distributed evenly, values of rows
    before those of groups of rows, which need fewer rows.
    """
    rest = table.values
    if len({column.scope for column in rest}) > 1:
        first = _fitting(table, rest, width)
        yield _fitted(table, rest[:first], width)
        rest = rest[first:]
    elif not rest:
        yield _fitted(table, (), width)
    for scope in Scope:
        values = [column for column in rest if column.scope is scope]
        counts = _counts(table, values, width, len(values))
        if len(counts) > 1:
            even = _counts(table, values, width, math.ceil(len(values) / len(counts)))
            counts = even if len(even) == len(counts) else counts
        for count in counts:
            yield _fitted(table, values[:count], width)
            values = values[count:]


def _counts(table: Table, values: Sequence[ColumnHead], width: int, most: int) -> list[int]:
    """Return the number of values in each part."""
    counts = []
    while values:
        counts.append(_fitting(table, values[:most], width))
        values = values[counts[-1] :]
    return counts


def _fitting(table: Table, values: Sequence[ColumnHead], width: int) -> int:
    """Return the number of values that fit beside the lead columns; at least one."""
    count = 1
    while count < len(values) and _needed(table.part(values[: count + 1])) <= width:
        count += 1
    return count


def _needed(part: Table) -> int:
    widths = [
        min(width, _NARROWEST) if _folds(column) else width
        for column, width in zip(part.columns, _natural(part), strict=True)
    ]
    return _total(part, widths)


def _total(part: Table, widths: Sequence[int]) -> int:
    shown = [
        width
        for column, width in zip(part.columns, widths, strict=True)
        if column.role is not Role.HEADING
    ]
    return sum(shown) + _GAP * (len(shown) - 1) + (_INDENT if _heading(part) is not None else 0)


def _folds(column: ColumnHead) -> bool:
    return column.role is not Role.VALUE and not column.is_number


def _natural(part: Table) -> list[int]:
    """Return the widths without wrapping; columns of words have a maximum."""
    widths = [max(cell_len(text) for text in texts) for texts in zip(*_texts(part), strict=True)]
    return [
        min(width, column.widest) if _folds(column) else width
        for column, width in zip(part.columns, widths, strict=True)
    ]


def _texts(part: Table) -> Iterator[list[str]]:
    yield [printable(column.title) for column in part.columns]
    for row in part.rows:
        yield [printable(cell.text) for cell in row.cells]


def _fitted(table: Table, values: Sequence[ColumnHead], width: int) -> tuple[Table, list[int]]:
    """Return a part and its widths: columns of words shrink if values need the room."""
    part = table.part(values)
    widths = _natural(part)
    missing = _total(part, widths) - width
    for place, column in reversed(list(enumerate(part.columns))):
        if missing > 0 and _folds(column) and column.role is not Role.HEADING:
            less = min(missing, max(0, widths[place] - _NARROWEST))
            widths[place] -= less
            missing -= less
    return part, widths


def _heading(part: Table) -> int | None:
    places = (i for i, column in enumerate(part.columns) if column.role is Role.HEADING)
    return next(places, None)


def _lines(part: Table, widths: Sequence[int]) -> Iterator[Text]:
    heading = _heading(part)
    indent = _INDENT if heading is None else 2 * _INDENT
    shown = [place for place in range(len(part.columns)) if place != heading]

    def line(texts: Sequence[str], tones: Sequence[Tone]) -> Iterator[Text]:
        folded = {place: _fold(texts[place], widths[place]) for place in shown}
        for number in range(max(map(len, folded.values()), default=1)):
            composed = Text(" " * indent)
            for place in shown:
                text = folded[place][number] if number < len(folded[place]) else ""
                blank = " " * (widths[place] - cell_len(text))
                composed.append(blank if part.columns[place].is_number else "")
                composed.append(text, style=_STYLES[tones[place]])
                composed.append("" if part.columns[place].is_number else blank)
                composed.append(" " * _GAP)
            composed.rstrip()
            yield composed

    if any(column.title for place, column in enumerate(part.columns) if place != heading):
        yield from line(
            [printable(column.title) for column in part.columns], [Tone.DIM] * len(widths)
        )
    above = None
    for row in part.rows:
        texts = [printable(cell.text) for cell in row.cells]
        if heading is not None and texts[heading] != above:
            above = texts[heading]
            yield Text(" " * _INDENT + above, style="bold")
        yield from line(texts, [_tone(part, place, row) for place in range(len(texts))])
        if row.note:
            yield Text(" " * (indent + _INDENT) + printable(row.note), style="dim")


def _tone(part: Table, place: int, row: Row) -> Tone:
    tone = row.cells[place].tone
    is_key = part.columns[place].role is Role.KEY
    return Tone.STRONG if tone is Tone.NORMAL and is_key and row.is_first else tone


def _fold(text: str, width: int) -> list[str]:
    """Wrap a text at words; break a word that is too long after its punctuation."""
    lines = [""]
    for word in _WORD.findall(text):
        parts = [word] if cell_len(word.rstrip()) <= width else _PART.findall(word)
        for part in parts:
            for piece in chop_cells(part, width) if cell_len(part.rstrip()) > width else [part]:
                if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
                    lines.append("")
                lines[-1] += piece
    return [line.rstrip() for line in lines]
