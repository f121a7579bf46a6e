"""GPUs, the MIG instances on them, and those they could hold: plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from radt.collocation.profiles import Placement
from radt.nvml import Gpu


class PlacementSource(StrEnum):
    """Who says where instances may lie."""

    DRIVER = "driver"
    TABLE = "published table"
    NONE = "unknown"


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A kind of GPU instance that a GPU offers.

    ``profile_id`` is what the driver calls it; ``name`` is NVIDIA's, without ``MIG ``.
    ``max_count`` is how many an empty GPU holds. ``ofas`` are optical flow accelerators, of which
    GPUs have few: the media extensions of ``+me``. ``remaining`` is how many more the driver would
    create now, None where it does not say.
    """

    profile_id: int
    name: str
    slices: int
    memory_mb: int
    max_count: int
    sm_count: int
    placements: tuple[Placement, ...] = ()
    ofas: int = 0
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A MIG device: what a process sees as its GPU.

    ``uuid`` is its ``MIG-…``. ``pids`` are the processes on it. ``sm_count`` is None where the
    driver does not say.
    """

    instance_id: int
    slices: int
    uuid: str
    sm_count: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A part of a GPU that exists.

    ``profile`` is its profile's name. ``placement`` is None where reading it needs privileges that
    are missing. ``claimed`` tells one that a radt of this user has made, now or before it was
    killed: it is about to be used, or taken away.
    """

    instance_id: int
    profile: str
    placement: Placement | None
    computes: tuple[ComputeInstance, ...] = ()
    claimed: bool = False

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
    may_create: bool = False
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

    ``memory_bytes`` and ``free_bytes`` are None where the GPU has no memory of its own, or where
    only an administrator may read it. ``problem`` says why the driver tells nothing of this GPU.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    mig: MigState | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """GPUs of the machine; ``reason`` says why there is none.

    ``is_complete`` tells one that knows profiles and instances.
    """

    gpus: tuple[GpuInventory, ...] = ()
    driver: str | None = None
    reason: str = ""
    is_complete: bool = True

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> Inventory:
        """What a list of GPUs tells already, without asking the driver: no profiles, no instances.

        Enough to plan workloads in which nobody asks for MIG.
        """
        return cls(
            tuple(
                GpuInventory(
                    gpu.index,
                    gpu.uuid,
                    gpu.name,
                    gpu.memory_bytes,
                    mig=MigState(enabled=True, pending=True) if gpu.mig_enabled else None,
                )
                for gpu in gpus
            ),
            is_complete=False,
        )

    def gpu(self, index: int) -> GpuInventory | None:
        """The GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)
