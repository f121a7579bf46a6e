"""NVML, NVIDIA's management library: opened for a moment, and the GPUs that it shows."""

from __future__ import annotations

from collections.abc import Iterator
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
    import pynvml

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
