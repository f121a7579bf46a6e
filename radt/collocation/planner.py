"""Plans how a workload's runs share the GPUs, before any change is made.

`plan_devices` is pure; `plan_here` is the check shared by `radt validate` and every start of a
workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from radt.collocation.instances import PlannedCompute, PlannedInstance, plan_instances
from radt.collocation.inventory import read_inventory
from radt.collocation.mps import check, mps_daemons
from radt.collocation.packing import PlacementError, profile_names, slots_of
from radt.collocation.spec import Collocation
from radt.collocation.topology import GpuInventory, Inventory
from radt.devices.gpus import ComputeMode, Gpu, Gpus
from radt.errors import DeviceError
from radt.units import joined


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Request of one row: NVML indices of its GPUs (none for the CPU) and how it shares them.

    ``key`` identifies the row within its workload.
    """

    key: str
    gpus: tuple[int, ...]
    collocation: Collocation

    @property
    def slot(self) -> tuple[tuple[int, ...], str]:
        """Return a key shared by rows that share a MIG instance."""
        return self.gpus, self.collocation.instance or f"{self.key} alone"


@dataclass(frozen=True, slots=True)
class PlannedMps:
    """An MPS daemon to start for the rows ``keys``.

    It serves whole GPUs, or the MIG device ``compute``.
    """

    name: str
    gpus: tuple[int, ...]
    keys: tuple[str, ...]
    compute: PlannedCompute | None = None


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The devices of a row: whole GPUs, or ``compute`` of the GPU instance ``instance``."""

    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    instance: PlannedInstance | None = None
    compute: PlannedCompute | None = None
    mps: PlannedMps | None = None
    thread_percentage: float | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The sharing of GPUs by a workload's rows; instances are in order of creation."""

    shares: Mapping[str, DeviceShare] = field(default_factory=dict)
    instances: tuple[PlannedInstance, ...] = ()
    mps_servers: tuple[PlannedMps, ...] = ()

    @property
    def is_naive(self) -> bool:
        """Return whether no set-up is needed."""
        return not self.instances and not self.mps_servers


def plan_devices(requests: Sequence[DeviceRequest], inventory: Inventory) -> DevicePlan:
    """Place every row, or raise an error with the reason and the alternatives.

    The plan does not depend on the order of the rows.

    Raises:
        PlacementError: The rows do not fit.
        ValueError: Two rows have the same key, or a row wants MIG and the inventory was not read
            from the driver.
    """
    requests = on_given_instances(requests, inventory)
    rows = sorted(requests, key=lambda row: (len(row.key), row.key))
    if len({row.key for row in rows}) < len(rows):
        raise ValueError("keys of requests must differ")
    for row in rows:
        _check_row(row)
        for index in row.gpus:
            _check_mode(row, _gpu(row, index, inventory))
    _check_mps_sets(rows)
    _check_compute_modes(rows, inventory)

    divided = sorted({index for row in rows if row.collocation.mig for index in row.gpus})
    if divided and not inventory.is_complete:
        raise ValueError("MIG needs an inventory that was read from the driver")
    instances: list[PlannedInstance] = []
    for index in divided:
        wanted = [
            (row.key, row.collocation)
            for row in rows
            if row.collocation.mig is not None and row.gpus == (index,)
        ]
        gpu = _gpu(rows[0], index, inventory)
        instances += plan_instances(gpu, slots_of(gpu, wanted))

    instance_of = {
        key: instance for instance in instances for one in instance.computes for key in one.keys
    }
    computes = {key: one for instance in instances for one in instance.computes for key in one.keys}
    servers = _mps_servers(rows, computes)
    _check_client_numbers(servers, inventory)
    server_of = {key: server for server in servers for key in server.keys}
    shares = {
        row.key: DeviceShare(
            row.gpus,
            tuple(_gpu(row, index, inventory).uuid for index in row.gpus),
            instance_of.get(row.key),
            computes.get(row.key),
            server_of.get(row.key),
            row.collocation.mps.thread_percentage if row.collocation.mps else None,
        )
        for row in rows
    }
    return DevicePlan(shares, tuple(instances), servers)


def on_given_instances(
    requests: Sequence[DeviceRequest], inventory: Inventory
) -> Sequence[DeviceRequest]:
    """Return the rows, moved to GPUs on which a cluster gave their job MIG instances.

    A row stays on its GPU if that has an instance for it. The function is idempotent.
    """
    if not inventory.is_given:
        return requests
    free = Counter(
        (gpu.index, instance.profile)
        for gpu in inventory.gpus
        if gpu.mig is not None
        for instance in gpu.mig.instances
    )
    wanted = {row.slot: row for row in requests if row.collocation.mig is not None}
    placed: dict[tuple[tuple[int, ...], str], tuple[int, ...]] = {}
    for may_move in (False, True):
        for slot, row in wanted.items():
            assert row.collocation.mig is not None
            places = [
                (index, profile)
                for (index, profile), count in free.items()
                if count and profile == row.collocation.mig.gpu_instance
                if may_move or index in row.gpus
            ]
            if slot not in placed and places:
                placed[slot] = (places[0][0],)
                free[places[0]] -= 1
    return [replace(row, gpus=placed.get(row.slot, row.gpus)) for row in requests]


def _check_row(row: DeviceRequest) -> None:
    wish = row.collocation
    if not row.gpus and not wish.is_naive:
        raise PlacementError(
            f"{wish} needs a GPU, and the row runs on the CPU",
            "Name a GPU in Devices, or write - in Collocation",
            [row.key],
        )
    if wish.mig is not None and len(row.gpus) > 1:
        raise PlacementError(
            f"{wish} on {len(row.gpus)} GPUs: CUDA shows a process one MIG device at most",
            "Name one GPU in Devices, or use whole GPUs (- or MPS in Collocation)",
            [row.key],
        )


def _check_mode(row: DeviceRequest, gpu: GpuInventory) -> None:
    """Check that MIG is on where the row needs it, and only there. The mode is never changed."""
    mig = gpu.mig
    if row.collocation.mig is None:
        if mig is not None and mig.enabled:
            names = profile_names(mig)
            raise PlacementError(
                f"GPU {gpu.index} is in MIG mode, so only its instances can be used",
                f"Write a MIG profile into Collocation{f' ({names})' if names else ''}, or turn "
                f"MIG off while nothing uses the GPU: sudo nvidia-smi -i {gpu.index} -mig 0",
                [row.key],
            )
        return
    if mig is None:
        raise PlacementError(
            f"GPU {gpu.index} ({gpu.name}) does not support MIG",
            "Write - or MPS into Collocation, or choose another GPU",
            [row.key],
        )
    if not mig.enabled and mig.pending:
        raise PlacementError(
            f"MIG is off on GPU {gpu.index} until it is reset",
            f"Reset it while nothing uses it: sudo nvidia-smi -i {gpu.index} --gpu-reset",
            [row.key],
        )
    if not mig.enabled:
        raise PlacementError(
            f"MIG is off on GPU {gpu.index}",
            f"Turn it on while nothing uses the GPU: sudo nvidia-smi -i {gpu.index} -mig 1",
            [row.key],
        )


def _check_mps_sets(rows: Sequence[DeviceRequest]) -> None:
    """Check that each GPU belongs to one daemon, as a process cannot be a client of two."""
    sets: dict[frozenset[int], list[str]] = {}
    for row in rows:
        if row.collocation.mps is not None and row.collocation.mig is None:
            sets.setdefault(frozenset(row.gpus), []).append(row.key)
    ordered = sorted(sets, key=sorted)
    for position, first in enumerate(ordered):
        for second in ordered[position + 1 :]:
            if first & second:
                shared = joined(str(index) for index in sorted(first & second))
                raise PlacementError(
                    f"rows share GPU {shared} under MPS but not all their GPUs "
                    f"({_set_text(first)} and {_set_text(second)}), "
                    "and a GPU belongs to one daemon",
                    "Give these rows the same GPUs, or GPUs that do not overlap",
                    [*sets[first], *sets[second]],
                )


def _check_compute_modes(rows: Sequence[DeviceRequest], inventory: Inventory) -> None:
    """Check that each undivided GPU accepts the planned number of processes.

    All clients of an MPS daemon count as one process. CUDA's own message does not name the cause.
    """
    whole = [row for row in rows if row.collocation.mig is None]
    for index in sorted({index for row in whole for index in row.gpus}):
        on_it = [row for row in whole if index in row.gpus]
        mode = _gpu(on_it[0], index, inventory).compute_mode
        processes = len({"MPS" if row.collocation.mps else row.key for row in on_it})
        if mode is ComputeMode.PROHIBITED:
            why = "no process may use it"
        elif mode is not None and mode.is_exclusive and processes > 1:
            why = f"only one process may use it, {processes} were planned"
        else:
            continue
        raise PlacementError(
            f"GPU {index} is in compute mode {mode}: {why}",
            f"An administrator can change this with `nvidia-smi -i {index} -c DEFAULT`",
            [row.key for row in on_it],
        )


def _check_client_numbers(servers: Sequence[PlannedMps], inventory: Inventory) -> None:
    """Check that each daemon's devices have enough contexts for its clients.

    A compute instance has a proportional share: MIG User Guide, "Application Considerations",
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html
    """
    for server in servers:
        gpus = [gpu for gpu in inventory.gpus if gpu.index in server.gpus]
        most = min((gpu.most_mps_clients for gpu in gpus if gpu.most_mps_clients), default=None)
        where = f"GPU {_set_text(server.gpus)}"
        if most is not None and server.compute is not None:
            where = f"{server.compute.profile} of {where}"
            most = most * server.compute.slices // max(gpu.slices for gpu in gpus)
        if most is not None and len(server.keys) > most:
            raise PlacementError(
                f"{len(server.keys)} MPS clients on {where}, which can hold {most}",
                "Spread the rows over more GPUs or workloads",
                server.keys,
            )


def _mps_servers(
    rows: Sequence[DeviceRequest], computes: Mapping[str, PlannedCompute]
) -> tuple[PlannedMps, ...]:
    servers: dict[str, PlannedMps] = {}
    for row in rows:
        if row.collocation.mps is not None:
            gpus, compute = tuple(sorted(row.gpus)), computes.get(row.key)
            name = f"mps-{_set_text(gpus) if compute is None else compute.name}"
            server = servers.get(name, PlannedMps(name, gpus, (), compute))
            servers[name] = replace(server, keys=(*server.keys, row.key))
    return tuple(sorted(servers.values(), key=lambda server: (server.gpus, server.name)))


def _gpu(row: DeviceRequest, index: int, inventory: Inventory) -> GpuInventory:
    gpu = inventory.gpu(index)
    if gpu is None:
        indices = joined(str(gpu.index) for gpu in inventory.gpus)
        raise PlacementError(
            f"GPU {index} not found" + (f" ({inventory.reason})" if inventory.reason else ""),
            f"This machine has GPU {indices}" if indices else "Write cpu into Devices",
            [row.key],
        )
    if gpu.problem:
        raise PlacementError(
            f"GPU {index} does not answer: {gpu.problem}",
            "Run nvidia-smi for details, or choose another GPU",
            [row.key],
        )
    return gpu


def _set_text(gpus: Iterable[int]) -> str:
    return "+".join(str(index) for index in sorted(gpus))


def plan_here(
    requests: Sequence[DeviceRequest],
    gpus: Gpus,
    read: Callable[[], Inventory] = read_inventory,
) -> DevicePlan:
    """Place every row, as `plan_devices`, and check that this machine can carry out the plan.

    Args:
        requests: The rows.
        gpus: The machine's GPUs.
        read: Reads the profiles and instances; called only if a row uses MIG.

    Raises:
        PlacementError: The rows do not fit, or MPS daemons cannot be started here.
        DeviceError: The driver does not work.
    """
    if gpus.failed:
        raise DeviceError(gpus.reason, "Run nvidia-smi for details")
    divided = any(request.collocation.mig is not None for request in requests)
    plan = plan_devices(requests, read() if divided else Inventory.of(gpus.every, gpus.reason))
    if plan.mps_servers:
        try:
            check()
        except DeviceError as error:
            keys = [key for server in plan.mps_servers for key in server.keys]
            raise PlacementError(error.message, error.remedy, keys) from error
    return plan


def warnings(indices: Collection[int], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield warnings about other users' MPS daemons that affect runs on these GPUs.

    A GPU in exclusive mode admits one process, which may be such a daemon's server.
    https://docs.nvidia.com/deploy/mps/when-to-use-mps.html, "GPU Compute Modes"
    """
    exclusive = [
        gpu
        for gpu in gpus
        if gpu.index in indices and gpu.compute_mode is not None and gpu.compute_mode.is_exclusive
    ]
    daemons = [daemon for daemon in mps_daemons() if not daemon.ours] if exclusive else []
    for gpu in exclusive:
        for daemon in daemons:
            if not daemon.devices or any(
                name == str(gpu.index) or gpu.uuid.startswith(name) for name in daemon.devices
            ):
                yield (
                    f"GPU {gpu.index} is in compute mode {gpu.compute_mode}, and the MPS daemon of "
                    f"{daemon.user or 'another container'} (pid {daemon.pid}) may serve it. Runs "
                    "do not use that daemon: they have to wait while its server is on the GPU, and "
                    "while they run its clients cannot use the GPU"
                )
