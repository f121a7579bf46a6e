"""Read facts on machines, devices and runs that are missing from a report.

MIG profiles come from the driver of this machine, else from NVIDIA's tables.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from radt.analysis.advice_model import CPU_DEVICES, Footprint, MemorySource
from radt.collocation.inventory import read_inventory
from radt.collocation.packing import Card, pack
from radt.collocation.processes import MPS_CONTROL
from radt.collocation.topology import InstanceProfile, profile_name, published_placements
from radt.errors import DeviceError
from radt.model import MarkerKind
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SummaryRecord
from radt.tags import CLUSTER_HARDWARE, CPU_COUNT, GPUS

#: A CUDA context and the kernels loaded into it, which PyTorch's allocator does not count, and
#: which MPS has once more for its server. An allowance, not a measurement: they take a few hundred
#: megabytes.
CONTEXT_BYTES = 500e6

#: The first measured one counts.
_KERNEL_TIME = ("gpu.graphics.active",)
_DRAM = ("gpu.dram.active",)
_HOST_LOAD = ("system.cpu.utilization",)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A machine. Runs may use these ``cores`` and ``memory_bytes``."""

    name: str
    cores: int | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A GPU. ``memory_bytes`` is the memory that all runs together may use.

    ``mig_gpu`` is None for an unknown GPU or one without MIG; ``has_mps`` is None on other
    machines.
    """

    name: str = ""
    memory_bytes: float | None = None
    mig_gpu: MigGpu | None = None
    has_mps: bool | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts from the series of one run and its own device.

    ``host_load`` is the share of the machine's cores that all processes used meanwhile.
    """

    kernel_time: float | None = None
    dram: float | None = None
    footprint: Footprint | None = None
    host_bytes: float | None = None
    host_free_bytes: float | None = None
    idle_w: float | None = None
    card_bytes: float | None = None
    usable_bytes: float | None = None
    host_load: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts on runs, machines and devices of an experiment."""

    runs: Mapping[str, RunFacts] = field(default_factory=dict)
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    devices: Mapping[tuple[str, str], DeviceFacts] = field(default_factory=dict)

    def host(self, name: str) -> HostFacts:
        return self.hosts.get(name, HostFacts(name))

    def device(self, host: str, devices: str) -> DeviceFacts:
        return self.devices.get((host, devices), DeviceFacts())


def read_facts(
    reader: StoreReader, runs: Sequence[RunRecord], *, cores: int | None = None
) -> Facts:
    """Read the facts on runs that were alone on their device.

    `cores` is the user's number of CPUs of the machine, if given.

    Raises:
        StoreError: The store cannot be read.
    """
    ids = [run.run_id for run in runs]
    series: dict[str, list[SummaryRecord]] = {run_id: [] for run_id in ids}
    for summary in reader.summary(ids):
        series[summary.series.run_id].append(summary)
    bounds = _counted(reader, ids)
    facts = {
        run.run_id: _run_facts(reader, run, series[run.run_id], bounds.get(run.run_id))
        for run in runs
    }
    tags = reader.tags_of(ids)
    hosts: dict[str, HostFacts] = {}
    devices: dict[tuple[str, str], DeviceFacts] = {}
    # Nodes of a cluster with the same hardware are one machine (`BaselineKey`).
    machine = {run.run_id: tags.get(run.run_id, {}).get(CLUSTER_HARDWARE, run.host) for run in runs}
    for host in dict.fromkeys(machine.values()):
        host_runs = [run for run in runs if machine[run.run_id] == host]
        host_tags = [tags.get(run.run_id, {}) for run in host_runs]
        hosts[host] = HostFacts(
            host,
            cores or _cores(host, host_tags),
            _highest(facts[run.run_id].host_free_bytes for run in host_runs),
        )
        names = next(
            (run_tags[GPUS].split(", ") for run_tags in host_tags if run_tags.get(GPUS)), []
        )
        for place in dict.fromkeys(run.devices for run in host_runs if run.devices.isdigit()):
            on_it = [facts[run.run_id] for run in host_runs if run.devices == place]
            name = names[int(place)] if int(place) < len(names) else ""
            devices[host, place] = _device(host, int(place), name, on_it)
    return Facts(facts, hosts, devices)


def _counted(reader: StoreReader, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the time of all epochs but the first, or of the only one, by run."""
    epochs: dict[str, list[tuple[int, int]]] = {}
    for marker in reader.markers(ids):
        if marker.kind is MarkerKind.EPOCH and marker.end_ns is not None and not marker.process:
            epochs.setdefault(marker.run_id, []).append((marker.start_ns, marker.end_ns))
    bounds = {}
    for run_id, spans in epochs.items():
        counted = sorted(spans)[1:] or spans
        bounds[run_id] = counted[0][0], counted[-1][1]
    return bounds


def _run_facts(
    reader: StoreReader,
    run: RunRecord,
    series: Sequence[SummaryRecord],
    bounds: tuple[int, int] | None,
) -> RunFacts:
    own = f"gpu{run.devices}" if run.devices.isdigit() else ""
    by_metric: dict[str, list[SummaryRecord]] = {}
    for summary in series:
        if summary.series.node:
            continue  # another node of the run, which is not on the devices here
        entity = summary.series.entity
        # Other GPUs' values do not belong to the run; a value without an entity belongs to its only
        # device.
        if not entity.startswith("gpu") or entity == own or entity.startswith(f"{own}/"):
            by_metric.setdefault(summary.series.metric, []).append(summary)

    def within(metrics: Iterable[str]) -> float | None:
        start_ns, end_ns = bounds or (None, None)
        for metric in metrics:
            for summary in by_metric.get(metric, ()):
                number = summary.series.series_no
                value = reader.mean(run.run_id, number, start_ns=start_ns, end_ns=end_ns)
                if value is not None:
                    return value
        return None

    def highest(metric: str) -> float | None:
        return _highest(summary.maximum for summary in by_metric.get(metric, ()))

    def lowest(metric: str) -> float | None:
        minima = [
            summary.minimum for summary in by_metric.get(metric, ()) if summary.minimum is not None
        ]
        return min(minima, default=None)

    # The kernel's value covers only the largest process, but misses no peak between two samples.
    sampled = highest("process.memory.rss") or highest("process.memory.pss")
    resident = _highest((sampled, highest("process.memory.rss.peak")))
    total, idle = highest("gpu.memory.total"), lowest("gpu.memory.used")
    free = highest("system.memory.available")
    limit = lowest("system.cgroup.memory.limit")
    return RunFacts(
        kernel_time=within(_KERNEL_TIME),
        dram=within(_DRAM),
        host_load=within(_HOST_LOAD),
        footprint=_footprint(run, resident, highest, idle),
        host_bytes=resident,
        host_free_bytes=free if limit is None else min(limit, free or limit),
        idle_w=lowest("gpu.power"),
        card_bytes=total,
        usable_bytes=None
        if total is None
        else total - (highest("gpu.memory.reserved") or 0.0) - (idle or 0.0),
    )


def _footprint(
    run: RunRecord,
    resident: float | None,
    highest: Callable[[str], float | None],
    idle: float | None,
) -> Footprint | None:
    if run.devices == CPU_DEVICES:
        return None if resident is None else Footprint(resident, MemorySource.RESIDENT)
    own = highest("process.gpu.memory")
    if own:
        return Footprint(own, MemorySource.PROCESS)
    card = highest("gpu.memory.used")
    if card is not None and idle is not None and card > idle:
        return Footprint(card - idle, MemorySource.CARD)
    kept = highest("torch.memory.reserved")
    return Footprint(kept + CONTEXT_BYTES, MemorySource.TORCH) if kept else None


def _cores(host: str, tags: Iterable[Mapping[str, str]]) -> int | None:
    count = next(
        (run_tags[CPU_COUNT] for run_tags in tags if run_tags.get(CPU_COUNT, "").isdigit()), None
    )
    if count is not None:
        return int(count)
    return len(os.sched_getaffinity(0)) if host == platform.node() else None


def _device(host: str, index: int, name: str, runs: Sequence[RunFacts]) -> DeviceFacts:
    usable = _highest(facts.usable_bytes for facts in runs)
    total = _highest(facts.card_bytes for facts in runs)
    mig_gpu = published_gpu(name, total) if total else None
    has_mps = None
    if host == platform.node():
        has_mps = shutil.which(MPS_CONTROL) is not None
        mig_gpu = _from_driver(index) or mig_gpu
    return DeviceFacts(name, usable, mig_gpu, has_mps)


def _from_driver(index: int) -> MigGpu | None:
    """Return the GPU as this machine's driver describes it; None without MIG."""
    try:
        gpu = read_inventory([index]).gpu(index)
    except DeviceError:  # the tables list the GPU by its name, too
        return None
    if gpu is None or gpu.mig is None or not gpu.mig.profiles:
        return None
    return MigGpu(Card(gpu.mig.profiles), from_driver=True)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


_MIB = 2**20
#: Compute slices of the GPUs that can be divided, by what their names hold.
_SLICES = (
    (re.compile(r"\b(G?[AH]100|[AH]800|G?H200|H20|G?B[23]00)\b"), 7),
    (re.compile(r"\bA30\b|\bRTX PRO 6000\b"), 4),
)
#: Compute slices and eighths of the memory of instances, by the compute slices of the GPU.
_INSTANCES = {
    7: ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)),
    4: ((1, 2), (2, 4), (4, 8)),
}


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A GPU with MIG. ``from_driver``: its driver listed the profiles."""

    card: Card
    from_driver: bool = False

    @property
    def slices(self) -> int:
        """Return the number of compute slices of the whole GPU."""
        return self.card.slices

    def profile(self, name: str) -> InstanceProfile | None:
        """Return the profile with this name."""
        wanted = name.lower()
        return next(
            (profile for profile in self.card.profiles if profile.name.lower() == wanted), None
        )

    def plain(self) -> Sequence[InstanceProfile]:
        """Return profiles without media extensions, smallest first.

        The profile of the whole GPU is excluded, as it cannot share the GPU.
        """
        return sorted(
            (
                profile
                for profile in self.card.profiles
                if "+" not in profile.name
                and "-" not in profile.name
                and profile.slices < self.slices
            ),
            key=lambda profile: (profile.slices, profile.memory_mb),
        )

    def packs(self, names: Sequence[str]) -> bool:
        """Return whether instances of these profiles fit together on an empty GPU."""
        return _packs(self, tuple(sorted(names)))


@cache
def _packs(mig_gpu: MigGpu, names: tuple[str, ...]) -> bool:
    profiles = [mig_gpu.profile(name) for name in names]
    known = [profile for profile in profiles if profile is not None]
    return len(known) == len(names) and pack(known, mig_gpu.card) is not None


def published_gpu(name: str, memory_bytes: float) -> MigGpu | None:
    """Return a GPU by this name from NVIDIA's tables; None if it has no MIG.

    Source: MIG User Guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide.

    Args:
        name: The driver's name, ``NVIDIA A100-SXM4-40GB``.
        memory_bytes: All of its memory.
    """
    slices = next((count for pattern, count in _SLICES if pattern.search(name)), None)
    if slices is None or memory_bytes <= 0:
        return None
    memory_mb = round(memory_bytes / _MIB)
    profiles = []
    for size, eighths in _INSTANCES[slices]:
        instance_mb = memory_mb * eighths // 8
        placements = published_placements(size, instance_mb, slices, memory_mb)
        profile = profile_name(0, size, instance_mb, round(memory_bytes))
        count = 0
        end = 0
        for place in placements:
            if place.start >= end:
                count, end = count + 1, place.end
        profiles.append(InstanceProfile(-1, profile, size, instance_mb, count, 0, placements))
    return MigGpu(Card(tuple(profiles)))
