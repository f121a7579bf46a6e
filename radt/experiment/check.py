"""Checks a table, and turns it into a plan or into the list of all its problems."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radt.devices.cpus import CpuTopology, assign_cpus
from radt.errors import DeviceError, ExperimentError, Problem, RadtError, UsageError
from radt.experiment.columns import NEAR_MISS, PROGRAM, Column, ColumnPositions, did_you_mean
from radt.experiment.plan import AUTO, ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.row import ExperimentRow, RowCheck, RowPosition, RowTarget, listener_warnings
from radt.experiment.table import CsvTable, Record
from radt.run_name import row_letter
from radt.units import plural

#: What `surrogateescape` makes of bytes that are not UTF-8; and NUL, which arguments cannot hold.
UNREADABLE = re.compile("[\0\udc80-\udcff]")

_EXAMPLE_HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params"
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
#: No typing hints for these: ordinary words resemble them (Notes, Node, Times).
_WORDS = frozenset({Column.NODES, Column.TIME})
_LINE_ENDS = re.compile(r"(\r\n|\n|\r)")


def read_header(shown: str, table: CsvTable) -> ColumnPositions:
    """Return the header; raise if there is none, as nothing else can be checked then."""
    record = table.header
    if record is None:
        cause = "the file has only comments" if table.text.strip() else "the file is empty"
        raise ExperimentError(shown, [Problem(cause, f"Begin with the line {_EXAMPLE_HEADER}")])
    header = ColumnPositions.of(record)
    if len(header.positions) > 1:
        return header
    raw = table.text[record.start : record.end]
    for separator, name in _SEPARATORS.items():
        names = {part.strip(' \t"').lower() for part in raw.split(separator)}
        if len(names & {column.lower() for column in Column}) > 1:
            problem = Problem(
                f"{name} separate its columns",
                "Separate them with commas (LibreOffice: the field delimiter; "
                "Excel: the list separator in the system's region settings)",
                record.line,
            )
            raise ExperimentError(shown, [problem])
    if not header.positions:
        cause = "this line should name the columns"
        problem = Problem(cause, f"Put above it: {_EXAMPLE_HEADER}", record.line)
        raise ExperimentError(shown, [problem])
    return header


def header_problems(header: ColumnPositions) -> list[Problem]:
    """Return the problems of the columns themselves.

    A user's own column must not resemble a missing column of radt, which would probably be a
    misspelling, unless its header is quoted.
    """
    line = header.record.line
    absent = [
        column for column in Column if column not in header.positions and column not in _WORDS
    ]
    all_quoted = all(cell.quoted for cell in header.record.cells)  # then quotes mean nothing
    problems: list[Problem] = []
    program_hinted = False
    for name, index in header.others.items():
        if header.record.cells[index].quoted and not all_quoted:
            continue
        hint = "" if header.names_programs else did_you_mean(name, PROGRAM)
        program_hinted = program_hinted or bool(hint)
        hint = hint or did_you_mean(name, absent, cutoff=NEAR_MISS)
        if hint:
            remedy = f'{hint} For a column of your own, quote it: "{name}"'
            problems.append(Problem("unknown column", remedy, line, name))
    problems += [
        Problem("this column appears twice", "Remove one of the two", line, header.name(index))
        for index in header.repeated
    ]
    if not header.names_programs and not program_hinted:
        problems.append(
            Problem(
                "this column is missing",
                "Add it: it names the script of each row (or add Model, if radt.toml maps it)",
                line,
                Column.FILE,
            )
        )
    return problems


def undecoded_problems(table: CsvTable, header: ColumnPositions) -> list[Problem]:
    """Return a problem for each line with bytes that are not UTF-8, or with a NUL."""
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


def width_problem(record: Record, header: ColumnPositions) -> Problem | None:
    count, wanted = len(record.cells), len(header.record.cells)
    nameless = [
        cell for index, cell in enumerate(record.cells) if cell.value and header.name(index) is None
    ]
    if count < wanted:
        # Trailing commas of the header need no counterpart in the rows.
        if all(header.name(index) is None for index in range(count, wanted)):
            return None
        return Problem(
            f"expected {wanted} cells, got {count}",
            f"Add {plural(wanted - count, 'comma')}; empty cells need one, too",
            record.line,
        )
    if nameless:
        first = nameless[0]
        if count > wanted and record.cells.index(first) >= wanted:
            return Problem(
                f"expected {wanted} cells, got {count}, from {first.value!r} on",
                'Quote a cell that has commas in it: "--sizes 1,2"',
                first.line,
            )
        return Problem(f"{first.value!r} has no header", "Name its column", first.line)
    return None


@dataclass(frozen=True, slots=True)
class Conflict:
    """Rows (at ``lines``) that together need more than the machine has."""

    column: Column
    lines: tuple[int, ...]
    error: RadtError

    @property
    def problem(self) -> Problem:
        """Return the problem at the first of the rows, which names the others."""
        first, *others = sorted(set(self.lines))
        also = f" (with line {', '.join(map(str, others))})" if others else ""
        return Problem(self.error.message + also, self.error.remedy or "", first, self.column)


def conflicts(workload: WorkloadPlan, place: RowTarget) -> Iterator[Conflict]:
    """Yield the reasons why the rows of a workload cannot run together on this machine.

    For a cluster node that is not assigned yet, only conflicts over the same GPUs can be found.
    """
    if not workload.trained:
        lines = tuple(run.line for run in workload.runs)
        only = f"workload {workload.label} has services only"
        remedy = "Add a row that they serve (same Workload, no Role), or empty the cell"
        if workload.is_auto:
            only, remedy = "a service cannot be in auto", "Name the workload that it serves"
        yield Conflict(Column.ROLE, lines, UsageError(only, remedy))
    yield from _device_conflicts(workload.runs, place)
    if place.machine.is_here:
        yield from _cpu_conflicts(workload.runs, place)


def _cpu_conflicts(runs: Sequence[RunPlan], place: RowTarget) -> Iterator[Conflict]:
    """Yield a conflict at the first row that needs more CPUs than are left."""
    available = place.machine.cpus
    requests = [run.cpus for run in runs]
    try:
        assign_cpus(requests, available, CpuTopology())
    except UsageError as error:
        listed = frozenset(cpu for request in requests for cpu in request.cpus)
        left = len(available - listed)
        for run in runs:
            left -= run.cpus.count or 0
            if left < 0:
                yield Conflict(Column.CPUS, (run.line,), error)
                return


def _device_conflicts(runs: Sequence[RunPlan], place: RowTarget) -> Iterator[Conflict]:
    """Yield why the rows cannot have their GPUs at the same time, as a start would find."""
    machine = place.machine
    if not machine.is_here:  # placing MIG instances needs the node's driver
        runs = [run for run in runs if run.collocation.mig is None]
    if all(run.devices.is_cpu and run.collocation.is_naive for run in runs):
        return
    # Imported here: many experiments need no GPU.
    from radt.collocation.packing import PlacementError
    from radt.collocation.planner import DeviceRequest, plan_devices, plan_here
    from radt.collocation.topology import Inventory
    from radt.devices.gpus import Gpus

    by_letter = {run.letter: run for run in runs}
    requests = [DeviceRequest(run.letter, run.devices.gpus, run.collocation) for run in runs]
    try:
        if machine.is_here:
            plan_here(requests, Gpus(machine.gpus), place.inventory)
        else:
            plan_devices(requests, Inventory.of(machine.gpus))
    except PlacementError as error:
        if error.may_pass:
            return  # others use them now; the runner waits for them, or refuses
        lines = tuple(by_letter[key].line for key in error.keys if key in by_letter)
        yield Conflict(Column.COLLOCATION, lines or (runs[0].line,), error)
    except (DeviceError, UsageError) as error:  # UsageError: the runtime folder cannot be used
        first = next((run for run in runs if not run.collocation.is_naive), runs[0])
        yield Conflict(Column.COLLOCATION, (first.line,), error)


def machine_warnings(workloads: Iterable[WorkloadPlan], place: RowTarget) -> tuple[str, ...]:
    """Return properties of this machine that will impair the runs but not prevent their start."""
    of_listeners = listener_warnings(workloads, place.registry)
    devices = [run.devices for workload in workloads for run in workload.runs]
    indices = {index for each in devices for index in each.gpus}
    if not indices:
        return of_listeners
    from radt.collocation.planner import warnings

    return (*of_listeners, *warnings(indices, place.machine.gpus))


def check_table(
    path: Path,
    shown: str,
    table: CsvTable,
    place: RowTarget,
    only: Collection[tuple[str, str]] | None = None,
) -> ExperimentPlan:
    """Return the plan of a file.

    Args:
        path: The file.
        shown: Its name in messages.
        table: Its content, with bytes that are not UTF-8 as lone surrogates.
        place: Where it is to run.
        only: Experiments and labels of the workloads that are to run there; None for all.

    Raises:
        ExperimentError: Lists every problem found, in the file's order.
    """
    check = _TableCheck(read_header(shown, table), table, place, only)
    workloads = workloads_of(check.runs())
    check.check_workloads(workloads)
    if check.problems:
        raise ExperimentError(shown, check.sorted_problems())
    warnings = tuple(_numeric_names(workloads))
    if place.machine.is_here:
        warnings += machine_warnings(workloads, place)
    return ExperimentPlan(path, workloads, warnings)


def _numeric_names(workloads: Iterable[WorkloadPlan]) -> Iterator[str]:
    """Yield a note on the meaning of each number in the Experiment column."""
    for name in dict.fromkeys(workload.experiment for workload in workloads):
        if name.isascii() and name.isdigit():
            yield (
                f"experiment {name} is the one with this id at MLflow, or a new one of this name "
                "if MLflow has none"
            )


def positions_of(keys: Sequence[tuple[str, str]]) -> list[RowPosition]:
    """Return the positions of rows in the plan, from their Experiment and Workload cells.

    A row without a workload is its own workload, labelled by its number unless that is taken. So is
    a row that radt has still to group.
    """
    taken = set(keys)
    counts: Counter[tuple[str, str]] = Counter()
    spots: list[RowPosition] = []
    for number, (experiment, given) in enumerate(keys, start=1):
        is_auto = given.lower() == AUTO
        label = f"{AUTO} row {number}" if is_auto else given or str(number)
        if not given and (experiment, label) in taken:
            label = f"row {number}"
        letter = row_letter(counts[experiment, label])
        spots.append(RowPosition(experiment, label, letter, is_auto))
        counts[experiment, label] += 1
    return spots


def workloads_of(runs: Iterable[RunPlan]) -> tuple[WorkloadPlan, ...]:
    """Group runs by experiment and workload, both in order of appearance."""
    groups: dict[tuple[str, str], list[RunPlan]] = {}
    for run in runs:
        groups.setdefault((run.experiment, run.workload), []).append(run)
    return tuple(
        WorkloadPlan(experiment, label, tuple(runs)) for (experiment, label), runs in groups.items()
    )


@dataclass(slots=True)
class _TableCheck:
    """Collects the problems of a file."""

    header: ColumnPositions
    table: CsvTable
    place: RowTarget
    only: Collection[tuple[str, str]] | None
    problems: list[Problem] = field(default_factory=list)
    _incomplete: set[tuple[str, str]] = field(default_factory=set)
    _records: dict[int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problems += undecoded_problems(self.table, self.header)
        self.problems += header_problems(self.header)
        self.problems += [
            Problem(defect.cause, defect.remedy, defect.line, self.header.name(defect.index))
            for defect in self.table.defects
        ]
        if not self.table.rows:
            remedy = "Add a line for each run below the header"
            self.problems.append(Problem("expected at least one run, got none", remedy))

    def runs(self) -> list[RunPlan]:
        """Parse the rows and return those without a problem."""
        records = list(self._whole_records())
        default = self.place.default_experiment
        keys = [
            (experiment, self.place.groups.get(record.line, workload))
            for record in records
            for experiment, workload in [self.header.workload(record, default)]
        ]
        runs: list[RunPlan] = []
        for record, spot in zip(records, positions_of(keys), strict=True):
            if self.only is not None and (spot.experiment, spot.workload) not in self.only:
                continue
            run = self._run(record, spot)
            if run is None:
                self._incomplete.add((spot.experiment, spot.workload))
            else:
                self._records[record.line] = record
                runs.append(run)
        return runs

    def check_workloads(self, workloads: Sequence[WorkloadPlan]) -> None:
        """Check resources that the rows of a workload need at the same time, if all are valid."""
        for workload in workloads:
            if (workload.experiment, workload.label) not in self._incomplete:
                for conflict in conflicts(workload, self.place):
                    problem = conflict.problem
                    record = self._records[problem.line or 0]
                    self._add(conflict.column, record, problem.cause, problem.remedy)

    def sorted_problems(self) -> list[Problem]:
        """Return the problems in the file's order; problems of the settings file only once."""
        names = [self.header.name(index) for index in range(len(self.header.record.cells))]
        order = {name: index for index, name in enumerate(names)}
        unique: dict[tuple[str, str, str | None], Problem] = {}
        for number, problem in enumerate(self.problems):
            shared = problem.column == self._shown(Column.MODEL)
            key = (problem.cause, problem.remedy, "" if shared else str(number))
            unique.setdefault(key, problem)
        return sorted(
            unique.values(), key=lambda problem: (problem.line or 0, order.get(problem.column, -1))
        )

    def _whole_records(self) -> Iterator[Record]:
        defective = {defect.line for defect in self.table.defects}
        for record in self.table.rows:
            if not defective.isdisjoint(cell.line for cell in record.cells):
                continue
            wrong = width_problem(record, self.header)
            if wrong is None:
                yield record
            else:
                self.problems.append(wrong)

    def _run(self, record: Record, spot: RowPosition) -> RunPlan | None:
        row = ExperimentRow(self.header.values(record), self.header.logged(record), record.line)
        unreadable = {column for column, text in row.values.items() if UNREADABLE.search(text)}
        unreadable_own = any(UNREADABLE.search(text) for text in row.logged.values())

        def complain(column: Column, error: UsageError) -> None:
            # Unreadable cells were reported already, and so was a header without File and Model.
            if column in unreadable or (column is Column.FILE and not self.header.names_programs):
                return
            self._add(column, record, error.message, error.remedy)

        run = RowCheck(row, spot, self.place, complain).run()
        return None if unreadable or unreadable_own else run

    def _add(self, column: Column, record: Record, cause: str, remedy: str | None) -> None:
        index = self.header.positions.get(column)
        line = record.line if index is None else record.cells[index].line
        self.problems.append(Problem(cause, remedy or "", line, self._shown(column)))

    def _shown(self, column: Column) -> str:
        """Return the header as the user wrote it; without one, radt's name of the column."""
        index = self.header.positions.get(column)
        return column if index is None else self.header.name(index) or column
