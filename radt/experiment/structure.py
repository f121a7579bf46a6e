"""What can be wrong with a file before any cell is understood: bytes, header, quotes, commas."""

from __future__ import annotations

import re

from radt.errors import ExperimentError, Problem
from radt.experiment.cells import NEAR_MISS, did_you_mean
from radt.experiment.columns import PROGRAM, Column, Header
from radt.experiment.table import Defect, Record, Table

#: What `surrogateescape` makes of bytes that are not UTF-8, and NUL, which no argument can hold.
UNREADABLE = re.compile("[\0\udc80-\udcff]")

_EXAMPLE_HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params"
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_LINE_ENDS = re.compile(r"(\r\n|\n|\r)")


def read_header(shown: str, table: Table) -> Header:
    """The header, if there is one at all; without it nothing else can be said."""
    record = table.header
    if record is None:
        what = "there is nothing but comments in it" if table.text.strip() else "it is empty"
        raise ExperimentError(shown, [Problem(what, f"Begin with the line {_EXAMPLE_HEADER}")])
    header = Header.of(record)
    if len(header.positions) > 1:
        return header
    raw = table.text[record.start : record.end]
    for separator, name in _SEPARATORS.items():
        names = {part.strip(' \t"').lower() for part in raw.split(separator)}
        if len(names & {column.lower() for column in Column}) > 1:
            raise ExperimentError(
                shown,
                [
                    Problem(
                        f"{name} separate its columns",
                        "Separate them with commas (LibreOffice: the field delimiter; "
                        "Excel: the list separator in the system's region settings)",
                        line=record.line,
                    )
                ],
            )
    if not header.positions:
        raise ExperimentError(
            shown,
            [
                Problem(
                    "this line should name the columns",
                    f"Put above it: {_EXAMPLE_HEADER}",
                    line=record.line,
                )
            ],
        )
    return header


def header_problems(header: Header) -> list[Problem]:
    """What is wrong with the columns as such.

    A column of the user's own must not look like a typing error in one of radt's that the file
    does not have, unless it stands in quotes.
    """
    line = header.record.line
    absent = [column for column in Column if column not in header.positions]
    all_quoted = all(cell.quoted for cell in header.record.cells)  # says nothing, then
    problems: list[Problem] = []
    program_hinted = False
    for name, index in header.others.items():
        if header.record.cells[index].quoted and not all_quoted:
            continue
        hint = "" if header.names_programs else did_you_mean(name, PROGRAM)
        program_hinted = program_hinted or bool(hint)
        hint = hint or did_you_mean(name, absent, cutoff=NEAR_MISS)
        if hint:
            remedy = f'{hint} A column of your own may be called so in quotes: "{name}"'
            problems.append(Problem("unknown column", remedy, line, name))
    problems += [
        Problem("this column is there twice", "Remove one of the two", line, header.name(index))
        for index in header.repeated
    ]
    if not header.names_programs and not program_hinted:
        problems.append(
            Problem(
                "this column is missing",
                "Add it: the script that a row runs (or Model, where radt.toml maps it to one)",
                line,
                Column.FILE,
            )
        )
    return problems


def defect_problem(defect: Defect, header: Header) -> Problem:
    return Problem(defect.cause, defect.remedy, defect.line, header.name(defect.index))


def undecoded_problems(table: Table, header: Header) -> list[Problem]:
    """One problem for each line with bytes that are not UTF-8, or with a NUL."""
    cells = [
        (cell, index)
        for record in (header.record, *table.rows)
        for index, cell in enumerate(record.cells)
    ]
    problems: list[Problem] = []
    line, position = 1, 0
    for text in _LINE_ENDS.split(table.text):
        if _LINE_ENDS.fullmatch(text):
            line += 1
        bad = UNREADABLE.search(text)
        if bad is not None:
            at = position + bad.start()
            column = next(
                (header.name(index) for cell, index in cells if cell.start <= at < cell.end), None
            )
            problems.append(_byte_problem(bad.group(), line, column))
        position += len(text)
    return problems


def _byte_problem(character: str, line: int, column: str | None) -> Problem:
    if character == "\0":
        return Problem("a NUL byte", "Save the file as CSV in UTF-8 again", line, column)
    byte = ord(character) - 0xDC00
    meant = bytes([byte]).decode("cp1252", errors="ignore")
    guess = f" ({meant!r} in Windows-1252)" if meant else ""
    return Problem(
        f"byte 0x{byte:02X} is not UTF-8{guess}",
        "Save the file in UTF-8 (Excel: CSV UTF-8)",
        line,
        column,
    )


def width_problem(record: Record, header: Header) -> Problem | None:
    count, wanted = len(record.cells), len(header.record.cells)
    nameless = [
        cell for index, cell in enumerate(record.cells) if cell.value and header.name(index) is None
    ]
    if count < wanted:
        # A header's own trailing commas need no counterpart.
        if all(header.name(index) is None for index in range(count, wanted)):
            return None
        return Problem(
            f"{count} cell{'s' if count != 1 else ''} instead of {wanted}",
            f"Add {_commas(wanted - count)}; an empty cell needs its comma, too",
            record.line,
        )
    if nameless:
        first = nameless[0]
        if count > wanted and record.cells.index(first) >= wanted:
            return Problem(
                f"{count} cells instead of {wanted}, from {first.value!r} on",
                'Quote a cell that has commas in it: "--sizes 1,2"',
                first.line,
            )
        return Problem(f"{first.value!r} has no header", "Name its column", first.line)
    return None


def _commas(count: int) -> str:
    return f"{count} comma{'s' if count != 1 else ''}"
