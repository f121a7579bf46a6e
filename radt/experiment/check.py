"""Turns a table into a plan, or into all of its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.columns import Column, Header
from radt.experiment.plan import ExperimentPlan, RunPlan, RunSpec, WorkloadPlan, letter
from radt.experiment.row import Place, Row, RowCheck, Spot
from radt.experiment.sources import absences
from radt.experiment.structure import (
    UNREADABLE,
    defect_problem,
    header_problems,
    read_header,
    undecoded_problems,
    width_problem,
)
from radt.experiment.table import Record, Table
from radt.experiment.together import Conflict, conflicts


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
    check = _TableCheck(read_header(shown, table), table, place)
    rows = check.rows()
    workloads = workloads_of(rows)
    check.together(workloads)
    if check.problems:
        raise ExperimentError(shown, check.sorted_problems())
    return ExperimentPlan(path, workloads, absences(workloads, place.registry))


def spots_of(keys: Sequence[tuple[str, str]]) -> list[Spot]:
    """Where rows stand in the plan, by their Experiment and Workload cells.

    A row without a workload is one by itself, called by its number unless another is called so.
    """
    taken = set(keys)
    counts: Counter[tuple[str, str]] = Counter()
    spots: list[Spot] = []
    for number, (experiment, given) in enumerate(keys, start=1):
        label = given or str(number)
        if not given and (experiment, label) in taken:
            label = f"row {number}"
        spots.append(Spot(experiment, label, letter(counts[experiment, label])))
        counts[experiment, label] += 1
    return spots


def workloads_of(rows: Sequence[NumberedRow]) -> tuple[WorkloadPlan, ...]:
    """Rows by experiment and workload, both in order of appearance."""
    spots = spots_of([(one.row.experiment, one.row.workload) for one in rows])
    groups: dict[tuple[str, str], list[RunPlan]] = {}
    for one, spot in zip(rows, spots, strict=True):
        run = RunPlan.of(one.row, workload=spot.workload, line=one.line, letter=spot.letter)
        groups.setdefault((spot.experiment, spot.workload), []).append(run)
    return tuple(
        WorkloadPlan(experiment, label, tuple(runs)) for (experiment, label), runs in groups.items()
    )


class _TableCheck:
    """Collects the problems of a file."""

    def __init__(self, header: Header, table: Table, place: Place) -> None:
        self._header = header
        self._table = table
        self._place = place
        self._incomplete: set[tuple[str, str]] = set()
        self._understood: dict[int, tuple[Record, Spot]] = {}
        self.problems = [*undecoded_problems(table, header), *header_problems(header)]
        self.problems += [defect_problem(defect, header) for defect in table.defects]
        if not table.rows:
            self.problems.append(
                Problem("there is no run in it", "Add a line for each run below the header")
            )

    def rows(self) -> list[NumberedRow]:
        """The rows that can be understood."""
        records = list(self._whole_records())
        header, default = self._header, self._place.default_experiment
        keys = [
            (
                header.value(record, Column.EXPERIMENT).strip() or default,
                header.value(record, Column.WORKLOAD).strip(),
            )
            for record in records
        ]
        rows: list[NumberedRow] = []
        for record, spot in zip(records, spots_of(keys), strict=True):
            row = self._row(record, spot)
            if row is None:
                self._incomplete.add((spot.experiment, spot.workload))
            else:
                self._understood[record.line] = (record, spot)
                rows.append(NumberedRow(record.line, row))
        return rows

    def together(self, workloads: Sequence[WorkloadPlan]) -> None:
        """Check what rows ask for together, of workloads that are understood as a whole."""
        for workload in workloads:
            _, spot = self._understood[workload.runs[0].line]
            if (spot.experiment, spot.workload) not in self._incomplete:
                for conflict in conflicts(workload, self._place):
                    self._add_conflict(conflict)

    def sorted_problems(self) -> list[Problem]:
        """The problems in the file's order; one in the settings file is said once."""
        names = [self._header.name(index) for index in range(len(self._header.record.cells))]
        order = {name: index for index, name in enumerate(names)}
        unique: dict[tuple[str, str, str | None], Problem] = {}
        for number, problem in enumerate(self.problems):
            shared = problem.column == self._shown(Column.MODEL)
            key = (problem.cause, problem.remedy, "" if shared else str(number))
            unique.setdefault(key, problem)
        return sorted(unique.values(), key=lambda one: (one.line or 0, order.get(one.column, -1)))

    def _whole_records(self) -> Iterator[Record]:
        defective = {defect.line for defect in self._table.defects}
        for record in self._table.rows:
            if not defective.isdisjoint(cell.line for cell in record.cells):
                continue
            wrong = width_problem(record, self._header)
            if wrong is None:
                yield record
            else:
                self.problems.append(wrong)

    def _row(self, record: Record, spot: Spot) -> RunSpec | None:
        row = Row(self._header.values(record), self._header.logged(record))
        unreadable = {column for column, text in row.values.items() if UNREADABLE.search(text)}
        unreadable_own = any(UNREADABLE.search(text) for text in row.logged.values())

        def complain(column: Column, error: UsageError) -> None:
            # What is unreadable has its problem already; so has a header without File and Model.
            if column in unreadable or (column is Column.FILE and not self._header.names_programs):
                return
            self._add(column, record, error.message, error.remedy)

        spec = RowCheck(row, spot, self._place, complain).run()
        return None if unreadable or unreadable_own else spec

    def _add_conflict(self, conflict: Conflict) -> None:
        """One problem, at the first of the rows."""
        first, *others = sorted(conflict.lines)
        record, _ = self._understood[first]
        error = conflict.error
        also = f" (with line {', '.join(map(str, others))})" if others else ""
        self._add(conflict.column, record, error.message + also, error.remedy)

    def _add(self, column: Column, record: Record, cause: str, remedy: str | None) -> None:
        index = self._header.positions.get(column)
        line = record.line if index is None else record.cells[index].line
        self.problems.append(Problem(cause, remedy or "", line, self._shown(column)))

    def _shown(self, column: Column) -> str:
        """The header as the user wrote it, else radt's name of the column."""
        index = self._header.positions.get(column)
        return column if index is None else self._header.name(index) or column
