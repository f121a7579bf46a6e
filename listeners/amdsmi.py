"""AMD GPUs through AMD's own Python library, amdsmi, which comes with ROCm.

radt places runs on NVIDIA GPUs only. No run owns an AMD GPU, so all of them are recorded with every
run of the machine: the scope is the host, the entity the GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.model import MissingReason, Scope, SeriesKind

_MODULE = "amdsmi"
_PERCENT = 0.01
_MHZ = 1e6
_MICRO = 1e-6
#: The library's markers of a value that a card does not have; one is the maximum of 32 bits.
_NOT_AVAILABLE = ("N/A", 2**32 - 1)


class _Unsupported(Exception):  # noqa: N818 - not an error
    """The card does not have this value."""


def _of(answer: Any, *names: str) -> float:
    """Return the first value that is available: names differ between versions of the library."""
    for name in names:
        if name in answer and answer[name] not in _NOT_AVAILABLE:
            return float(answer[name])
    raise _Unsupported


def _busy(name: str) -> Callable[[Any, Any], float]:
    return lambda smi, handle: _of(smi.amdsmi_get_gpu_activity(handle), name) * _PERCENT


def _memory_used(smi: Any, handle: Any) -> float:
    return float(smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM))


def _memory_total(smi: Any, handle: Any) -> float:
    return float(smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM))


def _power(smi: Any, handle: Any) -> float:
    # MI300 and later have the current value, older cards an average.
    return _of(smi.amdsmi_get_power_info(handle), "current_socket_power", "average_socket_power")


def _energy(smi: Any, handle: Any) -> float:
    answer = smi.amdsmi_get_energy_count(handle)
    # The resolution is in microjoules; ROCm before 6.1 calls the count "power".
    return _of(answer, "energy_accumulator", "power") * _of(answer, "counter_resolution") * _MICRO


def _temperature(smi: Any, handle: Any) -> float:
    kinds, metric = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
    return float(smi.amdsmi_get_temp_metric(handle, kinds.HOTSPOT, metric))


def _clock(kind: str) -> Callable[[Any, Any], float]:
    def read(smi: Any, handle: Any) -> float:
        answer = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType[kind])
        return _of(answer, "clk", "cur_clk") * _MHZ

    return read


@dataclass(frozen=True, slots=True)
class _Value:
    """A metric of a GPU and how to read it."""

    metric: Metric
    read: Callable[[Any, Any], float]


def _value(
    name: str,
    unit: str,
    read: Callable[[Any, Any], float],
    description: str = "",
    kind: SeriesKind = SeriesKind.GAUGE,
    method: str = "",
) -> _Value:
    return _Value(Metric(name, unit, Scope.HOST, kind, description, method), read)


_ENERGY = "gpu.energy"
_VALUES = (
    _value("gpu.utilization", "1", _busy("gfx_activity"), "share of time that the GPU computes"),
    _value(
        "gpu.memory.utilization", "1", _busy("umc_activity"), "share of time that memory is used"
    ),
    _value("gpu.memory.used", "By", _memory_used, "VRAM"),
    _value("gpu.memory.total", "By", _memory_total, "VRAM"),
    _value(
        *("gpu.power", "W", _power, "of the socket"),
        method="current socket power; the average if the card has only that",
    ),
    _value(
        *(_ENERGY, "J", _energy, "since the driver was loaded", SeriesKind.COUNTER),
        method="energy accumulator times its resolution",
    ),
    _value("gpu.temperature", "Cel", _temperature, "hottest spot of the die"),
    _value("gpu.clock.sm", "Hz", _clock("GFX"), "graphics and compute"),
    _value("gpu.clock.memory", "Hz", _clock("MEM")),
)


class _Library:
    """The library, initialised once for all users, because it does not count them itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def take(self) -> Any:
        """Return the initialised module; raise whatever the library raises, also on import."""
        with self._lock:
            # If its C library is missing, the module prints advice before it raises.
            with contextlib.redirect_stdout(io.StringIO()):
                smi = importlib.import_module(_MODULE)
            if self._users == 0:
                smi.amdsmi_init()
            self._users += 1
            return smi

    def give_back(self, smi: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                smi.amdsmi_shut_down()


_library = _Library()


class AmdsmiListener(Listener):
    """AMD GPUs."""

    name: ClassVar[str] = "amdsmi"
    reads: ClassVar[Sequence[Metric]] = tuple(value.metric for value in _VALUES)
    by_default: ClassVar[bool] = True

    def __init__(self) -> None:
        self._smi: Any = None
        self._handles: Sequence[Any] = ()

    @classmethod
    def probe(cls) -> Availability:
        if importlib.util.find_spec(_MODULE) is None:
            return Availability(
                False,
                "the Python package amdsmi is not installed",
                "If this machine has AMD GPUs, install the amdsmi of your ROCm version",
            )
        try:
            smi = _library.take()
            try:
                count = len(smi.amdsmi_get_processor_handles())
            finally:
                _library.give_back(smi)
        except Exception as error:  # noqa: BLE001 - third-party code, and a C library behind it
            reason = " ".join(str(error).split()) or type(error).__name__
            return Availability(False, f"amdsmi: {reason}", "Run amd-smi for details")
        if count == 0:
            return Availability(False, "no AMD GPU", f"Leave {cls.name} out of Listeners")
        return Availability(True)

    def open(self) -> None:
        smi = _library.take()
        try:
            self._handles = smi.amdsmi_get_processor_handles()
        except smi.AmdSmiException:
            _library.give_back(smi)
            raise
        self._smi = smi

    def close(self) -> None:
        smi, self._smi, self._handles = self._smi, None, ()
        if smi is not None:
            _library.give_back(smi)

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:  # noqa: ARG002
        for index, handle in enumerate(self._handles):
            for value in _VALUES:
                yield Reading(value.metric.name, self._read(value, handle), f"amd{index}")

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading]:
        return (reading for reading in self.sample(targets) if reading.metric == _ENERGY)

    def _read(self, value: _Value, handle: Any) -> float | MissingReason:
        try:
            return value.read(self._smi, handle)
        except _Unsupported:
            return MissingReason.UNSUPPORTED
        except self._smi.AmdSmiException as error:
            return _missing(self._smi, error)


def _missing(smi: Any, error: Exception) -> MissingReason:
    """Return why there is no value; raise errors that concern all cards, so that it is reopened."""
    code = getattr(error, "err_code", None)
    constants = smi.amdsmi_wrapper
    if code == constants.AMDSMI_STATUS_NO_PERM:
        return MissingReason.PERMISSION
    if code in (
        constants.AMDSMI_STATUS_NOT_SUPPORTED,
        constants.AMDSMI_STATUS_NOT_YET_IMPLEMENTED,
    ):
        return MissingReason.UNSUPPORTED
    if code in (constants.AMDSMI_STATUS_NOT_INIT, constants.AMDSMI_STATUS_DRIVER_NOT_LOADED):
        raise error
    return MissingReason.LOST
