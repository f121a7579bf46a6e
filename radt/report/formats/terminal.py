"""A report on a terminal: as many columns side by side as fit, the others in tables below.

Nothing is left out for want of room; at 80 columns there are more tables than at 160. Works without
colour: bold and dim only help to find one's way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt.model import RunStatus
from radt.report.formats.columns import INTERVAL_WORDS, with_unit
from radt.report.formats.content import Content, Line, runs_text, visible
from radt.report.formats.matrix import Matrix, matrices
from radt.report.formats.tables import Sheet, is_shared, sheets
from radt.report.quantities import ABOUT, Quantity
from radt.report.tables import energy_table
from radt.units import NO_VALUE

_GAP, _INDENT = 2, 2
_NAME_CHARS, _RUNS_CHARS, _PARAMS_CHARS, _MODEL_CHARS = 16, 18, 34, 18


@dataclass(frozen=True, slots=True)
class _Column:
    """The head of a column and its cells; where ``most`` is set, longer ones are folded or cut."""

    head: str
    cells: Sequence[str]
    is_number: bool = True
    most: int | None = None
    folds: bool = False

    @property
    def width(self) -> int:
        widest = max(map(cell_len, (self.head, *self.cells)))
        return widest if self.most is None else min(widest, self.most)


@dataclass(frozen=True, slots=True)
class _Part:
    """A table: what it tells, and its columns."""

    quantities: tuple[Quantity, ...]
    columns: Sequence[_Column]


def print_report(console: Console, content: Content) -> None:
    """All of a report, as wide as the console."""
    for part in _parts(content, console.width):
        console.print(part)


def _parts(content: Content, width: int) -> Iterator[RenderableType]:
    for sheet in sheets(content):
        for part in _tables(sheet, width - _INDENT):
            yield _drawn(part.columns)
            yield ""
    # The share of each run, and what none of them is given: the column has only their sum.
    if (energies := energy_table([item.summary for item in content.items])) is not None:
        yield energies
        yield ""
    for matrix in matrices(content):
        yield _indented(Text(visible(matrix.title), style="bold"))
        yield _indented(Text(matrix.explanation, style="dim"))
        for columns in _parted(matrix, width - _INDENT):
            yield _drawn(columns)
            yield ""
    for sentence in notes(content):
        yield _indented(Text(visible(sentence), style="dim"))


def notes(content: Content) -> Iterator[str]:
    """The window, what ± means, and what else has to be known."""
    if content.items:
        yield f"Window: {content.window}."
    if any(
        found.interval is not None
        for line in content.lines
        for quantity in content.quantities
        if (found := line.estimate(quantity)) is not None
    ):
        yield INTERVAL_WORDS
    yield from content.notes
    if any(report.left_out for report in content.reports):
        yield "--profiled shows what a profiler slowed down."


def _tables(sheet: Sheet, width: int) -> list[_Part]:
    """The columns of a sheet, shared out among tables that fit, each with what its lines are."""
    if sheet.title:
        return _evenly(sheet, width)
    # It says how runs ended, also if they came to no value.
    first = _part(sheet, sheet.quantities, width, with_ends=True)
    rest = [one for one in sheet.quantities if one not in first.quantities]
    runs = tuple(one for one in rest if not is_shared(one))
    shared = tuple(one for one in rest if is_shared(one))
    return [
        first,
        *_filled(replace(sheet, quantities=runs), width, len(runs)),
        *_evenly(replace(sheet, quantities=shared, of_runs=False), width),
    ]


def _evenly(sheet: Sheet, width: int) -> list[_Part]:
    """As few tables as can be, but none with the one column that was left over."""
    found = list(_filled(sheet, width, len(sheet.quantities)))
    if len(found) < 2:
        return found
    evenly = list(_filled(sheet, width, math.ceil(len(sheet.quantities) / len(found))))
    return evenly if len(evenly) == len(found) else found


def _filled(sheet: Sheet, width: int, most: int) -> Iterator[_Part]:
    """As many columns a table as fit, ``most`` at the utmost."""
    rest = [one for one in sheet.quantities if one is not Quantity.ENERGY_OF_RUNS]
    while rest:
        part = _part(sheet, rest[:most], width)
        yield part
        rest = rest[len(part.quantities) :]


def _part(
    sheet: Sheet, quantities: Sequence[Quantity], width: int, *, with_ends: bool = False
) -> _Part:
    """A table with as many of the first of some quantities as fit, one at least."""
    # What is of the workloads alone needs no line for each group of their runs.
    lines = [line for line in sheet.lines if sheet.of_runs or line.is_first]
    room = width - sum(one.width + _GAP for one in _lead(sheet, lines, ()))
    made: list[_Column] = []
    for quantity in quantities:
        column = _values(sheet, lines, quantity, with_ends=with_ends and not made)
        room -= column.width + _GAP
        if made and room + _GAP < 0:
            break
        made.append(column)
    taken = tuple(quantities[: len(made)])
    if with_ends and not made:
        made.append(_Column("result", [_end(line) or NO_VALUE for line in lines]))
    return _Part(taken, [*_lead(sheet, lines, taken), *made])


def _lead(sheet: Sheet, lines: Sequence[Line], quantities: Sequence[Quantity]) -> list[_Column]:
    """Workload, machine if there are several, runs, number of repeats."""
    firsts = [line.is_first for line in lines]
    found = [
        _Column(
            "workload",
            [line.item.name if first else "" for line, first in zip(lines, firsts, strict=True)],
            is_number=False,
            most=_NAME_CHARS + (_NAME_CHARS if _several_hosts(lines) else 0),
            folds=_several_hosts(lines),
        )
    ]
    if sheet.of_runs:
        # Parameters are told in full, if need be on several lines.
        told = any(run.name != run.run.name for line in lines for run in line.group.runs)
        # The table that begins with times says there how runs ended.
        ended = [f" {_end(line)}" if sheet.title and _end(line) else "" for line in lines]
        texts = [f"{runs_text(line.group)}{end}" for line, end in zip(lines, ended, strict=True)]
        most = _PARAMS_CHARS if told else _RUNS_CHARS
        found.append(_Column("runs", texts, is_number=False, most=most, folds=told))
    counted = replace(sheet, quantities=tuple(quantities))
    found.append(_Column("n", [counted.count_text(line) for line in lines]))
    return found


def _several_hosts(lines: Sequence[Line]) -> bool:
    return len({line.item.summary.host for line in lines}) > 1


def _values(sheet: Sheet, lines: Sequence[Line], quantity: Quantity, *, with_ends: bool) -> _Column:
    cells = []
    for line in lines:
        text = with_unit(quantity, line.estimate(quantity), brief=bool(sheet.title))
        text = text if sheet.is_told(line, quantity) else ""
        cells.append(_end(line) or text if with_ends else text)
    return _Column(ABOUT[quantity].title, cells)


def _end(line: Line) -> str:
    """How runs ended that did not finish."""
    status = line.group.status
    return "" if status is RunStatus.FINISHED else status.value


def _parted(matrix: Matrix, width: int) -> Iterator[list[_Column]]:
    """A matrix, in parts that fit."""
    rest = [
        _Column(
            _cut(head),
            [NO_VALUE if (cell := row[place]) is None else cell.text for row in matrix.cells],
        )
        for place, head in enumerate(matrix.columns)
    ]
    names = _Column("", list(map(_cut, matrix.rows)), is_number=False)
    while rest:
        room = width - names.width
        taken: list[_Column] = []
        while rest and (not taken or room >= rest[0].width + _GAP):
            room -= rest[0].width + _GAP
            taken.append(rest.pop(0))
        yield [names, *taken]


def _cut(name: str) -> str:
    return name if len(name) <= _MODEL_CHARS else f"{name[: _MODEL_CHARS - 1]}…"


def _drawn(columns: Sequence[_Column]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for one in columns:
        table.add_column(
            Text(visible(one.head)),
            justify="right" if one.is_number else "left",
            no_wrap=not one.folds,
            overflow="fold" if one.folds else "ellipsis",
            max_width=one.most,
        )
    for cells in zip(*(one.cells for one in columns), strict=True):
        first, *others = cells
        table.add_row(Text(visible(first), style="bold"), *(Text(visible(one)) for one in others))
    return _indented(table)


def _indented(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, _INDENT), expand=False)
