"""The plan of one program started from the command line: a file of one row, without the file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from radt.errors import ExperimentError, Problem, RadtError
from radt.experiment.check import NumberedRow, spots_of, workloads_of
from radt.experiment.columns import Column
from radt.experiment.devices import Machine
from radt.experiment.mapping import Mappings
from radt.experiment.plan import ExperimentPlan
from radt.experiment.row import Place, Row, RowCheck
from radt.experiment.sources import absences
from radt.experiment.together import conflicts
from radt.listeners.api import Registry


def direct_plan(
    file: Path | str,
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
    environment: str = "",
    cpus: str = "",
    timeout: str = "",
    model: str = "",
    data: str = "",
) -> ExperimentPlan:
    """A plan of one workload of one run; the options mean what the columns mean.

    ``file`` and ``arguments`` are taken as they are, nothing is filled into them. The experiment is
    named after the program unless it is given; without a workload the run stands for itself, as a
    script does that is started without radt.

    Raises:
        ExperimentError: With every problem of the options.
        UsageError: The settings file that holds here cannot be used.
    """
    given = os.fspath(file)
    values = {
        Column.EXPERIMENT: experiment,
        Column.WORKLOAD: workload,
        Column.NAME: name,
        Column.DEVICES: devices,
        Column.COLLOCATION: collocation,
        Column.ENVIRONMENT: environment,
        Column.CPUS: cpus,
        Column.TIMEOUT: timeout,
        Column.MODEL: model,
        Column.DATA: data,
        Column.LISTENERS: listeners,
        Column.FILE: given,
        Column.PARAMS: shlex.join(arguments),
    }
    problems: list[Problem] = []

    def complain(column: Column, error: RadtError) -> None:
        option = None if column is Column.FILE else f"--{column.lower()}"
        problems.append(Problem(error.message, error.remedy or "", column=option))

    here = Path.cwd()
    place = Place(machine, registry, (here,), _called(given), Mappings.of(here))
    (spot,) = spots_of([(experiment.strip() or place.default_experiment, workload.strip())])
    check = RowCheck(
        Row(values, {Column.MODEL: model, Column.DATA: data}, is_literal=True),
        spot,
        place,
        complain,
    )
    row = check.run()
    workloads = workloads_of([] if row is None else [NumberedRow(0, row)])
    for plan in workloads:
        for conflict in conflicts(plan, place):
            complain(conflict.column, conflict.error)
    if row is None or problems:
        raise ExperimentError(f"radt {given}", sorted(problems, key=lambda one: bool(one.column)))
    if not workload:  # it shares the hardware with nobody, and has no workload to be named after
        workloads = tuple(
            replace(plan, label="", runs=tuple(replace(run, workload="") for run in plan.runs))
            for plan in workloads
        )
    return ExperimentPlan(row.program.path, workloads, absences(workloads, registry))


def _called(given: str) -> str:
    """What an experiment is called after a File: ``train`` for train.py, a module by its name."""
    module = given.removeprefix("-m").strip()
    return module if module != given.strip() else Path(given).stem or "run"
