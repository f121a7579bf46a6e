"""What the smi listener reads of one card, in as few calls of NVML as there can be.

Most values are fields, which one call of ``nvmlDeviceGetFieldValues`` returns together. A value
may have several sources, of which older drivers and cards know some: the first that works is
kept, and what no source has is not asked for again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from radt.listeners.nvidia import Card, missing, missing_for
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


#: The least time between two readings of what changes slowly or costs much: the driver averages
#: `gpu.power.average` over one second, and takes milliseconds to tell it.
SLOW_NS = 900_000_000
#: NVML's "not available" for an unsigned 64-bit value.
NOT_AVAILABLE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class CardValue:
    """One value of a card."""

    metric: str
    value: Value
    method: str = ""


@dataclass(slots=True)
class Snapshot:
    """What was read of a card at one instant (monotonic)."""

    at_ns: int
    values: dict[str, CardValue] = field(default_factory=dict)

    def number(self, metric: str) -> float | None:
        """The value, if it was read and there is one."""
        found = self.values.get(metric)
        return found.value if found is not None and isinstance(found.value, float) else None

    @property
    def lost(self) -> bool:
        """Whether nothing at all could be read of what there is."""
        values = [one.value for one in self.values.values()]
        return MissingReason.LOST in values and not any(isinstance(one, float) for one in values)


class CardReader:
    """Reads one card again and again, and remembers what it does not have."""

    def __init__(self, nvml: Any, card: Card) -> None:
        self.card = card
        self._nvml = nvml
        self._choice: dict[tuple[str, ...], int] = {}
        self._meter = PowerMeter()
        self._slow_ns: int | None = None
        self._pcie_before: dict[str, float] = {}
        self._pcie_wraps = False

    def relearn(self, card: Card) -> None:
        """Ask for everything again: the card is back, or another run wants it (MIG's mode may
        have changed in between)."""
        self.card = card
        self._choice.clear()
        self._pcie_before.clear()  # a reset card begins at 0, which is no wrap

    def read(self, now_ns: int) -> Snapshot:
        """Read everything that is due.

        Raises:
            NVMLError: See `radt.listeners.nvidia.missing`.
        """
        snapshot = Snapshot(now_ns)
        slow = self._slow_ns is None or now_ns - self._slow_ns >= SLOW_NS
        if slow:
            self._slow_ns = now_ns
        self._read(snapshot, [source for source in SOURCES if slow or not source.slow])
        self._distrust_pcie(snapshot)
        self._power(snapshot)
        return snapshot

    def energy(self) -> Value:
        """The energy counter alone, in J."""
        snapshot = Snapshot(0)
        self._read(snapshot, SOURCES[:1])
        return snapshot.values[ENERGY].value

    def unreachable(self, now_ns: int) -> Snapshot:
        """What there is to say of a card that cannot be found."""
        snapshot = Snapshot(now_ns)
        for source in (*SOURCES, BOARD_POWER):
            for metric in source.metrics:
                unsupported = source is not BOARD_POWER and self._exhausted(source)
                reason = MissingReason.UNSUPPORTED if unsupported else MissingReason.LOST
                snapshot.values[metric] = CardValue(metric, reason)
        self._meter.interrupted()
        return snapshot

    # Sources ---------------------------------------------------------------------------------

    def _read(self, snapshot: Snapshot, sources: Sequence[Source]) -> None:
        pending = list(sources)
        while pending:
            failed = [*self._read_fields(snapshot, pending), *self._read_calls(snapshot, pending)]
            for source in failed:
                self._choice[source.metrics] = self._choice.get(source.metrics, 0) + 1
            pending = failed

    def _exhausted(self, source: Source) -> bool:
        return self._choice.get(source.metrics, 0) >= len(source.alternatives)

    def _chosen(self, source: Source) -> Field | Call | None:
        return (
            None
            if self._exhausted(source)
            else source.alternatives[self._choice.get(source.metrics, 0)]
        )

    def _read_fields(self, snapshot: Snapshot, sources: Sequence[Source]) -> Iterator[Source]:
        """One call for all fields; yields the sources that have no such field."""
        nvml = self._nvml
        wanted = [(s, chosen) for s in sources if isinstance(chosen := self._chosen(s), Field)]
        if not wanted:
            return
        asked = [(getattr(nvml, f"NVML_FI_DEV_{one.name}"), one.scope) for _, one in wanted]
        try:
            answers = nvml.nvmlDeviceGetFieldValues(self.card.handle, asked)
        except nvml.NVMLError as error:
            reason = missing(nvml, error)
            for source, _ in wanted:
                if reason is MissingReason.UNSUPPORTED:
                    yield source
                else:
                    self._put(snapshot, source, (reason,))
            return
        for (source, one), answer in zip(wanted, answers, strict=True):
            value = self._decoded(answer, one)
            if value is MissingReason.UNSUPPORTED:
                yield source
            else:
                self._put(snapshot, source, (value,))

    def _decoded(self, answer: Any, one: Field) -> Value:
        nvml = self._nvml
        if answer.nvmlReturn == nvml.NVML_ERROR_INVALID_ARGUMENT:
            return MissingReason.UNSUPPORTED  # a field that this driver has never heard of
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
        if not name or (one.wide and not wide):
            return MissingReason.UNSUPPORTED
        value = getattr(answer.value, name)
        return MissingReason.UNSUPPORTED if value == NOT_AVAILABLE else float(value) * one.factor

    def _read_calls(self, snapshot: Snapshot, sources: Sequence[Source]) -> Iterator[Source]:
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

    def _put(self, snapshot: Snapshot, source: Source, values: Sequence[Value]) -> None:
        chosen = self._chosen(source)
        method = chosen.method if chosen is not None else ""
        for metric, value in zip(source.metrics, values, strict=True):
            snapshot.values[metric] = CardValue(metric, value, method)

    # What follows from several ---------------------------------------------------------------

    def _distrust_pcie(self, snapshot: Snapshot) -> None:
        """Give PCIe's counters up once one goes back.

        NVML says that they wrap, and not where. If it is at 32 bits, a busy link does so several
        times a second, and no reading can tell how often.
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
        energy = snapshot.values[ENERGY].value
        power = self._meter.power(snapshot.at_ns, energy)
        if self._meter.stands_still:
            snapshot.values[ENERGY] = CardValue(ENERGY, MissingReason.UNSUPPORTED)
        if power is not None:
            snapshot.values[POWER] = CardValue(POWER, power, self._meter.METHOD)
        elif self._meter.useless:
            self._power_without_counter(snapshot)

    def _power_without_counter(self, snapshot: Snapshot) -> None:
        if self._exists(INSTANT):
            instant = snapshot.values[INSTANT]
            snapshot.values[POWER] = CardValue(POWER, instant.value, "at an instant, no mean")
            return
        if self._exists(AVERAGE):
            if (average := snapshot.values.get(AVERAGE)) is not None:
                method = "mean of one second by the driver"
                snapshot.values[POWER] = CardValue(POWER, average.value, method)
            return
        self._read(snapshot, [BOARD_POWER])
        usage = snapshot.values[POWER]
        method = "as the driver tells it: on most cards the mean of one second"
        snapshot.values[POWER] = CardValue(POWER, usage.value, method)

    def _exists(self, metric: str) -> bool:
        (source,) = [source for source in SOURCES if source.metrics == (metric,)]
        return not self._exhausted(source)
