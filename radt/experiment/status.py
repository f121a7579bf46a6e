"""Writes statuses and run ids back into an experiment file that its user may be editing.

An edit replaces single cells of the file's text and leaves everything else unchanged.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from radt.errors import RowsChangedError, StatusError
from radt.experiment.columns import Column, ColumnPositions
from radt.experiment.files import SharedFile
from radt.experiment.table import CsvTable, Record, TableCell, parse_table

#: Longer texts would make the file unreadable; the run's log has all details.
MAX_STATUS_LENGTH = 120


@dataclass(frozen=True, slots=True)
class RowStatus:
    """The new status of a row; with ``run_id`` None the Run cell stays unchanged."""

    text: str
    run_id: str | None = None


class StatusSink(Protocol):
    """Takes statuses of the rows of a plan, by the lines they were planned at."""

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        """Write several rows at once.

        Raises:
            StatusError: They could not be written; the next call includes them.
        """

    def flush(self) -> None:
        """Write statuses that could not be written before.

        Raises:
            StatusError: See `set_many`.
        """


@dataclass(frozen=True, slots=True)
class _Known:
    """The identity of a row, to find it when the file has changed.

    ``identity`` is all that the user wrote in it; ``ordinal`` and ``twins`` are its position among
    rows with the same identity, and their number; ``run_id`` is its Run cell.
    """

    identity: tuple[str, ...]
    ordinal: int
    twins: int
    run_id: str


class StatusWriter:
    """Updates the Status and Run cells of a file. Thread-safe.

    Every write reads the file again, so that concurrent edits are kept. A row is identified by
    the cells that the user wrote, not by its line: lines may be added, moved and removed during the
    runs. The caller holds the `ExperimentLock` of the file.

    Args:
        path: The file; a symbolic link is followed, not replaced.
        table: Its content as planned; read from the file if not given.

    Raises:
        StatusError: The file cannot be read.
    """

    def __init__(self, path: Path | str, table: CsvTable | None = None) -> None:
        self._file = SharedFile(path)
        self._lock = threading.Lock()
        self._pending: dict[int, RowStatus] = {}
        self._known = _known_rows(table or self._parse(self._file.read().content))

    def set(self, line: int, status_text: str, run_id: str | None = None) -> None:
        """Write the status, and the run id unless None, of the row planned at this line.

        Raises:
            StatusError: See `set_many`.
        """
        self.set_many({line: RowStatus(status_text, run_id)})

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        """Write several rows at once, by the lines they were planned at.

        Raises:
            StatusError: The file cannot be written or is not a table at the moment; the next call
                includes these statuses.
            RowsChangedError: The user has changed or removed a row. The other rows are written;
                the status of this one is dropped.
        """
        with self._lock:
            for line in statuses:
                if line not in self._known:
                    raise StatusError(
                        f"{self._file.path} had no run in line {line} when it was read"
                    )
            for line, status in statuses.items():
                self._pending[line] = merged(self._pending.get(line), status)
            self._write()

    def flush(self) -> None:
        """Write statuses that could not be written before, if there are any.

        Raises:
            StatusError: See `set_many`.
        """
        with self._lock:
            if self._pending:
                self._write()

    def _write(self) -> None:
        rows: dict[int, Record] = {}
        lost: list[int] = []

        def change(content: bytes) -> bytes:
            nonlocal rows, lost
            table = self._parse(content)
            rows, lost = self._locate(table)
            header = _header_of(table)
            for row in rows.values():
                if header.is_short(row):
                    raise self._file.invalid(f" has a row with too few cells in line {row.line}")
            edits = [RowEdit(row, _values(self._pending[line])) for line, row in rows.items()]
            return edited(table, header, edits).encode()

        self._file.rewrite(change)
        for line in rows:
            written = self._pending[line].run_id
            if written is not None:
                self._known[line] = replace(self._known[line], run_id=one_line(written))
        given_up = {line: self._pending[line].text for line in lost}
        self._pending.clear()
        if given_up:
            raise self._lost(given_up)

    def _locate(self, table: CsvTable) -> tuple[dict[int, Record], list[int]]:
        """Return the rows to write, by planned line, and the planned lines that are gone."""
        header = _header_of(table)
        by_identity: dict[tuple[str, ...], list[Record]] = {}
        for row in table.rows:
            by_identity.setdefault(header.identity(row), []).append(row)
        rows: dict[int, Record] = {}
        lost: list[int] = []
        for line in self._pending:
            known = self._known[line]
            twins = by_identity.get(known.identity, [])
            same_run = [row for row in twins if header.value(row, Column.RUN) == known.run_id]
            if known.run_id and len(same_run) == 1:
                rows[line] = same_run[0]
            elif len(twins) == known.twins:
                rows[line] = twins[known.ordinal]
            else:
                lost.append(line)
        return rows, lost

    def _lost(self, given_up: Mapping[int, str]) -> RowsChangedError:
        rows = "; ".join(f"line {line}: {text}" for line, text in sorted(given_up.items()))
        return RowsChangedError(
            f"{self._file.path}: rows that were changed or removed meanwhile did not get their "
            f"status ({rows})",
            "Write it into the file if the row is still the same run",
            sorted(given_up),
        )

    def _parse(self, content: bytes) -> CsvTable:
        try:
            table = parse_table(content.decode())
        except UnicodeDecodeError as error:
            raise self._file.invalid(" is no longer UTF-8") from error
        if table.defects:
            raise self._file.invalid(f" has an unclosed quote in line {table.defects[0].line}")
        if table.header is None or not ColumnPositions.of(table.header).names_programs:
            raise self._file.invalid(" no longer has a header")
        return table


def _known_rows(table: CsvTable) -> dict[int, _Known]:
    header = _header_of(table)
    twins = Counter(header.identity(row) for row in table.rows)
    seen: Counter[tuple[str, ...]] = Counter()
    known: dict[int, _Known] = {}
    for row in table.rows:
        identity = header.identity(row)
        known[row.line] = _Known(
            identity, seen[identity], twins[identity], header.value(row, Column.RUN)
        )
        seen[identity] += 1
    return known


def _header_of(table: CsvTable) -> ColumnPositions:
    assert table.header is not None  # as planned, or as checked by `_parse`
    return ColumnPositions.of(table.header)


def merged(earlier: RowStatus | None, later: RowStatus) -> RowStatus:
    if earlier is None or later.run_id is not None:
        return later
    return replace(later, run_id=earlier.run_id)


def _values(status: RowStatus) -> dict[Column, str]:
    values = {Column.STATUS: one_line(status.text)}
    if status.run_id is not None:
        values[Column.RUN] = one_line(status.run_id)
    return values


def one_line(text: str) -> str:
    """Return a text as one short line; characters that cannot be printed become ``?``."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= MAX_STATUS_LENGTH else line[: MAX_STATUS_LENGTH - 1] + "…"


@dataclass(frozen=True, slots=True)
class RowEdit:
    """New values for cells of one row."""

    row: Record
    values: Mapping[Column, str]


@dataclass(frozen=True, slots=True)
class _Splice:
    """The replacement of ``text[start:end]`` by ``new``."""

    start: int
    end: int
    new: str


def edited(table: CsvTable, header: ColumnPositions, edits: Sequence[RowEdit]) -> str:
    """Return the text with these cells changed.

    Missing columns are added at the end. A column whose cells are all padded to one width stays
    aligned: if a value needs more room, the column is widened in all rows. Other cells keep their
    padding if the value fits. A cell that has its value already is not touched.
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


def with_columns(table: CsvTable, names: Sequence[str]) -> str:
    """Return the text with empty columns of these names added at the end."""
    if not names or table.header is None:
        return table.text
    return _spliced(table.text, _new_columns(table, ColumnPositions.of(table.header), names, []))


def _spliced(text: str, splices: list[_Splice]) -> str:
    parts: list[str] = []
    position = 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        parts += [text[position : splice.start], splice.new]
        position = splice.end
    return "".join([*parts, text[position:]])


def _in_column(
    table: CsvTable, header: ColumnPositions, index: int, values: Sequence[tuple[Record, str]]
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
    table: CsvTable, header: ColumnPositions, columns: Sequence[str], edits: Sequence[RowEdit]
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
        if header.is_short(row):
            continue  # the user is editing this row
        own = values.get(row.start, {})
        appended: list[str] = ["" for _ in range(count, old_width)]
        for index, column in enumerate(columns, start=old_width):
            core = encoded(own.get(column, ""), index, quoted=False)
            if index >= count:
                appended.append(core)
            elif core:  # the row has additional trailing commas
                splices.append(_Splice(row.cells[index].start, row.cells[index].end, core))
        if appended:
            splices.append(_Splice(row.end, row.end, "".join(f",{core}" for core in appended)))
    return splices


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a column: ``width`` if all cells are padded to one, blanks before a value."""

    width: int | None
    lead: int
    right: bool

    @classmethod
    def of(cls, text: str, column: Sequence[TableCell], lead: int) -> _Layout:
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


def _is_set(table: CsvTable, header: ColumnPositions, index: int) -> bool:
    """Return whether cells of equal width are intended alignment rather than coincidence.

    `` Status`` above ``RUNNING`` is a coincidence if only the header has blanks after its commas
    and no other column is aligned.
    """

    def column(of: int) -> list[TableCell]:
        return [row.cells[of] for row in (header.record, *table.rows) if of < len(row.cells)]

    def is_padded(cell: TableCell) -> bool:
        raw = table.text[cell.start : cell.end]
        return raw != raw.strip()

    others = (other for other in range(len(header.record.cells)) if other != index)
    return any(map(is_padded, column(index)[1:])) or any(
        _Layout.of(table.text, column(other), 0).width is not None for other in others
    )


def _is_spaced(table: CsvTable, header: ColumnPositions) -> bool:
    """Return whether a blank follows every comma."""
    return all(
        table.text[cell.start].isspace()
        for record in (header.record, *table.rows)
        for cell in record.cells[1:]
        if cell.end > cell.start
    )


def _room(text: str, cell: TableCell, lead: int) -> int:
    """Return the width to keep for a cell: its own if it is padded, else 0."""
    raw = text[cell.start : cell.end]
    blanks = len(raw) - len(raw.strip())
    return len(raw) if blanks > lead or not raw.strip() else 0


def _core(text: str, cell: TableCell) -> str:
    return text[cell.start : cell.end].strip(" \t")


def encoded(value: str, index: int, quoted: bool = False) -> str:
    """Return the value as a cell, quoted if it must be or was."""
    special = any(character in value for character in ',"\r\n') or value != value.strip()
    comment = index == 0 and value.startswith("#")
    return '"' + value.replace('"', '""') + '"' if quoted or special or comment else value
