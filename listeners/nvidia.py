"""Resolves the names that runs have for NVIDIA devices: GPUs and MIG devices.

One NVML session serves the process: initialising it for every reading would take ten times as long
as the reading. Resolved devices are cached until NVML has to be opened again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from radt.devices.gpus import find_handles
from radt.devices.nvml import Nvml
from radt.listeners.api import Availability
from radt.model import MissingReason


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """A whole GPU."""

    index: int
    uuid: str
    handle: Any = field(compare=False)

    @property
    def entity(self) -> str:
        return f"gpu{self.index}"


@dataclass(frozen=True, slots=True)
class MigHandle:
    """A MIG device: a compute instance ``compute_id`` in a GPU instance ``gpu_id`` of a card."""

    card: GpuHandle
    uuid: str
    gpu_id: int
    compute_id: int
    handle: Any = field(compare=False)

    @property
    def entity(self) -> str:
        return f"gpu{self.card.index}/gi{self.gpu_id}/ci{self.compute_id}"


@dataclass(frozen=True, slots=True)
class Named:
    """A device under one of the names that runs have for it (`Reading.gpu`)."""

    name: str
    card: GpuHandle
    mig: MigHandle | None = None


class DeviceHandles:
    """Resolves names of devices. Between `open` and `close`, from one thread.

    Raises:
        NVMLError: From all methods except `close`, if the error concerns NVML as a whole, which
            must then be opened again.
    """

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._named: dict[str, Named] = {}
        self._cards: dict[int, GpuHandle] = {}
        self._last: dict[str, Named] = {}

    @property
    def nvml(self) -> Nvml:
        """NVML; only between `open` and `close`."""
        assert self._nvml is not None
        return self._nvml

    @property
    def is_open(self) -> bool:
        return self._nvml is not None

    def open(self) -> None:
        """Initialise NVML."""
        self._nvml = Nvml()

    def close(self) -> None:
        """Shut NVML down, unless other parts of the process use it."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
            self._named.clear()
            self._cards.clear()
            self._last.clear()

    def find(self, names: Iterable[str]) -> dict[str, Named | None]:
        """Return the device of each name; None if there is none at present."""
        return {name: self._find(name) for name in names}

    def last(self, name: str) -> Named | None:
        """Return the last device with this name, though it may be lost now; None if never found.

        Its handle may be invalid; its entity is that of earlier readings.
        """
        return self._last.get(name)

    def all_cards(self) -> list[GpuHandle]:
        """Return every GPU of the machine."""
        indices = range(self.nvml.nvmlDeviceGetCount())
        return [named.card for index in indices if (named := self._find(str(index))) is not None]

    def forget(self, card: GpuHandle) -> None:
        """Resolve the card and its MIG devices again, as handles change with a reset."""
        self._cards.pop(card.index, None)
        for name in [n for n, named in self._named.items() if named.card.index == card.index]:
            del self._named[name]

    def _find(self, name: str) -> Named | None:
        if name not in self._named:
            try:
                self._named[name] = self._last[name] = self._resolve(name)
            except self.nvml.NVMLError as error:
                missing(self.nvml, error)  # raises errors that concern all devices
                return None
        return self._named[name]

    def _resolve(self, name: str) -> Named:
        nvml = self.nvml
        if name.isdigit():
            return Named(name, self._card(nvml.nvmlDeviceGetHandleByIndex(int(name))))
        handle, gpu = find_handles(nvml, name)
        card = self._card(gpu)
        if handle is gpu:
            return Named(name, card)
        gpu_id = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
        compute_id = int(nvml.nvmlDeviceGetComputeInstanceId(handle))
        return Named(name, card, MigHandle(card, name, gpu_id, compute_id, handle))

    def _card(self, handle: Any) -> GpuHandle:
        index = int(self.nvml.nvmlDeviceGetIndex(handle))
        if index not in self._cards:
            self._cards[index] = GpuHandle(index, str(self.nvml.nvmlDeviceGetUUID(handle)), handle)
        return self._cards[index]


#: NVML_ERROR_..., by their meaning for a single value. Any other error means that the value could
#: not be read this time.
_UNSUPPORTED = (
    "NOT_SUPPORTED",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "VGPU_ECC_NOT_SUPPORTED",
    "FREQ_NOT_SUPPORTED",
    "DEPRECATED",
    "RESET_TYPE_NOT_SUPPORTED",
)
_PERMISSION = ("NO_PERMISSION", "OPERATING_SYSTEM")
#: Errors of NVML as a whole.
_GENERAL = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")


def missing(nvml: Any, error: Exception) -> MissingReason:
    """Return why there is no value.

    Raises:
        NVMLError: The error concerns all cards: NVML itself must be opened again.
    """
    return missing_for(nvml, getattr(error, "value", nvml.NVML_ERROR_UNKNOWN))


def missing_for(nvml: Any, code: int) -> MissingReason:
    """Return why there is no value, by NVML's error code; raise as `missing`."""
    if code in _codes(nvml, _GENERAL):
        raise nvml.NVMLError(code)
    if code in _codes(nvml, _UNSUPPORTED):
        return MissingReason.UNSUPPORTED
    if code in _codes(nvml, _PERMISSION):
        return MissingReason.PERMISSION
    return MissingReason.LOST


@lru_cache
def _codes(nvml: Any, names: tuple[str, ...]) -> frozenset[int]:
    return frozenset(
        getattr(nvml, f"NVML_ERROR_{name}") for name in names if hasattr(nvml, f"NVML_ERROR_{name}")
    )


def probe_nvml(name: str) -> Availability:
    """Return whether there is a driver and a GPU, for the listener with this name."""
    try:
        with Nvml() as nvml:
            count = nvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001 - pynvml.NVMLError, or OSError from a bad library
        return Availability(False, f"NVML: {error}", _remedy(name, error))
    if count == 0:
        return Availability(False, "no NVIDIA GPU", f"Leave {name} out of Listeners")
    return Availability(True)


def _remedy(name: str, error: Exception) -> str:
    text = str(error)
    if "library" in text.lower():
        return f"Install NVIDIA's driver, or leave {name} out of Listeners"
    if "Driver" in text:
        return f"Load NVIDIA's driver (see nvidia-smi), or leave {name} out of Listeners"
    return f"Run nvidia-smi for details, or leave {name} out of Listeners"
