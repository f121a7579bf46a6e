"""Sweeps for tests: a folder with a script, and what radt makes of a sweep in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from radt.errors import ExperimentError, Problem
from radt.experiment.devices import Machine
from radt.experiment.plan import ExperimentPlan, RunPlan
from radt.experiment.status import RowStatus
from radt.experiment.sweep import SweepFile
from radt.listeners.api import Registry

#: As the original radT 0.2.30 writes a sweep back: keys sorted, long lines folded.
ORIGINAL = """\
collocation: '-'
devices: 0
experiment: 1
file: train.py
listeners: smi+top
method: grid
name: batch sizes
parameters:
  batch-size:
    values:
    - 32
    - 64
  lr:
    values:
    - 0.1
    - 0.01
  optimiser-name:
    values:
    - stochastic-gradient-descent
parent: 0123456789abcdef0123456789abcdef
status:
  0: FINISHED 11111111111111111111111111111111 (--batch-size 32 --lr 0.1 --optimiser-name
    stochastic-gradient-descent)
  1: FAILED 22222222222222222222222222222222 (--batch-size 32 --lr 0.01 --optimiser-name
    stochastic-gradient-descent)
"""

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
    def statuses(self) -> dict[object, str]:
        """The entries, as any reader of YAML has them."""
        return dict(yaml.safe_load(self.text)["status"])

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

    def record(self, statuses: Mapping[str, str], run_id: str = "abc") -> None:
        """Write statuses of runs, by their arguments, as a runner does."""
        file = self.file()
        lines = {run.params_text: run.line for run in file.plan(self.machine, self.registry).runs}
        file.writer().set_many(
            {lines[params]: RowStatus(text, run_id) for params, text in statuses.items()}
        )

    def workloads(self) -> dict[str, list[str]]:
        """The arguments of the runs of each workload."""
        return {one.label: [run.params_text for run in one.runs] for one in self.plan().workloads}
