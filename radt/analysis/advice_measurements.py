"""Read the measurements behind advice: models alone, and workloads that shared a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from radt.analysis.advice_facts import Facts, RunFacts, read_facts
from radt.analysis.advice_model import CPU_DEVICES, Candidate, Origin, PaceKind, Resource, Row, Solo
from radt.analysis.baselines import BaselineKey, keys_of
from radt.analysis.quantities import Quantity
from radt.analysis.report import Report, read_report
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.collocation.spec import Collocation
from radt.errors import UsageError
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.units import plural

#: Only the newest of more models are read: each takes several statements, and a sweep's thousand
#: runs are one model as far as the hardware is concerned.
MAX_MODELS = 64


@dataclass(frozen=True, slots=True)
class MeasuredWorkload:
    """A workload of several runs that ended.

    ``slowdowns`` are in the order of the candidate's rows, empty unless all finished, as a run that
    ended early no longer slows down the others; so are ``data_waits``, as those of `Prediction`.
    ``fits`` is None if memory is unknown. ``energy`` is relative to the same work alone.
    """

    candidate: Candidate
    label: str
    slowdowns: tuple[float, ...] = ()
    fits: bool | None = None
    energy: float | None = None
    data_waits: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements of an experiment.

    Attributes:
        solos: Models alone, by key.
        measured: Workloads of several runs.
        facts: Facts on machines, devices and runs.
        missing: Models that ran with others but never alone, by key, with a run of each.
        records: The newest run of each model, alone or not, with its parameters.
        left_out: Sentences on runs and models that are left out.
        labels: Labels of all workloads.
        report: All of its workloads, those with services, too.
    """

    experiment: str
    solos: Mapping[BaselineKey, Solo] = field(default_factory=dict)
    measured: Sequence[MeasuredWorkload] = ()
    facts: Facts = field(default_factory=Facts)
    missing: Mapping[BaselineKey, str] = field(default_factory=dict)
    records: Mapping[BaselineKey, tuple[RunRecord, Mapping[str, str]]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    report: Report = field(default_factory=lambda: Report(""))


@dataclass(frozen=True, slots=True)
class _Alone:
    """A workload of one run that finished."""

    key: BaselineKey
    workload: WorkloadSummary
    collocation: Collocation

    @property
    def group(self) -> GroupSummary:
        return self.workload.groups[0]

    @property
    def run(self) -> RunRecord:
        return self.group.runs[0].run


def read_measurements(
    reader: StoreReader, experiment: str, *, cores: int | None = None
) -> Measurements:
    """Read an experiment; `cores` is the user's number of CPUs of the machine, if given.

    Raises:
        StoreError: The store cannot be read.
    """
    whole = read_report(reader, experiment)
    served = [workload for workload in whole.workloads if workload.is_served]
    report = replace(
        whole, workloads=[workload for workload in whole.workloads if not workload.is_served]
    )
    runs = [
        row.run for workload in report.workloads for group in workload.groups for row in group.runs
    ]
    params = reader.params_of([run.run_id for run in runs])
    keys = keys_of(reader, runs, params)
    records = {
        keys[run.run_id]: (run, params.get(run.run_id, {}))
        for run in sorted(runs, key=lambda run: run.created_ns)
    }
    left_out = []
    if served:
        left_out.append(
            f"{plural(len(served), 'workload')} with services: what a service takes "
            "is not divided among the runs that it serves"
        )
    several = {key for key in records if "+" in key.devices}
    if several:
        left_out.append("runs on several GPUs at once: their memory and load are not divided")
    alone = [single for single in _alone(report, keys) if single.key not in several]
    chosen = list(dict.fromkeys(single.key for single in reversed(alone)))
    if len(chosen) > MAX_MODELS:
        left_out.append(f"{len(chosen) - MAX_MODELS:,} older of {len(chosen):,} models")
        chosen = chosen[:MAX_MODELS]
    kept = [single for single in alone if single.key in set(chosen)]
    facts = read_facts(reader, [single.run for single in _newest(kept)], cores=cores)
    solos = _solos(kept, facts, params)
    names = _names(report, keys)
    solos = {key: replace(solo, name=names.get(key, solo.name)) for key, solo in solos.items()}
    together = [workload for workload in report.workloads if workload.run_count > 1]
    measured = [
        measured_workload
        for workload in together
        if (measured_workload := _measured(workload, keys, solos)) is not None
    ]
    missing = {
        keys[run.run.run_id]: names.get(keys[run.run.run_id], run.name)
        for workload in together
        for group in workload.groups
        for run in group.runs
        if keys[run.run.run_id] not in solos and keys[run.run.run_id] not in several
    }
    return Measurements(
        experiment,
        solos,
        measured,
        facts,
        missing,
        records,
        tuple(left_out),
        frozenset(workload.label for workload in whole.workloads),
        whole,
    )


def collocation_of(run: RunRecord) -> Collocation:
    """Return how a run shared its device; naively if the recorded text is not radt's."""
    try:
        return Collocation.parse(run.collocation)
    except UsageError:  # recorded by another tracker and imported from its archive
        return Collocation()


def _alone(report: Report, keys: Mapping[str, BaselineKey]) -> list[_Alone]:
    alone = []
    for workload in report.workloads:
        group = workload.groups[0]
        if workload.run_count == 1 and group.status is RunStatus.FINISHED:
            run = group.runs[0].run
            alone.append(_Alone(keys[run.run_id], workload, collocation_of(run)))
    return alone


def _newest(alone: Sequence[_Alone]) -> list[_Alone]:
    """Return the run that represents each model: naive before MPS, never a MIG instance."""
    newest: dict[BaselineKey, _Alone] = {}
    for single in alone:
        if single.collocation.mig is not None:
            continue
        known = newest.get(single.key)
        if known is None or single.collocation.is_naive >= known.collocation.is_naive:
            newest[single.key] = single
    return list(newest.values())


def _solos(
    alone: Sequence[_Alone], facts: Facts, params: Mapping[str, Mapping[str, str]]
) -> dict[BaselineKey, Solo]:
    on_profile: dict[BaselineKey, dict[str, Mapping[PaceKind, float]]] = {}
    for single in alone:
        if single.collocation.mig is not None and single.collocation.mps is None:
            paces = on_profile.setdefault(single.key, {})
            paces[str(single.collocation.mig).lower()] = paces_s(single.group, single.run)
    solos = {}
    for single in _newest(alone):
        known = facts.runs[single.run.run_id]
        cores = facts.host(single.key.hardware).cores
        shares, stands_in = _shares(single, known, cores)
        solos[single.key] = Solo(
            single.key,
            single.group.runs[0].name,
            single.run.run_id,
            single.group.repeats,
            paces_s(single.group, single.run),
            shares,
            stands_in,
            known.footprint,
            known.host_bytes,
            _mean(single, Quantity.POWER),
            known.idle_w,
            on_profile.get(single.key, {}),
            params.get(single.run.run_id, {}).get("Cpus", ""),
            _data_wait(single.group),
        )
    return solos


def paces_s(group: GroupSummary, run: RunRecord) -> dict[PaceKind, float]:
    """Return the measured seconds per unit of work, by its kind."""
    paces = {}
    epoch_s = group.time_per_epoch_s
    rate = group.mean(Quantity.SAMPLES_PER_S_OF_RUN) or group.samples_per_s
    if epoch_s:
        paces[PaceKind.EPOCH] = epoch_s
    if rate:
        paces[PaceKind.SAMPLES] = 1 / rate
    if run.started_ns is not None and run.ended_ns is not None and run.ended_ns > run.started_ns:
        paces[PaceKind.DURATION] = (run.ended_ns - run.started_ns) / 1e9
    return paces


def _shares(
    single: _Alone, known: RunFacts, cores: int | None
) -> tuple[dict[Resource, float], bool]:
    used = single.group.cpu_cores
    shares = {} if used is None or not cores else {Resource.CORES: used / cores}
    if single.key.devices == CPU_DEVICES:
        return shares, False
    active, busy = _mean(single, Quantity.SM_ACTIVE), _mean(single, Quantity.GPU_UTILIZATION)
    kernel = known.kernel_time if known.kernel_time is not None else busy
    stands_in = active is None and kernel is not None
    for resource, value in (
        (Resource.SM, active if active is not None else kernel),
        (Resource.KERNEL, kernel),
        (Resource.DRAM, known.dram),
    ):
        if value is not None:
            shares[resource] = min(1.0, value)
    return shares, stands_in


def _data_wait(group: GroupSummary) -> float | None:
    """Return the share of time spent waiting for data; None if unknown.

    A script may log something else by this name, seconds for example.
    """
    share = group.mean(Quantity.DATA_WAIT)
    return share if share is not None and 0 <= share < 1 else None


def _mean(single: _Alone, quantity: Quantity) -> float | None:
    estimate = single.workload.estimate(quantity, single.group)
    return None if estimate is None else estimate.mean


def _names(report: Report, keys: Mapping[str, BaselineKey]) -> dict[BaselineKey, str]:
    """Return a unique name for each model, with parameters or devices where needed."""
    names: dict[BaselineKey, str] = {}
    for workload in report.workloads:
        for group in workload.groups:
            for run in group.runs:
                names[keys[run.run.run_id]] = run.name
    for place, template in ((1, "{} {}"), (2, "{} on {}"), (3, "{} at {}")):
        by_name: dict[str, list[BaselineKey]] = {}
        for key, name in names.items():
            by_name.setdefault(name, []).append(key)
        for name, same in by_name.items():
            if len({key[place] for key in same}) > 1:
                names |= {key: template.format(name, key[place]).strip() for key in same}
    return names


def _measured(
    workload: WorkloadSummary, keys: Mapping[str, BaselineKey], solos: Mapping[BaselineKey, Solo]
) -> MeasuredWorkload | None:
    """Return the workload; None if a model never ran alone or a row failed other than by OOM."""
    rows, slowdowns, statuses, data_waits = [], [], [], []
    for group in workload.groups:
        for row in group.runs:
            solo = solos.get(keys[row.run.run_id])
            if solo is None:
                return None
            rows.append(Row(solo, collocation_of(row.run)))
            statuses.append(group.status)
            data_waits.append(_data_wait(group))
            if group.status is RunStatus.FINISHED:
                slowdowns.append(solo.slowdown_of(paces_s(group, row.run)))
    finished = all(status is RunStatus.FINISHED for status in statuses)
    ran_out = RunStatus.OOM in statuses
    if not finished and not ran_out:
        return None
    known = [value for value in slowdowns if value is not None]
    candidate = Candidate(tuple(rows), Origin.MEASURED, (workload.label,))
    return MeasuredWorkload(
        candidate,
        workload.label,
        tuple(known) if finished and len(known) == len(rows) else (),
        not ran_out,
        _energy_ratio(workload, candidate) if finished else None,
        tuple(data_waits),
    )


def _energy_ratio(workload: WorkloadSummary, candidate: Candidate) -> float | None:
    """Return energy per epoch together over its mean alone; None if either is unknown."""
    estimate = workload.estimate(Quantity.ENERGY_PER_EPOCH, workload.groups[0])
    alone = [
        row.solo.power_w * row.solo.paces_s[PaceKind.EPOCH]
        for row in candidate.rows
        if row.solo.power_w is not None and PaceKind.EPOCH in row.solo.paces_s
    ]
    if estimate is None or not candidate.is_uniform or len(alone) != len(candidate.rows):
        return None
    return estimate.mean / (sum(alone) / len(alone))
