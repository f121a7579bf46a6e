"""What the rows of a workload ask for together: CPUs, and parts of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt.errors import DeviceError, RadtError, UsageError
from radt.experiment.affinity import CpuTopology, assign_cpus
from radt.experiment.columns import Column
from radt.experiment.plan import RunPlan, WorkloadPlan
from radt.experiment.row import Place


@dataclass(frozen=True, slots=True)
class Conflict:
    """Rows that cannot have what they ask for at the same time; ``lines`` are theirs."""

    column: Column
    lines: tuple[int, ...]
    error: RadtError


def conflicts(workload: WorkloadPlan, place: Place) -> Iterator[Conflict]:
    """Why the rows of a workload cannot run at the same time on this machine."""
    yield from _cpu_conflicts(workload.runs, place)
    yield from _device_conflicts(workload.runs, place)


def _cpu_conflicts(runs: Sequence[RunPlan], place: Place) -> Iterator[Conflict]:
    """The first row that is too many."""
    available = place.machine.cpus
    requests = [run.cpus for run in runs]
    try:
        assign_cpus(requests, available, CpuTopology())
    except UsageError as error:
        listed = frozenset(cpu for request in requests for cpu in request.cpus)
        left = len(available - listed)
        for run in runs:
            left -= run.cpus.count or 0
            if left < 0:
                yield Conflict(Column.CPUS, (run.line,), error)
                return


def _device_conflicts(runs: Sequence[RunPlan], place: Place) -> Iterator[Conflict]:
    if all(run.collocation.is_naive for run in runs):
        return
    # Imported here: most experiments divide no GPU.
    from radt.collocation.planner import PlacementError, Request, plan_devices

    by_letter = {run.letter: run for run in runs}
    requests = [Request(run.letter, run.devices.gpus, run.collocation) for run in runs]
    try:
        plan_devices(requests, place.inventory())
    except PlacementError as error:
        if error.may_pass:
            return  # others are there now; the runner waits for them, or refuses
        lines = tuple(by_letter[key].line for key in error.keys if key in by_letter)
        yield Conflict(Column.COLLOCATION, lines or (runs[0].line,), error)
    except DeviceError as error:
        first = next(run for run in runs if not run.collocation.is_naive)
        yield Conflict(Column.COLLOCATION, (first.line,), error)
