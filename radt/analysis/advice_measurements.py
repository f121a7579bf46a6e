"""Read the measurements behind advice: models alone, and workloads that shared a device."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from radt.analysis.advice_model import (
    Candidate,
    CandidateRow,
    DevicePlace,
    MeasuredWorkload,
    Resource,
    Solo,
)
from radt.analysis.baselines import BaselineKey, keys_of
from radt.analysis.quantities import Quantity, Statistic
from radt.analysis.report import Report, ReportCache, read_report
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.collocation.inventory import read_inventory
from radt.collocation.spec import Collocation
from radt.collocation.topology import MigState, published_mig
from radt.devices.nvml import MPS_CONTROL
from radt.errors import DeviceError, UsageError
from radt.experiment.columns import Column
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import CPU_COUNT, GPUS, MEMORY_LIMIT
from radt.units import plural

#: Maximum number of models, the newest ones. For the hardware, a sweep of a thousand runs is one
#: model.
MAX_MODELS = 64
#: Allowance for a CUDA context and the kernels loaded into it, which PyTorch's allocator does not
#: count, and which MPS's server has as well. Not a measurement: they take a few hundred megabytes.
CONTEXT_BYTES = 500e6

_KERNEL_TIME = SeriesQuantity(Statistic.MEAN, "gpu.graphics.active")
_DRAM = SeriesQuantity(Statistic.MEAN, "gpu.dram.active")
_HOST_LOAD = SeriesQuantity(Statistic.MEAN, "system.cpu.utilization")
_HOST_FREE = SeriesQuantity(Statistic.MAX, "system.memory.available")
_GPU_TOTAL = SeriesQuantity(Statistic.MAX, "gpu.memory.total")
_GPU_RESERVED = SeriesQuantity(Statistic.MAX, "gpu.memory.reserved")
_GPU_USED = SeriesQuantity(Statistic.MAX, "gpu.memory.used")
_GPU_IDLE = SeriesQuantity(Statistic.MIN, "gpu.memory.used")
_OF_PROCESSES = SeriesQuantity(Statistic.MAX, "process.gpu.memory")
_OF_TORCH = SeriesQuantity(Statistic.MAX, "torch.memory.reserved")
_SERIES = (
    *(_KERNEL_TIME, _DRAM, _HOST_LOAD, _HOST_FREE, _GPU_TOTAL, _GPU_RESERVED),
    *(_GPU_USED, _GPU_IDLE, _OF_PROCESSES, _OF_TORCH),
)


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements of an experiment.

    Attributes:
        solos: Models alone, by key.
        measured: Workloads of several runs.
        missing: Names of models that ran with others but never alone, by key.
        records: The newest run of each model, alone or not, with its parameters.
        left_out: Sentences on runs and models that are left out.
        report: All of its workloads, including those with services.
    """

    experiment: str
    solos: Mapping[BaselineKey, Solo] = field(default_factory=dict)
    measured: Sequence[MeasuredWorkload] = ()
    missing: Mapping[BaselineKey, str] = field(default_factory=dict)
    records: Mapping[BaselineKey, tuple[RunRecord, Mapping[str, str]]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    report: Report = field(default_factory=lambda: Report(""))

    @property
    def places(self) -> dict[DevicePlace, list[Solo]]:
        """Return models by device: only models on the same device can share it."""
        groups: dict[DevicePlace, list[Solo]] = {}
        for solo in sorted(self.solos.values(), key=lambda solo: (*solo.key[2:], solo.name)):
            groups.setdefault(solo.place, []).append(solo)
        return groups


def read_measurements(
    reader: StoreReader,
    experiment: str,
    *,
    cores: int | None = None,
    cache: ReportCache | None = None,
    only: Collection[str] | None = None,
) -> Measurements:
    """Read an experiment.

    Args:
        reader: The store.
        experiment: Its name.
        cores: The number of CPUs of the machine, if the user gives it.
        cache: Cache of earlier reports of the experiment; it is updated.
        only: Ids of the runs to read; None for all.

    Raises:
        StoreError: The store cannot be read.
    """
    report = read_report(reader, experiment, series=_SERIES, cache=cache, only=only)
    served = sum(workload.is_served for workload in report.workloads)
    spread = sum(_has_several_gpus(workload) for workload in report.workloads)
    workloads = [
        workload
        for workload in report.workloads
        if not (workload.is_served or _has_several_gpus(workload))
    ]
    runs = [row.run for workload in workloads for group in workload.groups for row in group.runs]
    params = reader.params_of([run.run_id for run in runs])
    keys = keys_of(reader, runs, params)
    records = {
        keys[run.run_id]: (run, params.get(run.run_id, {}))
        for run in sorted(runs, key=lambda run: run.created_ns)
    }
    alone = {
        key: same for key, same in _alone(workloads, keys).items() if any(map(_is_whole, same))
    }
    chosen = dict(list(reversed(alone.items()))[:MAX_MODELS])
    solos = _solos(reader, chosen, params, cores)
    together = [workload for workload in workloads if workload.run_count > 1]
    measured = [_measured(workload, keys, solos) for workload in together]
    missing = {
        keys[row.run.run_id]: group.name
        for workload in together
        for group in workload.groups
        for row in group.runs
        if keys[row.run.run_id] not in solos
    }
    left_out = []
    if served:
        left_out.append(
            f"{plural(served, 'workload')} with services: what a service takes "
            "is not divided among the runs that it serves"
        )
    if spread:
        left_out.append(
            f"{plural(spread, 'workload')} with runs on several GPUs at once: "
            "their memory and load are not divided"
        )
    if older := len(alone) - len(chosen):
        left_out.append(f"{older:,} older of {len(alone):,} models")
    return Measurements(
        experiment,
        solos,
        [workload for workload in measured if workload is not None],
        missing,
        records,
        tuple(left_out),
        report,
    )


def _has_several_gpus(workload: WorkloadSummary) -> bool:
    return any("+" in row.run.devices for group in workload.groups for row in group.runs)


def collocation_of(run: RunRecord) -> Collocation:
    """Return how a run shared its device: naively if the recorded text is not from radt."""
    try:
        return Collocation.parse(run.collocation)
    except UsageError:  # imported from another tracker's archive
        return Collocation()


def _alone(
    workloads: Iterable[WorkloadSummary], keys: Mapping[str, BaselineKey]
) -> dict[BaselineKey, list[WorkloadSummary]]:
    """Return finished single-run workloads by model, ordered by the models' last runs."""
    alone: dict[BaselineKey, list[WorkloadSummary]] = {}
    for workload in workloads:
        group = workload.groups[0]
        if workload.run_count == 1 and group.status is RunStatus.FINISHED:
            key = keys[group.runs[0].run.run_id]
            alone[key] = [*alone.pop(key, []), workload]
    return alone


def _how(alone: WorkloadSummary) -> Collocation:
    return collocation_of(alone.groups[0].runs[0].run)


def _is_whole(alone: WorkloadSummary) -> bool:
    """Return whether a single run had all of its device."""
    return _how(alone).mig is None


def _solos(
    reader: StoreReader,
    alone: Mapping[BaselineKey, Sequence[WorkloadSummary]],
    params: Mapping[str, Mapping[str, str]],
    cores: int | None,
) -> dict[BaselineKey, Solo]:
    # A model is represented by its newest run on the whole device, preferably without MPS.
    whole = {
        key: sorted(filter(_is_whole, same), key=lambda each: _how(each).is_naive)[-1]
        for key, same in alone.items()
    }
    places = _places(reader, whole, cores)
    solos = {}
    for key, workload in whole.items():
        place = places[key.devices, key.hardware]
        solo = _solo(key, workload, place, params)
        if len(places) > 1:
            solo = replace(solo, name=f"{solo.name} on {place.text}")
        on_profile = {
            str(how.mig).lower(): slowdown
            for each in alone[key]
            if (how := _how(each)).mig is not None and how.mps is None
            if (slowdown := _slowdown(each.groups[0], solo)) is not None
        }
        solos[key] = replace(solo, on_profile=on_profile)
    return solos


def _places(
    reader: StoreReader, alone: Mapping[BaselineKey, WorkloadSummary], cores: int | None
) -> dict[tuple[str, str], DevicePlace]:
    """Return the places of models by devices and machine."""
    tags = reader.tags_of([workload.groups[0].runs[0].run.run_id for workload in alone.values()])
    by_place: dict[tuple[str, str], list[GroupSummary]] = {}
    for key, workload in alone.items():
        by_place.setdefault((key.devices, key.hardware), []).append(workload.groups[0])
    places = {}
    for (devices, host), groups in by_place.items():
        on_host = [
            group for (_, other), same in by_place.items() if other == host for group in same
        ]
        own = [tags.get(group.runs[0].run.run_id, {}) for group in on_host]
        counts = [each[CPU_COUNT] for each in own if each.get(CPU_COUNT, "").isdigit()]
        is_here = host == platform.node()
        here = len(os.sched_getaffinity(0)) if is_here else None
        known = int(counts[0]) if counts else here
        place = DevicePlace(host, devices, cores or known, _host_bytes(on_host, own))
        if not place.is_cpu:
            first = devices.partition("+")[0]
            index = int(first) if first.isdigit() else None  # not of "unknown" or a UUID
            names = next((each[GPUS].split(", ") for each in own if each.get(GPUS)), [])
            name = names[index] if index is not None and index < len(names) else ""
            total = _highest(_extreme(group, _GPU_TOTAL) for group in groups)
            published = published_mig(name, total) if total else None
            driver = _card_of_driver(index) if is_here and index is not None else None
            place = replace(
                place,
                gpu=name,
                gpu_bytes=_highest(map(_usable_bytes, groups)),
                card=driver or published,
                has_mps=not is_here or shutil.which(MPS_CONTROL) is not None,
            )
        places[devices, host] = place
    return places


def _card_of_driver(index: int) -> MigState | None:
    """Return a GPU without instances, as reported by this machine's driver; None without MIG."""
    try:
        gpu = read_inventory().gpu(index)
    except DeviceError:  # the tables also list the GPU by its name
        return None
    if gpu is None or gpu.mig is None or not gpu.mig.profiles:
        return None
    return replace(gpu.mig, instances=())


def _host_bytes(groups: Iterable[GroupSummary], tags: Iterable[Mapping[str, str]]) -> float | None:
    """Return the memory available to runs: free memory, limited by the control groups."""
    free = _highest(_extreme(group, _HOST_FREE) for group in groups)
    limit = _highest(float(each[MEMORY_LIMIT]) for each in tags if MEMORY_LIMIT in each)
    return free if limit is None else min(limit, free or limit)


def _usable_bytes(group: GroupSummary) -> float | None:
    total, idle = _extreme(group, _GPU_TOTAL), _extreme(group, _GPU_IDLE, min)
    return None if total is None else total - (_extreme(group, _GPU_RESERVED) or 0) - (idle or 0)


def _solo(
    key: BaselineKey,
    workload: WorkloadSummary,
    place: DevicePlace,
    params: Mapping[str, Mapping[str, str]],
) -> Solo:
    group = workload.groups[0]
    run = group.runs[0].run
    # The kernel's value covers only the largest process, but misses no peak between two samples.
    resident = [_extreme(group, Quantity.MEMORY_PEAK), _extreme(group, Quantity.RSS_PEAK)]
    host_bytes = _highest(resident) or _extreme(group, Quantity.PSS)
    active, busy = (
        None if (estimate := workload.values.get(quantity)) is None else estimate.mean
        for quantity in (Quantity.SM_ACTIVE, Quantity.GPU_UTILIZATION)
    )
    kernel = group.mean(_KERNEL_TIME)
    kernel = busy if kernel is None else kernel
    used = group.mean(Quantity.CPU)
    shares = {
        Resource.CORES: None if used is None or not place.cores else used / place.cores,
        Resource.SM: kernel if active is None else active,
        Resource.KERNEL: kernel,
        Resource.DRAM: group.mean(_DRAM),
    }
    return Solo(
        key,
        group.name,
        place,
        {
            resource: share if resource is Resource.CORES else min(1.0, share)
            for resource, share in shares.items()
            if share is not None and (resource is Resource.CORES or not place.is_cpu)
        },
        host_bytes if place.is_cpu else _gpu_bytes(group),
        host_bytes,
        run.run_id,
        group.repeats,
        group.mean(Quantity.TIME_PER_EPOCH),
        _rate(group),
        not place.is_cpu and active is None and kernel is not None,
        group.mean(_HOST_LOAD),
        cpus=params.get(run.run_id, {}).get(Column.CPUS, ""),
    )


def _gpu_bytes(group: GroupSummary) -> float | None:
    """Return the peak of the run's processes, else of the card above idle, else of PyTorch."""
    if own := _extreme(group, _OF_PROCESSES):
        return own
    card, idle = _extreme(group, _GPU_USED), _extreme(group, _GPU_IDLE, min)
    if card is not None and idle is not None and card > idle:
        return card - idle
    kept = _extreme(group, _OF_TORCH)
    return kept + CONTEXT_BYTES if kept else None


def _extreme(
    group: GroupSummary,
    quantity: AnyQuantity,
    extreme: Callable[[Sequence[float]], float] = max,
) -> float | None:
    """Return the highest or lowest value of a quantity over all repeats."""
    estimate = group.values.get(quantity)
    return None if estimate is None else extreme(estimate.repeats or (estimate.mean,))


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _rate(group: GroupSummary) -> float | None:
    return group.mean(Quantity.SAMPLES_PER_S_OF_RUN) or group.mean(Quantity.SAMPLES_PER_S)


def _slowdown(group: GroupSummary, solo: Solo) -> float | None:
    """Return the slowdown by time per epoch, or for scripts without epochs by throughput."""
    slowdown, rate = group.mean(Quantity.SLOWDOWN), _rate(group)
    if slowdown is not None or not rate or not solo.samples_per_s:
        return slowdown
    return solo.samples_per_s / rate


def data_wait(group: GroupSummary) -> float | None:
    """Return the share of time spent waiting for data; None if unknown.

    A script may log a different metric by this name, for example seconds.
    """
    share = group.mean(Quantity.DATA_WAIT)
    return share if share is not None and 0 <= share < 1 else None


def _measured(
    workload: WorkloadSummary, keys: Mapping[str, BaselineKey], solos: Mapping[BaselineKey, Solo]
) -> MeasuredWorkload | None:
    """Return the workload; None if a model never ran alone or a row failed for a reason but OOM."""
    rows, slowdowns = [], []
    for group in workload.groups:
        for row in group.runs:
            solo = solos.get(keys[row.run.run_id])
            if solo is None:
                return None
            rows.append(CandidateRow(solo, collocation_of(row.run)))
            slowdowns.append(_slowdown(group, solo))
    statuses = {group.status for group in workload.groups}
    if not statuses <= {RunStatus.FINISHED, RunStatus.OOM}:
        return None
    ran_out = RunStatus.OOM in statuses
    known = tuple(value for value in slowdowns if value is not None)
    return MeasuredWorkload(
        Candidate(tuple(rows), (workload.label,)),
        known if len(known) == len(rows) and not ran_out else (),
        ran_out,
    )
