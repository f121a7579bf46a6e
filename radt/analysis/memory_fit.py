"""Predict whether runs fit into memory: the sum of their footprints alone against its capacity.

The thesis that radt builds on found that this rule holds for training on GPUs (Robroek 2024,
section 4.4.3, and 4.5.1: "can simply be estimated by the sum").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt.analysis.advice_facts import CONTEXT_BYTES, Facts, MigGpu
from radt.analysis.advice_model import Candidate, Fit, MemoryPool, Row
from radt.units import plural

#: Share of the capacity kept free for fragmentation and other batch sizes.
DEFAULT_MARGIN = 0.05
_MIB = 2**20
#: The same for the machine's memory.
HOST = "host"
CPUS = "CPUs"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a device that rows of a workload compute on.

    Attributes:
        name: ``GPU 0``, or the profile of the instance and its name, if any.
        rows: Positions of the rows in the candidate.
        sm: Its share of the device's SMs.
        dram: Its share of the device's memory, and thus of the bandwidth.
        pool: The name of its memory, shared by all parts of the pool.
        pool_bytes: The size of the pool; None if unknown.
    """

    name: str
    rows: tuple[int, ...]
    sm: float
    dram: float
    pool: str
    pool_bytes: float | None


def parts_of(candidate: Candidate, facts: Facts) -> list[Part] | None:
    """Return the parts on which rows with GPUs compute; None if an instance is unknown."""
    members: dict[tuple[str, str, str], list[int]] = {}
    for place, row in enumerate(candidate.rows):
        if row.solo.is_cpu:
            continue
        members.setdefault(_part_key(row, place), []).append(place)
    parts = []
    for (devices, name, pool), places in members.items():
        row = candidate.rows[places[0]]
        device = facts.device(row.solo.host, devices)
        mig = row.collocation.mig
        if mig is None:
            card = f"GPU {devices}"
            parts.append(Part(card, tuple(places), 1.0, 1.0, card, device.memory_bytes))
            continue
        profile = device.mig_gpu.profile(mig.gpu_instance) if device.mig_gpu else None
        if profile is None or device.mig_gpu is None:
            return None
        whole_mb = max(instance.memory_mb for instance in device.mig_gpu.card.profiles)
        slices = mig.compute_slices or profile.slices
        parts.append(
            Part(
                name,
                tuple(places),
                slices / device.mig_gpu.slices,
                profile.memory_mb / whole_mb,
                pool,
                float(profile.memory_mb * _MIB),
            )
        )
    return parts


def _part_key(row: Row, place: int) -> tuple[str, str, str]:
    """Return the device, the part of it, and the pool of its memory."""
    wanted, devices = row.collocation, row.solo.devices
    if wanted.mig is None:
        return devices, "", ""
    if wanted.instance:
        name = f"{wanted.mig}#{wanted.instance}"
    elif wanted.mps is not None:
        name = f"{wanted.mig}+MPS"
    else:
        name = str(wanted.mig)
    shared = wanted.instance or wanted.mps is not None
    # Compute instances of one profile share as few GPU instances as can hold them: here, one.
    pool = wanted.mig.gpu_instance if wanted.mig.compute_slices else name
    own = "" if shared else f" {place}"
    return devices, f"{name}{own}", pool if wanted.mig.compute_slices else f"{pool}{own}"


def memory_pools(
    candidate: Candidate, facts: Facts, parts: Sequence[Part], margin: float
) -> Iterator[MemoryPool]:
    """Yield the memory of each device or instance, and the machine's."""
    pools: dict[str, list[Part]] = {}
    for part in parts:
        pools.setdefault(part.pool, []).append(part)
    for sharing in pools.values():
        rows = [candidate.rows[place] for part in sharing for place in part.rows]
        known = [row.solo.footprint.peak_bytes for row in rows if row.solo.footprint is not None]
        need = sum(known) if len(known) == len(rows) else None
        if need is not None and any(row.collocation.mps is not None for row in rows):
            need += CONTEXT_BYTES
        capacity = sharing[0].pool_bytes
        name = sharing[0].name.partition(" ")[0] if rows[0].collocation.mig else sharing[0].name
        yield MemoryPool(name, need, capacity, (capacity or 0.0) * margin)
    yield from _host_memory(candidate, facts, margin)


def _host_memory(candidate: Candidate, facts: Facts, margin: float) -> Iterator[MemoryPool]:
    host = facts.host(candidate.rows[0].solo.host)
    known = [row.solo.host_bytes for row in candidate.rows if row.solo.host_bytes is not None]
    complete = len(known) == len(candidate.rows) and host.memory_bytes is not None
    # The machine's memory is considered for runs on GPUs only where measured; they need it less.
    if complete or any(row.solo.is_cpu for row in candidate.rows):
        yield MemoryPool(
            HOST,
            sum(known) if len(known) == len(candidate.rows) else None,
            host.memory_bytes,
            (host.memory_bytes or 0.0) * margin,
        )


def impossible(candidate: Candidate, facts: Facts) -> str:
    """Return why the rows cannot share the device; empty if they can."""
    wanted = sum(row.solo.own_cpus or 0 for row in candidate.rows)
    cores = facts.host(candidate.rows[0].solo.host).cores
    if cores is not None and wanted > cores:
        return f"{plural(wanted, 'CPU')} of their own on a machine with {cores}"
    by_device: dict[str, list[str]] = {}
    for row in candidate.rows:
        mig = row.collocation.mig
        # Rows that share an instance, or compute instances, take fewer places than rows.
        if (
            mig is not None
            and mig.compute_slices is None
            and not row.collocation.instance
            and row.collocation.mps is None
        ):
            by_device.setdefault(row.solo.devices, []).append(mig.gpu_instance)
    for devices, names in by_device.items():
        mig_gpu = facts.device(candidate.rows[0].solo.host, devices).mig_gpu
        if mig_gpu is not None and not mig_gpu.packs(names):
            return f"{' + '.join(names)} do not fit on GPU {devices} together"
    return ""


def fits_alone(row: Row, mig_gpu: MigGpu, profile: str, margin: float) -> Fit:
    """Return whether one run fits into an instance."""
    instance = mig_gpu.profile(profile)
    need = None if row.solo.footprint is None else row.solo.footprint.peak_bytes
    capacity = None if instance is None else float(instance.memory_mb * _MIB)
    return MemoryPool(profile, need, capacity, (capacity or 0.0) * margin).fit
