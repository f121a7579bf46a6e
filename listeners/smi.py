"""NVIDIA GPUs through NVML: load, memory, power, energy, temperature, clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.nvidia import Card, Devices, Named, missing, probe_nvml
from radt.model import MissingReason, Scope, SeriesKind

_PROCESS_MEMORY = "process.gpu.memory"
#: NVML's "not available" for an unsigned 64-bit value.
_NOT_AVAILABLE = 2**64 - 1


def _utilization(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0


def _memory(nvml: Any, handle: Any) -> Any:
    # Version 2 keeps apart what the driver reserves, which version 1 counts as used.
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)


def _memory_used(nvml: Any, handle: Any) -> float:
    return float(_memory(nvml, handle).used)


def _memory_total(nvml: Any, handle: Any) -> float:
    return float(_memory(nvml, handle).total)


def _power(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3  # mW


def _energy(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # mJ


def _temperature(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


def _clock_sm(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)) * 1e6  # MHz


def _clock_memory(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)) * 1e6


@dataclass(frozen=True, slots=True)
class _GpuMetric:
    """A metric of a whole GPU and how to read it."""

    metric: Metric
    read: Callable[[Any, Any], float]


def _gpu(
    name: str,
    unit: str,
    read: Callable[[Any, Any], float],
    description: str = "",
    kind: SeriesKind = SeriesKind.GAUGE,
) -> _GpuMetric:
    return _GpuMetric(Metric(name, unit, Scope.GPU, kind, description), read)


_GPU_METRICS = (
    _gpu("gpu.utilization", "1", _utilization, "share of time with at least one kernel running"),
    _gpu("gpu.memory.used", "By", _memory_used, "without what the driver reserves"),
    _gpu("gpu.memory.total", "By", _memory_total),
    _gpu("gpu.power", "W", _power, "as the board averages it"),
    _gpu("gpu.energy", "J", _energy, "since the driver was loaded", SeriesKind.COUNTER),
    _gpu("gpu.temperature", "Cel", _temperature),
    _gpu("gpu.clock.sm", "Hz", _clock_sm),
    _gpu("gpu.clock.memory", "Hz", _clock_memory),
)
_METRICS = (
    *(entry.metric for entry in _GPU_METRICS),
    Metric(_PROCESS_MEMORY, "By", Scope.PROCESS, description="of the run's processes only"),
)


class SmiListener(Listener):
    """NVIDIA GPUs through NVML."""

    name: ClassVar[str] = "smi"

    by_default: ClassVar[bool] = True

    def __init__(self) -> None:
        self._devices = Devices()

    @classmethod
    def probe(cls) -> Availability:
        """Whether there is a driver and a GPU."""
        return probe_nvml(cls.name)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return _METRICS

    def open(self) -> None:
        self._devices.open()

    def close(self) -> None:
        self._devices.close()

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        found = self._devices.find(gpu for target in targets for gpu in target.gpus)
        read: dict[int, list[Reading]] = {}
        for name, named in found.items():
            if named is None:
                for entry in _GPU_METRICS:
                    yield Reading(entry.metric.name, MissingReason.LOST, name, gpu=name)
                continue
            # Runs may name one card by index, UUID and MIG devices: read once, given to all.
            card = named.card
            if card.index not in read:
                read[card.index] = list(self._read(card))
            for reading in read[card.index]:
                yield Reading(reading.metric, reading.value, card.entity, gpu=name)
        yield from self._process_memory(targets, found)

    def _read(self, card: Card) -> Iterator[Reading]:
        nvml = self._devices.nvml
        for entry in _GPU_METRICS:
            try:
                value: float | MissingReason = entry.read(nvml, card.handle)
            except nvml.NVMLError as error:
                value = missing(nvml, error)
            yield Reading(entry.metric.name, value)

    def _process_memory(
        self, targets: Sequence[Target], found: dict[str, Named | None]
    ) -> Iterator[Reading]:
        used: dict[int, dict[int, int | None] | MissingReason] = {}
        for target in targets:
            own = {
                named.card.index: named.card
                for name in target.gpus
                if (named := found[name]) is not None
            }
            for card in own.values():
                if card.index not in used:
                    used[card.index] = self._processes(card)
                processes = used[card.index]
                value = (
                    processes
                    if isinstance(processes, MissingReason)
                    else _memory_of(processes, target.pids)
                )
                yield Reading(_PROCESS_MEMORY, value, card.entity, run_id=target.run_id)

    def _processes(self, card: Card) -> dict[int, int | None] | MissingReason:
        """Bytes by process id on a card, of plain and of MPS clients."""
        nvml = self._devices.nvml
        try:
            found = nvml.nvmlDeviceGetComputeRunningProcesses(card.handle)
        except nvml.NVMLError as error:
            return missing(nvml, error)
        try:
            found = [*found, *nvml.nvmlDeviceGetMPSComputeRunningProcesses(card.handle)]
        except nvml.NVMLError as error:
            # Drivers without MPS have no such list; anything else counts.
            if missing(nvml, error) is not MissingReason.UNSUPPORTED:
                raise
        return {process.pid: process.usedGpuMemory for process in found}


def _memory_of(processes: dict[int, int | None], pids: Sequence[int]) -> float | MissingReason:
    """What the given processes use of a card; never what others use."""
    own = [processes[pid] for pid in pids if pid in processes]
    if any(value is None or value == _NOT_AVAILABLE for value in own):
        return MissingReason.UNSUPPORTED
    if not own and any(not Path(f"/proc/{pid}").exists() for pid in processes):
        # In a container NVML reports process ids of the host: any of them may be ours.
        return MissingReason.PERMISSION
    return float(sum(value for value in own if value is not None))
