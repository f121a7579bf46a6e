"""The dataclasses of advice: models alone, candidates for sharing, and predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from radt.analysis.baselines import BaselineKey
from radt.analysis.summaries import models_text
from radt.collocation.spec import Collocation

#: Devices of a run that uses no GPU.
CPU_DEVICES = "cpu"


class Resource(StrEnum):
    """A shared resource, measured as a share from 0 to 1."""

    SM = "SM activity"  # share of the SMs' time with at least one warp
    KERNEL = "kernel time"  # share of time in which any kernel ran
    DRAM = "memory bandwidth"  # share of the device's bandwidth
    CORES = "CPU"  # cores used, of the machine's


class Method(StrEnum):
    """How runs share their device."""

    NAIVE = "naive"
    MPS = "MPS"
    MIG = "MIG"
    CPU = "CPU"  # they run beside each other on the CPU
    SEVERAL = "several"  # rows that share in different ways


class Goal(StrEnum):
    """Goal of the optimisation."""

    THROUGHPUT = "throughput"  # most work in the same time
    LATENCY = "latency"  # each run as fast as alone, or nearly
    ENERGY = "energy"  # least energy for the same work


class Fit(StrEnum):
    """Result of a memory prediction."""

    YES = "yes"
    TIGHT = "tight"  # within the margin
    NO = "no"
    UNKNOWN = "unknown"


class Origin(StrEnum):
    """Where a candidate comes from."""

    COPIES = "copies of one model"
    MIX = "a mix"
    MEASURED = "measured"
    FILE = "in the file"


class MemorySource(StrEnum):
    """The source of a footprint, the best first."""

    PROCESS = "of the run's processes"
    CARD = "of the card above its idle level"
    TORCH = "of PyTorch's allocator and an allowance for the context"
    RESIDENT = "resident; pages that processes share count for each"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peak memory of a run, warm-up included."""

    peak_bytes: float
    of: MemorySource


class PaceKind(StrEnum):
    """The work that a pace is the time of."""

    EPOCH = "time per epoch"
    SAMPLES = "samples/s"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class Solo:
    """A model that ran alone on its device.

    Attributes:
        key: Identity of the model.
        name: Name for tables and messages.
        run_id: The newest run that finished.
        count: Number of repeats.
        paces_s: Seconds for a unit of work (an epoch, a sample, all), by its kind.
        shares: Share of each measured resource.
        sm_is_utilization: SM activity was not measured and is replaced by the GPU's utilisation,
            which measures how often kernels ran, not how many SMs they used.
        footprint: Memory on the device, or on the machine for a run on the CPU. None if unknown.
        host_bytes: Memory used on the machine.
        power_w: Power of its device; `idle_w` is the lowest value measured there.
        on_profile: The same seconds of the model alone on MIG instances, by profile.
        data_wait: Share of its steps' time spent waiting for data, from 0 to 1. None if the script
            marks no batches.
    """

    key: BaselineKey
    name: str
    run_id: str
    count: int = 1
    paces_s: Mapping[PaceKind, float] = field(default_factory=dict)
    shares: Mapping[Resource, float] = field(default_factory=dict)
    sm_is_utilization: bool = False
    footprint: Footprint | None = None
    host_bytes: float | None = None
    power_w: float | None = None
    idle_w: float | None = None
    on_profile: Mapping[str, Mapping[PaceKind, float]] = field(default_factory=dict)
    cpus: str = ""
    data_wait: float | None = None

    @property
    def devices(self) -> str:
        return self.key.devices

    @property
    def host(self) -> str:
        return self.key.hardware

    @property
    def is_cpu(self) -> bool:
        return self.devices == CPU_DEVICES

    @property
    def own_cpus(self) -> int | None:
        """Return the number of CPUs of its own; None for all, or for a list of CPUs."""
        return int(self.cpus) if self.cpus.isdigit() else None

    def slowdown_of(self, paces_s: Mapping[PaceKind, float]) -> float | None:
        """Return the slowdown by the first kind of work that both have; None without any."""
        for kind in PaceKind:
            if self.paces_s.get(kind) and paces_s.get(kind):
                return paces_s[kind] / self.paces_s[kind]
        return None


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a candidate."""

    solo: Solo
    collocation: Collocation = field(default_factory=Collocation)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Runs that can share a device.

    ``labels`` belong to equal workloads, measured or in the file.
    """

    rows: tuple[Row, ...]
    origin: Origin
    labels: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[tuple[BaselineKey, str], ...]:
        """The key by which candidates are equal."""
        return tuple(sorted((row.solo.key, str(row.collocation)) for row in self.rows))

    @property
    def models(self) -> tuple[BaselineKey, ...]:
        """Return the models, however they share."""
        return tuple(sorted(row.solo.key for row in self.rows))

    @property
    def is_uniform(self) -> bool:
        return len(set(self.models)) == 1

    @property
    def method(self) -> Method:
        if all(row.solo.is_cpu for row in self.rows):
            return Method.CPU
        methods = {_method(row.collocation) for row in self.rows if not row.solo.is_cpu}
        return methods.pop() if len(methods) == 1 else Method.SEVERAL

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
        if self.method is Method.CPU:
            return "together"
        if self.method is Method.NAIVE:
            return Method.NAIVE.value
        return " + ".join(dict.fromkeys(str(row.collocation) for row in self.rows))


def _method(collocation: Collocation) -> Method:
    if collocation.is_naive:
        return Method.NAIVE
    if collocation.mig is None:
        return Method.MPS
    return Method.SEVERAL if collocation.mps is not None else Method.MIG


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest slowdown (or gain) by the model."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory that rows share, with their total need.

    ``name`` is a GPU (``GPU 0``), an instance (``1g.5gb``), or ``host``. ``margin_bytes`` stay free
    for needs unknown to the model.
    """

    name: str
    need_bytes: float | None
    capacity_bytes: float | None
    margin_bytes: float = 0.0

    @property
    def fit(self) -> Fit:
        if self.need_bytes is None or self.capacity_bytes is None:
            return Fit.UNKNOWN
        if self.need_bytes > self.capacity_bytes:
            return Fit.NO
        if self.need_bytes > self.capacity_bytes - self.margin_bytes:
            return Fit.TIGHT
        return Fit.YES


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """One row's slowdown: its range by the model, the limiting resource, the expected value.

    ``expected`` is the lower end until measured workloads calibrate it.
    """

    row: Row
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
        calibrated_by: Number of measured slowdowns of the same method that calibrated the expected
            ones.
        measured: Measured slowdown of each row; empty if not measured.
        data_waits: Measured share of each row's time spent waiting for data, None for a script that
            marks no batches; empty if not measured.
        measured_fit: Whether all rows ended, or one ran out of memory; None if it never ran.
        energy: Energy for the same work over that of the runs one after the other; None if unknown.
        unknown: Reasons for missing predictions.
    """

    candidate: Candidate
    pools: tuple[MemoryPool, ...]
    rows: tuple[RowPrediction, ...] = ()
    calibrated_by: int = 0
    measured: tuple[float, ...] = ()
    data_waits: tuple[float | None, ...] = ()
    measured_fit: bool | None = None
    energy: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def fit(self) -> Fit:
        """Return the worst fit of all pools."""
        fits = {pool.fit for pool in self.pools}
        for fit in (Fit.NO, Fit.UNKNOWN, Fit.TIGHT):
            if fit in fits:
                return fit
        return Fit.YES if fits else Fit.UNKNOWN

    @property
    def slowdowns(self) -> tuple[float, ...]:
        """Return the measured slowdowns, otherwise the expected ones."""
        return self.measured or tuple(row.expected for row in self.rows)

    @property
    def slowdown(self) -> float | None:
        """Return the largest slowdown of a row."""
        return max(self.slowdowns, default=None)

    @property
    def gain(self) -> float | None:
        """Return work per time, relative to the runs one after the other."""
        return sum(1 / value for value in self.slowdowns) if self.slowdowns else None

    @property
    def gain_range(self) -> Range | None:
        """Return the gain by the model, without calibration."""
        if not self.rows:
            return None
        return Range(
            sum(1 / row.range.high for row in self.rows),
            sum(1 / row.range.low for row in self.rows),
        )

    @property
    def ran_out(self) -> bool:
        return self.measured_fit is False
