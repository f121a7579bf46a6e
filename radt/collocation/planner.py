"""Plan how a workload's runs share the GPUs, before any change is made.

Pure functions; `radt.collocation.inventory` queries the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from radt.collocation.instances import PlannedCompute, PlannedInstance, plan_instances
from radt.collocation.packing import PlacementError, joined, profile_names, slots_of
from radt.collocation.spec import Collocation
from radt.collocation.topology import GpuInventory, Inventory


@dataclass(frozen=True, slots=True)
class Request:
    """Request of one row: NVML indices of its GPUs (none for the CPU) and how it shares them.

    ``key`` identifies the row within its workload.
    """

    key: str
    gpus: tuple[int, ...]
    collocation: Collocation

    @property
    def slot(self) -> tuple[tuple[int, ...], str]:
        """What rows have in common that share a MIG instance."""
        return self.gpus, self.collocation.instance or f"{self.key} alone"


@dataclass(frozen=True, slots=True)
class PlannedMps:
    """An MPS daemon to start for the rows ``keys``.

    It serves whole GPUs, or the MIG device ``compute`` (its name in the plan; None without MIG).
    """

    name: str
    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    keys: tuple[str, ...]
    compute: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Devices of a row. ``compute`` and ``mps`` are names in the plan; None without MIG or MPS."""

    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    compute: str | None = None
    mps: str | None = None
    thread_percentage: float | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """How a workload's rows share the GPUs; instances are in order of creation."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    instances: tuple[PlannedInstance, ...] = ()
    mps_servers: tuple[PlannedMps, ...] = ()

    @property
    def is_naive(self) -> bool:
        """Return whether nothing has to be set up."""
        return not self.instances and not self.mps_servers

    def compute(self, name: str) -> tuple[PlannedInstance, PlannedCompute]:
        """Return the compute instance of this name and its GPU instance, or raise KeyError."""
        for instance in self.instances:
            for compute in instance.computes:
                if compute.name == name:
                    return instance, compute
        raise KeyError(name)


def plan_devices(requests: Sequence[Request], inventory: Inventory) -> DevicePlan:
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
        _check_row(row, inventory)
    _check_whole_and_divided(rows)
    for row in rows:
        for index in row.gpus:
            _check_mode(row, _gpu(row, index, inventory))
    _check_mps_sets(rows)

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

    computes = {
        key: compute.name
        for instance in instances
        for compute in instance.computes
        for key in compute.keys
    }
    servers = _mps_servers(rows, inventory, computes)
    server_of = {key: server.name for server in servers for key in server.keys}
    shares = {
        row.key: Share(
            row.gpus,
            tuple(_gpu(row, index, inventory).uuid for index in row.gpus),
            computes.get(row.key),
            server_of.get(row.key),
            row.collocation.mps.thread_percentage if row.collocation.mps else None,
        )
        for row in rows
    }
    return DevicePlan(shares, tuple(instances), servers)


def on_given_instances(requests: Sequence[Request], inventory: Inventory) -> Sequence[Request]:
    """Return rows on the GPUs where a cluster gave their job MIG instances: those of any GPUs.

    A row stays on its GPU if that has an instance for it. Asked again, this changes nothing.
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


def describe(plan: DevicePlan) -> list[str]:
    """Return the plan as text, one line per MIG device and daemon: ``GPU 2 4-7 3g.20gb a, b``."""
    under_mps = {server.compute: server for server in plan.mps_servers}
    table = []
    for instance in plan.instances:
        for compute in instance.computes:
            server = under_mps.get(compute.name)
            table.append(
                (
                    f"GPU {instance.gpu}",
                    str(instance.placement) if instance.placement else "?",
                    compute.profile + ("+MPS" if server else ""),
                    _rows_text(plan, compute.keys)
                    + (" (exists)" if compute.uuid is not None else ""),
                )
            )
    table += [
        (f"GPU {'+'.join(map(str, server.gpus))}", "", "MPS", _rows_text(plan, server.keys))
        for server in plan.mps_servers
        if server.compute is None
    ]
    widths = [max((len(line[column]) for line in table), default=0) for column in range(3)]
    return [
        "  ".join(
            [cell.ljust(width) for cell, width in zip(line, widths, strict=False) if width]
            + [line[3]]
        )
        for line in table
    ]


def _rows_text(plan: DevicePlan, keys: Iterable[str]) -> str:
    """Return ``a, b (40 %)``."""
    return ", ".join(
        key if (cap := plan.shares[key].thread_percentage) is None else f"{key} ({cap:g} %)"
        for key in keys
    )


def _check_row(row: Request, inventory: Inventory) -> None:
    """Check the request of a single row."""
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
    for index in row.gpus:
        gpu = _gpu(row, index, inventory)
        if gpu.problem:
            raise PlacementError(
                f"GPU {index} does not answer: {gpu.problem}",
                "Run nvidia-smi for details, or choose another GPU",
                [row.key],
            )


def _check_whole_and_divided(rows: Sequence[Request]) -> None:
    """Check that no GPU is used both whole and divided: in MIG mode it cannot be used whole."""
    for index in sorted({index for row in rows for index in row.gpus}):
        on_it = [row for row in rows if index in row.gpus]
        divided = [row for row in on_it if row.collocation.mig is not None]
        whole = [row for row in on_it if row.collocation.mig is None]
        if divided and whole:
            raise PlacementError(
                f"{joined(row.key for row in divided)} on MIG instances of GPU {index} and "
                f"{joined(row.key for row in whole)} on the whole GPU: with MIG on, only instances "
                "can be used",
                "Give all rows of that GPU a MIG profile, or none",
                [row.key for row in on_it],
            )


def _check_mode(row: Request, gpu: GpuInventory) -> None:
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


def _check_mps_sets(rows: Sequence[Request]) -> None:
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


def _mps_servers(
    rows: Sequence[Request], inventory: Inventory, computes: Mapping[str, str]
) -> tuple[PlannedMps, ...]:
    members: dict[tuple[tuple[int, ...], str | None], list[Request]] = {}
    for row in rows:
        if row.collocation.mps is not None:
            place = (tuple(sorted(row.gpus)), computes.get(row.key))
            members.setdefault(place, []).append(row)
    return tuple(
        PlannedMps(
            name=f"mps-{compute or _set_text(gpus)}",
            gpus=gpus,
            gpu_uuids=tuple(_gpu(sharing[0], index, inventory).uuid for index in gpus),
            keys=tuple(row.key for row in sharing),
            compute=compute,
        )
        for (gpus, compute), sharing in sorted(
            members.items(), key=lambda item: (item[0][0], item[0][1] or "")
        )
    )


def _gpu(row: Request, index: int, inventory: Inventory) -> GpuInventory:
    gpu = inventory.gpu(index)
    if gpu is None:
        indices = joined(str(gpu.index) for gpu in inventory.gpus)
        raise PlacementError(
            f"GPU {index} not found" + (f" ({inventory.reason})" if inventory.reason else ""),
            f"This machine has GPU {indices}" if indices else "Write cpu into Devices",
            [row.key],
        )
    return gpu


def _set_text(gpus: Iterable[int]) -> str:
    return "+".join(str(index) for index in sorted(gpus))
