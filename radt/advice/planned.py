"""What an experiment's file asks for, as far as advice needs it: models and who runs with whom.

The file is read for any machine: a GPU that is not here may be advised on all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from radt.advice.study import Study
from radt.advice.words import Candidate, ModelKey, Origin, Row, Solo
from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.check import spots_of
from radt.experiment.columns import Column
from radt.experiment.devices import Devices, Machine
from radt.experiment.file import ExperimentFile
from radt.experiment.plan import RunPlan
from radt.experiment.row import Place, RowCheck
from radt.experiment.row import Row as FileRow
from radt.experiment.structure import read_header
from radt.listeners import registry
from radt.nvml import Gpu

#: Files that are read; sweeps have no workloads of several runs.
SUFFIX = ".csv"
_MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class Planned:
    """Rows of a file by workload.

    ``anywhere`` are the lines of rows that name no device: which they ran on, the store says.
    """

    path: Path | None = None
    experiment: str = ""
    workloads: Mapping[str, Sequence[RunPlan]] = field(default_factory=dict)
    anywhere: frozenset[int] = frozenset()

    def candidates(self, study: Study) -> list[Candidate]:
        """Its workloads of several rows, on each machine where all of them ran alone."""
        found = []
        for label, rows in self.workloads.items():
            if len(rows) < 2:
                continue
            for host in _hosts(study):
                solos = [self._solo(row, host, study) for row in rows]
                known = [solo for solo in solos if solo is not None]
                if len(known) == len(rows):
                    together = tuple(
                        Row(solo, row.collocation) for solo, row in zip(known, rows, strict=True)
                    )
                    found.append(Candidate(together, Origin.FILE, (label,)))
        return found

    def missing(self, study: Study) -> dict[ModelKey, str]:
        """Models of its rows that ran alone on no machine, by key; not those that ran with others.

        What those need, the study knows (`Study.missing`).
        """
        hosts = _hosts(study) or [""]
        ran = {key[:2] for key in study.missing}
        return {
            (*_model(row), hosts[0]): row.label
            for rows in self.workloads.values()
            for row in rows
            if not any(self._solo(row, host, study) for host in hosts)
            and not (row.line in self.anywhere and _model(row)[:2] in ran)
        }

    def rows(self) -> dict[tuple[str, str, str], RunPlan]:
        """A row of each model, by file, parameters and devices."""
        return {_model(row): row for rows in self.workloads.values() for row in rows}

    def _solo(self, row: RunPlan, host: str, study: Study) -> Solo | None:
        found = study.solos.get((*_model(row), host))
        if found is not None or row.line not in self.anywhere:
            return found
        same = (
            solo
            for key, solo in study.solos.items()
            if key[:2] == _model(row)[:2] and key[3] == host
        )
        return next(same, None)


def read_planned(path: Path) -> Planned:
    """Read an experiment file.

    Args:
        path: A CSV file.

    Raises:
        ExperimentError: The file has problems.
        UsageError: It holds several experiments, or is no CSV file.
    """
    if path.suffix.lower() != SUFFIX:
        raise UsageError(
            f"{path} is no {SUFFIX} file", "Give the experiment's name: its runs are in the store"
        )
    file = ExperimentFile.read(path)
    here = Machine.detect()
    place = Place.beside(file.path, _with_any_gpu(here), registry.load())
    first = str(Devices.parse("", here))
    header = read_header(file.shown, file.table)
    keys = [
        (
            header.value(record, Column.EXPERIMENT).strip() or place.default_experiment,
            header.value(record, Column.WORKLOAD).strip(),
        )
        for record in file.table.rows
    ]
    problems: list[Problem] = []
    workloads: dict[str, list[RunPlan]] = {}
    anywhere: set[int] = set()
    for record, spot in zip(file.table.rows, spots_of(keys), strict=True):
        values = header.values(record)
        if not values.get(Column.DEVICES, "").strip():
            anywhere.add(record.line)
            values = {**values, Column.DEVICES: first}

        def complain(column: Column, error: UsageError, line: int = record.line) -> None:
            problems.append(Problem(error.message, error.remedy or "", line, column))

        spec = RowCheck(FileRow(values, header.logged(record)), spot, place, complain).run()
        if spec is not None:
            run = RunPlan.of(spec, workload=spot.workload, line=record.line, letter=spot.letter)
            workloads.setdefault(spot.workload, []).append(run)
    if problems:
        raise ExperimentError(file.shown, problems)
    names = list(dict.fromkeys(name for name, _ in keys))
    if len(names) != 1:
        raise UsageError(
            f"{path} holds {len(names)} experiments", "Give the name of one: " + ", ".join(names)
        )
    return Planned(path, names[0], workloads, frozenset(anywhere))


def _with_any_gpu(here: Machine) -> Machine:
    """This machine, with every GPU that a row may name: what is read of it is not run here."""
    there = {gpu.index: gpu for gpu in (*here.gpus, *here.hidden)}
    gpus = tuple(there.get(index, Gpu(index, "", f"GPU-{index}")) for index in range(_MAX_GPUS))
    return replace(here, gpus=gpus, hidden=(), no_gpu_reason="")


def _model(row: RunPlan) -> tuple[str, str, str]:
    """As the runner records it, see `radt.report.summary`."""
    return row.program.module or row.program.path.name, row.arguments, str(row.devices)


def _hosts(study: Study) -> list[str]:
    return list(dict.fromkeys(solo.host for solo in study.solos.values()))
