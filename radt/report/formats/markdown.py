"""A report as Markdown: GitHub's tables, for documents and issues."""

from __future__ import annotations

from collections.abc import Sequence

from radt.model import RunStatus
from radt.report.formats.columns import INTERVAL_WORDS, Column, column
from radt.report.formats.content import Content, Line, runs_text, visible
from radt.report.formats.matrix import Matrix, matrices
from radt.report.formats.tables import Sheet, sheets
from radt.units import NO_VALUE


def as_markdown(content: Content) -> str:
    """Tables, what is to be known of them, and the interference matrix if there is one."""
    parts = [f"# {plain(content.title)}", f"Window: {plain(content.window)}. {INTERVAL_WORDS}"]
    parts += [_sheet(sheet) for sheet in sheets(content)]
    for matrix in matrices(content):
        parts += [f"## {matrix.title}", plain(matrix.explanation), _matrix(matrix)]
    if content.notes:
        parts.append("\n".join(f"- {plain(note)}" for note in content.notes))
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """A name in Markdown is only a name."""
    one_line = visible(" ".join(text.split()))
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#|!~&" else c for c in one_line)


def _sheet(sheet: Sheet) -> str:
    columns = [column(one, sheet.estimates(one)) for one in sheet.quantities]
    heads = ["workload", *(["runs"] if sheet.of_runs else []), "n"]
    left = len(heads) - 1
    rows = [[*heads, *(one.head for one in columns)]]
    rows.append(["---"] * left + ["---:"] * (len(columns) + 1))
    rows += [_row(sheet, line, columns) for line in sheet.lines]
    return "\n".join(map(_line, rows))


def _row(sheet: Sheet, line: Line, columns: Sequence[Column]) -> list[str]:
    cells = [plain(line.item.name)]
    if sheet.of_runs:
        ended = "" if line.group.status is RunStatus.FINISHED else f" {line.group.status}"
        cells.append(f"{plain(runs_text(line.group))}{ended}")
    cells.append(sheet.count_text(line))
    for one in columns:
        shared = not sheet.is_told(line, one.quantity)
        text = "" if shared else one.text(line.estimate(one.quantity))
        cells.append(text.replace("~", "\\~"))
    return cells


def _matrix(matrix: Matrix) -> str:
    rows = [["", *map(plain, matrix.columns)]]
    rows.append(["---"] + ["---:"] * len(matrix.columns))
    rows += [
        [plain(name), *(NO_VALUE if cell is None else cell.text for cell in cells)]
        for name, cells in zip(matrix.rows, matrix.cells, strict=True)
    ]
    return "\n".join(map(_line, rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
