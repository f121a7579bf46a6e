"""Works out how a workload's runs share the GPUs before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt.collocation.inventory import InstanceProfile, Inventory, Placement
from radt.collocation.spec import Collocation
from radt.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Request:
    """What one row asks for: NVML indices of its GPUs (none for the CPU) and how it shares them.

    ``key`` tells the rows of a workload apart.
    """

    key: str
    gpus: tuple[int, ...]
    collocation: Collocation


class PlacementError(DeviceError):
    """The workload cannot be placed; ``keys`` are the rows concerned."""

    def __init__(self, message: str, remedy: str | None = None, keys: Sequence[str] = ()) -> None:
        super().__init__(message, remedy)
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True)
class PlannedCompute:
    """A compute instance, and so a MIG device, for the rows ``keys``.

    ``name`` is unique in the plan. ``profile`` is what people call it (``3c.7g.40gb``).
    ``existing_id`` and ``uuid`` are set where it is there already.
    """

    name: str
    profile: str
    slices: int
    keys: tuple[str, ...]
    existing_id: int | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A GPU instance to create, or to use where ``existing_id`` is set, with what it holds.

    ``placement`` is None only for an existing instance whose place may not be read.
    """

    gpu: int
    gpu_uuid: str
    profile: InstanceProfile
    placement: Placement | None
    computes: tuple[PlannedCompute, ...]
    existing_id: int | None = None


@dataclass(frozen=True, slots=True)
class MpsServer:
    """An MPS daemon to start: for whole GPUs, or for the MIG device ``compute`` (its name)."""

    name: str
    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    compute: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What one row gets. ``compute`` and ``mps`` are names in the plan; None without MIG or MPS."""

    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    compute: str | None = None
    mps: str | None = None
    thread_percentage: float | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """How a workload's rows share the GPUs; instances stand in the order to create them in."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    instances: tuple[PlannedInstance, ...] = ()
    mps_servers: tuple[MpsServer, ...] = ()

    @property
    def is_naive(self) -> bool:
        """Whether nothing has to be set up."""
        return not self.instances and not self.mps_servers

    def compute(self, name: str) -> tuple[PlannedInstance, PlannedCompute]:
        """The compute instance of this name with its GPU instance.

        Raises:
            KeyError: The plan has none.
        """
        for instance in self.instances:
            for compute in instance.computes:
                if compute.name == name:
                    return instance, compute
        raise KeyError(name)


def plan_devices(requests: Sequence[Request], inventory: Inventory) -> DevicePlan:
    """Place every row, or say why that is impossible and what would be possible.

    Raises:
        PlacementError: The rows do not fit.
    """
    raise NotImplementedError


def describe(plan: DevicePlan) -> list[str]:
    """The plan for people, a line per instance and MPS server: ``GPU 2  4-7  3g.20gb  a, b``."""
    raise NotImplementedError
