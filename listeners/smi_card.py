"""Reads the values of one card for the smi listener, with as few NVML calls as possible.

Most values are fields, which a single call of ``nvmlDeviceGetFieldValues`` returns together. A
value may have several sources, not all of which older drivers and cards support: the first that
works is kept, and a value without a source is not requested again.

Power is derived from the energy counter. The power that boards report is a mean over a window that
differs from the time between two readings: A100 and Hopper measure during 25 of every 100 ms,
and Hopper's average covers a second (Yang et al., "Accurate and Convenient Energy Measurements for
GPUs", SC24). The counter misses nothing.

Methods that call NVML may raise NVMLError (`radt.listeners.nvidia.missing`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from radt.devices.nvml import NOT_AVAILABLE
from radt.listeners.nvidia import GpuHandle, missing, missing_for
from radt.model import MissingReason

#: The counter advances every 20 to 100 ms, so power is averaged over at least this time: its error
#: is then about a tenth in the worst case. Slightly less than a second, because readings at 1 Hz
#: are not exactly a second apart.
WINDOW_NS = 900_000_000


class PowerMeter:
    """Mean power of one card, in W.

    A counter that stands still over a whole window is invalid, as a card always draws power. The
    meter then stops for good, as it does if the counter is unreadable for as long: power must come
    from another source, rather than from two sources in turn.
    """

    METHOD: ClassVar[str] = (
        "growth of the energy counter since the previous reading, over at least 0.9 s; "
        "if the counter fails, from then on as the board reports it"
    )

    def __init__(self) -> None:
        self._readings: deque[tuple[int, float]] = deque()
        self._works = False
        self._failing_since_ns: int | None = None
        #: True if power must come from another source.
        self.useless = False
        #: Why the counter's value is invalid, while it stands still.
        self.stopped: MissingReason | None = None

    def power(self, at_ns: int, energy_j: float | MissingReason) -> float | MissingReason | None:
        """Return the mean power until now, or why it is missing; None if early, or `useless`."""
        readings = self._readings
        if isinstance(energy_j, MissingReason):
            readings.clear()
            if self._failing_since_ns is None:
                self._failing_since_ns = at_ns
            self.useless |= at_ns - self._failing_since_ns >= WINDOW_NS
            self.useless |= energy_j is MissingReason.UNSUPPORTED and not self._works
            return energy_j if self._works and not self.useless else None
        self._failing_since_ns = None
        if readings and energy_j < readings[-1][1]:
            readings.clear()  # the counter restarted: the driver was loaded again
        readings.append((at_ns, energy_j))
        while len(readings) > 2 and at_ns - readings[1][0] >= WINDOW_NS:
            readings.popleft()
        start_ns, start_j = readings[0]
        if at_ns - start_ns < WINDOW_NS:
            return None
        if energy_j > start_j:
            self._works, self.stopped = True, None
            return None if self.useless else (energy_j - start_j) / (at_ns - start_ns) * 1e9
        self.stopped = MissingReason.LOST if self._works else MissingReason.UNSUPPORTED
        self.useless = True
        return None

    def interrupted(self) -> None:
        """Start over, because the card could not be read."""
        self._readings.clear()
        self._failing_since_ns = self.stopped = None


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
    """A field by its name after ``NVML_FI_DEV_``; ``factor`` converts it to the metric's unit.

    ``wide`` requires a 64-bit type: a 32-bit value wraps unnoticed between two readings.
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
class Readout:
    """Metrics with possible sources, of which the first that card and driver support is used."""

    metrics: tuple[str, ...]
    alternatives: tuple[Field | Call, ...]
    slow: bool = False


def _utilization(nvml: Any, handle: Any) -> tuple[Value, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100.0, rates.memory / 100.0


def _memory(nvml: Any, handle: Any) -> tuple[Value, ...]:
    info = nvml.nvmlDeviceGetMemoryInfo_v2(handle)
    return float(info.used), float(info.total), float(info.reserved)


def _memory_v1(nvml: Any, handle: Any) -> tuple[Value, ...]:
    info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return float(info.used), float(info.total), MissingReason.UNSUPPORTED


def _get(
    name: str, *constants: str, times: float = 1.0, per: float = 1.0, method: str = ""
) -> Call:
    """Return a call of ``nvmlDeviceGet…`` with NVML's constants and a conversion of its unit."""

    def read(nvml: Any, handle: Any) -> tuple[Value, ...]:
        arguments = (getattr(nvml, f"NVML_{constant}") for constant in constants)
        return (getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments) * times / per,)

    return Call(read, method)


#: The energy counter comes first, so that it is read closest to the recorded time.
SOURCES = (
    Readout(
        (ENERGY,),
        (Field("TOTAL_ENERGY_CONSUMPTION", 1e-3), _get("TotalEnergyConsumption", per=1e3)),  # mJ
    ),
    Readout((INSTANT,), (Field("POWER_INSTANT", 1e-3),)),
    Readout((AVERAGE,), (Field("POWER_AVERAGE", 1e-3),), slow=True),
    Readout(
        ("gpu.power.limit",),
        (Field("POWER_CURRENT_LIMIT", 1e-3), _get("EnforcedPowerLimit", per=1e3)),  # mW
        slow=True,
    ),
    Readout(("gpu.temperature.memory",), (Field("MEMORY_TEMP"),)),
    Readout((PCIE[0],), (Field("PCIE_COUNT_RX_BYTES", wide=True),)),
    Readout((PCIE[1],), (Field("PCIE_COUNT_TX_BYTES", wide=True),)),
    Readout(
        ("gpu.nvlink.io.rx",),
        (
            Field("NVLINK_THROUGHPUT_DATA_RX", _KIB, _ALL_LINKS, method="payload, in KiB"),
            Field("NVLINK_COUNT_RCV_BYTES", 1.0, _ALL_LINKS, method="with packet headers"),
        ),
    ),
    Readout(
        ("gpu.nvlink.io.tx",),
        (
            Field("NVLINK_THROUGHPUT_DATA_TX", _KIB, _ALL_LINKS, method="payload, in KiB"),
            Field("NVLINK_COUNT_XMIT_BYTES", 1.0, _ALL_LINKS, method="with packet headers"),
        ),
    ),
    Readout(("gpu.ecc.corrected",), (Field("ECC_SBE_VOL_TOTAL"),), slow=True),
    Readout(("gpu.ecc.uncorrected",), (Field("ECC_DBE_VOL_TOTAL"),), slow=True),
    Readout(("gpu.utilization", "gpu.memory.utilization"), (Call(_utilization),)),
    Readout(
        ("gpu.memory.used", "gpu.memory.total", "gpu.memory.reserved"),
        (
            Call(_memory),
            Call(_memory_v1, "including what the driver reserves, which it does not report"),
        ),
    ),
    Readout(
        ("gpu.temperature",),
        (_get("Temperature", "TEMPERATURE_GPU"),),
    ),
    Readout(("gpu.clock.sm",), (_get("ClockInfo", "CLOCK_SM", times=1e6),)),  # MHz
    Readout(("gpu.clock.memory",), (_get("ClockInfo", "CLOCK_MEM", times=1e6),)),
    Readout(
        ("gpu.clock.event_reasons",),
        (_get("CurrentClocksEventReasons"),),
    ),
)
_BOARD = "as reported by the driver: on most cards the mean of one second"
#: Only read if the energy counter does not provide the power.
BOARD_POWER = Readout(
    (POWER,),
    (
        Field("POWER_INSTANT", 1e-3, method="instantaneous, not a mean"),
        Field("POWER_AVERAGE", 1e-3, method="mean of one second by the driver"),
        _get("PowerUsage", per=1e3, method=_BOARD),  # mW
    ),
)


#: Minimum time between two readings of slow or expensive values: the driver averages
#: `gpu.power.average` over one second, and takes milliseconds to return it.
SLOW_NS = 900_000_000


@dataclass(frozen=True, slots=True)
class CardValue:
    """One value of a card."""

    metric: str
    value: Value
    method: str = ""


@dataclass(slots=True)
class Snapshot:
    """The values of a card at one instant (monotonic)."""

    at_ns: int
    values: dict[str, CardValue] = field(default_factory=dict)

    def number(self, metric: str) -> float | None:
        """Return the value, if it was read and is a number."""
        value = self.values[metric].value if metric in self.values else None
        return value if isinstance(value, float) else None

    @property
    def lost(self) -> bool:
        """Return True if no value at all could be read."""
        values = [read.value for read in self.values.values()]
        return MissingReason.LOST in values and not any(isinstance(v, float) for v in values)


class CardReader:
    """Reads one card repeatedly, and remembers the values that it does not support."""

    def __init__(self, nvml: Any, card: GpuHandle) -> None:
        self.card = card
        self._nvml = nvml
        self._choice: dict[tuple[str, ...], int] = {}
        self._meter = PowerMeter()
        self._slow_ns: int | None = None
        self._pcie_before: dict[str, float] = {}
        self._pcie_wraps = False

    def relearn(self, card: GpuHandle) -> None:
        """Request everything again: the card is back, or has a new run and maybe another mode."""
        self.card = card
        self._choice.clear()
        self._pcie_before.clear()  # a reset card restarts at 0, which is not a wrap

    def read(self, now_ns: int) -> Snapshot:
        """Read everything whose interval has passed."""
        snapshot = Snapshot(now_ns)
        slow = self._slow_ns is None or now_ns - self._slow_ns >= SLOW_NS
        if slow:
            self._slow_ns = now_ns
        self._read(snapshot, [source for source in SOURCES if slow or not source.slow])
        self._distrust_pcie(snapshot)
        self._power(snapshot)
        return snapshot

    def energy_counter(self) -> CardValue:
        """Return the energy counter and how it was read; read nothing else."""
        snapshot = Snapshot(0)
        self._read(snapshot, SOURCES[:1])
        if self._meter.stopped is not None:
            return CardValue(ENERGY, self._meter.stopped)
        return snapshot.values[ENERGY]

    def metered_energy(self, now_ns: int) -> Value:
        """Read only the energy counter; return why it is missing while it stands still."""
        snapshot = Snapshot(now_ns)
        self._read(snapshot, SOURCES[:1])
        value = snapshot.values[ENERGY].value
        self._meter.power(now_ns, value)
        return value if self._meter.stopped is None else self._meter.stopped

    def unreachable(self, now_ns: int) -> Snapshot:
        """Return the missing values of a card that cannot be found."""
        snapshot = Snapshot(now_ns)
        for source in (*SOURCES, BOARD_POWER):
            for metric in source.metrics:
                unsupported = source is not BOARD_POWER and self._exhausted(source)
                reason = MissingReason.UNSUPPORTED if unsupported else MissingReason.LOST
                snapshot.values[metric] = CardValue(metric, reason)
        self._meter.interrupted()
        return snapshot

    # Sources ---------------------------------------------------------------------------------

    def _read(self, snapshot: Snapshot, sources: Sequence[Readout]) -> None:
        pending = list(sources)
        while pending:
            failed = [*self._read_fields(snapshot, pending), *self._read_calls(snapshot, pending)]
            for source in failed:
                self._choice[source.metrics] = self._choice.get(source.metrics, 0) + 1
            pending = failed

    def _exhausted(self, source: Readout) -> bool:
        return self._choice.get(source.metrics, 0) >= len(source.alternatives)

    def _chosen(self, source: Readout) -> Field | Call | None:
        number = self._choice.get(source.metrics, 0)
        return source.alternatives[number] if number < len(source.alternatives) else None

    def _read_fields(self, snapshot: Snapshot, sources: Sequence[Readout]) -> Iterator[Readout]:
        """Read all fields in one call; yield the sources without such a field."""
        nvml = self._nvml
        wanted = [(s, chosen) for s in sources if isinstance(chosen := self._chosen(s), Field)]
        if not wanted:
            return
        request = [(getattr(nvml, f"NVML_FI_DEV_{field.name}"), field.scope) for _, field in wanted]
        try:
            answers = nvml.nvmlDeviceGetFieldValues(self.card.handle, request)
        except nvml.NVMLError as error:
            reason = missing(nvml, error)
            for source, _ in wanted:
                if reason is MissingReason.UNSUPPORTED:
                    yield source
                else:
                    self._put(snapshot, source, (reason,))
            return
        for (source, chosen), answer in zip(wanted, answers, strict=True):
            value = self._decoded(answer, chosen)
            if value is MissingReason.UNSUPPORTED:
                yield source
            else:
                self._put(snapshot, source, (value,))

    def _decoded(self, answer: Any, source: Field) -> Value:
        nvml = self._nvml
        if answer.nvmlReturn == nvml.NVML_ERROR_INVALID_ARGUMENT:
            return MissingReason.UNSUPPORTED  # a field that this driver does not know
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            return missing_for(nvml, answer.nvmlReturn)
        kinds = {
            nvml.NVML_VALUE_TYPE_DOUBLE: ("dVal", True),
            nvml.NVML_VALUE_TYPE_UNSIGNED_INT: ("uiVal", False),
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: ("ulVal", True),
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: ("ullVal", True),
            nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: ("sllVal", True),
            nvml.NVML_VALUE_TYPE_SIGNED_INT: ("siVal", False),
        }
        name, wide = kinds.get(answer.valueType, ("", False))
        if not name or (source.wide and not wide):
            return MissingReason.UNSUPPORTED
        value = getattr(answer.value, name)
        return MissingReason.UNSUPPORTED if value == NOT_AVAILABLE else float(value) * source.factor

    def _read_calls(self, snapshot: Snapshot, sources: Sequence[Readout]) -> Iterator[Readout]:
        for source in sources:
            call = self._chosen(source)
            if not isinstance(call, Call):
                if call is None:
                    self._put(snapshot, source, (MissingReason.UNSUPPORTED,) * len(source.metrics))
                continue
            try:
                values = call.read(self._nvml, self.card.handle)
            except self._nvml.NVMLError as error:
                reason = missing(self._nvml, error)
                if reason is MissingReason.UNSUPPORTED:
                    yield source
                    continue
                values = (reason,) * len(source.metrics)
            self._put(snapshot, source, values)

    def _put(self, snapshot: Snapshot, source: Readout, values: Sequence[Value]) -> None:
        chosen = self._chosen(source)
        method = chosen.method if chosen is not None else ""
        for metric, value in zip(source.metrics, values, strict=True):
            snapshot.values[metric] = CardValue(metric, value, method)

    # Derived values --------------------------------------------------------------------------

    def _distrust_pcie(self, snapshot: Snapshot) -> None:
        """Stop using the PCIe counters once one decreases.

        NVML documents that they wrap, but not where. At 32 bits, a busy link wraps several times a
        second, and the number of wraps cannot be determined.
        """
        for metric in PCIE:
            now = snapshot.number(metric)
            if now is not None:
                self._pcie_wraps |= now < self._pcie_before.get(metric, 0.0)
                self._pcie_before[metric] = now
        if self._pcie_wraps:
            for metric in PCIE:
                snapshot.values[metric] = CardValue(metric, MissingReason.UNSUPPORTED)

    def _power(self, snapshot: Snapshot) -> None:
        if snapshot.lost:
            self._meter.interrupted()
            snapshot.values[POWER] = CardValue(POWER, MissingReason.LOST)
            return
        power = self._meter.power(snapshot.at_ns, snapshot.values[ENERGY].value)
        if self._meter.stopped is not None:
            snapshot.values[ENERGY] = CardValue(ENERGY, self._meter.stopped)
        if power is not None:
            snapshot.values[POWER] = CardValue(POWER, power, self._meter.METHOD)
        elif self._meter.useless:
            self._read(snapshot, [BOARD_POWER])


class EnergyCounters:
    """The energy counters of cards, for listeners that read nothing else through NVML."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._readers: dict[str, CardReader] = {}

    def read(self, card: GpuHandle) -> Value:
        """Return the counter of a card in J; why it is missing while it stands still."""
        reader = self._readers.setdefault(card.uuid, CardReader(self._nvml, card))
        if reader.card is not card:  # it was lost and has come back
            reader.relearn(card)
        return reader.metered_energy(time.monotonic_ns())
