"""The dataclasses of advice: models alone, candidates for sharing, and predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from radt.analysis.baselines import BaselineKey
from radt.analysis.summaries import models_text
from radt.collocation.spec import Collocation
from radt.collocation.topology import MigState

#: Devices of a run that uses no GPU.
CPU_DEVICES = "cpu"


class Resource(StrEnum):
    """A shared resource, measured as a share from 0 to 1."""

    SM = "SM activity"  # share of the SMs' time with at least one warp
    KERNEL = "kernel time"  # share of time in which any kernel ran
    DRAM = "memory bandwidth"  # share of the device's bandwidth
    CORES = "CPU"  # cores used, of the machine's


class SharingMethod(StrEnum):
    """How runs share their device."""

    NAIVE = "naive"
    MPS = "MPS"
    MIG = "MIG"
    CPU = "CPU"  # they run beside each other on the CPU
    SEVERAL = "several"  # rows that share in different ways


class Fit(StrEnum):
    """Result of a memory prediction."""

    YES = "yes"
    TIGHT = "tight"  # within the margin
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """A device of a machine, and the resources that runs may use; None if unknown.

    Attributes:
        host: The machine, or on a cluster its hardware.
        devices: ``cpu`` or the GPU, as in `BaselineKey`.
        cores: CPUs of the machine.
        host_bytes: Memory of the machine.
        gpu: Name of the GPU.
        gpu_bytes: Memory of the GPU without the part that idle processes and the driver use.
        card: MIG profiles of the GPU; None also for a GPU without MIG.
        has_mps: Whether the machine has MPS, as far as known.
    """

    host: str
    devices: str
    cores: int | None = None
    host_bytes: float | None = None
    gpu: str = ""
    gpu_bytes: float | None = None
    card: MigState | None = None
    has_mps: bool = True

    @property
    def is_cpu(self) -> bool:
        return self.devices == CPU_DEVICES

    @property
    def memory_bytes(self) -> float | None:
        """Return the memory of the device: of the machine on a CPU."""
        return self.host_bytes if self.is_cpu else self.gpu_bytes

    @property
    def device(self) -> str:
        """Return ``GPU 0`` or ``CPU``."""
        if self.is_cpu:
            return "CPU"
        return f"GPU {self.devices}" if self.devices.isdigit() else self.devices

    @property
    def text(self) -> str:
        """Return ``GPU 0 of gpu-01``."""
        return f"{self.device} of {self.host}" if self.host else self.device


@dataclass(frozen=True, slots=True)
class Solo:
    """A model that ran alone on its device. Values are None if they were not measured.

    Attributes:
        key: Identity of the model.
        name: Name for tables and messages.
        place: Where it ran.
        shares: Share of each measured resource.
        memory_bytes: Peak memory on the device, warm-up included.
        host_bytes: Peak memory on the machine.
        run_id: The newest run that finished.
        count: Number of repeats.
        time_per_epoch_s: Mean over the repeats.
        samples_per_s: Throughput that the script logged.
        sm_is_utilization: SM activity was not measured and is replaced by the GPU's utilisation,
            which measures how often kernels ran, not how many SMs they used.
        host_load: Share of the machine's cores that all processes used meanwhile.
        on_profile: Slowdown of the model alone on MIG instances, by profile.
        cpus: Its cell Cpus: a number of reserved CPUs, a list of CPUs, or empty for all.
    """

    key: BaselineKey
    name: str
    place: DevicePlace
    shares: Mapping[Resource, float] = field(default_factory=dict)
    memory_bytes: float | None = None
    host_bytes: float | None = None
    run_id: str = ""
    count: int = 1
    time_per_epoch_s: float | None = None
    samples_per_s: float | None = None
    sm_is_utilization: bool = False
    host_load: float | None = None
    on_profile: Mapping[str, float] = field(default_factory=dict)
    cpus: str = ""

    @property
    def is_cpu(self) -> bool:
        return self.place.is_cpu

    @property
    def own_cpus(self) -> int | None:
        """Return the number of reserved CPUs; None for all, or for a list of CPUs."""
        return int(self.cpus) if self.cpus.isdigit() else None


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One run of a candidate."""

    solo: Solo
    collocation: Collocation = field(default_factory=Collocation)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Runs that can share a device. ``labels`` name equal workloads, measured or in the file."""

    rows: tuple[CandidateRow, ...]
    labels: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[tuple[BaselineKey, str], ...]:
        """Return the key that equal candidates share."""
        return tuple(sorted((row.solo.key, str(row.collocation)) for row in self.rows))

    @property
    def models(self) -> tuple[BaselineKey, ...]:
        """Return the models, regardless of how they share."""
        return tuple(sorted(row.solo.key for row in self.rows))

    @property
    def is_uniform(self) -> bool:
        return len(set(self.models)) == 1

    @property
    def method(self) -> SharingMethod:
        if all(row.solo.is_cpu for row in self.rows):
            return SharingMethod.CPU
        methods = {_method(row.collocation) for row in self.rows if not row.solo.is_cpu}
        return methods.pop() if len(methods) == 1 else SharingMethod.SEVERAL

    @property
    def degree(self) -> int:
        return len(self.rows)

    @property
    def models_text(self) -> str:
        """Return ``2 × resnet26 + resnet50``."""
        return models_text(Counter(row.solo.name for row in self.rows).items())

    @property
    def sharing_text(self) -> str:
        """Return ``MPS``, ``3g.20gb``, or ``together`` on the CPU; per row if they differ."""
        if self.method is SharingMethod.CPU:
            return "together"
        if self.method is SharingMethod.NAIVE:
            return SharingMethod.NAIVE.value
        return " + ".join(dict.fromkeys(str(row.collocation) for row in self.rows))


def _method(collocation: Collocation) -> SharingMethod:
    if collocation.is_naive:
        return SharingMethod.NAIVE
    if collocation.mig is None:
        return SharingMethod.MPS
    return SharingMethod.SEVERAL if collocation.mps is not None else SharingMethod.MIG


@dataclass(frozen=True, slots=True)
class MeasuredWorkload:
    """A workload of several runs that ended.

    Attributes:
        candidate: Its runs, with its label.
        slowdowns: In the order of the rows; empty unless all finished, as a run that ended early no
            longer slows down the others.
        ran_out: One of its runs ran out of memory.
    """

    candidate: Candidate
    slowdowns: tuple[float, ...] = ()
    ran_out: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest slowdown (or gain) according to the model."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory that rows share, with their total need.

    ``name`` is a GPU (``GPU 0``), an instance (``1g.5gb``), or ``host``. ``margin`` is the share
    that stays free for needs that the model does not know.
    """

    name: str
    need_bytes: float | None
    capacity_bytes: float | None
    margin: float = 0.0

    @property
    def fit(self) -> Fit:
        if self.need_bytes is None or self.capacity_bytes is None:
            return Fit.UNKNOWN
        if self.need_bytes > self.capacity_bytes:
            return Fit.NO
        is_tight = self.need_bytes > self.capacity_bytes * (1 - self.margin)
        return Fit.TIGHT if is_tight else Fit.YES


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """One row's slowdown: range according to the model, limiting resource, expected value.

    ``expected`` is the lower end until measured workloads calibrate it.
    """

    row: CandidateRow
    range: Range
    limit: str
    expected: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a candidate, and its measurement.

    Attributes:
        candidate: The candidate.
        pools: Memory of each device or instance and of the machine.
        rows: Slowdowns in the order of its rows; none where a resource was not measured.
        measured: The newest workload of these runs; None if they never ran together.
        unknown: Why a prediction is missing; empty if none is.
    """

    candidate: Candidate
    pools: tuple[MemoryPool, ...] = ()
    rows: tuple[RowPrediction, ...] = ()
    measured: MeasuredWorkload | None = None
    unknown: str = ""

    @property
    def fit(self) -> Fit:
        """Return the worst fit of all pools."""
        fits = {pool.fit for pool in self.pools}
        for fit in (Fit.NO, Fit.UNKNOWN, Fit.TIGHT):
            if fit in fits:
                return fit
        return Fit.YES if fits else Fit.UNKNOWN

    @property
    def expected(self) -> tuple[float, ...]:
        return tuple(row.expected for row in self.rows)

    @property
    def measured_slowdowns(self) -> tuple[float, ...]:
        return self.measured.slowdowns if self.measured is not None else ()

    @property
    def slowdowns(self) -> tuple[float, ...]:
        """Return the measured slowdowns, otherwise the expected ones."""
        return self.measured_slowdowns or self.expected

    @property
    def slowdown(self) -> float | None:
        """Return the largest slowdown of a row."""
        return max(self.slowdowns, default=None)

    @property
    def range(self) -> Range | None:
        """Return the range of the largest slowdown according to the model."""
        ranges = [row.range for row in self.rows]
        if not ranges:
            return None
        return Range(max(one.low for one in ranges), max(one.high for one in ranges))

    @property
    def gain(self) -> float | None:
        """Return the throughput relative to running the runs one after the other."""
        return sum(1 / slowdown for slowdown in self.slowdowns) if self.slowdowns else None

    @property
    def gain_range(self) -> Range | None:
        """Return the range of the gain according to the model."""
        ranges = [row.range for row in self.rows]
        if not ranges:
            return None
        return Range(sum(1 / one.high for one in ranges), sum(1 / one.low for one in ranges))

    @property
    def ran_out(self) -> bool:
        return self.measured is not None and self.measured.ran_out
