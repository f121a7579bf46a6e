"""Sweeps for tests: a folder with a script, and what radt makes of a sweep in it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem
from radt.experiment.plan import ExperimentPlan, RunPlan
from radt.experiment.status import RowStatus
from radt.experiment.sweep import SweepFile
from radt.listeners.api import Registry

SMALL = """\
# which learning rate?
file: train.py
devices: cpu
parameters:
  lr: {values: [0.1, 0.01]}   # from the paper
  bs:
    values:
      - 32
      - 64
"""


@dataclass
class SweepBench:
    """A folder with ``train.py`` and ``sweep.yaml``, on one machine."""

    path: Path
    machine: Machine
    registry: Registry

    def write(self, text: str) -> SweepBench:
        self.path.write_bytes(text.encode())
        return self

    @property
    def text(self) -> str:
        return self.path.read_bytes().decode()

    @property
    def csv(self) -> Path:
        return self.path.with_suffix(".csv")

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the CSV that a start writes, without its header."""
        return self._cells[1:]

    @property
    def statuses(self) -> dict[str, str]:
        """The Status cells by Params."""
        header = self._cells[0]
        return {row[header.index("Params")]: row[header.index("Status")] for row in self.rows}

    @property
    def _cells(self) -> list[list[str]]:
        lines = self.csv.read_text(encoding="utf-8").splitlines(keepends=True)
        return list(csv.reader(line for line in lines if not line.startswith(("#", '"#'))))

    def file(self) -> SweepFile:
        return SweepFile.read(self.path)

    def plan(self) -> ExperimentPlan:
        return self.file().plan(self.machine, self.registry)

    def runs(self) -> dict[str, RunPlan]:
        """The runs by their arguments."""
        return {run.params_text: run for run in self.plan().runs}

    def problems(self) -> list[Problem]:
        with pytest.raises(ExperimentError) as caught:
            self.plan()
        return list(caught.value.problems)

    def expand(self) -> str:
        """Write the CSV as a start does; returns what it says about it."""
        file = self.file()
        file.plan(self.machine, self.registry)
        file.writer()
        return file.note

    def record(self, statuses: Mapping[str, str], run_id: str = "abc") -> None:
        """Write statuses of runs, by their arguments, as a runner does."""
        file = self.file()
        lines = {run.params_text: run.line for run in file.plan(self.machine, self.registry).runs}
        file.writer().set_many(
            {lines[params]: RowStatus(text, run_id) for params, text in statuses.items()}
        )
