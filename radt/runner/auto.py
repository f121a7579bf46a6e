"""Groups the rows of the workload ``auto``, by what was measured of their kinds.

The policy is `radt.runner.placement`. This module reads what it decides on, and turns its groups
into workloads (``auto-1``, ``auto-2``).
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from radt import units
from radt.collocation.spec import Collocation
from radt.devices.machine import CPU, Devices, Machine
from radt.devices.nvml import MPS_CONTROL
from radt.errors import RunNotFoundError, StoreError, UsageError
from radt.experiment.check import conflicts, workloads_of
from radt.experiment.plan import AUTO, AUTO_LABEL, ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.row import RowTarget
from radt.listeners import registry
from radt.model import RunStatus
from radt.run_name import row_letter
from radt.runner.options import PendingWorkload, StartOptions, Work, pending_workloads
from radt.runner.outcome import RunEnd
from radt.runner.preparation import command_text
from radt.runner.progress import WorkloadProgress
from radt.store.records import RunRecord
from radt.tags import CLUSTER_HARDWARE, GROUPED_BY

if TYPE_CHECKING:  # the analysis needs numpy, and few starts have such rows
    from radt.analysis.advice_model import Solo
    from radt.analysis.kinds import Kind, KindMeasurements, KindReader, Site
    from radt.runner.placement import Group, WaitingRow
    from radt.store.reader import StoreReader

#: The hardware of kinds that run on a GPU (`radt.analysis.kinds.Kind`).
GPU = "GPU"
#: Devices of jobs, of which only the number is known before they run.
_DEVICES_OF_JOBS = {CPU: CPU, "1 GPU": GPU}
#: Share of what a job asks for that rows may be expected to need.
_MARGIN = 0.9


class AutoGroups:
    """Puts the ``auto`` rows of one experiment into groups, one group after the other.

    Args:
        work: The work of the start.
        experiment: The experiment.
        machine: This machine.
        reader: The store.
        start_options: The options of the start, as they are recorded.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(
        self,
        work: Work,
        experiment: str,
        machine: Machine,
        reader: StoreReader,
        start_options: str = "",
    ) -> None:
        plan = work.plan
        self._experiment = experiment
        self._machine = machine
        self._store = reader
        self._start_options = start_options
        self._target = RowTarget.beside(plan.path, machine, registry.load())
        self._numbers = count(_next_number(reader, plan, experiment))
        self._has_mps = shutil.which(MPS_CONTROL) is not None
        rows = [run for run in plan.runs if run.experiment == experiment and run.auto is not None]
        self._site = site_here(machine)
        kinds = kinds_of(rows, self._site)
        self._kinds = {row.line: kind for row, kind in zip(rows, kinds, strict=True)}
        self._cells = {row.line: row.auto for row in rows if row.auto is not None}
        records = _last_runs(rows, reader)
        #: Lines of rows that ran out of memory: they have the machine to themselves.
        self._alone = {
            row.line
            for row in rows
            if row.run_id in records and records[row.run_id].status is RunStatus.OOM
        }
        #: Groups that are to be repeated and why they were formed, by label.
        self._formed = {
            runs[0].workload: (runs, reason) for runs, reason in self._finished(rows, records)
        }

    def form(self, waiting: Sequence[PendingWorkload]) -> PendingWorkload:
        """Return the next group of rows that wait for the same repeat.

        While the store cannot be read, nothing is known of their kinds: they run alone.

        Raises:
            UsageError: The settings file cannot be read.
        """
        from radt.runner.placement import next_group  # needs numpy

        by_line = {pending.plan.runs[0].line: pending for pending in waiting}
        if waiting[0].repeat > 1:
            for runs, reason in self._formed.values():
                if all(run.line in by_line for run in runs):
                    return _pending(by_line, runs, reason)
        rows = [self._waiting(pending.plan.runs[0]) for pending in waiting]
        group = next_group(rows, self._known(), has_mps=self._has_mps)
        runs, reason = self._placed(group, by_line), reason_text(group)
        while len(runs) > 1 and any(conflicts(_workload(runs), self._target)):
            # They want more CPUs than there are, or a GPU takes fewer clients.
            runs, reason = runs[:-1], "as many as the CPUs and devices that they name allow"
        self._formed[runs[0].workload] = runs, reason
        return _pending(by_line, runs, reason)

    def failed_together(
        self, group: PendingWorkload, progress: WorkloadProgress
    ) -> Sequence[RunPlan]:
        """Return the rows of an ended group that are to run again, as radt chose their neighbours.

        Those that ran out of memory or took too long have the machine to themselves then. The other
        rows of such a group are grouped anew for their next repeat.
        """
        if self._has_mps and self._mps_failed(group, progress):
            self._has_mps = False
            self._formed.pop(group.plan.label, None)
            return group.plan.runs
        ends = {run.letter: RunEnd(run.status, run.reason) for run in progress.runs}
        rows = [run for run in group.plan.runs if group.runs_again(ends[run.letter])]
        if rows:
            self._alone.update(row.line for row in rows)
            self._formed.pop(group.plan.label, None)
        return rows

    def _mps_failed(self, group: PendingWorkload, progress: WorkloadProgress) -> bool:
        """Return True if rows could not be set up for MPS, which none of them asks for."""
        never_started = all(run.started_monotonic_s is None for run in progress.runs)
        has_failed = any(run.status is RunStatus.FAILED for run in progress.runs)
        is_chosen = any(
            run.collocation.mps is not None and self._cells[run.line].any_collocation
            for run in group.plan.runs
        )
        return never_started and has_failed and is_chosen

    def _known(self) -> KindMeasurements:
        from radt.analysis.kinds import KindMeasurements

        try:
            return self._reader.read()
        except StoreError:
            return KindMeasurements()

    @cached_property
    def _reader(self) -> KindReader:
        kinds = self._kinds.values()
        return kind_reader(self._store, self._site, self._experiment, kinds, self._start_options)

    def _waiting(self, row: RunPlan) -> WaitingRow:
        assert row.auto is not None
        devices: tuple[str, ...] = (str(row.devices),)
        if row.auto.any_device and not row.devices.is_cpu and not self._machine.mig_devices:
            devices = tuple(device for device, kind in self._site.devices.items() if kind == GPU)
        return _waiting(row, self._kinds[row.line], devices, is_alone=row.line in self._alone)

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
    ) -> Iterator[tuple[tuple[RunPlan, ...], str]]:
        """Yield the groups of earlier starts all of whose rows finished, and their reasons."""
        by_line = {row.line: row for row in rows}
        for workload in workloads_of(_as_recorded(row, records) for row in rows):
            if workload.is_auto:
                continue
            own = [records[run.run_id] for run in workload.runs]
            everyone = self._store.runs(workload_id=own[0].workload_id)
            all_finished = dict.fromkeys((run.letter for run in own), RunStatus.FINISHED)
            if {run.letter: run.status for run in everyone} != all_finished:
                continue
            with suppress(UsageError):  # a GPU that is gone
                runs = tuple(
                    self._again(run, by_line[run.line], record)
                    for run, record in zip(workload.runs, own, strict=True)
                )
                yield runs, self._store.tags(own[0].run_id).get(GROUPED_BY, "repeated")

    def _again(self, run: RunPlan, row: RunPlan, record: RunRecord) -> RunPlan:
        """Return a row of a recorded group, where its cells leave that to radt."""
        assert row.auto is not None
        return replace(
            run,
            devices=self._devices(row, record.devices) if row.auto.any_device else row.devices,
            collocation=run.collocation if row.auto.any_collocation else row.collocation,
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
    """Return this machine.

    GPUs of another model than the first are left out: what was measured on one does not hold for
    the other. Rows that name them run alone.
    """
    from radt.analysis.kinds import Site

    alike = [gpu for gpu in machine.gpus if gpu.name == machine.gpus[0].name]
    return Site(platform.node(), {CPU: CPU} | {str(gpu.index): GPU for gpu in alike})


def kinds_of(rows: Iterable[RunPlan], site: Site) -> list[Kind]:
    """Return the kinds of rows; those on devices that the site does not know have no measurements.

    Raises:
        UsageError: The settings file cannot be read.
    """
    from radt.analysis.baselines import ignored_params, program_in, work_of
    from radt.analysis.kinds import Kind

    ignored = ignored_params()
    kinds = []
    for row in rows:
        program = program_in(command_text(row), row.program.recorded)
        number = units.plural(len(row.devices.gpus), "GPU")  # all that is known on a cluster
        hardware = site.devices.get(str(row.devices)) or site.devices.get(number, number)
        work = work_of(row.arguments, ignored)
        kinds.append(Kind(program, work, str(row.environment), hardware))
    return kinds


def kind_reader(
    reader: StoreReader, site: Site, experiment: str, kinds: Collection[Kind], start_options: str
) -> KindReader:
    """Return the reader of measurements for a start with these options.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings file cannot be read.
    """
    from radt.analysis.kinds import KindReader, limits_in

    return KindReader(reader, site, experiment, kinds, limits_in(start_options))


def _next_number(reader: StoreReader, plan: ExperimentPlan, experiment: str) -> int:
    """Return the number of the next label, which no workload of store and file has."""
    labels = {workload.label for workload in reader.workloads(experiment)}
    labels |= {workload.label for workload in plan.workloads}
    found = (AUTO_LABEL.fullmatch(label) for label in labels)
    return max((int(match[1]) for match in found if match and "-" in match[0]), default=0) + 1


def _waiting(
    row: RunPlan, kind: Kind, devices: tuple[str, ...], *, is_alone: bool = False
) -> WaitingRow:
    from radt.runner.placement import WaitingRow

    is_free = row.auto is not None and row.auto.any_collocation
    collocation = None if is_free else row.collocation
    return WaitingRow(row.line, kind, devices, collocation, is_alone, row.timeout_s)


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


def groups_of_measured(work: Work) -> tuple[dict[int, str], dict[str, str]]:
    """Return the groups of all rows at once, as jobs of a cluster are submitted together.

    They are formed from what is known of the hardware with most measurements. Rows of other kinds
    run alone, and so do rows that ran out of memory.

    Returns:
        The labels of the rows' workloads, by line; why they were formed, by label.

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
        return {}, {}
    from radt.analysis.kinds import Site
    from radt.runner.placement import divided
    from radt.store.reader import StoreReader

    site = Site("", _DEVICES_OF_JOBS)
    labels: dict[int, str] = {}
    reasons: dict[str, str] = {}
    with StoreReader(store) as reader:
        numbers = count(max(_next_number(reader, work.plan, name) for name in by_experiment))
        for experiment, rows in by_experiment.items():
            kinds = dict(zip(rows, kinds_of(rows.values(), site), strict=True))
            known = _best_known(reader, experiment, kinds.values())
            records = _last_runs(rows.values(), reader)
            #: Rows of a job ask for the same resources, and repeat as often.
            alike: dict[object, list[WaitingRow]] = {}
            for line, row in rows.items():
                record = records.get(row.run_id)
                ran_out = record is not None and record.status is RunStatus.OOM
                if known.alone_s(kinds[line]) is not None and not ran_out:
                    shape = (row.resources, row.devices, row.repeats_done)
                    waiting = _waiting(row, kinds[line], (str(row.devices),))
                    alike.setdefault(shape, []).append(waiting)
            for group in (group for same in alike.values() for group in divided(same, known)):
                runs = [rows[row.line] for row in group.rows]
                solos = [known.solos[kinds[row.line]] for row in group.rows]
                if len(runs) > 1 and _fits_job(runs, solos, group.expected_s or 0.0):
                    label = f"{AUTO}-{next(numbers)}"
                    labels |= dict.fromkeys((row.line for row in group.rows), label)
                    reasons[label] = reason_text(group)
    return labels, reasons


def _fits_job(runs: Sequence[RunPlan], solos: Sequence[Solo], expected_s: float) -> bool:
    """Return True if rows fit into the memory, time and CPUs that each of them asks for."""
    resources = runs[0].resources
    memory_bytes = sum(solo.host_bytes or 0.0 for solo in solos)
    cpus = sum(run.cpus.count or len(run.cpus.cpus) for run in runs)
    return (
        (resources.memory_bytes is None or memory_bytes <= resources.memory_bytes * _MARGIN)
        and (resources.time_s is None or expected_s <= resources.time_s * _MARGIN)
        and cpus <= (solos[0].place.cores or 0)
    )


def _best_known(reader: StoreReader, experiment: str, kinds: Collection[Kind]) -> KindMeasurements:
    """Return what is known of kinds on the hardware of a cluster where most of them ran."""
    from radt.analysis.kinds import KindMeasurements, Site

    hardware = {
        kind
        for summary in reader.experiments()
        for kind in reader.tagged(CLUSTER_HARDWARE, summary.name).values()
    }
    found = (
        kind_reader(reader, Site(each, _DEVICES_OF_JOBS), experiment, kinds, "").read()
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
    from radt.analysis.kinds import KindMeasurements
    from radt.store.reader import StoreReader

    texts, site = [], site_here(machine)
    for experiment, waiting in rows.items():
        waiting.reverse()  # of each kind, the first row is shown
        kinds = dict(zip(kinds_of(waiting, site), waiting, strict=True))
        known = KindMeasurements()
        if options.home.store_path.exists():
            with StoreReader(options.home.store_path) as reader:
                known = kind_reader(reader, site, experiment, kinds, "").read()
        measured, new = [], []
        for kind, row in kinds.items():
            text, alone_s = f"{row.label} (line {row.line})", known.alone_s(kind)
            if alone_s is None:
                new.append(text)
            else:
                measured.append(f"{text} {units.duration(alone_s)}")
        amount = f"{units.plural(len(waiting), 'row')} of {units.plural(len(kinds), 'kind')}"
        texts.append(f"{experiment}: radt groups {amount}")
        if measured:
            texts.append(f"measured alone: {', '.join(measured)}")
        if new:
            texts.append(f"run alone first: {', '.join(new)}")
    return texts
