"""Turns a table into a plan, or into all of its problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.columns import Column, Header
from radt.experiment.plan import ExperimentPlan, RunPlan, RunSpec, WorkloadPlan, letter
from radt.experiment.row import Place, check_row
from radt.experiment.structure import (
    UNREADABLE,
    defect_problem,
    header_problems,
    read_header,
    undecoded_problems,
    width_problem,
)
from radt.experiment.table import Record, Table


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A checked row and the physical line it begins on."""

    line: int
    row: RunSpec


def check_table(path: Path, shown: str, table: Table, place: Place) -> ExperimentPlan:
    """The plan of a file.

    Args:
        path: The file.
        shown: What to call it in messages.
        table: Its content; bytes that are not UTF-8 as lone surrogates.
        place: Where it is to run.

    Raises:
        ExperimentError: With every problem found, in the file's order.
    """
    header = read_header(shown, table)
    problems = [*undecoded_problems(table, header), *header_problems(header)]
    problems += [defect_problem(defect, header) for defect in table.defects]
    defective = {defect.line for defect in table.defects}
    rows: list[NumberedRow] = []
    for record in table.rows:
        if defective.isdisjoint(cell.line for cell in record.cells):
            row = _checked(record, header, place, problems)
            if row is not None:
                rows.append(NumberedRow(record.line, row))
    if not table.rows:
        problems.append(
            Problem("there is no run in it", "Add a line for each run below the header")
        )
    if problems:
        order = {header.name(index): index for index in range(len(header.record.cells))}
        raise ExperimentError(
            shown, sorted(problems, key=lambda p: (p.line or 0, order.get(p.column, -1)))
        )
    return ExperimentPlan(path, workloads_of(rows))


def workloads_of(rows: Sequence[NumberedRow]) -> tuple[WorkloadPlan, ...]:
    """Rows by experiment and workload, both in order of appearance."""
    taken = {(numbered.row.experiment, numbered.row.workload) for numbered in rows}
    groups: dict[tuple[str, str], list[NumberedRow]] = {}
    for number, numbered in enumerate(rows, start=1):
        experiment, label = numbered.row.experiment, numbered.row.workload
        if not label:
            label = str(number)
            if (experiment, label) in taken:
                label = f"row {number}"
        groups.setdefault((experiment, label), []).append(numbered)
    return tuple(
        WorkloadPlan(
            experiment,
            label,
            tuple(
                RunPlan.of(numbered.row, workload=label, line=numbered.line, letter=letter(index))
                for index, numbered in enumerate(group)
            ),
        )
        for (experiment, label), group in groups.items()
    )


def _checked(
    record: Record, header: Header, place: Place, problems: list[Problem]
) -> RunSpec | None:
    wrong = width_problem(record, header)
    if wrong is not None:
        problems.append(wrong)
        return None
    values = {column: header.value(record, column) for column in header.positions}
    unreadable = {column for column, value in values.items() if UNREADABLE.search(value)}

    def complain(column: Column, error: UsageError) -> None:
        # What is unreadable has its problem already; a missing column has one in the header.
        if column not in unreadable and column in header.positions:
            index = header.positions[column]
            line = record.cells[index].line
            problems.append(Problem(error.message, error.remedy or "", line, header.name(index)))

    row = check_row(values, place, complain)
    return None if unreadable else row
