"""The plan: what an experiment file asks for, checked and resolved."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from radt.collocation.spec import Collocation
from radt.environments.spec import LOCAL, EnvironmentSpec
from radt.experiment.cpus import CpuRequest
from radt.experiment.devices import Devices
from radt.experiment.program import Program
from radt.model import ListenerChoice, RunStatus

MODEL = "model"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What one row asks for, each cell understood.

    ``workload`` is empty where the user left it so. ``status``, ``repeats_done`` and ``run_id`` are
    what the file says of the row's last runs. ``params`` are the program's arguments, split as a
    shell would and filled in; ``params_text`` is the cell. ``timeout_s`` counts from the barrier.
    ``columns`` are the cells of all columns that radt does not interpret, and of Model and Data, by
    the header's name; they are logged as parameters.
    """

    experiment: str
    workload: str
    name: str
    status: RunStatus | None
    run_id: str
    devices: Devices
    collocation: Collocation
    listeners: tuple[ListenerChoice, ...]
    program: Program
    params: tuple[str, ...]
    params_text: str
    environment: EnvironmentSpec = LOCAL
    cpus: CpuRequest = field(default_factory=CpuRequest)
    timeout_s: float | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    repeats_done: int = 0

    @property
    def label(self) -> str:
        """What people call the run: its name, else its model's, else its program's."""
        return self.name or self.model or self.program.label

    @property
    def model(self) -> str:
        """The row's Model cell; empty if it has none."""
        return next((v for k, v in self.columns.items() if k.lower() == MODEL), "")

    @property
    def arguments(self) -> str:
        """The program's arguments as a shell would take them; as the user wrote them, if so."""
        try:
            as_written = tuple(shlex.split(self.params_text)) == self.params
        except ValueError:  # a quote that is not closed: the text was made by other means
            as_written = False
        return self.params_text if as_written else shlex.join(self.params)


@dataclass(frozen=True, slots=True)
class RunPlan(RunSpec):
    """One run in its workload.

    ``line`` is the physical line the row begins on (1-based; 0 for a run that is in no file).
    ``letter`` tells the runs of a workload apart (a … z, aa …).
    """

    line: int = 0
    letter: str = "a"

    @classmethod
    def of(cls, spec: RunSpec, *, workload: str, line: int, letter: str) -> RunPlan:
        """The run of a row, placed."""
        given = {one.name: getattr(spec, one.name) for one in fields(RunSpec)}
        return cls(**{**given, "workload": workload}, line=line, letter=letter)


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """Runs that start together, in the file's order."""

    experiment: str
    label: str
    runs: tuple[RunPlan, ...]


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """All workloads of a file, in the order they first appear.

    ``warnings`` say what the file asks for and will not get on this machine. They are for whoever
    only looks: at a start the collector says it, which also knows what cannot be opened.
    """

    path: Path
    workloads: tuple[WorkloadPlan, ...]
    warnings: tuple[str, ...] = ()

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
