"""Checks the cells of one row, from a file or from the command line, and resolves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from radt.errors import UsageError
from radt.experiment import cells
from radt.experiment.columns import Column
from radt.experiment.devices import Devices, Machine
from radt.listeners.api import Registry
from radt.model import ListenerChoice, RunStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What the meaning of a row depends on; ``folders`` are where its File may be."""

    machine: Machine
    registry: Registry
    folders: tuple[Path, ...]
    default_experiment: str


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row whose cells are all right; ``workload`` is empty where the user left it so."""

    experiment: str
    workload: str
    name: str
    status: RunStatus | None
    run_id: str
    devices: Devices
    collocation: str
    listeners: tuple[ListenerChoice, ...]
    file: Path
    params: tuple[str, ...]
    params_text: str


def check_row(
    values: Mapping[Column, str],
    place: Place,
    complain: Callable[[Column, UsageError], None],
) -> CheckedRow | None:
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
    collocation = cell(Column.COLLOCATION, cells.parse_collocation)
    file = cell(Column.FILE, lambda text: cells.find_script(text, place.folders))
    params = cell(Column.PARAMS, cells.parse_params)
    listeners, errors = cells.parse_listeners(
        values.get(Column.LISTENERS, ""), place.registry, place.machine
    )
    for error in errors:
        complain(Column.LISTENERS, error)
    if failed or errors or devices is None or collocation is None or file is None or params is None:
        return None
    return CheckedRow(
        experiment=values.get(Column.EXPERIMENT, "").strip() or place.default_experiment,
        workload=values.get(Column.WORKLOAD, "").strip(),
        name=values.get(Column.NAME, "").strip(),
        status=status,
        run_id=values.get(Column.RUN, "").strip(),
        devices=devices,
        collocation=collocation,
        listeners=listeners,
        file=file,
        params=params,
        params_text=values.get(Column.PARAMS, "").strip(),
    )
