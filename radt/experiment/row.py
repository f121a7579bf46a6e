"""Checks the cells of one row, from a file or from the command line, and resolves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from radt.collocation.spec import Collocation
from radt.errors import UsageError
from radt.experiment import cells
from radt.experiment.columns import Column
from radt.experiment.devices import Devices, Machine
from radt.experiment.plan import RunSpec
from radt.listeners.api import Registry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What the meaning of a row depends on; ``folders`` are where its File may be."""

    machine: Machine
    registry: Registry
    folders: tuple[Path, ...]
    default_experiment: str


def check_row(
    values: Mapping[Column, str],
    place: Place,
    complain: Callable[[Column, UsageError], None],
) -> RunSpec | None:
    """Check every cell; None after at least one complaint."""
    failed = False

    def cell(column: Column, parse: Callable[[str], T]) -> T | None:
        nonlocal failed
        try:
            return parse(values.get(column, ""))
        except UsageError as error:
            failed = True
            complain(column, error)
            return None

    status = cell(Column.STATUS, cells.parse_status)
    devices = cell(Column.DEVICES, lambda text: Devices.parse(text, place.machine))
    collocation = cell(Column.COLLOCATION, Collocation.parse)
    program = cell(Column.FILE, lambda text: cells.find_program(text, place.folders))
    params = cell(Column.PARAMS, cells.parse_params)
    listeners, errors = cells.parse_listeners(
        values.get(Column.LISTENERS, ""), place.registry, place.machine
    )
    for error in errors:
        complain(Column.LISTENERS, error)
    if (
        failed
        or errors
        or devices is None
        or collocation is None
        or program is None
        or params is None
    ):
        return None
    return RunSpec(
        experiment=values.get(Column.EXPERIMENT, "").strip() or place.default_experiment,
        workload=values.get(Column.WORKLOAD, "").strip(),
        name=values.get(Column.NAME, "").strip(),
        status=status,
        run_id=values.get(Column.RUN, "").strip(),
        devices=devices,
        collocation=collocation,
        listeners=listeners,
        program=program,
        params=params,
        params_text=values.get(Column.PARAMS, "").strip(),
        repeats_done=cells.parse_repeats(values.get(Column.STATUS, "")),
    )
