"""Quantities of a report: names, units, and their metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from radt import units

#: Metrics by which scripts log their throughput, in samples per second.
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
        """Return its title, unit and explanation, and how it is read."""
        return _INFO[self]


class Subject(StrEnum):
    """The subject of a value."""

    RUNS = "runs"  # the like runs of a workload
    WORKLOAD = "workload"  # its devices, whoever used them meanwhile
    TOGETHER = "together"  # all runs of a workload as one; neither a sum nor a device's value


class Combine(StrEnum):
    """How the values of several runs or devices are combined."""

    MEAN = "mean"
    SUM = "sum"


class Reading(StrEnum):
    """How a series is read within the window."""

    MEAN = "mean"
    PEAK = "peak"
    HIGHEST = "highest"  # maximum of all samples of the run, also outside the window
    TOTAL = "total"  # the kernel's total over the whole run
    RATE = "rate"  # increase of a counter per second; mean of a gauge
    DERIVED = "derived"  # computed from other quantities


@dataclass(frozen=True, slots=True)
class QuantityInfo:
    """Title, unit and source of a quantity.

    Attributes:
        title: The table heading.
        unit: UCUM; ``x`` for a factor.
        subject: The subject of the value.
        combine: How values of several runs or devices are combined.
        explanation: A sentence for tables and the reference.
        text: Writes a value with its unit.
        reading: How the series is read.
        metrics: The metrics to read; the first that a run has counts.
        adds_devices: A run has one value per device, and their sum counts.
    """

    title: str
    unit: str
    subject: Subject
    combine: Combine
    explanation: str
    text: Callable[[float | None], str]
    reading: Reading = Reading.DERIVED
    metrics: tuple[str, ...] = ()
    adds_devices: bool = False


def joules(amount_j: float | None) -> str:
    """Return ``1,000 J``."""
    return units.NO_VALUE if amount_j is None else f"{units.significant(amount_j)} J"


def grams(amount_g: float | None) -> str:
    """Return ``12.3 g`` of CO2 equivalent."""
    return units.NO_VALUE if amount_g is None else f"{units.significant(amount_g)} g"


def _watts(value: float | None) -> str:
    return units.NO_VALUE if value is None else f"{units.significant(value)} W"


def _plain(value: float | None) -> str:
    return units.NO_VALUE if value is None else units.significant(value)


def _bytes_per_s(value: float | None) -> str:
    return units.NO_VALUE if value is None else f"{units.size(value)}/s"


def _per_s(value: float | None) -> str:
    return units.NO_VALUE if value is None else f"{units.significant(value)} /s"


#: How values are written, by unit.
_TEXTS: dict[str, Callable[[float | None], str]] = {
    "s": units.duration,
    "By": units.size,
    "By/s": _bytes_per_s,
    "J": joules,
    "g": grams,
    "W": _watts,
    "1": units.percent,
    "1/s": _per_s,
}


def text_in(unit: str) -> Callable[[float | None], str]:
    """Return how to write values in a unit (UCUM; empty for plain numbers)."""
    known = _TEXTS.get(unit)
    if known is not None:
        return known
    symbol = unit.strip("{}")
    return lambda value: _plain(value) if value is None else f"{_plain(value)} {symbol}".rstrip()


_WHOLE = "Of whole GPUs, each counted once, including other users"

#: Resident memory of a run's process tree, read at each sample; PSS takes long to read.
_RSS = "process.memory.rss"
_COUNTED = "counted by the kernel; sum of the runs"
_INFO: dict[Quantity, QuantityInfo] = {
    Quantity.TIME_PER_EPOCH: QuantityInfo(
        *("time/epoch", "s", Subject.RUNS, Combine.MEAN),
        "Mean length of the epochs in the window, or of the requested phase or span in each of "
        "them; mean of the runs",
        units.duration,
    ),
    Quantity.SLOWDOWN: QuantityInfo(
        *("vs solo", "x", Subject.RUNS, Combine.MEAN),
        "Time per epoch over that of the run of the same file, parameters, devices and machine "
        "that ran alone",
        units.factor,
    ),
    Quantity.MAKESPAN: QuantityInfo(
        *("makespan", "s", Subject.TOGETHER, Combine.MEAN),
        "From the start of the workload's first run to the end of its last one, if all finished",
        units.duration,
    ),
    Quantity.SERIAL: QuantityInfo(
        *("serial", "s", Subject.TOGETHER, Combine.MEAN),
        "Time of the same runs one after the other: the sum of the durations of the runs of the "
        "same file, parameters, devices and machine that ran alone, scaled to the same number of "
        "epochs",
        units.duration,
    ),
    Quantity.SPEED_UP: QuantityInfo(
        *("speed-up", "x", Subject.TOGETHER, Combine.MEAN),
        "Serial over makespan; above 1, running together is faster than one after the other",
        units.factor,
    ),
    Quantity.SAMPLES_PER_S: QuantityInfo(
        *("samples/s", "1/s", Subject.RUNS, Combine.SUM),
        "Throughput that the script logged, sum of the runs",
        _plain,
        Reading.MEAN,
        THROUGHPUT_METRICS,
    ),
    Quantity.SAMPLES_PER_S_OF_RUN: QuantityInfo(
        *("samples/s per run", "1/s", Subject.RUNS, Combine.MEAN),
        "Throughput that the script logged, mean of the runs",
        _plain,
        Reading.MEAN,
        THROUGHPUT_METRICS,
    ),
    Quantity.DATA_WAIT: QuantityInfo(
        *("data wait", "1", Subject.RUNS, Combine.MEAN),
        "Share of the steps' time spent waiting for the loader, by `run.batches()`; mean of the "
        "runs",
        units.percent,
        Reading.MEAN,
        ("data_wait",),
    ),
    Quantity.CPU: QuantityInfo(
        *("cpu", "1", Subject.RUNS, Combine.SUM),
        "CPU time of the process trees per second, sum of the runs; 100 % is one core",
        units.percent,
        Reading.MEAN,
        ("process.cpu.utilization",),
    ),
    Quantity.CPU_OF_ALL: QuantityInfo(
        *("cpu of all", "1", Subject.TOGETHER, Combine.SUM),
        "CPU time of the process trees per second, sum of all runs of the workload and its "
        "services; 100 % is one core",
        units.percent,
    ),
    Quantity.MEMORY: QuantityInfo(
        *("RSS", "By", Subject.RUNS, Combine.SUM),
        "Resident memory (RSS) of the process trees, mean over time, sum of the runs; a page that "
        "several processes share counts for each",
        units.size,
        Reading.MEAN,
        (_RSS,),
    ),
    Quantity.MEMORY_OF_ALL: QuantityInfo(
        *("RSS of all", "By", Subject.TOGETHER, Combine.SUM),
        "Resident memory (RSS) of the process trees, mean over time, sum of all runs of the "
        "workload and its services",
        units.size,
    ),
    Quantity.MEMORY_PEAK: QuantityInfo(
        *("RSS peak", "By", Subject.RUNS, Combine.SUM),
        "Highest sample of the resident memory (RSS) of each process tree in its whole run, sum of "
        "the runs; a page that several processes share counts for each",
        units.size,
        Reading.HIGHEST,
        (_RSS,),
    ),
    Quantity.PSS: QuantityInfo(
        *("PSS", "By", Subject.RUNS, Combine.SUM),
        "Memory of the process trees in which a page that several processes share counts once "
        "(PSS), mean of its few readings, sum of the runs",
        units.size,
        Reading.MEAN,
        ("process.memory.pss",),
    ),
    Quantity.SM_ACTIVE: QuantityInfo(
        *("SM active", "1", Subject.WORKLOAD, Combine.MEAN),
        "Share of time in which an SM had at least one warp, mean of the devices",
        units.percent,
        Reading.MEAN,
        ("gpu.sm.active", "gpu.mig.sm.active"),
    ),
    Quantity.GPU_UTILIZATION: QuantityInfo(
        *("GPU util", "1", Subject.WORKLOAD, Combine.MEAN),
        "Share of time in which a kernel ran, however few SMs it used; mean of the devices",
        units.percent,
        Reading.MEAN,
        ("gpu.utilization",),
    ),
    Quantity.GPU_MEMORY: QuantityInfo(
        *("GPU memory", "By", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; mean over time, sum of the devices",
        units.size,
        Reading.MEAN,
        ("gpu.memory.used", "gpu.mig.memory.used"),
    ),
    Quantity.GPU_MEMORY_PEAK: QuantityInfo(
        *("GPU memory peak", "By", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; highest of each device, sum of the devices",
        units.size,
        Reading.PEAK,
        ("gpu.memory.used", "gpu.mig.memory.used"),
    ),
    Quantity.GPU_MEMORY_OF_RUN: QuantityInfo(
        *("GPU memory per run, peak", "By", Subject.RUNS, Combine.MEAN),
        "Highest memory of a run's processes on each of its GPUs, sum; mean of the runs",
        units.size,
        Reading.PEAK,
        ("process.gpu.memory",),
        adds_devices=True,
    ),
    Quantity.POWER: QuantityInfo(
        *("GPU power", "W", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; mean over time, sum of the devices",
        _watts,
        Reading.MEAN,
        ("gpu.power", "gpu.power.average"),
    ),
    Quantity.ENERGY: QuantityInfo(
        *("energy", "J", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; from the first run's start to the last one's end, warm-up included",
        joules,
    ),
    Quantity.ENERGY_PER_EPOCH: QuantityInfo(
        *("energy/epoch", "J", Subject.WORKLOAD, Combine.MEAN),
        f"{_WHOLE}; energy during the epochs in the window, divided by the number of these epochs "
        "in all runs",
        joules,
    ),
    Quantity.ENERGY_PER_SAMPLE: QuantityInfo(
        *("energy/sample", "J", Subject.WORKLOAD, Combine.MEAN),
        f"{_WHOLE}; energy during the epochs in the window (without epochs, the whole window), "
        "divided by the samples of all runs meanwhile",
        joules,
    ),
    Quantity.ENERGY_OF_RUNS: QuantityInfo(
        *("energy, est.", "J", Subject.RUNS, Combine.SUM),
        "Estimated share of the runs in the energy of their GPUs",
        joules,
    ),
    Quantity.CARBON: QuantityInfo(
        *("carbon", "g", Subject.TOGETHER, Combine.MEAN),
        "CO2 equivalent of the GPUs that the runs used, each counted once, and of the machines' "
        "processors, including other users; from the first run's start to the last one's "
        "end: estimated from energy, grid and building",
        grams,
    ),
    Quantity.CARBON_PER_EPOCH: QuantityInfo(
        *("carbon/epoch", "g", Subject.TOGETHER, Combine.MEAN),
        "Emissions during the epochs in the window, divided by the number of these epochs in all "
        "runs",
        grams,
    ),
    Quantity.PCIE_RX: QuantityInfo(
        *("PCIe to GPU", "By/s", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; sum of the devices",
        _bytes_per_s,
        Reading.RATE,
        ("gpu.pcie.rx", "gpu.pcie.io.rx"),
    ),
    Quantity.PCIE_TX: QuantityInfo(
        *("PCIe from GPU", "By/s", Subject.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; sum of the devices",
        _bytes_per_s,
        Reading.RATE,
        ("gpu.pcie.tx", "gpu.pcie.io.tx"),
    ),
    Quantity.DISK_READ: QuantityInfo(
        *("disk read", "By/s", Subject.RUNS, Combine.SUM),
        "From disks by the process trees, sum of the runs",
        _bytes_per_s,
        Reading.RATE,
        ("process.disk.read",),
    ),
    Quantity.DISK_WRITTEN: QuantityInfo(
        *("disk written", "By/s", Subject.RUNS, Combine.SUM),
        "To disks by the process trees, sum of the runs",
        _bytes_per_s,
        Reading.RATE,
        ("process.disk.written",),
    ),
    Quantity.CPU_TIME: QuantityInfo(
        *("CPU time", "s", Subject.RUNS, Combine.SUM),
        f"CPU time of all processes of each whole run, {_COUNTED}",
        units.duration,
        Reading.TOTAL,
        ("process.cpu.time",),
    ),
    Quantity.RSS_PEAK: QuantityInfo(
        *("peak RSS", "By", Subject.RUNS, Combine.SUM),
        f"Highest resident memory of the largest process of each whole run, {_COUNTED}",
        units.size,
        Reading.TOTAL,
        ("process.memory.rss.peak",),
    ),
    Quantity.IO_READ: QuantityInfo(
        *("read", "By", Subject.RUNS, Combine.SUM),
        f"Read by system calls, also from the page cache and pipes, {_COUNTED}",
        units.size,
        Reading.TOTAL,
        ("process.io.read",),
    ),
    Quantity.IO_WRITTEN: QuantityInfo(
        *("written", "By", Subject.RUNS, Combine.SUM),
        f"Written by system calls, also to pipes and terminals, {_COUNTED}",
        units.size,
        Reading.TOTAL,
        ("process.io.written",),
    ),
    Quantity.TRACKER_CPU: QuantityInfo(
        *("tracker", "1", Subject.TOGETHER, Combine.MEAN),
        "CPU time of radt's collector and uploader per second of the workload, for all runs that "
        "they recorded meanwhile; 100 % is one core",
        units.percent,
    ),
}
