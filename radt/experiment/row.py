"""Checks the cells of one row, from a file or from the command line, and resolves them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from radt.collocation.spec import Collocation
from radt.environments.parse import parse_environment
from radt.environments.spec import EnvironmentKind, EnvironmentSpec
from radt.errors import UsageError
from radt.experiment import cells
from radt.experiment.columns import Column
from radt.experiment.cpus import CpuRequest
from radt.experiment.devices import Devices, Machine
from radt.experiment.locate import find_program
from radt.experiment.mapping import Mappings
from radt.experiment.plan import RunSpec, letter
from radt.experiment.program import Program
from radt.experiment.sources import not_in_containers, prefixing
from radt.experiment.templates import BARRED, LETTER_BLANK, Blanks
from radt.listeners.api import Registry
from radt.model import ListenerChoice

if TYPE_CHECKING:
    from radt.collocation.topology import Inventory

T = TypeVar("T")


def _inventory() -> Inventory:
    # Imported here: most experiments divide no GPU.
    from radt.collocation.inventory import read_inventory

    return read_inventory()


@dataclass(frozen=True, slots=True)
class Place:
    """What the meaning of a row depends on.

    ``folders`` are where its File may be, the experiment's first. ``inventory`` is asked only for
    rows that divide their GPUs.
    """

    machine: Machine
    registry: Registry
    folders: tuple[Path, ...]
    default_experiment: str
    mappings: Mappings = field(default_factory=Mappings)
    inventory: Callable[[], Inventory] = _inventory

    @classmethod
    def beside(cls, file: Path, machine: Machine, registry: Registry) -> Place:
        """For the rows of an experiment file.

        Raises:
            UsageError: The settings file that holds for it cannot be used.
        """
        folder = file.absolute().parent
        folders = (folder, Path.cwd())
        inventory = functools.cache(_inventory)
        return cls(machine, registry, folders, file.stem, Mappings.of(folder), inventory)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a row stands: its experiment, its workload's label, its letter there."""

    experiment: str
    workload: str
    letter: str


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row: of the columns that radt reads, and those logged as they are.

    ``is_literal`` says that nothing is to be filled into File and Params.
    """

    values: Mapping[Column, str]
    logged: Mapping[str, str] = field(default_factory=dict)
    is_literal: bool = False

    def text(self, column: Column) -> str:
        """The cell; empty where the file has no such column, or where it says nothing."""
        value = self.values.get(column, "")
        return "" if column.field.is_missing(value) else value


def check_row(
    values: Mapping[Column, str],
    place: Place,
    complain: Callable[[Column, UsageError], None],
    *,
    spot: Spot | None = None,
    logged: Mapping[str, str] | None = None,
) -> RunSpec | None:
    """Check every cell of a row; None after at least one complaint.

    Args:
        values: Its cells.
        place: What its meaning depends on.
        complain: Takes the column and what is wrong with its cell.
        spot: Where it stands; not given, it is the only one of its workload.
        logged: See `Row`.
    """
    row = Row(values, logged or {})
    if spot is None:
        experiment = row.text(Column.EXPERIMENT).strip() or place.default_experiment
        spot = Spot(experiment, row.text(Column.WORKLOAD).strip(), letter(0))
    return RowCheck(row, spot, place, complain).run()


class RowCheck:
    """Checks one row, cell by cell; every problem is handed to ``complain``.

    Args:
        row: Its cells.
        spot: Where it stands.
        place: What its meaning depends on.
        complain: Takes the column and what is wrong with its cell.
    """

    def __init__(
        self,
        row: Row,
        spot: Spot,
        place: Place,
        complain: Callable[[Column, UsageError], None],
    ) -> None:
        self._row = row
        self._spot = spot
        self._place = place
        self._complain = complain
        self._failed = False

    def run(self) -> RunSpec | None:
        """The row, understood; None after at least one complaint."""
        for column in (Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.RUN):
            self._cell(column, str.strip)
        status = self._cell(Column.STATUS, cells.parse_status)
        machine = self._place.machine
        devices = self._cell(Column.DEVICES, lambda text: Devices.parse(text, machine))
        collocation = self._cell(Column.COLLOCATION, Collocation.parse)
        cpus = self._cell(Column.CPUS, lambda text: CpuRequest.parse(text, machine.cpus))
        timeout_s = self._cell(Column.TIMEOUT, cells.parse_timeout)
        listeners = cells.parse_listeners(self._row.text(Column.LISTENERS), self._place.registry)
        for error in listeners.errors:
            self._fail(Column.LISTENERS, error)
        blanks = self._blanks(devices)
        params = self._cell(Column.PARAMS, lambda text: self._params(text, blanks))
        command = self._command(blanks, params or ())
        environment = self._environment(command)
        if environment is not None:
            self._check_profilers(listeners.choices, environment)
        if (
            self._failed
            or devices is None
            or collocation is None
            or cpus is None
            or environment is None
            or command is None
        ):
            return None
        return RunSpec(
            experiment=self._spot.experiment,
            workload=self._row.text(Column.WORKLOAD).strip(),
            name=self._row.text(Column.NAME).strip(),
            status=status,
            run_id=self._row.text(Column.RUN).strip(),
            devices=devices,
            collocation=collocation,
            listeners=listeners.choices,
            program=command[0],
            params=command[1],
            params_text=self._row.text(Column.PARAMS).strip(),
            environment=environment,
            cpus=cpus,
            timeout_s=timeout_s,
            columns={name: text for name, text in self._row.logged.items() if text},
            repeats_done=cells.parse_repeats(self._row.text(Column.STATUS)),
        )

    def _check_profilers(
        self, choices: Sequence[ListenerChoice], environment: EnvironmentSpec
    ) -> None:
        if environment.kind is not EnvironmentKind.DOCKER:
            return
        for name in prefixing(choices, self._place.registry):
            self._fail(Column.LISTENERS, not_in_containers(name))

    def _cell(self, column: Column, parse: Callable[[str], T]) -> T | None:
        """What the cell means; its parser knows better words than the schema, so it is first."""
        text = self._row.text(column)
        try:
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

    def _blanks(self, devices: Devices | None) -> Blanks:
        values: dict[str, str] = {
            column: self._row.text(column).strip() for column in self._row.values
        }
        values |= self._row.logged
        values |= {
            Column.EXPERIMENT: self._spot.experiment,
            Column.WORKLOAD: self._spot.workload,
            LETTER_BLANK: self._spot.letter,
            Column.DEVICES: "cpu" if devices is None else str(devices),
        }
        return Blanks(values)

    def _params(self, text: str, blanks: Blanks) -> tuple[str, ...]:
        if self._row.is_literal:
            return cells.parse_params(text)
        return tuple(map(blanks.fill, cells.parse_params(text, blanks.split)))

    def _command(
        self, blanks: Blanks, params: tuple[str, ...]
    ) -> tuple[Program, tuple[str, ...]] | None:
        """The program and its arguments: from File, else from what the Model is mapped to."""
        own_python = self._environment_kind() is EnvironmentKind.LOCAL
        folders = self._place.folders
        model = self._row.text(Column.MODEL).strip()
        given = self._row.text(Column.FILE)
        if given.strip() or not model:
            in_file = Blanks(blanks.values, BARRED | {Column.FILE})
            fill = str if self._row.is_literal else in_file.fill
            program = self._cell(
                Column.FILE, lambda text: find_program(fill(text), folders, own_python=own_python)
            )
            return None if program is None else (program, params)
        mappings = self._place.mappings
        try:
            command = mappings.command(model, blanks.split)
            in_map = Blanks(blanks.values, BARRED | {Column.FILE}, command.source)
            if mappings.folder is not None:
                folders = (mappings.folder, *folders)
            program = find_program(in_map.fill(command.program), folders, own_python=own_python)
            return program, tuple(in_map.expand(command.arguments, params))
        except UsageError as error:
            self._fail(Column.MODEL, error)
            return None

    def _environment_kind(self) -> EnvironmentKind | None:
        """Roughly, before the program's folder is known; None for another than radt's own."""
        text = self._row.text(Column.ENVIRONMENT).strip()
        text = self._place.mappings.environments.get(text, text).strip().lower()
        return EnvironmentKind.LOCAL if text in ("", EnvironmentKind.LOCAL) else None

    def _environment(
        self, command: tuple[Program, tuple[str, ...]] | None
    ) -> EnvironmentSpec | None:
        mappings = self._place.mappings
        folder = self._place.folders[0] if command is None else command[0].folder
        if self._row.text(Column.ENVIRONMENT).strip() in mappings.environments:
            folder = mappings.folder or folder  # paths in a settings file start there
        data = self._data()
        return self._cell(
            Column.ENVIRONMENT,
            lambda text: parse_environment(text, folder, mappings.environments, data),
        )

    def _data(self) -> tuple[Path, ...]:
        """The Data cell as an absolute path, if it is one of something that is there.

        As the program will name it: a link is not resolved.
        """
        text = self._row.text(Column.DATA).strip()
        if not text:
            return ()
        places = [folder / Path(text).expanduser() for folder in self._place.folders]
        return tuple(Path(os.path.abspath(place)) for place in places if place.exists())[:1]  # noqa: PTH100
