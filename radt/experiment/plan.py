"""The plan: what an experiment file asks for, checked and resolved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radt.experiment.devices import Devices
from radt.model import ListenerChoice, RunStatus

#: Rows without set-up of the devices: neighbours share a device as it is.
NAIVE = "-"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One row: one training process.

    ``line`` is the physical line the row begins on (1-based; 0 for a run that is in no file).
    ``letter`` tells the runs of a workload apart (a … z, aa …). ``status`` and ``run_id`` are what
    the file says of the row's last run. ``params`` are the script's arguments, split as a shell
    would; ``params_text`` is the cell. ``file`` is absolute, ``cwd`` its folder.
    """

    line: int
    experiment: str
    workload: str
    letter: str
    name: str
    status: RunStatus | None
    run_id: str
    devices: Devices
    collocation: str
    listeners: tuple[ListenerChoice, ...]
    file: Path
    params: tuple[str, ...]
    params_text: str
    cwd: Path

    @property
    def is_python(self) -> bool:
        """Whether ``file`` is run by Python; else it is executed itself."""
        return self.file.suffix == ".py"

    @property
    def label(self) -> str:
        """What people call the run: its name, else the script's."""
        return self.name or self.file.stem


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """Runs that start together, in the file's order."""

    experiment: str
    label: str
    runs: tuple[RunPlan, ...]


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """All workloads of a file, in the order they first appear."""

    path: Path
    workloads: tuple[WorkloadPlan, ...]

    @property
    def runs(self) -> Iterator[RunPlan]:
        """Every run, workload after workload."""
        return (run for workload in self.workloads for run in workload.runs)

    @property
    def name(self) -> str:
        """The experiment's name, or the file's where it holds several."""
        names = {workload.experiment for workload in self.workloads}
        return names.pop() if len(names) == 1 else self.path.stem


def letter(index: int) -> str:
    """The letter of the run at this position in its workload: a … z, aa, ab …

    >>> [letter(index) for index in (0, 25, 26, 701, 702)]
    ['a', 'z', 'aa', 'zz', 'aaa']
    """
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
