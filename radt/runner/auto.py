"""Groups the rows of the workload ``auto``, by what was measured of their kinds.

The policy is `radt.runner.placement`. This module reads what it decides on, and turns its groups
into workloads (``auto-1``, ``auto-2``).
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from radt import units
from radt.collocation.spec import Collocation
from radt.devices.machine import CPU, Devices, Machine
from radt.devices.nvml import MPS_CONTROL
from radt.errors import RunNotFoundError, UsageError
from radt.experiment.check import conflicts, workloads_of
from radt.experiment.plan import AUTO, ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.row import RowTarget
from radt.listeners import registry
from radt.model import RunStatus
from radt.run_name import row_letter
from radt.runner.options import PendingWorkload, StartOptions, Work, pending_workloads
from radt.runner.progress import WorkloadProgress
from radt.store.records import RunRecord
from radt.tags import CLUSTER_HARDWARE

if TYPE_CHECKING:  # the analysis needs numpy, and few starts have such rows
    from radt.analysis.kinds import Kind, KindMeasurements, KindReader, Site
    from radt.runner.placement import Group, WaitingRow
    from radt.store.reader import StoreReader

#: The hardware of kinds that run on a GPU (`radt.analysis.kinds.Kind`).
GPU = "GPU"
#: Devices of jobs, of which only the number is known before they run.
_DEVICES_OF_JOBS = {CPU: CPU, "1 GPU": GPU}
_LABEL = re.compile(rf"{AUTO}-(\d+)")


class AutoGroups:
    """Forms the groups of one experiment's rows on this machine, one after the other.

    Args:
        plan: The plan of the file.
        experiment: The experiment.
        machine: This machine.
        reader: The store.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(
        self, plan: ExperimentPlan, experiment: str, machine: Machine, reader: StoreReader
    ) -> None:
        self._experiment = experiment
        self._machine = machine
        self._reader = reader
        self._numbers = count(_next_number(reader, experiment))
        self._target = RowTarget.beside(plan.path, machine, registry.load())
        own = [run for run in plan.runs if run.experiment == experiment and run.auto is not None]
        records = _last_runs(own, reader)
        self._rows = own
        #: Lines of rows that ran out of memory: they have the machine to themselves.
        self._alone = {
            run.line
            for run in own
            if run.run_id in records and records[run.run_id].status is RunStatus.OOM
        }
        #: Groups that are to be repeated, by label.
        self._formed = dict(self._finished(own, records))

    def form(self, waiting: Sequence[PendingWorkload]) -> PendingWorkload:
        """Return the next group of rows that wait for the same repeat.

        Raises:
            StoreError: The store cannot be read.
            UsageError: The settings file cannot be read.
        """
        by_line = {pending.plan.runs[0].line: pending for pending in waiting}
        if waiting[0].repeat > 1:
            for label, runs in self._formed.items():
                if all(run.line in by_line for run in runs):
                    return _pending(by_line, runs, f"repeats {label}")
        from radt.runner.placement import Reason, next_group  # needs numpy

        group = next_group(
            [self._waiting(pending.plan.runs[0]) for pending in waiting],
            self._kinds.read(),
            has_mps=shutil.which(MPS_CONTROL) is not None,
        )
        runs = self._placed(group, by_line)
        if len(runs) > 1 and any(conflicts(_workload(runs), self._target)):
            # They name the same CPUs, or the driver does not let them share the GPU.
            runs = runs[:1]
            group = replace(group, rows=group.rows[:1], reason=Reason.NO_PARTNER)
        self._formed[runs[0].workload] = runs
        return _pending(by_line, runs, reason_text(group))

    def ran_out(self, group: PendingWorkload, progress: WorkloadProgress) -> list[RunPlan]:
        """Return the rows of a group that ran out of memory beside others; they run again alone.

        The other rows of such a group are grouped anew for their next repeat.
        """
        if len(group.plan.runs) < 2:
            return []
        letters = {run.letter for run in progress.runs if run.status is RunStatus.OOM}
        rows = [run for run in group.plan.runs if run.letter in letters]
        if rows:
            self._alone.update(row.line for row in rows)
            self._formed.pop(group.plan.label, None)
        return rows

    @cached_property
    def _kinds(self) -> KindReader:
        from radt.analysis.kinds import KindReader  # needs numpy

        kinds = {kind_of(row, self._site) for row in self._rows}
        return KindReader(self._reader, self._site, self._experiment, kinds)

    @cached_property
    def _site(self) -> Site:
        return site_here(self._machine)

    def _waiting(self, row: RunPlan) -> WaitingRow:
        assert row.auto is not None
        devices: tuple[str, ...] = (str(row.devices),)
        if row.auto.any_device and not row.devices.is_cpu and not self._machine.mig_devices:
            devices = tuple(device for device, kind in self._site.devices.items() if kind == GPU)
        return _waiting(row, self._site, devices, is_alone=row.line in self._alone)

    def _placed(self, group: Group, by_line: Mapping[int, PendingWorkload]) -> tuple[RunPlan, ...]:
        label = f"{AUTO}-{next(self._numbers)}"
        return tuple(
            replace(
                row,
                workload=label,
                letter=row_letter(number),
                devices=self._devices(row, placed.device),
                collocation=placed.collocation,
                auto=None,
            )
            for number, placed in enumerate(group.rows)
            for row in by_line[placed.line].plan.runs
        )

    def _devices(self, row: RunPlan, device: str) -> Devices:
        return row.devices if str(row.devices) == device else Devices.parse(device, self._machine)

    def _finished(
        self, rows: Sequence[RunPlan], records: Mapping[str, RunRecord]
    ) -> Iterator[tuple[str, tuple[RunPlan, ...]]]:
        """Yield the groups of earlier starts all of whose rows finished, by label."""
        for workload in workloads_of(_as_recorded(row, records) for row in rows):
            if workload.is_auto:
                continue
            own = [records[run.run_id] for run in workload.runs]
            everyone = self._reader.runs(workload_id=own[0].workload_id)
            if any(run.status is not RunStatus.FINISHED for run in everyone):
                continue
            if {run.letter for run in everyone} == {run.letter for run in own}:
                with suppress(UsageError):  # a GPU that is gone
                    yield (
                        workload.label,
                        tuple(
                            replace(run, devices=self._devices(run, record.devices))
                            for run, record in zip(workload.runs, own, strict=True)
                        ),
                    )


def regrouped(plan: ExperimentPlan, records: Mapping[str, RunRecord]) -> ExperimentPlan:
    """Return a plan with the rows that radt has grouped in the workloads in which they ran last.

    Args:
        plan: The plan of a file.
        records: The last runs of its rows, by id.
    """
    runs = (_as_recorded(run, records) for run in plan.runs)
    return replace(plan, workloads=workloads_of(runs))


def _as_recorded(run: RunPlan, records: Mapping[str, RunRecord]) -> RunPlan:
    record = None if run.auto is None else records.get(run.run_id)
    if record is None or run.status in (None, RunStatus.KILLED, RunStatus.SKIPPED):
        return run  # it is grouped at the next start
    try:
        collocation = Collocation.parse(record.collocation)
    except UsageError:
        return run
    return replace(
        run, workload=record.workload, letter=record.letter, collocation=collocation, auto=None
    )


def site_here(machine: Machine) -> Site:
    """Return this machine. Its GPUs of other models than the first are left to rows that name them.

    Runs that a row could not be compared with are no measurements for it.
    """
    from radt.analysis.kinds import Site

    alike = [gpu for gpu in machine.gpus if gpu.name == machine.gpus[0].name]
    return Site(platform.node(), {CPU: CPU} | {str(gpu.index): GPU for gpu in alike})


def kind_of(row: RunPlan, site: Site) -> Kind:
    """Return the kind of a row; one without measurements for devices that the site does not know.

    Raises:
        UsageError: The settings file cannot be read.
    """
    from radt.analysis.baselines import ignored_params, work_of
    from radt.analysis.kinds import Kind

    work = work_of(row.arguments, ignored_params())
    number = units.plural(len(row.devices.gpus), "GPU")  # all that is known on a cluster
    hardware = site.devices.get(str(row.devices)) or site.devices.get(number, number)
    return Kind(row.program.recorded, work, hardware)


def _next_number(reader: StoreReader, experiment: str) -> int:
    """Return the number of the next label, which no workload of the experiment has."""
    found = (_LABEL.fullmatch(workload.label) for workload in reader.workloads(experiment))
    numbers = [int(match[1]) for match in found if match is not None]
    return max(numbers, default=0) + 1


def _waiting(
    row: RunPlan, site: Site, devices: tuple[str, ...], *, is_alone: bool = False
) -> WaitingRow:
    from radt.runner.placement import WaitingRow

    is_free = row.auto is not None and row.auto.any_collocation
    return WaitingRow(
        row.line, kind_of(row, site), devices, None if is_free else row.collocation, is_alone
    )


def reason_text(group: Group) -> str:
    """Return ``12 s predicted, 20 s one after the other``, or why a row runs alone."""
    if len(group.rows) == 1 or group.expected_s is None:
        return str(group.reason)
    expected, serial = units.duration(group.expected_s), units.duration(group.serial_s)
    return f"{expected} {group.reason}, {serial} one after the other"


def _workload(runs: Sequence[RunPlan]) -> WorkloadPlan:
    return WorkloadPlan(runs[0].experiment, runs[0].workload, tuple(runs))


def _pending(
    waiting: Mapping[int, PendingWorkload], runs: Sequence[RunPlan], reason: str
) -> PendingWorkload:
    """Return the workload of rows that waited, each as a workload of its own."""
    first = waiting[runs[0].line]
    actions = {run.letter: next(iter(waiting[run.line].actions.values())) for run in runs}
    return PendingWorkload(_workload(runs), actions, first.repeat, first.repeats, reason)


def _last_runs(rows: Iterable[RunPlan], reader: StoreReader) -> dict[str, RunRecord]:
    """Return the last runs of rows by the ids in the file, unless the store lacks them."""
    records = {}
    for row in rows:
        if row.run_id:
            with suppress(RunNotFoundError):
                records[row.run_id] = reader.find_run(row.run_id)
    return records


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """The workload of a row on a cluster, and why it is in it."""

    label: str
    reason: str


def groups_of_measured(work: Work) -> dict[int, MeasuredGroup]:
    """Return the groups of all rows at once, by line, as jobs of a cluster are submitted together.

    They are formed from what is known of the hardware with most measurements. Rows of other kinds
    run alone, and so do rows that ran out of memory.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings file cannot be read.
    """
    by_experiment: dict[str, dict[int, RunPlan]] = {}
    for pending in work.pending:
        if pending.plan.is_auto:
            (run,) = pending.plan.runs
            by_experiment.setdefault(run.experiment, {})[run.line] = run
    store = work.options.home.store_path
    if not by_experiment or not store.exists():
        return {}
    from radt.analysis.kinds import Site
    from radt.runner.placement import divided
    from radt.store.reader import StoreReader

    site = Site("", _DEVICES_OF_JOBS)
    groups: dict[int, MeasuredGroup] = {}
    with StoreReader(store) as reader:
        for experiment, rows in by_experiment.items():
            kinds = {kind_of(row, site) for row in rows.values()}
            known = _best_known(reader, experiment, kinds)
            records = _last_runs(rows.values(), reader)
            numbers = count(_next_number(reader, experiment))
            #: Rows of a job ask for the same resources, and repeat as often.
            alike: dict[object, list[WaitingRow]] = {}
            for row in rows.values():
                record = records.get(row.run_id)
                ran_out = record is not None and record.status is RunStatus.OOM
                if known.alone_s(kind_of(row, site)) is not None and not ran_out:
                    shape = (row.resources, row.devices, row.repeats_done)
                    alike.setdefault(shape, []).append(_waiting(row, site, (str(row.devices),)))
            for group in (group for same in alike.values() for group in divided(same, known)):
                if len(group.rows) > 1:
                    made = MeasuredGroup(f"{AUTO}-{next(numbers)}", reason_text(group))
                    groups |= {row.line: made for row in group.rows}
    return groups


def _best_known(reader: StoreReader, experiment: str, kinds: Collection[Kind]) -> KindMeasurements:
    """Return what is known of kinds on the hardware of a cluster where most of them ran."""
    from radt.analysis.kinds import KindMeasurements, KindReader, Site

    hardware = {
        kind
        for summary in reader.experiments()
        for kind in reader.tagged(CLUSTER_HARDWARE, summary.name).values()
    }
    found = (
        KindReader(reader, Site(each, _DEVICES_OF_JOBS), experiment, kinds).read()
        for each in sorted(hardware)
    )
    return max(found, key=lambda known: len(known.durations_s), default=KindMeasurements())


def preview(plan: ExperimentPlan, options: StartOptions, machine: Machine) -> list[str]:
    """Return sentences on what is known of the rows that radt will group.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings file cannot be read.
    """
    rows: dict[str, list[RunPlan]] = {}
    for pending in pending_workloads(plan, options):
        if pending.plan.is_auto and pending.repeat == 1:
            rows.setdefault(pending.plan.experiment, []).extend(pending.plan.runs)
    if not rows:
        return []
    from radt.analysis.kinds import KindMeasurements, KindReader
    from radt.store.reader import StoreReader

    texts, site = [], site_here(machine)
    for experiment, waiting in rows.items():
        kinds = {kind_of(row, site): row for row in reversed(waiting)}
        known = KindMeasurements()
        if options.home.store_path.exists():
            with StoreReader(options.home.store_path) as reader:
                known = KindReader(reader, site, experiment, kinds).read()
        measured = [
            f"{row.label} (line {row.line}) {units.duration(alone_s)}"
            for kind, row in kinds.items()
            if (alone_s := known.alone_s(kind)) is not None
        ]
        new = [
            f"{row.label} (line {row.line})"
            for kind, row in kinds.items()
            if known.alone_s(kind) is None
        ]
        amount = f"{units.plural(len(waiting), 'row')} of {units.plural(len(kinds), 'kind')}"
        texts.append(f"{experiment}: radt groups {amount}")
        if measured:
            texts.append(f"measured alone: {', '.join(measured)}")
        if new:
            texts.append(f"run alone first: {', '.join(new)}")
    return texts
