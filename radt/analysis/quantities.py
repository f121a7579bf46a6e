"""Quantities of a report: names, units, and their metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from radt import units
from radt.model import SOFTWARE
from radt.usage import KERNEL

#: Metrics under which scripts log their throughput, in samples per second.
THROUGHPUT_METRICS = ("samples_per_s", "samples_per_second", "throughput")


class Quantity(StrEnum):
    """A column of the report, in the order of tables and charts."""

    TIME_PER_EPOCH = "time_per_epoch"
    SLOWDOWN = "vs_solo"
    MAKESPAN = "makespan"
    SERIAL = "serial"
    SPEED_UP = "speed_up"
    SAMPLES_PER_S = "samples_per_s"
    SAMPLES_PER_S_OF_RUN = "samples_per_s_of_run"
    DATA_WAIT = "data_wait"
    CPU = "cpu"
    CPU_OF_ALL = "cpu_of_all"
    MEMORY = "memory"
    MEMORY_OF_ALL = "memory_of_all"
    MEMORY_PEAK = "memory_peak"
    PSS = "pss"
    SM_ACTIVE = "sm_active"
    GPU_UTILIZATION = "gpu_utilization"
    GPU_MEMORY = "gpu_memory"
    GPU_MEMORY_PEAK = "gpu_memory_peak"
    GPU_MEMORY_OF_RUN = "gpu_memory_of_run"
    POWER = "power"
    ENERGY = "energy"
    ENERGY_PER_EPOCH = "energy_per_epoch"
    ENERGY_PER_SAMPLE = "energy_per_sample"
    ENERGY_OF_RUNS = "energy_of_runs"
    CARBON = "carbon"
    CARBON_PER_EPOCH = "carbon_per_epoch"
    PCIE_RX = "pcie_rx"
    PCIE_TX = "pcie_tx"
    DISK_READ = "disk_read"
    DISK_WRITTEN = "disk_written"
    CPU_TIME = "cpu_time"
    RSS_PEAK = "rss_peak"
    IO_READ = "io_read"
    IO_WRITTEN = "io_written"
    TRACKER_CPU = "tracker_cpu"

    @property
    def info(self) -> QuantityInfo:
        """Return its title, unit, explanation and reading."""
        return _INFO[self]


class Direction(StrEnum):
    """Which values of a quantity are better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


#: Words in names of metrics whose lower or higher values are better.
_LOWER = frozenset(
    {"loss", "error", "perplexity", "latency", "wait", "time", "duration"}
    | {"energy", "carbon", "memory"}
)
_HIGHER = frozenset({"accuracy", "acc", "f1", "auc", "precision", "recall", *THROUGHPUT_METRICS})
#: Units of which less is better: time, energy, emissions, memory.
_LOWER_UNITS = frozenset({"s", "J", "g", "By"})
_IMPLIED = {"min": Direction.LOWER, "max": Direction.HIGHER}


def direction_of(metric: str, statistic: str = "", unit: str = "") -> Direction:
    """Return which values of a metric are better; neither for load, power and traffic.

    A whole word of its name decides, then its unit. For a plain number without either, the
    statistic decides: lower is better for a minimum, higher for a maximum.

    Args:
        metric: The metric's name.
        statistic: How its values become one number: ``last``, ``min``.
        unit: The metric's unit (UCUM).
    """
    name = metric.lower()
    words = {name, *re.split(r"[^a-z0-9]+", name)}
    lower, higher = bool(words & _LOWER), bool(words & _HIGHER)
    if lower is not higher:
        return Direction.LOWER if lower else Direction.HIGHER
    if lower:
        return Direction.NEITHER
    if unit in _LOWER_UNITS:
        return Direction.LOWER
    return Direction.NEITHER if unit else _IMPLIED.get(statistic, Direction.NEITHER)


class Subject(StrEnum):
    """The subject of a value."""

    RUNS = "runs"  # the like runs of a workload
    WORKLOAD = "workload"  # its devices, regardless of their users
    TOGETHER = "together"  # all runs as one; neither a sum nor a device's value


class Combine(StrEnum):
    """How the values of several runs or devices are combined."""

    MEAN = "mean"
    SUM = "sum"


class Statistic(StrEnum):
    """How the values of a series become one number. Those of a counter are its rates."""

    LAST = "last"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    P50 = "p50"
    P95 = "p95"
    P99 = "p99"
    TOTAL = "total"  # the sum of all values; of a counter, its growth
    TIME_TO = "time_to"  # from the start of the run until a value meets a condition

    @property
    def percentile(self) -> float | None:
        """Return 95.0 for ``p95``; None for the other statistics."""
        return _PERCENTILES.get(self)

    @property
    def in_window(self) -> bool:
        """Return whether a quantity of a series is that of the window, not of the whole run."""
        return self is Statistic.MEAN or self in _PERCENTILES


_PERCENTILES = {Statistic.P50: 50.0, Statistic.P95: 95.0, Statistic.P99: 99.0}


@dataclass(frozen=True, slots=True)
class QuantityInfo:
    """Title, unit and source of a quantity.

    Attributes:
        title: The table heading.
        unit: UCUM; ``x`` for a factor.
        subject: The subject of the value.
        combine: How values of several runs or devices are combined.
        explanation: A sentence for tables and the reference.
        metrics: The metrics to read; the first that a run has counts. Empty if the quantity is not
            read from a series.
        statistic: How the series becomes a number.
        listener: Only the series of this listener count; "" for those of all but the kernel's
            totals.
        whole_run: The samples outside the window count, too.
        adds_devices: A run has one value per device, and their sum counts.
        names_unit: The title contains the unit.
        better: Which values are better; None if the unit determines it.
    """

    title: str
    unit: str
    subject: Subject
    combine: Combine
    explanation: str
    metrics: tuple[str, ...] = ()
    statistic: Statistic = Statistic.MEAN
    listener: str = ""
    whole_run: bool = False
    adds_devices: bool = False
    names_unit: bool = False
    better: Direction | None = None

    @property
    def direction(self) -> Direction:
        """Return which values are better; neither for load, power and traffic."""
        by_unit = Direction.LOWER if self.unit in _LOWER_UNITS else Direction.NEITHER
        return self.better or by_unit

    def counts(self, listener: str) -> bool:
        """Return whether it is read from the series of a listener."""
        return listener == self.listener if self.listener else listener != KERNEL

    def text(self, value: float | None) -> str:
        """Return a value with its unit, unless the title contains it."""
        return units.in_unit(value, "" if self.names_unit else self.unit)


_WHOLE = "Of whole GPUs, each counted once, including other users"

#: Resident memory of a run's process tree, read at each sample; reading PSS takes long.
_RSS = "process.memory.rss"
_COUNTED = "counted by the kernel; sum of the runs"
_INFO: dict[Quantity, QuantityInfo] = {
    Quantity.TIME_PER_EPOCH: QuantityInfo(
        *("time/epoch", "s", Subject.RUNS, Combine.MEAN),
        "Mean length of the epochs in the window, or of the requested phase or span in each of "
        "them; mean of the runs",
    ),
    Quantity.SLOWDOWN: QuantityInfo(
        *("vs solo", "x", Subject.RUNS, Combine.MEAN),
        "Time per epoch over that of the run of the same file, parameters, devices and machine "
        "that ran alone",
        better=Direction.LOWER,
    ),
    Quantity.MAKESPAN: QuantityInfo(
        *("makespan", "s", Subject.TOGETHER, Combine.MEAN),
        "From the start of the workload's first run to the end of its last one, if all finished",
    ),
    Quantity.SERIAL: QuantityInfo(
        *("one after another", "s", Subject.TOGETHER, Combine.MEAN),
        "Time of the same runs one after the other: the sum of the durations of the runs of the "
        "same file, parameters, devices and machine that ran alone, scaled to the same number of "
        "epochs",
    ),
    Quantity.SPEED_UP: QuantityInfo(
        *("speed-up", "x", Subject.TOGETHER, Combine.MEAN),
        "Time of the runs one after another over makespan; above 1, running together is faster",
        better=Direction.HIGHER,
    ),
    Quantity.SAMPLES_PER_S: QuantityInfo(
        *("samples/s", "1/s", Subject.RUNS, Combine.SUM),
        "Throughput that the script logged, sum of the runs",
        THROUGHPUT_METRICS,
        listener=SOFTWARE,
        names_unit=True,
        better=Direction.HIGHER,
    ),
    Quantity.SAMPLES_PER_S_OF_RUN: QuantityInfo(
        *("samples/s per run", "1/s", Subject.RUNS, Combine.MEAN),
        "Throughput that the script logged, mean of the runs",
        THROUGHPUT_METRICS,
        listener=SOFTWARE,
        names_unit=True,
        better=Direction.HIGHER,
    ),
    Quantity.DATA_WAIT: QuantityInfo(
        *("data wait", "1", Subject.RUNS, Combine.MEAN),
        "Share of the steps' time spent waiting for the loader, by `run.batches()`; mean of the "
        "runs",
        ("data_wait",),
        better=Direction.LOWER,
    ),
    Quantity.CPU: QuantityInfo(
        *("cpu", "1", Subject.RUNS, Combine.SUM),
        "CPU time of the process trees per second, sum of the runs; 100 % is one core",
        ("process.cpu.utilization",),
    ),
    Quantity.CPU_OF_ALL: QuantityInfo(
        *("cpu of all", "1", Subject.TOGETHER, Combine.SUM),
        "CPU time of the process trees per second, sum of all runs of the workload and its "
        "services; 100 % is one core",
    ),
    Quantity.MEMORY: QuantityInfo(
        *("RSS", "By", Subject.RUNS, Combine.SUM),
        "Resident memory (RSS) of the process trees, mean over time, sum of the runs; a page that "
        "several processes share counts for each",
        (_RSS,),
    ),
    Quantity.MEMORY_OF_ALL: QuantityInfo(
        *("RSS of all", "By", Subject.TOGETHER, Combine.SUM),
        "Resident memory (RSS) of the process trees, mean over time, sum of all runs of the "
        "workload and its services",
    ),
    Quantity.MEMORY_PEAK: QuantityInfo(
        *("RSS peak", "By", Subject.RUNS, Combine.SUM),
        "Highest sample of the resident memory (RSS) of each process tree in its whole run, sum of "
        "the runs; a page that several processes share counts for each",
        (_RSS,),
        Statistic.MAX,
        whole_run=True,
    ),
    Quantity.PSS: QuantityInfo(
        *("PSS", "By", Subject.RUNS, Combine.SUM),
        "Memory of the process trees in which a page that several processes share counts once "
        "(PSS), mean of its few readings, sum of the runs",
        ("process.memory.pss",),
    ),
    Quantity.SM_ACTIVE: QuantityInfo(
        *("SM active", "1", Subject.WORKLOAD, Combine.MEAN),
        "Share of time in which an SM had at least one warp, mean of the devices",
        ("gpu.sm.active", "gpu.mig.sm.active"),
    ),
    Quantity.GPU_UTILIZATION: QuantityInfo(
        *("GPU util", "1", Subject.WORKLOAD, Combine.MEAN),
        "Share of time in which a kernel ran, however few SMs it used; mean of the devices",
        ("gpu.utilization",),
    ),
    Quantity.GPU_MEMORY: QuantityInfo(
        *("GPU memory", "By", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; mean over time, sum of the devices",
        ("gpu.memory.used", "gpu.mig.memory.used"),
    ),
    Quantity.GPU_MEMORY_PEAK: QuantityInfo(
        *("GPU memory peak", "By", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; highest of each device, sum of the devices",
        ("gpu.memory.used", "gpu.mig.memory.used"),
        Statistic.MAX,
    ),
    Quantity.GPU_MEMORY_OF_RUN: QuantityInfo(
        *("GPU memory per run, peak", "By", Subject.RUNS, Combine.MEAN),
        "Highest memory of a run's processes on each of its GPUs, sum; mean of the runs",
        ("process.gpu.memory",),
        Statistic.MAX,
        adds_devices=True,
    ),
    Quantity.POWER: QuantityInfo(
        *("GPU power", "W", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; mean over time, sum of the devices",
        ("gpu.power", "gpu.power.average"),
    ),
    Quantity.ENERGY: QuantityInfo(
        *("energy", "J", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; from the first run's start to the last one's end, warm-up included",
    ),
    Quantity.ENERGY_PER_EPOCH: QuantityInfo(
        *("energy/epoch", "J", Subject.WORKLOAD, Combine.MEAN),
        f"{_WHOLE}; energy during the epochs in the window, divided by the number of these epochs "
        "in all runs",
    ),
    Quantity.ENERGY_PER_SAMPLE: QuantityInfo(
        *("energy/sample", "J", Subject.WORKLOAD, Combine.MEAN),
        f"{_WHOLE}; energy during the epochs in the window (without epochs, the whole window), "
        "divided by the samples of all runs meanwhile",
    ),
    Quantity.ENERGY_OF_RUNS: QuantityInfo(
        *("energy, est.", "J", Subject.RUNS, Combine.SUM),
        "Estimated share of the runs in the energy of their GPUs",
    ),
    Quantity.CARBON: QuantityInfo(
        *("carbon", "g", Subject.TOGETHER, Combine.MEAN),
        "CO2 equivalent of the GPUs that the runs used, each counted once, and of the machines' "
        "processors, including other users; from the first run's start to the last one's "
        "end: estimated from energy, grid and building",
    ),
    Quantity.CARBON_PER_EPOCH: QuantityInfo(
        *("carbon/epoch", "g", Subject.TOGETHER, Combine.MEAN),
        "Emissions during the epochs in the window, divided by the number of these epochs in all "
        "runs",
    ),
    Quantity.PCIE_RX: QuantityInfo(
        *("PCIe to GPU", "By/s", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; sum of the devices",
        ("gpu.pcie.rx", "gpu.pcie.io.rx"),
    ),
    Quantity.PCIE_TX: QuantityInfo(
        *("PCIe from GPU", "By/s", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; sum of the devices",
        ("gpu.pcie.tx", "gpu.pcie.io.tx"),
    ),
    Quantity.DISK_READ: QuantityInfo(
        *("disk read", "By/s", Subject.RUNS, Combine.SUM),
        "From disks by the process trees, sum of the runs",
        ("process.disk.read",),
    ),
    Quantity.DISK_WRITTEN: QuantityInfo(
        *("disk written", "By/s", Subject.RUNS, Combine.SUM),
        "To disks by the process trees, sum of the runs",
        ("process.disk.written",),
    ),
    Quantity.CPU_TIME: QuantityInfo(
        *("CPU time", "s", Subject.RUNS, Combine.SUM),
        f"CPU time of all processes of each whole run, {_COUNTED}",
        ("process.cpu.time",),
        Statistic.TOTAL,
        KERNEL,
        whole_run=True,
    ),
    Quantity.RSS_PEAK: QuantityInfo(
        *("peak RSS", "By", Subject.RUNS, Combine.SUM),
        f"Highest resident memory of the largest process of each whole run, {_COUNTED}",
        ("process.memory.rss.peak",),
        Statistic.MAX,
        KERNEL,
        whole_run=True,
    ),
    Quantity.IO_READ: QuantityInfo(
        *("read", "By", Subject.RUNS, Combine.SUM),
        f"Read by system calls, also from the page cache and pipes, {_COUNTED}",
        ("process.io.read",),
        Statistic.TOTAL,
        KERNEL,
        whole_run=True,
    ),
    Quantity.IO_WRITTEN: QuantityInfo(
        *("written", "By", Subject.RUNS, Combine.SUM),
        f"Written by system calls, also to pipes and terminals, {_COUNTED}",
        ("process.io.written",),
        Statistic.TOTAL,
        KERNEL,
        whole_run=True,
    ),
    Quantity.TRACKER_CPU: QuantityInfo(
        *("tracker", "1", Subject.TOGETHER, Combine.MEAN),
        "CPU time of radt's collector and uploader per second of the workload, for all runs that "
        "they recorded meanwhile; 100 % is one core",
        better=Direction.LOWER,
    ),
}
