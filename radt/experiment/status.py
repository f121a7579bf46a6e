"""Write statuses and run ids back into an experiment file that its user may be editing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from radt.errors import StatusError
from radt.experiment.columns import Column, Header
from radt.experiment.edit import RowEdit, edited
from radt.experiment.files import SharedFile
from radt.experiment.table import Record, Table, parse_table

#: Longer texts would make the file unreadable; the whole story is in the run's log.
MAX_STATUS_LENGTH = 120


@dataclass(frozen=True, slots=True)
class RowStatus:
    """The new status of a row; ``run_id`` None leaves the Run cell unchanged."""

    text: str
    run_id: str | None = None


class StatusSink(Protocol):
    """Takes statuses of the rows of a plan, by the lines they were planned at."""

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        """Write several rows at once.

        Raises:
            StatusError: They could not be written; they go with the next call.
        """

    def flush(self) -> None:
        """Write what could not be written before.

        Raises:
            StatusError: As above.
        """


@dataclass(frozen=True, slots=True)
class _Known:
    """What identifies a row when the file has changed.

    ``identity`` is all that the user wrote in it, ``ordinal`` and ``twins`` are its place among
    rows of the same identity and their number, ``run_id`` is what its Run cell says.
    """

    line: int
    identity: tuple[str, ...]
    ordinal: int
    twins: int
    run_id: str


class StatusWriter:
    """Keeps the Status and Run cells of a file; safe from several threads.

    Every write reads the file again, so that edits made meanwhile stay. A row is found by what the
    user wrote in it, not by its line: lines may be added, moved and removed while runs go on. The
    caller holds the `ExperimentLock` of the file.

    Args:
        path: The file; a symbolic link is followed, not replaced.
        table: Its content as planned; read from the file if not given.

    Raises:
        StatusError: The file cannot be read.
    """

    def __init__(self, path: Path | str, table: Table | None = None) -> None:
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
            StatusError: The file cannot be written or is not a table just now; what was to be
                written goes with the next call. Or the user has changed or removed a row; the
                other rows are written, this one's status is given up.
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
        """Write what could not be written before; nothing happens if all was.

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
            edits = [RowEdit(row, _values(self._pending[line])) for line, row in rows.items()]
            return edited(table, _header_of(table), edits).encode()

        self._file.rewrite(change)
        for line in rows:
            written = self._pending[line].run_id
            if written is not None:
                self._known[line] = replace(self._known[line], run_id=one_line(written))
        given_up = {line: self._pending[line].text for line in lost}
        self._pending.clear()
        if given_up:
            raise self._lost(given_up)

    def _locate(self, table: Table) -> tuple[dict[int, Record], list[int]]:
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

    def _lost(self, given_up: Mapping[int, str]) -> StatusError:
        rows = "; ".join(f"line {line}: {text}" for line, text in sorted(given_up.items()))
        return StatusError(
            f"{self._file.path}: rows that were changed or removed meanwhile did not get their "
            f"status ({rows})",
            "Write it into the file if the row is still the same run",
        )

    def _parse(self, content: bytes) -> Table:
        try:
            table = parse_table(content.decode())
        except UnicodeDecodeError as error:
            raise self._file.invalid(" is no longer UTF-8") from error
        if table.defects:
            raise self._file.invalid(f" has an unclosed quote in line {table.defects[0].line}")
        if table.header is None or not Header.of(table.header).names_programs:
            raise self._file.invalid(" no longer has a header")
        return table


def _known_rows(table: Table) -> dict[int, _Known]:
    if table.header is None:
        return {}
    header = Header.of(table.header)
    twins = Counter(header.identity(row) for row in table.rows)
    seen: Counter[tuple[str, ...]] = Counter()
    known: dict[int, _Known] = {}
    for row in table.rows:
        identity = header.identity(row)
        known[row.line] = _Known(
            row.line, identity, seen[identity], twins[identity], header.value(row, Column.RUN)
        )
        seen[identity] += 1
    return known


def _header_of(table: Table) -> Header:
    assert table.header is not None  # _parse has seen to it
    return Header.of(table.header)


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
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= MAX_STATUS_LENGTH else line[: MAX_STATUS_LENGTH - 1] + "…"
