"""The work of a start: workloads and their repeats in order, and the options of the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from radt import settings
from radt.collocation.busy import BusyPolicy
from radt.devices.machine import Machine
from radt.errors import RunNotFoundError, UsageError
from radt.experiment.columns import did_you_mean
from radt.experiment.plan import (
    FAILURES,
    ExperimentPlan,
    RowAction,
    RunPlan,
    WorkloadPlan,
    actions,
    decide,
    first_repeat,
    is_chosen,
)
from radt.experiment.source import ExperimentFile, open_source
from radt.home import Home
from radt.lifetime import Wait, waits
from radt.listeners import registry
from radt.model import RunStatus
from radt.runner.outcome import RunEnd
from radt.runner.progress import RowProgress, WorkloadProgress
from radt.settings import Setting, SettingLevel, Settings
from radt.units import plural


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """One execution of a workload: repeat ``repeat`` of ``repeats``.

    ``actions`` are keyed by the letters of its rows. ``grouped_by`` is why radt put them together;
    "" for a workload of the file.
    """

    plan: WorkloadPlan
    actions: Mapping[str, RowAction]
    repeat: int = 1
    repeats: int = 1
    grouped_by: str = ""

    def runs_again(self, ending: RunEnd) -> bool:
        """Return True if a row with this end runs again alone, as radt chose its neighbours."""
        is_shared = bool(self.grouped_by) and len(self.plan.runs) > 1
        return is_shared and ending.status in (RunStatus.OOM, RunStatus.TIMEOUT)

    def in_file(self, ending: RunEnd) -> RunEnd:
        """Return the end of a row for the file, where OOM and TIMEOUT would be results."""
        if not self.runs_again(ending):
            return ending
        what = "ran out of memory" if ending.status is RunStatus.OOM else "took too long"
        others = plural(len(self.plan.runs) - 1, "other row")
        return RunEnd(RunStatus.SKIPPED, f"{what} beside {others}; runs again alone")

    @property
    def again(self) -> list[RunPlan]:
        """Return rows that are done but run again, because a workload always runs as a whole."""
        return [run for run in self.plan.trained if self.actions[run.letter] is RowAction.AGAIN]

    def progress(
        self, status: RunStatus = RunStatus.SCHEDULED, reason: str = ""
    ) -> WorkloadProgress:
        """Return the progress of this execution, with this status for all of its rows."""
        return WorkloadProgress(
            experiment=self.plan.experiment,
            label=self.plan.label or self.plan.runs[0].label,
            runs=[
                RowProgress(run.letter, run.label, status, reason, role=run.role)
                for run in self.plan.runs
            ],
            repeats_done=self.repeat - 1,
            repeats=self.repeats,
            place=", ".join(dict.fromkeys(str(run.devices) for run in self.plan.runs)),
        )


def pending_workloads(plan: ExperimentPlan, options: StartOptions) -> list[PendingWorkload]:
    """Return the workloads of a start: all of them once in file order, then the next repeat of all.

    The whole experiment is repeated, rather than each workload N times, so that drift (temperature,
    neighbours) affects all workloads alike.
    """
    pending: list[PendingWorkload] = []
    for workload in plan.workloads:
        if not is_chosen(workload.label, options.only):
            continue
        planned = actions(workload, rerun=options.rerun, repeat=options.repeat)
        if any(action.runs for action in planned.values()):
            first = min(first_repeat(workload), options.repeat)
            pending += [
                PendingWorkload(workload, planned, number, options.repeat)
                for number in range(first, options.repeat + 1)
            ]
    return sorted(pending, key=lambda workload: workload.repeat)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a start on one experiment.

    ``source`` is its file, None for a program. ``endings`` are, by line, the ends of rows whose
    runner died before it wrote them; the file lacks them until `recover` runs.
    """

    plan: ExperimentPlan
    options: StartOptions
    pending: Sequence[PendingWorkload]
    source: ExperimentFile | None = None
    endings: Mapping[int, RunEnd] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        path: Path,
        options: StartOptions,
        machine: Machine,
        groups: Mapping[int, str] | None = None,
    ) -> Work:
        """Return the pending work of an experiment file.

        Args:
            path: The file.
            options: The options of the start.
            machine: Where it is to run.
            groups: Labels of the workloads of rows that radt has grouped, by line.

        Raises:
            ExperimentError: The file has problems.
            UsageError: ``only`` names a workload that does not exist.
        """
        source = open_source(path)
        plan = source.plan(machine, registry.load(), options.devices, groups=groups)
        for label in options.only:
            if not any(is_chosen(workload.label, [label]) for workload in plan.workloads):
                labels = {workload.label for workload in plan.workloads}
                raise UsageError(
                    f"--only {label}: no such workload",
                    did_you_mean(label, labels) or f"Choose from {', '.join(sorted(labels))}",
                )
        options = options.with_repeat_of(source.repeat, plan)
        return cls(plan, options, pending_workloads(plan, options), source)

    @property
    def not_run(self) -> list[WorkloadPlan]:
        """Return the workloads that do not run."""
        due = {workload.plan.key for workload in self.pending}
        return [workload for workload in self.plan.workloads if workload.key not in due]

    @property
    def done(self) -> list[RunPlan]:
        """Return the rows that are done and do not run again."""
        runs = (run for workload in self.not_run for run in workload.runs)
        return [run for run in runs if run.is_service or not decide(run).runs]

    @property
    def failed_before(self) -> list[RunPlan]:
        """Return the rows that failed in an earlier start and do not run again."""
        return [
            run
            for workload in self.not_run
            if is_chosen(workload.label, self.options.only)
            for run in workload.runs
            if run.status in FAILURES
        ]

    def settled(self) -> Work:
        """Look up the ends of rows marked RUNNING: a row that ended by itself need not run again.

        Raises:
            StoreError: The store cannot be read.
        """
        runs = [run for run in self.plan.runs if run.status is RunStatus.RUNNING and run.run_id]
        store = self.options.home.store_path
        if not runs or not store.exists():
            return self
        from radt.store.reader import StoreReader  # needs SQLAlchemy, see `radt.store.peek`

        endings: dict[int, RunEnd] = {}
        with StoreReader(store) as reader:
            for run in runs:
                with suppress(RunNotFoundError):
                    record = reader.find_run(str(run.run_id))
                    # KILLED is the collector's status for runs whose runner is gone.
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
            for workload in self.plan.workloads
        )
        plan = replace(self.plan, workloads=workloads)
        pending = pending_workloads(plan, self.options)
        return replace(self, plan=plan, pending=pending, endings=endings)


class SyncPoint(StrEnum):
    """The point at which the rows of a workload wait for each other."""

    START = "start"  # when their processes start
    CONTEXT = "context"  # when they enter `with radt.Run()`


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of one start.

    ``only`` are labels of workloads, empty for all. ``devices`` override the Devices column (see
    `radt.experiment.row.RowTarget`). ``max_time_s`` and ``max_epoch`` end the script's ``with
    radt.Run()`` block. ``wait_for_file_s`` is the time to wait for a missing or invalid file.
    ``notify`` is a command line or an address. With ``wait`` the start ends only when everything is
    uploaded. ``home`` is the data folder, ``tracking_uri`` MLflow's address, ``store_uri`` that of
    a Postgres database; if empty, `Home.store_uri` provides it.
    """

    rerun: bool = False
    only: tuple[str, ...] = ()
    devices: str = ""
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
    wait: Wait = Wait.NO
    quiet: bool = False
    home: Home = field(default_factory=lambda: Home(Path("radt-data")))
    tracking_uri: str = ""
    store_uri: str = ""
    repeat_is_given: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        values: Settings,
        *,
        rerun: bool = False,
        only: tuple[str, ...] = (),
        devices: str = "",
    ) -> StartOptions:
        """Return options from settings; the other parameters apply to one start only.

        Raises:
            UsageError: A setting has an invalid value.
        """
        home = Home(values[settings.HOME])
        own: dict[str, Any] = {
            "home": home,
            "tracking_uri": values[settings.TRACKING_URI] or home.default_tracking_uri,
            "wait": waits(values),
            "repeat_is_given": values.find(settings.REPEAT).level is not SettingLevel.DEFAULT,
        }
        found = {name: values[setting] for name, setting in SETTINGS_OF_FIELDS.items()}
        return _typed({**found, **own, "rerun": rerun, "only": only, "devices": devices})

    @classmethod
    def of_a_node(cls, given: Mapping[str, Any]) -> StartOptions:
        """Return the options of a node's start from the result of `for_nodes`."""
        return replace(_typed(given), rerun=False, yes=True)

    def for_nodes(self) -> dict[str, Any]:
        """Return the options that the nodes of a cluster need, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name in _FOR_NODES}

    def with_repeat_of(self, repeat: int, plan: ExperimentPlan) -> StartOptions:
        """Return a copy with the larger of the file's number of repeats and the requested one.

        If this start requests none, the rows keep the number of repeats they were started with.
        """
        asked = self.repeat if self.repeat_is_given else plan.repeats_asked
        return replace(self, repeat=max(asked, repeat))


#: Fields of `StartOptions` and the settings of the same names; the fields of times end in ``_s``.
SETTINGS_OF_FIELDS: Mapping[str, Setting[Any]] = {
    item.name: setting
    for item in fields(StartOptions)
    for setting in settings.OPTIONS
    if setting.key == item.name.removesuffix("_s").upper()
}
_FOR_NODES = SETTINGS_OF_FIELDS.keys() - {
    *("notify", "yes", "quiet", "home", "tracking_uri", "store_uri")
} | {"rerun", "devices"}


def _typed(values: Mapping[str, Any]) -> StartOptions:
    words = {"sync": SyncPoint, "busy": BusyPolicy, "wait": Wait}
    typed: dict[str, Any] = {
        name: words[name](value) if name in words else value for name, value in values.items()
    }
    return StartOptions(**typed)
