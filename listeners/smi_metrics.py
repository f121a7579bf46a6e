"""What the smi listener measures, by name.

What is dear to read is read once a second at most: with shorter intervals it is not regular.
"""

from __future__ import annotations

from typing import Final

from radt.listeners.api import Metric
from radt.listeners.smi_energy import METHOD
from radt.listeners.smi_sources import PowerMeter
from radt.model import Scope, SeriesKind

XID_ERRORS: Final = "gpu.xid.errors"
MIG_MEMORY_USED: Final = "gpu.mig.memory.used"
MIG_MEMORY_TOTAL: Final = "gpu.mig.memory.total"
PROCESS_MEMORY: Final = "process.gpu.memory"
PROCESS_UTILIZATION: Final = "process.gpu.utilization"
PROCESS_ENERGY: Final = "process.gpu.energy"

_SINCE_DRIVER = "since the driver was loaded"
_COUNTER = SeriesKind.COUNTER

METRICS: Final = (
    Metric(
        "gpu.utilization",
        "1",
        Scope.GPU,
        description="share of time with at least one kernel running",
    ),
    Metric(
        "gpu.memory.utilization",
        "1",
        Scope.GPU,
        description="share of time in which memory was read or written",
    ),
    Metric("gpu.memory.used", "By", Scope.GPU, description="without what the driver reserves"),
    Metric("gpu.memory.total", "By", Scope.GPU),
    Metric("gpu.memory.reserved", "By", Scope.GPU, description="by driver and firmware"),
    Metric("gpu.power", "W", Scope.GPU, method=PowerMeter.METHOD),
    Metric("gpu.power.instant", "W", Scope.GPU, method="as the board shows it, no mean"),
    Metric(
        "gpu.power.average",
        "W",
        Scope.GPU,
        method="mean of one second by the driver",
        regular=False,
    ),
    Metric("gpu.power.limit", "W", Scope.GPU, description="in force now", regular=False),
    Metric("gpu.energy", "J", Scope.GPU, _COUNTER, _SINCE_DRIVER),
    Metric("gpu.temperature", "Cel", Scope.GPU),
    Metric("gpu.temperature.memory", "Cel", Scope.GPU),
    Metric("gpu.clock.sm", "Hz", Scope.GPU),
    Metric("gpu.clock.memory", "Hz", Scope.GPU),
    Metric(
        "gpu.clock.event_reasons",
        "{bits}",
        Scope.GPU,
        description="why clocks are as they are: NVML's bits (nvmlClocksEventReasons)",
    ),
    Metric("gpu.pcie.io.rx", "By", Scope.GPU, _COUNTER, "received by the GPU"),
    Metric("gpu.pcie.io.tx", "By", Scope.GPU, _COUNTER, "sent by the GPU"),
    Metric("gpu.nvlink.io.rx", "By", Scope.GPU, _COUNTER, "received, all links"),
    Metric("gpu.nvlink.io.tx", "By", Scope.GPU, _COUNTER, "sent, all links"),
    Metric("gpu.ecc.corrected", "1", Scope.GPU, _COUNTER, f"errors {_SINCE_DRIVER}", regular=False),
    Metric(
        "gpu.ecc.uncorrected", "1", Scope.GPU, _COUNTER, f"errors {_SINCE_DRIVER}", regular=False
    ),
    Metric(XID_ERRORS, "1", Scope.GPU, _COUNTER, "the driver's error reports; also markers"),
    Metric(MIG_MEMORY_USED, "By", Scope.MIG),
    Metric(MIG_MEMORY_TOTAL, "By", Scope.MIG),
    Metric(PROCESS_MEMORY, "By", Scope.PROCESS, description="of the run's processes only"),
    Metric(
        PROCESS_UTILIZATION,
        "1",
        Scope.PROCESS,
        description="share of time in which kernels of the run's processes ran",
        method="sum over the processes of the driver's samples, over at least 0.9 s",
        regular=False,
    ),
    Metric(
        PROCESS_ENERGY,
        "J",
        Scope.PROCESS,
        _COUNTER,
        "since the run started",
        method=METHOD,
        estimated=True,
        regular=False,
    ),
)
