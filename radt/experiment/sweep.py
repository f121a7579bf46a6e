"""Sweeps: YAML files that hold one run and the values that its parameters are to take.

::

    experiment: digits
    file: train.py
    method: random
    trials: 20
    parameters:
      lr: {min: 0.001, max: 0.1, distribution: log_uniform}
      batch-size: {values: [32, 64, 128]}

The original radT's files work as they are. What became of each run is written below ``status:``
with its parameters; a start runs those that are not there yet.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from radt.errors import ExperimentError, Problem, RadtError, UsageError
from radt.experiment.cells import parse_params
from radt.experiment.check import NumberedRow, workloads_of
from radt.experiment.columns import LOGGED, Column
from radt.experiment.devices import Machine
from radt.experiment.plan import ExperimentPlan, RunSpec, WorkloadPlan, letter
from radt.experiment.raw import RawFile
from radt.experiment.row import Place, Row, RowCheck, Spot
from radt.experiment.sources import absences
from radt.experiment.structure import UNREADABLE
from radt.experiment.sweep_document import Document, noting, parse_document
from radt.experiment.sweep_groups import SweepRun, grouped, recorded
from radt.experiment.sweep_parameters import PARAMETERS
from radt.experiment.sweep_space import SweepMethod, combinations
from radt.experiment.sweep_spec import TRIALS, SweepSpec, read_spec
from radt.experiment.sweep_writer import SweepWriter, joined
from radt.experiment.together import conflicts
from radt.listeners.api import Registry

_PARAMS = Column.PARAMS.lower()


@dataclass(frozen=True)
class SweepFile:
    """A sweep as it was read; ``shown`` is for messages.

    ``drawn_seed`` is the seed of a random sweep whose file has none.
    """

    path: Path
    shown: str
    document: Document = field(repr=False)
    drawn_seed: int = field(default_factory=lambda: secrets.randbelow(2**31))

    @classmethod
    def read(cls, path: Path | str) -> SweepFile:
        """Read a file; what is wrong with its keys is said by `plan`.

        Raises:
            ExperimentError: It cannot be read, or is not YAML.
        """
        raw = RawFile.read(path, "YAML")
        if problems := list(_undecoded(raw.text)):
            raise ExperimentError(raw.shown, problems)
        return cls(raw.path, raw.shown, parse_document(raw.shown, raw.text))

    @property
    def repeat(self) -> int:
        """How often the file wants every workload."""
        return self.spec.repeat

    @property
    def spec(self) -> SweepSpec:
        """What its keys say, as far as they can be understood."""
        return self._read_spec[0]

    @cached_property
    def workloads(self) -> list[list[SweepRun]]:
        """The runs of the sweep and what is known of each.

        Raises:
            UsageError: They have no end, or are too many.
        """
        spec = self.spec
        if not spec.parameters:
            return []
        seed = self.drawn_seed if spec.seed is None else spec.seed
        runs = combinations(spec.parameters, spec.method, seed, spec.trials)
        return grouped(runs, recorded(spec.entries, runs, spec.fixed), spec.at_once)

    def plan(self, machine: Machine, registry: Registry) -> ExperimentPlan:
        """What the file asks for on this machine with these listeners.

        Raises:
            ExperimentError: With every problem of the file.
            UsageError: The settings file that holds for it cannot be used.
        """
        spec, found = self._read_spec
        check = _SweepCheck(spec, Place.beside(self.path, machine, registry), list(found))
        workloads: Sequence[Sequence[SweepRun]] = []
        if not check.problems:
            with noting(check.problems, *check.place_of_size()):
                workloads = self.workloads
        plan = check.plan(self.path, workloads)
        if check.problems:
            raise ExperimentError(self.shown, sorted(check.problems, key=lambda one: one.line or 0))
        return plan

    def writer(self) -> SweepWriter:
        """Writes statuses of this file's runs; the caller holds its lock.

        The seed of a random sweep is written at once, so that the next start draws the same runs.

        Raises:
            StatusError: The file cannot be read or written.
        """
        spec = self.spec
        needs_seed = spec.method is SweepMethod.RANDOM and spec.seed is None
        seed = self.drawn_seed if needs_seed else None
        return SweepWriter(self.path, self.workloads, spec.fixed, seed)

    @cached_property
    def _read_spec(self) -> tuple[SweepSpec, Sequence[Problem]]:
        problems: list[Problem] = []
        spec = read_spec(self.document.root, problems)
        with noting(problems, spec.lines.get(_PARAMS, 0), _PARAMS):
            _check_fixed(spec)
        return spec, problems


class _SweepCheck:
    """Checks the runs of a sweep as those of a table are, and collects problems."""

    def __init__(self, spec: SweepSpec, place: Place, problems: list[Problem]) -> None:
        self._spec = spec
        self._place = place
        self.problems = problems

    def plan(self, path: Path, workloads: Sequence[Sequence[SweepRun]]) -> ExperimentPlan:
        """The plan of these runs; where there are none, what they share is checked all the same."""
        rows: list[NumberedRow] = []
        if not workloads:
            self._checked(None, self._spot("000", 0))
        for workload in workloads:
            for index, run in enumerate(workload):
                spot = self._spot(run.number.label, index)
                row = self._checked(run, spot)
                if row is not None:
                    rows.append(NumberedRow(run.position, row))
        planned = workloads_of(rows)
        if not self.problems:
            self._check_together(planned)
        return ExperimentPlan(path, planned, absences(planned, self._place.registry))

    def place_of_size(self) -> tuple[int, str]:
        """The line and key by which the number of runs is changed."""
        key = TRIALS if TRIALS in self._spec.lines else PARAMETERS
        return self._spec.lines.get(key, 0), key

    def _spot(self, label: str, index: int) -> Spot:
        given = self._spec.values.get(Column.EXPERIMENT, "").strip()
        return Spot(given or self._place.default_experiment, label, letter(index))

    def _checked(self, run: SweepRun | None, spot: Spot) -> RunSpec | None:
        values = {**self._spec.values, Column.WORKLOAD: spot.workload}
        if run is not None:
            values[Column.PARAMS] = joined(self._spec.fixed, run)
        if run is not None and run.entry is not None:
            values |= {Column.STATUS: run.entry.status, Column.RUN: run.entry.run_id}
        logged = {str(column): values[column] for column in LOGGED if column in values}
        swept = run.combination.params if run is not None else ""

        def complain(column: Column, error: UsageError) -> None:
            key = column.lower()
            # Of what goes into Params the fixed part has a key of its own.
            if column is Column.PARAMS and ("{" in swept or not self._spec.fixed):
                key = PARAMETERS
            self._add(key, error)

        row = Row(values, logged | self._spec.columns)
        return RowCheck(row, spot, self._place, complain).run()

    def _check_together(self, workloads: Sequence[WorkloadPlan]) -> None:
        for workload in workloads:
            for conflict in conflicts(workload, self._place):
                self._add(conflict.column.lower(), conflict.error)

    def _add(self, key: str, error: RadtError) -> None:
        problem = Problem(error.message, error.remedy or "", self._spec.lines.get(key), key)
        if problem not in self.problems:  # all runs have it
            self.problems.append(problem)


def _check_fixed(spec: SweepSpec) -> None:
    words = parse_params(spec.fixed)
    for parameter in spec.parameters:
        option = f"--{parameter.name}"
        if any(word == option or word.startswith(f"{option}=") for word in words):
            raise UsageError(
                f"{option} is here and among the parameters", "Remove it from one of the two"
            )


def _undecoded(text: str) -> list[Problem]:
    """One problem for each line with bytes that are not UTF-8, or with a NUL."""
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), start=1):
        bad = UNREADABLE.search(line)
        if bad is not None:
            what = "a NUL byte" if bad.group() == "\0" else "a byte that is not UTF-8"
            problems.append(Problem(what, "Save the file as text in UTF-8", number))
    return problems
