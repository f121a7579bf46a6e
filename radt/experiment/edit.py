"""Write values into single cells of a file's text, and leave everything else unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from radt.experiment.columns import Column, Header
from radt.experiment.table import Cell, Record, Table


@dataclass(frozen=True, slots=True)
class RowEdit:
    """New values for cells of one row."""

    row: Record
    values: Mapping[Column, str]


@dataclass(frozen=True, slots=True)
class _Splice:
    """``text[start:end]`` becomes ``new``."""

    start: int
    end: int
    new: str


def edited(table: Table, header: Header, edits: Sequence[RowEdit]) -> str:
    """Return the text with these cells changed.

    Columns that are missing are added at the end. A column whose cells are all padded to one width
    stays so: it is widened, in all its rows, where a value needs more room. Other cells keep their
    blanks where the value fits into them. A cell that has its value already is not touched.
    """
    splices: list[_Splice] = []
    wanted = list(dict.fromkeys(column for edit in edits for column in edit.values))
    for column in wanted:
        if column in header.positions:
            values = [(edit.row, edit.values[column]) for edit in edits if column in edit.values]
            splices += _in_column(table, header, header.positions[column], values)
    missing = [column for column in wanted if column not in header.positions]
    if missing:
        splices += _new_columns(table, header, missing, edits)
    return _spliced(table.text, splices)


def with_columns(table: Table, names: Sequence[str]) -> str:
    """Return the text with empty columns of these names added at the end."""
    if not names or table.header is None:
        return table.text
    return _spliced(table.text, _new_columns(table, Header.of(table.header), names, []))


def _spliced(text: str, splices: list[_Splice]) -> str:
    parts: list[str] = []
    position = 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        parts += [text[position : splice.start], splice.new]
        position = splice.end
    return "".join([*parts, text[position:]])


def _in_column(
    table: Table, header: Header, index: int, values: Sequence[tuple[Record, str]]
) -> list[_Splice]:
    changed = [
        (row.cells[index], value)
        for row, value in values
        if index < len(row.cells) and row.cells[index].value != value
    ]
    if not changed:
        return []
    records = (header.record, *table.rows)
    column = [record.cells[index] for record in records if index < len(record.cells)]
    lead = int(_is_spaced(table, header))
    layout = _Layout.of(table.text, column, lead)
    if layout.width is not None and not _is_set(table, header, index):
        layout = replace(layout, width=None)
    cores = {cell.start: encoded(value, index, cell.quoted) for cell, value in changed}
    if layout.width is None:
        return [
            _Splice(
                cell.start,
                cell.end,
                layout.placed(cores[cell.start], _room(table.text, cell, layout.lead)),
            )
            for cell, _ in changed
        ]
    width = max(layout.width, *(len(core) + layout.lead for core in cores.values()))
    touched = [cell for cell, _ in changed] if width == layout.width else column
    return [
        _Splice(
            cell.start,
            cell.end,
            layout.placed(cores.get(cell.start, _core(table.text, cell)), width),
        )
        for cell in touched
    ]


def _new_columns(
    table: Table, header: Header, columns: Sequence[str], edits: Sequence[RowEdit]
) -> list[_Splice]:
    """Return splices that append columns to the header and to every row that is as wide as it."""
    old_width = len(header.record.cells)
    end = header.record.end
    splices = [_Splice(end, end, "".join(f",{column}" for column in columns))]
    values = {
        edit.row.start: {str(column): text for column, text in edit.values.items()}
        for edit in edits
    }
    for row in table.rows:
        count = len(row.cells)
        if any(header.name(index) is not None for index in range(count, old_width)):
            continue  # somebody is at work on this row
        own = values.get(row.start, {})
        appended: list[str] = ["" for _ in range(count, old_width)]
        for index, column in enumerate(columns, start=old_width):
            core = encoded(own.get(column, ""), index, quoted=False)
            if index >= count:
                appended.append(core)
            elif core:  # the row has more commas than the header, with nothing after them
                splices.append(_Splice(row.cells[index].start, row.cells[index].end, core))
        if appended:
            splices.append(_Splice(row.end, row.end, "".join(f",{core}" for core in appended)))
    return splices


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a column: ``width`` if padding gives all cells one, blanks before a value."""

    width: int | None
    lead: int
    right: bool

    @classmethod
    def of(cls, text: str, column: Sequence[Cell], lead: int) -> _Layout:
        raws = [text[cell.start : cell.end] for cell in column]
        filled = [raw for raw in raws if raw.strip()]
        leads = [len(raw) - len(raw.lstrip()) for raw in filled]
        trails = [len(raw) - len(raw.rstrip()) for raw in filled]
        padded = any(raw != raw.strip() for raw in raws)
        even = len({len(raw) for raw in raws}) == 1 and not any(
            control in raw for raw in raws for control in "\t\r\n"
        )
        return cls(
            width=len(raws[0]) if padded and even and len(raws) > 1 else None,
            lead=lead,
            right=sum(leads) > sum(trails) + len(leads) * lead,
        )

    def placed(self, core: str, width: int) -> str:
        if self.right:
            return core.rjust(max(width, len(core) + self.lead))
        return " " * self.lead + core.ljust(width - self.lead)


def _is_set(table: Table, header: Header, index: int) -> bool:
    """Return whether a column of cells of one width has it on purpose.

    `` Status`` above ``RUNNING`` is not, where the header has blanks after its commas, rows have
    none, and no other column is even.
    """

    def column(of: int) -> list[Cell]:
        return [row.cells[of] for row in (header.record, *table.rows) if of < len(row.cells)]

    def is_padded(cell: Cell) -> bool:
        raw = table.text[cell.start : cell.end]
        return raw != raw.strip()

    others = (other for other in range(len(header.record.cells)) if other != index)
    return any(map(is_padded, column(index)[1:])) or any(
        _Layout.of(table.text, column(other), 0).width is not None for other in others
    )


def _is_spaced(table: Table, header: Header) -> bool:
    """Return whether a blank follows every comma."""
    return all(
        table.text[cell.start].isspace()
        for record in (header.record, *table.rows)
        for cell in record.cells[1:]
        if cell.end > cell.start
    )


def _room(text: str, cell: Cell, lead: int) -> int:
    """Return the width that a cell offers: its own if it is padded, else none."""
    raw = text[cell.start : cell.end]
    blanks = len(raw) - len(raw.strip())
    return len(raw) if blanks > lead or not raw.strip() else 0


def _core(text: str, cell: Cell) -> str:
    return text[cell.start : cell.end].strip(" \t")


def encoded(value: str, index: int, quoted: bool = False) -> str:
    """Return the value as a cell, quoted if it must be or was."""
    special = any(character in value for character in ',"\r\n') or value != value.strip()
    comment = index == 0 and value.startswith("#")
    return '"' + value.replace('"', '""') + '"' if quoted or special or comment else value
