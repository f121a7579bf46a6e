"""Documents as Markdown: GitHub's tables, for pages, issues and comments of pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from radt.render.model import Block, Document, Note, Notes, Table, Tone, printable

#: What GitHub's Markdown would read as its own.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def as_markdown(document: Document) -> str:
    """Return the document without its charts, whose numbers the tables have."""
    parts = [f"# {escape(document.title)}", escape(" · ".join(document.facts))]
    for block in document:
        parts += _block(block)
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return a text that is only text in Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))


def _block(block: Block) -> Iterator[str]:
    match block:
        case Table():
            if block.title:
                yield f"## {escape(block.title)}"
            yield escape(block.explanation)
            yield _table(block.whole)
        case Notes():
            if block.title:
                yield f"## {escape(block.title)}"
            yield "\n".join(line for note in block.notes for line in _note(note))


def _note(note: Note) -> Iterator[str]:
    text = escape(note.line)
    yield f"- **{text}**" if note.tone is Tone.STRONG else f"- {text}"
    for detail in note.details:
        yield f"  - {escape(detail)}"


def _table(table: Table) -> str:
    rows = [[escape(column.head) for column in table.columns]]
    rows.append(["---:" if column.is_number else "---" for column in table.columns])
    for row in table.rows:
        cells = [escape(cell.text_in_unit) for cell in row.cells]
        if row.note:
            cells[_note_place(table)] += f"; {escape(row.note)}"
        rows.append(cells)
    return "\n".join(map(_line, rows))


def _note_place(table: Table) -> int:
    """The last column of words."""
    return max(place for place, column in enumerate(table.columns) if not column.is_number)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
