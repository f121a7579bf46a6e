"""Checks and resolves the cells of one row, from a file or from the command line."""

from __future__ import annotations

import errno
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from radt.collocation.spec import Collocation
from radt.devices.cpus import CpuRequest
from radt.devices.machine import CPU, Devices, Machine
from radt.environments.spec import EnvironmentKind, EnvironmentSpec, parse_environment
from radt.errors import UsageError
from radt.experiment import columns
from radt.experiment.columns import Column
from radt.experiment.plan import AutoCells, RunPlan, WorkloadPlan
from radt.experiment.program import Program, find_program
from radt.experiment.resources import (
    GpuRequest,
    Resources,
    parse_exclusive,
    parse_memory,
    parse_nodes,
    parse_time,
)
from radt.experiment.templates import (
    AT_START,
    BARRED,
    LETTER_PLACEHOLDER,
    Mappings,
    Placeholders,
)
from radt.listeners.api import Profiler, Registry, probed
from radt.model import ListenerChoice
from radt.paths import expanded, lookups
from radt.units import plural

if TYPE_CHECKING:
    from radt.collocation.topology import Inventory


def listener_warnings(workloads: Iterable[WorkloadPlan], registry: Registry) -> tuple[str, ...]:
    """Return warnings about listeners that runs name but that do not work on this machine."""
    runs = Counter(
        choice.name
        for workload in workloads
        for run in workload.runs
        for choice in run.listeners
        if choice.name in registry.listeners
    )
    answers = {name: probed(registry.listeners[name]) for name in sorted(runs)}
    return tuple(
        f"listener {name} does not work here: {answer.reason}; "
        f"{plural(runs[name], 'run')} without it{f'. {answer.remedy}' if answer.remedy else ''}"
        for name, answer in answers.items()
        if not answer.available
    )


def wrapping_profilers(choices: Iterable[ListenerChoice], registry: Registry) -> Sequence[str]:
    """Return the names of profilers that wrap a run's command."""
    return [
        choice.name
        for choice in choices
        if (kind := registry.profilers.get(choice.name)) is not None
        and kind.prefix is not Profiler.prefix
    ]


def profiler_in_container(name: str) -> UsageError:
    """Return the error for a profiler that would have to wrap the command of a container."""
    return UsageError(
        f"{name} cannot profile inside containers: it would profile docker's client",
        f"Give the row a uv or conda environment, or take {name} out of Listeners",
    )


T = TypeVar("T")


def _inventory() -> Inventory:
    # Imported here: most experiments do not divide GPUs.
    from radt.collocation.inventory import read_inventory

    return read_inventory()


@dataclass(frozen=True, slots=True)
class RowTarget:
    """The context that the meaning of a row depends on.

    ``folders`` are searched for its File, the experiment's first. ``inventory`` is called only for
    rows that divide their GPUs. ``devices``, unless empty, overrides every row's Devices; with
    ``cpu``, Collocation is ignored as well, so that a file can be tried on any machine. ``groups``
    are the labels of the workloads of rows that radt has grouped, by line.
    """

    machine: Machine
    registry: Registry
    folders: tuple[Path, ...]
    default_experiment: str
    mappings: Mappings = field(default_factory=Mappings)
    inventory: Callable[[], Inventory] = _inventory
    devices: str = ""
    groups: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def beside(cls, file: Path, machine: Machine, registry: Registry) -> RowTarget:
        """Return the context of the rows of an experiment file.

        Raises:
            UsageError: The settings file that applies to it cannot be used.
        """
        folder = file.absolute().parent
        folders = (folder, Path.cwd())
        inventory = functools.cache(_inventory)
        return cls(machine, registry, folders, file.stem, Mappings.of(folder), inventory)


@dataclass(frozen=True, slots=True)
class RowPosition:
    """The position of a row: its experiment, the label of its workload, its letter there.

    With ``is_auto``, radt will put the row into another workload.
    """

    experiment: str
    workload: str
    letter: str
    is_auto: bool = False


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One row as written: the cells of radt's columns, and those that are logged unchanged.

    ``line`` is the physical line on which it begins; 0 for a row without a file. With
    ``is_literal``, braces in File and Params are not placeholders.
    """

    values: Mapping[Column, str]
    logged: Mapping[str, str] = field(default_factory=dict)
    line: int = 0
    is_literal: bool = False

    def text(self, column: Column) -> str:
        """Return the cell; "" if the file lacks the column or the cell counts as empty."""
        value = self.values.get(column, "")
        return "" if column.field.is_missing(value) else value


def _on_given(collocation: Collocation, devices: Devices, machine: Machine) -> Collocation:
    """Return the collocation of a row on a scheduler's MIG device: in its instance.

    Rows that name the same device share it, as they would share a GPU.
    """
    if devices.mig is None or collocation.mig is not None:
        return collocation
    profile = Collocation.parse(devices.mig.profile).mig
    return replace(collocation, mig=profile, instance=str(machine.mig_devices.index(devices.mig)))


class RowCheck:
    """The check of one row, cell by cell; every problem is passed to ``complain``.

    Args:
        row: Its cells.
        spot: Its position in the experiment.
        place: The context of its meaning.
        complain: Called with a column and the problem of its cell.
    """

    def __init__(
        self,
        row: ExperimentRow,
        spot: RowPosition,
        place: RowTarget,
        complain: Callable[[Column, UsageError], None],
    ) -> None:
        self._row = row
        self._spot = spot
        self._place = place
        self._complain = complain
        self._failed = False

    def run(self) -> RunPlan | None:
        """Return the row as planned; None after at least one complaint."""
        for column in (Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.RUN):
            self._cell(column, str.strip)
        status = self._cell(Column.STATUS, columns.parse_status)
        machine = self._place.machine
        given = self._place.devices
        devices = self._cell(Column.DEVICES, lambda text: Devices.parse(given or text, machine))
        collocation = self._cell(Column.COLLOCATION, Collocation.parse)
        if collocation is not None and devices is not None:
            collocation = _on_given(collocation, devices, machine)
        if given.lower() == CPU:
            collocation = Collocation()
        cpus = self._cell(
            Column.CPUS, lambda text: CpuRequest.parse(text, machine.cpus, here=machine.is_here)
        )
        timeout_s = self._cell(Column.TIMEOUT, columns.parse_timeout)
        role = self._cell(Column.ROLE, columns.parse_role)
        resources = self._resources()
        if given.lower() == CPU:
            resources = replace(resources, gpus=GpuRequest())
        listeners, errors = columns.parse_listeners(
            self._row.text(Column.LISTENERS), self._place.registry, here=machine.is_here
        )
        for error in errors:
            self._fail(Column.LISTENERS, error)
        placeholders = self._placeholders(devices)
        params = self._cell(Column.PARAMS, lambda text: self._params(text, placeholders))
        command = self._command(placeholders, params or ())
        environment = self._environment(command)
        if environment is not None and environment.kind is EnvironmentKind.DOCKER:
            for name in wrapping_profilers(listeners, self._place.registry):
                self._fail(Column.LISTENERS, profiler_in_container(name))
        if (
            self._failed
            or devices is None
            or collocation is None
            or cpus is None
            or environment is None
            or command is None
            or role is None
        ):
            return None
        return RunPlan(
            experiment=self._spot.experiment,
            workload=self._spot.workload,
            name=self._row.text(Column.NAME).strip(),
            status=status,
            run_id=self._row.text(Column.RUN).strip(),
            devices=devices,
            collocation=collocation,
            listeners=listeners,
            program=command[0],
            params=command[1],
            params_text=self._row.text(Column.PARAMS).strip(),
            environment=environment,
            cpus=cpus,
            timeout_s=timeout_s,
            role=role,
            resources=resources,
            columns={name: text for name, text in self._row.logged.items() if text},
            repeats_done=columns.parse_repeats(self._row.text(Column.STATUS)),
            repeats_asked=columns.parse_repeats_asked(self._row.text(Column.STATUS)),
            line=self._row.line,
            letter=self._spot.letter,
            auto=self._auto,
        )

    @property
    def _auto(self) -> AutoCells | None:
        if not self._spot.is_auto:
            return None
        values, given = self._row.values, self._place.devices
        return AutoCells(
            any_device=not (given or self._row.text(Column.DEVICES).strip()),
            any_collocation=given.lower() != CPU and not values.get(Column.COLLOCATION, "").strip(),
        )

    def _resources(self) -> Resources:
        return Resources(
            nodes=self._cell(Column.NODES, parse_nodes),
            gpus=self._cell(Column.GPUS, GpuRequest.parse) or GpuRequest(),
            partition=self._cell(Column.PARTITION, str.strip) or "",
            exclusive=self._cell(Column.EXCLUSIVE, parse_exclusive),
            memory_bytes=self._cell(Column.MEMORY, parse_memory),
            time_s=self._cell(Column.TIME, parse_time),
        )

    def _cell(self, column: Column, parse: Callable[[str], T]) -> T | None:
        """Parse a cell before the schema checks it: the parser has better messages."""
        text = self._row.text(column)
        try:
            with lookups():
                parsed = parse(text)
            if text.strip():
                column.field.check(text)
        except UsageError as error:
            self._fail(column, error)
            return None
        return parsed

    def _fail(self, column: Column, error: UsageError) -> None:
        self._failed = True
        self._complain(column, error)

    def _placeholders(self, devices: Devices | None) -> Placeholders:
        device = CPU if devices is None else str(devices)
        if self._auto is not None and self._auto.any_device and self._place.machine.gpus:
            device = ""  # radt has still to choose it
        values: dict[str, str] = {
            column: self._row.text(column).strip() for column in self._row.values
        }
        values |= {name: f"{{{name}}}" for name in AT_START}
        values |= self._row.logged
        values |= {
            Column.EXPERIMENT: self._spot.experiment,
            Column.WORKLOAD: self._spot.workload,
            LETTER_PLACEHOLDER: self._spot.letter,
            Column.DEVICES: device,
        }
        return Placeholders(values)

    def _params(self, text: str, placeholders: Placeholders) -> tuple[str, ...]:
        if self._row.is_literal:
            return columns.parse_params(text)
        return tuple(map(placeholders.fill, columns.parse_params(text, placeholders.split)))

    def _command(
        self, placeholders: Placeholders, params: tuple[str, ...]
    ) -> tuple[Program, tuple[str, ...]] | None:
        """Return the program and its arguments: from File, else from the command of the Model."""
        own_python = self._environment_kind() is EnvironmentKind.LOCAL
        folders = self._place.folders
        model = self._row.text(Column.MODEL).strip()
        given = self._row.text(Column.FILE)
        if given.strip() or not model:
            in_file = Placeholders(placeholders.values, BARRED | {Column.FILE})
            fill = str if self._row.is_literal else in_file.fill
            program = self._cell(
                Column.FILE, lambda text: find_program(fill(text), folders, own_python=own_python)
            )
            return None if program is None else (program, params)
        mappings = self._place.mappings
        try:
            command = mappings.command(model, placeholders.split)
            in_map = Placeholders(placeholders.values, BARRED | {Column.FILE}, command.source)
            if mappings.folder is not None:
                folders = (mappings.folder, *folders)
            with lookups():
                program = find_program(in_map.fill(command.program), folders, own_python=own_python)
            return program, tuple(in_map.expand(command.arguments, params))
        except UsageError as error:
            self._fail(Column.MODEL, error)
            return None

    def _environment_kind(self) -> EnvironmentKind | None:
        """Guess the kind before the program's folder is known; None if it is not radt's own."""
        text = self._row.text(Column.ENVIRONMENT).strip()
        text = self._place.mappings.environments.get(text, text).strip().lower()
        return EnvironmentKind.LOCAL if text in ("", EnvironmentKind.LOCAL) else None

    def _environment(
        self, command: tuple[Program, tuple[str, ...]] | None
    ) -> EnvironmentSpec | None:
        mappings = self._place.mappings
        folder = self._place.folders[0] if command is None else command[0].folder
        if self._row.text(Column.ENVIRONMENT).strip() in mappings.environments:
            folder = mappings.folder or folder  # relative paths in a settings file start there
        data = self._cell(Column.DATA, self._existing) or ()
        return self._cell(
            Column.ENVIRONMENT,
            lambda text: parse_environment(text, folder, mappings.environments, data),
        )

    def _existing(self, text: str) -> tuple[Path, ...]:
        """Return a Data cell as an absolute path, if it exists.

        Links are not resolved: the path must be the one that the program uses.
        """
        places = [folder / expanded(text.strip()) for folder in self._place.folders if text.strip()]
        try:
            return tuple(Path(os.path.abspath(place)) for place in places if place.exists())[:1]  # noqa: PTH100
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return ()  # too long for a path: it is a description of the data
            raise
