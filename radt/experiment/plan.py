"""The plan of an experiment, and the action of the next start on each of its rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from radt.collocation.spec import Collocation
from radt.devices.cpus import CpuRequest
from radt.devices.machine import Devices
from radt.environments.spec import LOCAL, EnvironmentSpec
from radt.experiment.program import Program
from radt.experiment.resources import Resources
from radt.model import ListenerChoice, Role, RunStatus

MODEL = "model"


#: The Workload cell of rows that radt groups itself (`radt.runner.placement`).
AUTO = "auto"
#: Labels of such rows (``auto row 3``) and of the workloads that radt forms (``auto-3``).
AUTO_LABEL = re.compile(rf"{AUTO}(?: row |-)(\d+)")


@dataclass(frozen=True, slots=True)
class AutoCells:
    """Which cells of an ``auto`` row are empty, so that radt chooses device or collocation."""

    any_device: bool = True
    any_collocation: bool = True


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One row as planned: every cell parsed, and its place in the experiment.

    ``workload`` is the label of its workload; ``letter`` distinguishes the runs of a workload
    (a … z, aa …). ``line`` is the physical line on which the row begins (from 1; 0 for a run
    without a file). ``status``, ``repeats_done``, ``repeats_asked`` and ``run_id`` are the file's
    record of the row's last runs. ``params`` are the program's arguments, split as by a shell and
    with placeholders filled; ``params_text`` is the cell. ``timeout_s`` counts from the barrier.
    ``resources`` are for clusters; their memory also limits containers. ``columns`` are the cells
    of all columns that radt does not interpret, and of Model and Data, by the header's name; they
    are logged as parameters. ``auto`` is None unless radt chooses the row's neighbours; until then
    the row is a workload of its own.
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
    role: Role = Role.TRAINING
    resources: Resources = field(default_factory=Resources)
    columns: Mapping[str, str] = field(default_factory=dict)
    repeats_done: int = 0
    repeats_asked: int = 1
    line: int = 0
    letter: str = "a"
    auto: AutoCells | None = None

    @property
    def is_service(self) -> bool:
        """Return True for a service: it serves the other rows and ends after them."""
        return self.role is Role.SERVICE

    @property
    def label(self) -> str:
        """Return the run's name in messages and tables: its own, the model's, or the program's."""
        return self.name or self.model or self.program.label

    @property
    def model(self) -> str:
        """Return the row's Model cell; empty if it has none."""
        return next((v for k, v in self.columns.items() if k.lower() == MODEL), "")

    @property
    def arguments(self) -> str:
        """Return the program's arguments for a shell; as the user wrote them, if equivalent."""
        try:
            as_written = tuple(shlex.split(self.params_text)) == self.params
        except ValueError:  # an unclosed quote: the cell was not what made these params
            as_written = False
        return self.params_text if as_written else shlex.join(self.params)


@dataclass(frozen=True, slots=True, order=True)
class WorkloadKey:
    """A workload of an experiment file."""

    experiment: str
    label: str


def is_chosen(label: str, only: Collection[str]) -> bool:
    """Return True if ``--only`` chooses a workload. ``auto`` chooses all rows that radt groups."""
    if not only or label in only:
        return True
    return AUTO in only and AUTO_LABEL.fullmatch(label) is not None


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """Runs that start together, in the file's order."""

    experiment: str
    label: str
    runs: tuple[RunPlan, ...]

    @property
    def key(self) -> WorkloadKey:
        return WorkloadKey(self.experiment, self.label)

    @property
    def is_auto(self) -> bool:
        """Return True for a row that radt puts into a workload."""
        return any(run.auto is not None for run in self.runs)

    @property
    def trained(self) -> tuple[RunPlan, ...]:
        """Return its runs without services."""
        return tuple(run for run in self.runs if not run.is_service)


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """All workloads of a file, in the order they first appear.

    ``warnings`` say what the file requests and will not get on this machine. They are for commands
    that only check a file: at a start, the collector reports problems, including devices that it
    cannot open.
    """

    path: Path
    workloads: tuple[WorkloadPlan, ...]
    warnings: tuple[str, ...] = ()

    @property
    def runs(self) -> Iterator[RunPlan]:
        """Yield all runs, workload after workload."""
        return (run for workload in self.workloads for run in workload.runs)

    @property
    def repeats_asked(self) -> int:
        """Return the number of repeats that an earlier start requested; 1 if there was none."""
        return max((run.repeats_asked for run in self.runs), default=1)

    @property
    def name(self) -> str:
        """Return the name of the experiment, or of the file if it has several."""
        names = {workload.experiment for workload in self.workloads}
        return names.pop() if len(names) == 1 else self.path.stem


#: Ends that are results; only ``--rerun`` runs these rows again.
FAILURES = (RunStatus.FAILED, RunStatus.OOM, RunStatus.TIMEOUT)


class RowAction(StrEnum):
    """The action of a start on a row."""

    RUN = "run"
    RESUME = "resume"  # run again: the last run did not end by itself
    REPEAT = "repeat"  # it is done, but more repeats are requested
    AGAIN = "again"  # it is done, and its workload runs again
    SKIP = "skip"

    @property
    def runs(self) -> bool:
        """Return True if the row is started."""
        return self is not RowAction.SKIP


def decide(row: RunPlan, *, rerun: bool = False, repeat: int = 1) -> RowAction:
    """Return the action on a row by itself; the caller holds the file's lock.

    Under the lock no other runner is alive, so a row that says RUNNING has lost its runner.

    Args:
        row: The row, with its status and its number of finished repeats.
        rerun: True to run failed rows again.
        repeat: Number of times each row is to be run.
    """
    match row.status:
        case RunStatus.FINISHED:
            return RowAction.SKIP if row.repeats_done >= repeat else RowAction.REPEAT
        case status if status in FAILURES:
            return RowAction.RUN if rerun else RowAction.SKIP
        case RunStatus.RUNNING | RunStatus.KILLED:
            return RowAction.RESUME
        case _:
            return RowAction.RUN


def actions(
    workload: WorkloadPlan, *, rerun: bool = False, repeat: int = 1
) -> Mapping[str, RowAction]:
    """Return the action on each row of a workload, by its letter.

    Missing repeats are no reason to start a failed workload: they would fail, too. A service runs
    whenever its workload does, and never by itself; it is a reason to run the workload only if it
    failed and failed rows are to run again.
    """
    alone = {run.letter: decide(run, rerun=rerun, repeat=repeat) for run in workload.runs}
    failed = not rerun and any(run.status in FAILURES for run in workload.runs)
    deciding = [
        alone[run.letter]
        for run in workload.runs
        if not run.is_service or (rerun and run.status in FAILURES)
    ]
    if not any(action.runs and not (failed and action is RowAction.REPEAT) for action in deciding):
        return dict.fromkeys(alone, RowAction.SKIP)
    return {row: action if action.runs else RowAction.AGAIN for row, action in alone.items()}


def first_repeat(workload: WorkloadPlan) -> int:
    """Return the number, from 1, of the next repeat of a workload."""
    return min(run.repeats_done for run in workload.trained) + 1
