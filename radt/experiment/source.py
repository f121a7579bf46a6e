"""Experiments as plans: from a CSV file, a sweep, or one program on the command line."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem, RadtError
from radt.experiment.check import (
    check_table,
    conflicts,
    machine_warnings,
    positions_of,
    read_header,
    workloads_of,
)
from radt.experiment.columns import Column
from radt.experiment.files import SWEEP_SUFFIXES, RawFile
from radt.experiment.plan import ExperimentPlan
from radt.experiment.program import launched_script
from radt.experiment.row import ExperimentRow, RowCheck, RowTarget
from radt.experiment.status import StatusWriter
from radt.experiment.table import CsvTable, parse_table
from radt.experiment.templates import Mappings
from radt.listeners.api import Registry

_CSV_SUFFIX = ".csv"
#: The suffixes of experiment files, in lower case.
EXPERIMENT_SUFFIXES = (_CSV_SUFFIX, *SWEEP_SUFFIXES)


@dataclass(frozen=True)
class ExperimentFile:
    """A CSV file as it was read.

    ``shown`` is its name in messages. For sweeps, ``repeat`` is the number of runs of every
    workload, and ``added`` the number of rows that are not in the file yet.
    """

    path: Path
    shown: str
    table: CsvTable
    repeat: int = 1
    added: int = 0

    @classmethod
    def read(cls, path: Path | str) -> ExperimentFile:
        """Read a file; problems of its content are reported by `plan`.

        Raises:
            ExperimentError: It cannot be read, or is not text.
        """
        file = RawFile.read(path, "CSV")
        return cls(file.path, file.shown, parse_table(file.text))

    @property
    def note(self) -> str:
        """Return a note about rows that `writer` adds to the file; "" if it adds none."""
        return ""

    def plan(
        self,
        machine: Machine,
        registry: Registry,
        devices: str = "",
        only: Collection[tuple[str, str]] | None = None,
        groups: Mapping[int, str] | None = None,
    ) -> ExperimentPlan:
        """Return the plan of the file on this machine with these listeners.

        Args:
            machine: This machine.
            registry: The listeners.
            devices: Overrides the Devices column; see `radt.experiment.row.RowTarget`.
            only: Experiments and labels of the workloads that are to run here; None for all.
            groups: Workload labels of the rows that radt has grouped, by line.

        Raises:
            ExperimentError: Lists every problem of the file.
            UsageError: The settings file that applies to it cannot be used.
        """
        beside = RowTarget.beside(self.path, machine, registry)
        return self._checked(replace(beside, devices=devices.strip(), groups=groups or {}), only)

    def _checked(
        self, place: RowTarget, only: Collection[tuple[str, str]] | None
    ) -> ExperimentPlan:
        return check_table(self.path, self.shown, self.table, place, only)

    def writer(self) -> StatusWriter:
        """Return the writer of statuses of this file's rows; the caller holds its lock.

        Raises:
            StatusError: The file cannot be read or written.
        """
        return StatusWriter(self.path, self.table)


def is_experiment(path: Path | str) -> bool:
    """Return whether a file of this name is an experiment rather than a program."""
    return os.fspath(path).lower().endswith(EXPERIMENT_SUFFIXES)


def open_source(path: Path | str) -> ExperimentFile:
    """Read an experiment file, or expand a sweep; problems of its content are reported by ``plan``.

    Raises:
        ExperimentError: It cannot be read, or is not an experiment file.
    """
    shown = os.fspath(path)
    if shown.lower().endswith(_CSV_SUFFIX):
        return ExperimentFile.read(path)
    if shown.lower().endswith(SWEEP_SUFFIXES):
        # Imported here: only sweeps need the YAML parser.
        from radt.experiment.sweep import SweepFile

        return SweepFile.read(path)
    expected = " or ".join(EXPERIMENT_SUFFIXES)
    problem = Problem(
        f"expected the name of an experiment file ({expected}), got {shown!r}", "Rename the file"
    )
    raise ExperimentError(shown, [problem])


#: Columns that also describe a single program.
PROGRAM_COLUMNS = (
    *(Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.DEVICES, Column.COLLOCATION),
    *(Column.LISTENERS, Column.ENVIRONMENT, Column.MODEL, Column.DATA, Column.CPUS, Column.TIMEOUT),
)


def direct_plan(
    file: Path | str,
    arguments: Sequence[str],
    *,
    machine: Machine,
    registry: Registry,
    cells: Mapping[Column, str] | None = None,
) -> ExperimentPlan:
    """Return the plan of one program.

    ``file`` and ``arguments`` are taken literally, without placeholders. The experiment is named
    after the program unless it is given. Without a workload, the run has none, like a script that
    is started without radt.

    Args:
        file: The program.
        arguments: Its arguments.
        machine: This machine.
        registry: The listeners.
        cells: Values of other columns, which must be in `PROGRAM_COLUMNS`.

    Raises:
        ExperimentError: Lists every problem with the arguments.
        UsageError: The settings file that applies here cannot be used.
    """
    given = os.fspath(file)
    values = dict.fromkeys(PROGRAM_COLUMNS, "") | dict(cells or {})
    values |= {Column.FILE: given, Column.PARAMS: shlex.join(arguments)}
    experiment, workload = values[Column.EXPERIMENT].strip(), values[Column.WORKLOAD].strip()
    problems: list[Problem] = []

    def complain(column: Column, error: RadtError) -> None:
        option = None if column is Column.FILE else f"--{column.lower()}"
        problems.append(Problem(error.message, error.remedy or "", column=option))

    here = Path.cwd()
    place = RowTarget(machine, registry, (here,), _called(given, arguments), Mappings.of(here))
    (spot,) = positions_of([(experiment or place.default_experiment, workload)])
    logged = {str(column): values[column] for column in (Column.MODEL, Column.DATA)}
    check = RowCheck(ExperimentRow(values, logged, is_literal=True), spot, place, complain)
    run = check.run()
    workloads = workloads_of([] if run is None else [run])
    for plan in workloads:
        for conflict in conflicts(plan, place):
            complain(conflict.column, conflict.error)
    if run is None or problems:
        raise ExperimentError(
            f"radt {given}", sorted(problems, key=lambda problem: bool(problem.column))
        )
    if not workload:  # it shares the hardware with no other run, so its workload needs no name
        workloads = tuple(
            replace(plan, label="", runs=(replace(run, workload=""),)) for plan in workloads
        )
    return ExperimentPlan(run.program.path, workloads, machine_warnings(workloads, place))


def _called(given: str, arguments: Sequence[str]) -> str:
    """Return the default experiment name: ``train`` for train.py, the name of a module.

    For a launcher on PATH, it is the name of the script that it starts.
    """
    if "/" not in given and not given.endswith(".py") and not Path(given).exists():
        launched = launched_script(arguments)
        if launched is not None:
            return launched[0]
    module = given.removeprefix("-m").strip()
    return module if module != given.strip() else Path(given).stem or "run"


def experiment_names(path: Path) -> list[str]:
    """Return the names of the experiments in a CSV file, in the order of its rows.

    Raises:
        ExperimentError: The file cannot be read, or has no header.
    """
    file = ExperimentFile.read(path)
    header = read_header(file.shown, file.table)
    names = (header.workload(record, path.stem)[0] for record in file.table.rows)
    return list(dict.fromkeys(names))
