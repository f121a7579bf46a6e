"""NVML, NVIDIA's management library: opened for a moment, and the GPUs that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU; ``index`` is NVML's, whatever ``CUDA_VISIBLE_DEVICES`` says.

    ``memory_bytes`` is None where the GPU has none of its own (unified memory: Grace, Jetson,
    Spark), or where only an administrator may read it (a GPU that is divided). ``mig_enabled``
    tells one in MIG mode, of which processes can use MIG instances only.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    mig_enabled: bool = False


@dataclass(frozen=True, slots=True)
class GpuList:
    """All GPUs of the machine and the driver's version.

    Without GPUs, ``reason`` says why; ``failed`` tells a driver that does not work from a machine
    that has none.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    reason: str = ""
    failed: bool = False


@contextmanager
def opened() -> Iterator[Any]:
    """`pynvml`, initialised. NVML counts: whoever else has it open keeps it.

    Raises:
        pynvml.NVMLError: There is no driver, or it does not work.
        OSError: The library is damaged.
    """
    # Imported here: what only reads experiment files or store needs neither it nor the driver.
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> GpuList:
    """Ask the driver, if there is one. Never raises."""
    try:
        import pynvml
    except ImportError:  # radt is used from an environment without its packages
        return GpuList(reason="nvidia-ml-py is not installed here")

    try:
        with opened():
            driver = str(pynvml.nvmlSystemGetDriverVersion())
            gpus = tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError_LibraryNotFound:
        return GpuList(reason="no NVIDIA driver")
    except pynvml.NVMLError_DriverNotLoaded:
        return GpuList(reason="NVIDIA's driver is not loaded")
    except (pynvml.NVMLError, OSError) as error:
        return GpuList(reason=f"NVML: {error}", failed=True)
    return GpuList(gpus, driver, "" if gpus else "NVML sees none")


def minor_numbers() -> dict[str, int]:
    """Return the number of the device file (``/dev/nvidia3``) of each GPU, by UUID.

    A GPU whose number the driver does not know is missing. Never raises.
    """
    import pynvml

    numbers: dict[str, int] = {}
    try:
        with opened():
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                try:
                    number = int(pynvml.nvmlDeviceGetMinorNumber(handle))
                except pynvml.NVMLError:
                    continue
                numbers[str(pynvml.nvmlDeviceGetUUID(handle))] = number
    except (pynvml.NVMLError, OSError):
        pass
    return numbers


def parent_gpus(uuids: Iterable[str]) -> dict[str, str]:
    """Return the UUID of the GPU of each device, GPU or MIG, by the device's UUID.

    A device that the driver does not show is missing. Never raises.
    """
    import pynvml

    parents: dict[str, str] = {}
    try:
        with opened():
            for uuid in uuids:
                try:
                    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                    if uuid.startswith("MIG-"):
                        device = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
                    parents[uuid] = str(pynvml.nvmlDeviceGetUUID(device))
                except pynvml.NVMLError:
                    continue
    except (pynvml.NVMLError, OSError):
        pass
    return parents


def _gpu(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
        memory_bytes = None
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # a GPU, or a driver, without MIG
        current = pynvml.NVML_DEVICE_MIG_DISABLE
    return Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=memory_bytes,
        mig_enabled=current == pynvml.NVML_DEVICE_MIG_ENABLE,
    )
