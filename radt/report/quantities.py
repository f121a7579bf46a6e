"""What a report tells of an experiment: names, units, and where the values come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from radt import units

#: What scripts call their throughput, in samples per second.
THROUGHPUT_METRICS = ("samples_per_s", "samples_per_second", "throughput")


class Quantity(StrEnum):
    """A column of the report; the order is that of tables and charts."""

    TIME_PER_EPOCH = "time_per_epoch"
    SLOWDOWN = "vs_solo"
    MAKESPAN = "makespan"
    SERIAL = "serial"
    SPEED_UP = "speed_up"
    SAMPLES_PER_S = "samples_per_s"
    SAMPLES_PER_S_OF_RUN = "samples_per_s_of_run"
    CPU = "cpu"
    MEMORY = "memory"
    MEMORY_PEAK = "memory_peak"
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
    TRACKER_CPU = "tracker_cpu"


class Of(StrEnum):
    """Whose value it is."""

    RUNS = "runs"  # of the like runs of a workload together
    WORKLOAD = "workload"  # of the devices that a workload used, whoever used them meanwhile
    TOGETHER = "together"  # of all runs of a workload as one: not a sum, and of no device


class Combine(StrEnum):
    """How the values of several runs, or of several devices, become one."""

    MEAN = "mean"
    SUM = "sum"


class Reading(StrEnum):
    """What is made of a series within the window."""

    MEAN = "mean"
    PEAK = "peak"
    RATE = "rate"  # how much a counter grew, per second; of a gauge its mean
    DERIVED = "derived"  # it is computed from others


@dataclass(frozen=True, slots=True)
class About:
    """What there is to know of a quantity.

    Attributes:
        title: As in a table's head.
        unit: UCUM; ``x`` for a factor.
        of: Whose value it is.
        combine: How values of several runs or devices become one.
        explanation: A sentence for people.
        text: Writes a value with its unit.
        reading: What is made of the series.
        metrics: Series that it is read of: the first that there is counts.
        adds_devices: Whether a run has it on each of its devices, and all of them together count.
    """

    title: str
    unit: str
    of: Of
    combine: Combine
    explanation: str
    text: Callable[[float | None], str]
    reading: Reading = Reading.DERIVED
    metrics: tuple[str, ...] = ()
    adds_devices: bool = False


def joules(amount_j: float | None) -> str:
    """``1,000 J``."""
    return units.NO_VALUE if amount_j is None else f"{units.significant(amount_j)} J"


def grams(amount_g: float | None) -> str:
    """``12.3 g`` of CO2 equivalent."""
    return units.NO_VALUE if amount_g is None else f"{units.significant(amount_g)} g"


def _watts(value: float | None) -> str:
    return units.NO_VALUE if value is None else f"{units.significant(value)} W"


def _plain(value: float | None) -> str:
    return units.NO_VALUE if value is None else units.significant(value)


def _bytes_per_s(value: float | None) -> str:
    return units.NO_VALUE if value is None else f"{units.size(value)}/s"


_WHOLE = "Of whole GPUs, each counted once, whoever used them meanwhile"

ABOUT: dict[Quantity, About] = {
    Quantity.TIME_PER_EPOCH: About(
        *("time/epoch", "s", Of.RUNS, Combine.MEAN),
        "Mean length of the epochs that count, or what the phase or span asked for takes of each; "
        "mean of the runs",
        units.duration,
    ),
    Quantity.SLOWDOWN: About(
        *("vs solo", "x", Of.RUNS, Combine.MEAN),
        "Time per epoch over that of the run of the same file, parameters, devices and machine "
        "that ran alone",
        units.factor,
    ),
    Quantity.MAKESPAN: About(
        *("makespan", "s", Of.TOGETHER, Combine.MEAN),
        "From the start of the workload's first run to the end of its last one, if all finished",
        units.duration,
    ),
    Quantity.SERIAL: About(
        *("serial", "s", Of.TOGETHER, Combine.MEAN),
        "What the same runs take one after the other: the sum of the durations, from start to "
        "end, of the runs of the same file, parameters, devices and machine that ran alone; where "
        "epochs are more or fewer, of as many",
        units.duration,
    ),
    Quantity.SPEED_UP: About(
        *("speed-up", "x", Of.TOGETHER, Combine.MEAN),
        "Serial over makespan; above 1 the runs are done earlier together than one after the other",
        units.factor,
    ),
    Quantity.SAMPLES_PER_S: About(
        *("samples/s", "1/s", Of.RUNS, Combine.SUM),
        "As the script logged it, sum of the runs",
        _plain,
        Reading.MEAN,
        THROUGHPUT_METRICS,
    ),
    Quantity.SAMPLES_PER_S_OF_RUN: About(
        *("samples/s per run", "1/s", Of.RUNS, Combine.MEAN),
        "As the script logged it, mean of the runs",
        _plain,
        Reading.MEAN,
        THROUGHPUT_METRICS,
    ),
    Quantity.CPU: About(
        *("cpu", "1", Of.RUNS, Combine.SUM),
        "CPU time per time of the process trees, sum of the runs; 100 % is one core",
        units.percent,
        Reading.MEAN,
        ("process.cpu.utilization",),
    ),
    Quantity.MEMORY: About(
        *("memory", "By", Of.RUNS, Combine.SUM),
        "Resident memory of the process trees, mean over time, sum of the runs",
        units.size,
        Reading.MEAN,
        ("process.memory.pss", "process.memory.rss"),
    ),
    Quantity.MEMORY_PEAK: About(
        *("memory peak", "By", Of.RUNS, Combine.SUM),
        "Highest resident memory of each process tree, sum of the runs",
        units.size,
        Reading.PEAK,
        ("process.memory.pss", "process.memory.rss"),
    ),
    Quantity.SM_ACTIVE: About(
        *("SM active", "1", Of.WORKLOAD, Combine.MEAN),
        "Share of the SMs' time with at least one warp, mean of the devices",
        units.percent,
        Reading.MEAN,
        ("gpu.sm.active", "gpu.mig.sm.active"),
    ),
    Quantity.GPU_UTILIZATION: About(
        *("GPU util", "1", Of.WORKLOAD, Combine.MEAN),
        "Share of time in which a kernel ran, however few SMs it used; mean of the devices",
        units.percent,
        Reading.MEAN,
        ("gpu.utilization",),
    ),
    Quantity.GPU_MEMORY: About(
        *("GPU memory", "By", Of.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; mean over time, sum of the devices",
        units.size,
        Reading.MEAN,
        ("gpu.memory.used", "gpu.mig.memory.used"),
    ),
    Quantity.GPU_MEMORY_PEAK: About(
        *("GPU memory peak", "By", Of.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; highest of each device, sum of the devices",
        units.size,
        Reading.PEAK,
        ("gpu.memory.used", "gpu.mig.memory.used"),
    ),
    Quantity.GPU_MEMORY_OF_RUN: About(
        *("GPU memory per run, peak", "By", Of.RUNS, Combine.MEAN),
        "Highest memory of a run's processes on each of its GPUs, sum; mean of the runs",
        units.size,
        Reading.PEAK,
        ("process.gpu.memory",),
        adds_devices=True,
    ),
    Quantity.POWER: About(
        *("GPU power", "W", Of.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; mean over time, sum of the devices",
        _watts,
        Reading.MEAN,
        ("gpu.power", "gpu.power.average"),
    ),
    Quantity.ENERGY: About(
        *("energy", "J", Of.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; from the first run's start to the last one's end, warm-up included",
        joules,
    ),
    Quantity.ENERGY_PER_EPOCH: About(
        *("energy/epoch", "J", Of.WORKLOAD, Combine.MEAN),
        f"{_WHOLE}; what they used during the epochs that count, by the number of these epochs "
        "of all runs",
        joules,
    ),
    Quantity.ENERGY_PER_SAMPLE: About(
        *("energy/sample", "J", Of.WORKLOAD, Combine.MEAN),
        f"{_WHOLE}; what they used during the epochs that count, or in runs without epochs during "
        "all that counts, by the samples that all runs took meanwhile",
        joules,
    ),
    Quantity.ENERGY_OF_RUNS: About(
        *("energy, est.", "J", Of.RUNS, Combine.SUM),
        "The runs' share of the energy of their GPUs: estimated, not measured",
        joules,
    ),
    Quantity.CARBON: About(
        *("carbon", "g", Of.TOGETHER, Combine.MEAN),
        "CO2 equivalent of the GPUs that the runs used, each counted once, and of the machines' "
        "processors, whoever used them meanwhile; from the first run's start to the last one's "
        "end: estimated from energy, grid and building",
        grams,
    ),
    Quantity.CARBON_PER_EPOCH: About(
        *("carbon/epoch", "g", Of.TOGETHER, Combine.MEAN),
        "The same during the epochs that count, by the number of these epochs of all runs",
        grams,
    ),
    Quantity.PCIE_RX: About(
        *("PCIe to GPU", "By/s", Of.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; sum of the devices",
        _bytes_per_s,
        Reading.RATE,
        ("gpu.pcie.rx", "gpu.pcie.io.rx"),
    ),
    Quantity.PCIE_TX: About(
        *("PCIe from GPU", "By/s", Of.WORKLOAD, Combine.SUM),
        f"{_WHOLE}; sum of the devices",
        _bytes_per_s,
        Reading.RATE,
        ("gpu.pcie.tx", "gpu.pcie.io.tx"),
    ),
    Quantity.DISK_READ: About(
        *("disk read", "By/s", Of.RUNS, Combine.SUM),
        "From disks by the process trees, sum of the runs",
        _bytes_per_s,
        Reading.RATE,
        ("process.disk.read",),
    ),
    Quantity.DISK_WRITTEN: About(
        *("disk written", "By/s", Of.RUNS, Combine.SUM),
        "To disks by the process trees, sum of the runs",
        _bytes_per_s,
        Reading.RATE,
        ("process.disk.written",),
    ),
    Quantity.TRACKER_CPU: About(
        *("tracker", "1", Of.TOGETHER, Combine.MEAN),
        "CPU time of radt's collector and its deliverers per time of the workload, for all that "
        "they recorded meanwhile; 100 % is one core",
        units.percent,
    ),
}
