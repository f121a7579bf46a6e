"""What the machine's GPUs are, how they are divided, and what they could be divided into."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a GPU instance lies: ``size`` memory slices from ``start`` on."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first slice after it."""
        return self.start + self.size

    def overlaps(self, other: Placement) -> bool:
        """Whether the two share a slice."""
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}" if self.size > 1 else str(self.start)


class PlacementSource(StrEnum):
    """Who says where instances may lie."""

    DRIVER = "driver"
    TABLE = "published table"
    NONE = "unknown"


@dataclass(frozen=True, slots=True)
class Engines:
    """Media engines; an instance has its own, so they are used up as slices are."""

    decoders: int = 0
    jpegs: int = 0
    ofas: int = 0


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A kind of GPU instance that a GPU offers.

    ``profile_id`` is what the driver calls it; ``name`` is NVIDIA's, without ``MIG ``.
    ``max_count`` is how many an empty GPU holds. ``remaining`` is how many more the driver would
    still create, None where it does not say.
    """

    profile_id: int
    name: str
    slices: int
    memory_mb: int
    max_count: int
    sm_count: int
    placements: tuple[Placement, ...] = ()
    engines: Engines = Engines()
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A MIG device: what a process sees as its GPU.

    ``uuid`` is its ``MIG-…``, None while the driver lists no device for it. ``pids`` are the
    processes on it.
    """

    instance_id: int
    slices: int
    uuid: str | None = None
    sm_count: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A part of a GPU that exists.

    ``profile`` is its profile's name, empty if the GPU offers none like it. ``placement`` is None
    where reading it needs privileges that are missing.
    """

    instance_id: int
    profile: str
    placement: Placement | None
    computes: tuple[ComputeInstance, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether a process runs on it."""
        return any(compute.pids for compute in self.computes)


@dataclass(frozen=True, slots=True)
class MigState:
    """How MIG stands on a GPU that has it.

    ``enabled`` is the mode now, ``pending`` the mode after the next reset. ``may_create`` tells
    whether this user may create and destroy instances.
    """

    enabled: bool
    pending: bool
    may_create: bool
    profiles: tuple[InstanceProfile, ...] = ()
    placements_from: PlacementSource = PlacementSource.NONE
    instances: tuple[GpuInstance, ...] = ()

    def profile(self, name: str) -> InstanceProfile | None:
        """The profile with this name, in any case."""
        wanted = name.lower()
        return next((one for one in self.profiles if one.name.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """One GPU; ``index`` is NVML's. ``mig`` is None where the GPU cannot be divided.

    ``memory_bytes`` and ``free_bytes`` are None where the GPU has no memory of its own.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    mig: MigState | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the machine; ``reason`` says why there is none."""

    gpus: tuple[GpuInventory, ...] = ()
    driver: str | None = None
    reason: str = ""

    def gpu(self, index: int) -> GpuInventory | None:
        """The GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)


def read_inventory() -> Inventory:
    """Ask the driver, if there is one.

    Raises:
        DeviceError: There is a driver and it does not work.
    """
    raise NotImplementedError
