"""NVML, NVIDIA's management library, with any driver: calls the newest version of each function.

Older drivers lack newer versions of NVML's functions; pynvml calls the newest, and reports the
absence of some by an exception that is not an NVMLError. `Nvml` has all names of pynvml; `_FORMS`
lists the functions that radt needs in several versions (*forms*). A function that is not listed has
had one form since the 470 branch, or is optional: its absence is ``NVMLError_FunctionNotFound``.
https://docs.nvidia.com/deploy/nvml-api/change-log.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

#: The value of ``gpuInstanceId`` and ``computeInstanceId`` for "none", and of unreported memory.
NO_INSTANCE = 2**32 - 1
NOT_AVAILABLE = 2**64 - 1

#: Programs of the Multi-Process Service (MPS), which come with the driver.
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_SERVER = "nvidia-cuda-mps-server"

#: Called with pynvml, the function's name and its arguments.
_Form = Callable[..., Any]


#: The driver's library, as pynvml loads it.
LIBRARY = "libnvidia-ml.so.1"


def load_library() -> None:
    """Load the driver's library.

    Without a driver, a process then need not import pynvml, which takes 40 ms of CPU time.

    Raises:
        OSError: NVIDIA's driver is not installed, or its library is damaged.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise OSError("NVIDIA's driver library cannot be loaded") from error


class Nvml:
    """`pynvml`, initialised. NVML counts its users, so it stays open for others after `close`.

    Use it as a context manager, or close it.

    Raises:
        pynvml.NVMLError: The driver does not work.
        OSError: See `load_library`.
    """

    def __init__(self) -> None:
        load_library()
        # Imported here: reading experiment files or a store needs neither pynvml nor a driver.
        import pynvml

        self._pynvml: Any = pynvml
        #: For each called function, the index of the form that the driver has.
        self._found: dict[str, int] = {}
        pynvml.nvmlInit()

    def close(self) -> None:
        """Shut NVML down, unless other parts of the process use it."""
        self._pynvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name in _FORMS else getattr(self._pynvml, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the newest form that the driver has."""
        pynvml, forms = self._pynvml, _FORMS[name]
        absent = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        for place in range(self._found.get(name, 0), len(forms)):
            self._found[name] = place
            try:
                return forms[place](pynvml, name, *arguments)
            except pynvml.NVMLError as error:
                if error.value not in absent or place == len(forms) - 1:
                    raise
        raise AssertionError("the last form returns or raises")


class _ProcessV1(ctypes.Structure):
    """``nvmlProcessInfo_v1_t``, from before MIG."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


def _suffixed(suffix: str) -> _Form:
    """Return a form that calls pynvml's function with this suffix."""
    return lambda pynvml, name, *arguments: getattr(pynvml, name + suffix)(*arguments)


def _version(version: int) -> _Form:
    """Return a form that calls pynvml's function with this version of its structure."""
    return lambda pynvml, name, *arguments: getattr(pynvml, name)(*arguments, version=version)


def _raw(pynvml: Any, name: str, *arguments: Any) -> None:
    """Call a function of the library that pynvml lacks."""
    function = getattr(pynvml.nvmlLib, name, None)
    code = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND if function is None else function(*arguments)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)


def _raw_into(structure: str) -> _Form:
    """Return a form that fills only the beginning of a structure; the rest is 0."""

    def form(pynvml: Any, name: str, handle: Any) -> Any:
        answer = getattr(pynvml, structure)()
        _raw(pynvml, name, handle, ctypes.byref(answer))
        return answer

    return form


def _memory_v2(pynvml: Any, _name: str, device: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)


def _processes_v1(pynvml: Any, name: str, device: Any) -> list[SimpleNamespace]:
    count = ctypes.c_uint(0)
    try:
        _raw(pynvml, name, device, ctypes.byref(count), None)
    except pynvml.NVMLError_InsufficientSize:
        count.value = count.value * 2 + 5  # more may have started meanwhile
    array = (_ProcessV1 * count.value)()
    if count.value:
        _raw(pynvml, name, device, ctypes.byref(count), array)
    return [
        SimpleNamespace(
            pid=entry.pid,
            usedGpuMemory=None if entry.usedGpuMemory == NOT_AVAILABLE else entry.usedGpuMemory,
            gpuInstanceId=NO_INSTANCE,
            computeInstanceId=NO_INSTANCE,
        )
        for entry in array[: count.value]
    ]


def _compute_anywhere(pynvml: Any, _name: str, instance: Any, profile: int, _place: Any) -> Any:
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)


def _throttle_reasons(pynvml: Any, _name: str, device: Any) -> Any:
    return pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)


def _event_v1(pynvml: Any, name: str, events: Any, timeout_ms: int) -> Any:
    event = pynvml.c_nvmlEventData_t(gpuInstanceId=NO_INSTANCE, computeInstanceId=NO_INSTANCE)
    _raw(pynvml, name, events, ctypes.byref(event), ctypes.c_uint(timeout_ms))
    return event


_OWN = _suffixed("")
_PROCESSES = (_suffixed("_v3"), _suffixed("_v2"), _processes_v1)

#: The forms of each function, newest first, with the driver that introduced each.
_FORMS: Mapping[str, tuple[_Form, ...]] = {
    # R510 reports memory reserved by the driver separately.
    "nvmlDeviceGetMemoryInfo": (_memory_v2, _OWN),
    "nvmlDeviceGetMemoryInfo_v2": (_memory_v2,),
    # R510, R460.
    "nvmlDeviceGetComputeRunningProcesses": _PROCESSES,
    "nvmlDeviceGetMPSComputeRunningProcesses": _PROCESSES,
    # R455; the older form lacks the numbers of slices.
    "nvmlDeviceGetAttributes": (_suffixed("_v2"), _raw_into("c_nvmlDeviceAttributes")),
    # R495 adds names of profiles.
    "nvmlDeviceGetGpuInstanceProfileInfo": (_version(2), _version(1)),
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": (_version(2), _version(1)),
    # R470.
    "nvmlDeviceGetGpuInstancePossiblePlacements": (_OWN, _raw),
    # R460; the older form lacks the placement.
    "nvmlComputeInstanceGetInfo": (_suffixed("_v2"), _raw_into("c_nvmlComputeInstanceInfo_t")),
    # R530; older drivers choose the placement themselves.
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": (_OWN, _compute_anywhere),
    # R450 adds the instance that an event concerns.
    "nvmlEventSetWait": (_suffixed("_v2"), _event_v1),
    # Renamed in R535.
    "nvmlDeviceGetCurrentClocksEventReasons": (_OWN, _throttle_reasons),
    # TemperatureV replaces the deprecated function, which CUDA 14 may lack.
    "nvmlDeviceGetTemperature": (_OWN, _suffixed("V")),
}
