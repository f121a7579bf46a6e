"""The plan of one script started from the command line: a file of one row, without the file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.check import NumberedRow, workloads_of
from radt.experiment.columns import Column
from radt.experiment.devices import Machine
from radt.experiment.plan import ExperimentPlan
from radt.experiment.row import Place, check_row
from radt.listeners.api import Registry


def direct_plan(
    file: Path,
    arguments: Sequence[str],
    *,
    machine: Machine,
    registry: Registry,
    experiment: str = "",
    workload: str = "",
    name: str = "",
    devices: str = "",
    collocation: str = "",
    listeners: str = "",
) -> ExperimentPlan:
    """A plan of one workload of one run; the options mean what the columns mean.

    The experiment is named after the script unless it is given; without a workload the run stands
    for itself, as a script does that is started without radt.

    Raises:
        ExperimentError: With every problem of the options.
    """
    values = {
        Column.EXPERIMENT: experiment,
        Column.WORKLOAD: workload,
        Column.NAME: name,
        Column.DEVICES: devices,
        Column.COLLOCATION: collocation,
        Column.LISTENERS: listeners,
        Column.FILE: str(file),
        Column.PARAMS: shlex.join(arguments),
    }
    problems: list[Problem] = []

    def complain(column: Column, error: UsageError) -> None:
        option = None if column is Column.FILE else f"--{column.lower()}"
        problems.append(Problem(error.message, error.remedy or "", column=option))

    place = Place(machine, registry, (Path.cwd(),), default_experiment=file.stem)
    row = check_row(values, place, complain)
    if row is None:
        raise ExperimentError(f"radt {file}", problems)
    workloads = workloads_of([NumberedRow(0, row)])
    if not workload:  # it shares the hardware with nobody, and has no workload to be named after
        workloads = tuple(
            replace(plan, label="", runs=tuple(replace(run, workload="") for run in plan.runs))
            for plan in workloads
        )
    return ExperimentPlan(row.program.path, workloads)
