"""Where values of a card come from: fields and functions of NVML, the newest first; power from the
growth of its energy counter.

What boards show as power is a mean over a window that need not be the time between two readings:
A100 and Hopper look at 25 of every 100 ms, Hopper's average goes over a second (Yang et al.,
"Accurate and Convenient Energy Measurements for GPUs", SC24). The counter misses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from radt.model import MissingReason

#: The counter moves every 20 to 100 ms, so a difference is taken over at least this time: it is
#: then right to about a tenth in the worst case. A bit less than a second, so that readings at
#: 1 Hz need not be exact.
WINDOW_NS = 900_000_000


class PowerMeter:
    """Mean power of one card, in W.

    A counter that stands still over a whole window does not count, as a card always takes power:
    then there is no power from here, for good, so that a series keeps to one method.
    """

    METHOD: ClassVar[str] = (
        "growth of the energy counter since the previous reading, over at least 0.9 s"
    )

    def __init__(self) -> None:
        self._readings: deque[tuple[int, float]] = deque()
        self._works = False
        self._absent = False
        #: Whether the card has a counter that does not count.
        self.stands_still = False

    @property
    def useless(self) -> bool:
        """Whether power must come from elsewhere."""
        return self._absent or self.stands_still

    def power(self, at_ns: int, energy_j: float | MissingReason) -> float | MissingReason | None:
        """The mean power until now; None where it is too early, or `useless`."""
        if energy_j is MissingReason.UNSUPPORTED and not self._works:
            self._absent = True
        if self.useless:
            return None
        if isinstance(energy_j, MissingReason):
            self.interrupted()
            return energy_j
        readings = self._readings
        if readings and energy_j < readings[-1][1]:
            readings.clear()  # the driver was loaded again
        readings.append((at_ns, energy_j))
        while len(readings) > 2 and at_ns - readings[1][0] >= WINDOW_NS:
            readings.popleft()
        start_ns, start_j = readings[0]
        if at_ns - start_ns < WINDOW_NS:
            return None
        if energy_j > start_j:
            self._works = True
            return (energy_j - start_j) / (at_ns - start_ns) * 1e9
        if self._works:
            return MissingReason.LOST
        self.stands_still = True
        return None

    def interrupted(self) -> None:
        """The counter could not be read: begin anew."""
        self._readings.clear()


#: ``scopeId`` of NVLink's fields for the sum of all links (UINT_MAX).
_ALL_LINKS = 2**32 - 1
_KIB = 1024.0

Value = float | MissingReason

ENERGY: Final = "gpu.energy"
POWER: Final = "gpu.power"
INSTANT: Final = "gpu.power.instant"
AVERAGE: Final = "gpu.power.average"
PCIE: Final = ("gpu.pcie.io.rx", "gpu.pcie.io.tx")


@dataclass(frozen=True, slots=True)
class Field:
    """A field by its name after ``NVML_FI_DEV_``; ``factor`` brings it to the metric's unit.

    ``wide`` asks for a type of 64 bits: one of 32 wraps unnoticed between two readings.
    """

    name: str
    factor: float = 1.0
    scope: int = 0
    wide: bool = False
    method: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of NVML; its values belong to the source's metrics, in order."""

    read: Callable[[Any, Any], tuple[Value, ...]]
    method: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Where metrics come from: the first of the alternatives that the card and driver know."""

    metrics: tuple[str, ...]
    alternatives: tuple[Field | Call, ...]
    slow: bool = False


def _utilization(nvml: Any, handle: Any) -> tuple[Value, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100.0, rates.memory / 100.0


def _memory(nvml: Any, handle: Any) -> tuple[Value, ...]:
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return float(info.used), float(info.total), float(info.reserved)


def _memory_v1(nvml: Any, handle: Any) -> tuple[Value, ...]:
    info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return float(info.used), float(info.total), MissingReason.UNSUPPORTED


def _temperature(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),)


def _temperature_v(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)),)


def _clock_sm(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,)  # MHz


def _clock_memory(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,)


def _event_reasons(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),)


def _throttle_reasons(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),)


def _energy(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,)  # mJ


def _power_limit(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,)  # mW


def _power_usage(nvml: Any, handle: Any) -> tuple[Value, ...]:
    return (nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,)  # mW


#: The energy counter stands first, so that it is read nearest to the instant that is noted.
SOURCES = (
    Source((ENERGY,), (Field("TOTAL_ENERGY_CONSUMPTION", 1e-3), Call(_energy))),
    Source((INSTANT,), (Field("POWER_INSTANT", 1e-3),)),
    Source((AVERAGE,), (Field("POWER_AVERAGE", 1e-3),), slow=True),
    Source(
        ("gpu.power.limit",),
        (Field("POWER_CURRENT_LIMIT", 1e-3), Call(_power_limit)),
        slow=True,
    ),
    Source(("gpu.temperature.memory",), (Field("MEMORY_TEMP"),)),
    Source((PCIE[0],), (Field("PCIE_COUNT_RX_BYTES", wide=True),)),
    Source((PCIE[1],), (Field("PCIE_COUNT_TX_BYTES", wide=True),)),
    Source(
        ("gpu.nvlink.io.rx",),
        (
            Field("NVLINK_THROUGHPUT_DATA_RX", _KIB, _ALL_LINKS, method="payload, in KiB"),
            Field("NVLINK_COUNT_RCV_BYTES", 1.0, _ALL_LINKS, method="with packet headers"),
        ),
    ),
    Source(
        ("gpu.nvlink.io.tx",),
        (
            Field("NVLINK_THROUGHPUT_DATA_TX", _KIB, _ALL_LINKS, method="payload, in KiB"),
            Field("NVLINK_COUNT_XMIT_BYTES", 1.0, _ALL_LINKS, method="with packet headers"),
        ),
    ),
    Source(("gpu.ecc.corrected",), (Field("ECC_SBE_VOL_TOTAL"),), slow=True),
    Source(("gpu.ecc.uncorrected",), (Field("ECC_DBE_VOL_TOTAL"),), slow=True),
    Source(("gpu.utilization", "gpu.memory.utilization"), (Call(_utilization),)),
    Source(
        ("gpu.memory.used", "gpu.memory.total", "gpu.memory.reserved"),
        (
            Call(_memory),
            Call(_memory_v1, "with what the driver reserves, which it does not tell apart"),
        ),
    ),
    Source(("gpu.temperature",), (Call(_temperature), Call(_temperature_v))),
    Source(("gpu.clock.sm",), (Call(_clock_sm),)),
    Source(("gpu.clock.memory",), (Call(_clock_memory),)),
    Source(("gpu.clock.event_reasons",), (Call(_event_reasons), Call(_throttle_reasons))),
)
#: Asked only where neither the energy counter nor a field tells the power.
BOARD_POWER = Source((POWER,), (Call(_power_usage),))
