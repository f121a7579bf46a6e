"""The options of a start, and what it has to run: workloads and their repeats, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from radt import settings
from radt.collocation.busy import BusyPolicy
from radt.errors import RunNotFoundError, UsageError
from radt.experiment.columns import did_you_mean
from radt.experiment.plan import (
    Action,
    ExperimentPlan,
    RunPlan,
    WorkloadPlan,
    actions,
    first_repeat,
)
from radt.home import Home
from radt.model import RunStatus
from radt.runner.outcome import RunEnd
from radt.settings import Level, Settings


class SyncPoint(StrEnum):
    """Where the rows of a workload wait for each other."""

    START = "start"  # as processes
    CONTEXT = "context"  # at the entrance of their `with radt.Run()`


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Options of one start.

    ``only`` are labels of workloads, empty for all. ``max_time_s`` and ``max_epoch`` end the
    script's ``with radt.Run()`` block. ``wait_for_file_s`` is the time to wait for a missing or
    invalid file. ``notify`` is a command line or an address.
    """

    rerun: bool = False
    only: tuple[str, ...] = ()
    repeat: int = 1
    cooldown_s: float = 0.0
    wait_for_file_s: float = 30.0
    max_time_s: float | None = None
    max_epoch: int | None = None
    sync: SyncPoint = SyncPoint.START
    fail_fast: bool = False
    busy: BusyPolicy = BusyPolicy.WAIT
    notify: str = ""
    yes: bool = False
    quiet: bool = False
    repeat_is_given: bool = field(default=False, compare=False)

    def with_repeat_of(self, repeat: int, plan: ExperimentPlan) -> ExperimentOptions:
        """Return a copy with the larger of a file's number of repeats and the requested one.

        If this start requests none, the rows continue with the number they were started with.
        """
        asked = self.repeat if self.repeat_is_given else plan.repeats_asked
        return replace(self, repeat=max(asked, repeat))


def experiment_options(
    values: Settings, *, rerun: bool = False, only: tuple[str, ...] = ()
) -> ExperimentOptions:
    """What the settings say; ``rerun`` and ``only`` are of one start and in no settings file.

    Raises:
        UsageError: A setting has no value of its kind.
    """
    return ExperimentOptions(
        rerun=rerun,
        only=only,
        repeat=values[settings.REPEAT],
        cooldown_s=values[settings.COOLDOWN],
        wait_for_file_s=values[settings.WAIT_FOR_FILE],
        max_time_s=values[settings.MAX_TIME],
        max_epoch=values[settings.MAX_EPOCH],
        sync=SyncPoint(values[settings.SYNC]),
        fail_fast=values[settings.FAIL_FAST],
        busy=BusyPolicy(values[settings.BUSY]),
        notify=values[settings.NOTIFY],
        yes=values[settings.YES],
        quiet=values[settings.QUIET],
        repeat_is_given=values.find(settings.REPEAT).level is not Level.DEFAULT,
    )


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """One workload, to be run once: the ``repeat``-th time of ``repeats``.

    ``actions`` are by the letters of its rows.
    """

    plan: WorkloadPlan
    actions: Mapping[str, Action]
    repeat: int = 1
    repeats: int = 1

    @property
    def again(self) -> list[RunPlan]:
        """Rows that are done and run again because their workload is a unit."""
        return [run for run in self.plan.trained if self.actions[run.letter] is Action.AGAIN]


def pending_workloads(plan: ExperimentPlan, options: ExperimentOptions) -> list[PendingWorkload]:
    """What a start has to run: repeat after repeat, within one in the file's order.

    Rounds over the whole experiment rather than one workload N times: what drifts (temperature,
    neighbours) then touches all workloads alike.

    Raises:
        UsageError: ``only`` names a workload that is not there.
    """
    pending: list[PendingWorkload] = []
    for workload in _chosen(plan, options.only):
        planned = actions(workload, rerun=options.rerun, repeat=options.repeat)
        if any(action.runs for action in planned.values()):
            first = min(first_repeat(workload), options.repeat)
            pending += [
                PendingWorkload(workload, planned, number, options.repeat)
                for number in range(first, options.repeat + 1)
            ]
    return sorted(pending, key=lambda workload: workload.repeat)


def _chosen(plan: ExperimentPlan, only: Sequence[str]) -> list[WorkloadPlan]:
    if not only:
        return list(plan.workloads)
    labels = {workload.label for workload in plan.workloads}
    for label in only:
        if label not in labels:
            raise UsageError(
                f"--only {label}: no such workload",
                did_you_mean(label, labels) or f"Choose from {', '.join(sorted(labels))}",
            )
    return [workload for workload in plan.workloads if workload.label in only]


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan with what the store knows of rows whose runner died before it wrote their end.

    ``endings`` are those ends, by line; the file does not have them yet.
    """

    plan: ExperimentPlan
    endings: Mapping[int, RunEnd]


def settle(plan: ExperimentPlan, home: Home) -> Settled:
    """Look up how rows ended that say RUNNING: a run that came to its own end need not run again.

    Raises:
        StoreError: The store cannot be read.
    """
    ids = [run.run_id for run in plan.runs if run.status is RunStatus.RUNNING and run.run_id]
    if not ids or not home.store_path.exists():
        return Settled(plan, {})
    from radt.store.reader import StoreReader  # needs SQLAlchemy, see `radt.store.peek`

    endings: dict[int, RunEnd] = {}
    with StoreReader(home.store_path) as reader:
        for run in plan.runs:
            if run.status is RunStatus.RUNNING and run.run_id:
                try:
                    record = reader.find_run(run.run_id)
                except RunNotFoundError:
                    continue
                # KILLED is what the collector says of runs whose runner is gone.
                if record.status.ended and record.status is not RunStatus.KILLED:
                    endings[run.line] = RunEnd(record.status, record.end_reason)

    def known(run: RunPlan) -> RunPlan:
        ending = endings.get(run.line)
        if ending is None:
            return run
        done = run.repeats_done + (ending.status is RunStatus.FINISHED)
        return replace(run, status=ending.status, repeats_done=done)

    workloads = tuple(
        replace(workload, runs=tuple(known(run) for run in workload.runs))
        for workload in plan.workloads
    )
    return Settled(replace(plan, workloads=workloads), endings)
