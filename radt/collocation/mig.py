"""Creates and destroys MIG instances, each noted in the ledger before it exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radt.collocation.ledger import Entry, Ledger, MigInstance
from radt.collocation.planner import PlannedInstance

DESTROY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class CreatedInstance:
    """A GPU instance that radt made; ``uuids`` are its MIG devices by the plan's names."""

    entry: Entry
    gpu_instance: int
    uuids: Mapping[str, str]


def create_instance(
    planned: PlannedInstance, ledger: Ledger, *, run_id: str = "", workload_id: str = ""
) -> CreatedInstance:
    """Create a planned instance and the compute instances in it.

    Raises:
        DeviceError: The driver refuses; nothing of it is left.
    """
    raise NotImplementedError


def destroy_instance(thing: MigInstance, timeout_s: float = DESTROY_TIMEOUT_S) -> None:
    """Destroy what the ledger says radt made: compute instances, then the GPU instance, by id.

    Where the ids were never noted, it is the instance with the noted profile and place that was
    not there before. Harmless if it is gone.

    Raises:
        DeviceError: A process is still on it after ``timeout_s``, or the driver refuses.
    """
    raise NotImplementedError
