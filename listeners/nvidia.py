"""Resolve the names that runs have for NVIDIA devices: GPUs and MIG devices.

One NVML session serves the process: initialising for every reading takes ten times as long as
reading. Resolved devices are kept until NVML has to be opened again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from radt.listeners.api import Availability
from radt.model import MissingReason
from radt.nvml import opened


@dataclass(frozen=True, slots=True)
class Card:
    """A whole GPU."""

    index: int
    uuid: str
    handle: Any = field(compare=False)

    @property
    def entity(self) -> str:
        return f"gpu{self.index}"


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device: a compute instance ``compute_id`` in a GPU instance ``gpu_id`` of a card."""

    card: Card
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
    card: Card
    mig: MigDevice | None = None


class Devices:
    """Resolves names of devices. Between `open` and `close`, from one thread.

    Raises:
        NVMLError: From all methods but `close`, where the error concerns NVML as a whole, which has
            to be opened again.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._named: dict[str, Named] = {}
        self._cards: dict[int, Card] = {}
        self._last: dict[str, Named] = {}

    @property
    def nvml(self) -> Any:
        """`pynvml`, initialised."""
        return self._nvml

    def open(self) -> None:
        """Initialise NVML."""
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml

    def close(self) -> None:
        """Shut NVML down, unless other parts of the process use it."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
            self._named.clear()
            self._cards.clear()
            self._last.clear()

    def find(self, names: Iterable[str]) -> dict[str, Named | None]:
        """Return the device of each name; None if there is none now."""
        return {name: self._find(name) for name in names}

    def last(self, name: str) -> Named | None:
        """Return the device that the name meant last, though it may be lost now; None if never.

        Its handle may be invalid; its entity is that of earlier readings.
        """
        return self._last.get(name)

    def all_cards(self) -> list[Card]:
        """Return every GPU of the machine."""
        indices = range(self._nvml.nvmlDeviceGetCount())
        return [named.card for index in indices if (named := self._find(str(index))) is not None]

    def forget(self, card: Card) -> None:
        """Resolve the card and its MIG devices again: handles change with a reset."""
        self._cards.pop(card.index, None)
        for name in [n for n, named in self._named.items() if named.card.index == card.index]:
            del self._named[name]

    def _find(self, name: str) -> Named | None:
        if name not in self._named:
            try:
                self._named[name] = self._last[name] = self._resolve(name)
            except self._nvml.NVMLError as error:
                missing(self._nvml, error)  # raises what concerns all devices
                return None
        return self._named[name]

    def _resolve(self, name: str) -> Named:
        nvml = self._nvml
        if name.isdigit():
            return Named(name, self._card(nvml.nvmlDeviceGetHandleByIndex(int(name))))
        handle = nvml.nvmlDeviceGetHandleByUUID(name)
        if not name.startswith("MIG-"):
            return Named(name, self._card(handle))
        card = self._card(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
        gpu_id = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
        compute_id = int(nvml.nvmlDeviceGetComputeInstanceId(handle))
        return Named(name, card, MigDevice(card, name, gpu_id, compute_id, handle))

    def _card(self, handle: Any) -> Card:
        index = int(self._nvml.nvmlDeviceGetIndex(handle))
        if index not in self._cards:
            self._cards[index] = Card(index, str(self._nvml.nvmlDeviceGetUUID(handle)), handle)
        return self._cards[index]


#: NVML_ERROR_..., by their meaning for one value. Any other error means that the value could not be
#: read this time.
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
        NVMLError: The error concerns all cards: NVML itself has to be opened again.
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
    """Return whether there is a driver and a GPU, for the listener of this name."""
    try:
        with opened() as nvml:
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
