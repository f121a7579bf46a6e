"""Whether memory is enough: footprints of runs alone, added up, against what there is.

The thesis that radt goes back to found just this rule to hold for training on GPUs (Robroek 2024,
section 4.4.3, and 4.5.1: "can simply be estimated by the sum").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt.advice.cards import Divisible
from radt.advice.facts import CONTEXT_BYTES, Facts
from radt.advice.words import Candidate, Fit, Room, Row
from radt.units import plural

#: Of the capacity, left free for what the sum does not know: fragments, other batches.
DEFAULT_MARGIN = 0.05
_MIB = 2**20
#: Of the machine's memory.
HOST = "host"
CPUS = "CPUs"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a device that rows of a workload compute on.

    Attributes:
        name: ``GPU 0``, or the profile of the instance, with its name if it has one.
        rows: Positions of the rows in the candidate.
        sm: Its share of the device's SMs.
        dram: Its share of the device's memory, and so of the bandwidth.
        pool: Whose memory it is: parts of one pool share it.
        pool_bytes: How much that is; None if unknown.
    """

    name: str
    rows: tuple[int, ...]
    sm: float
    dram: float
    pool: str
    pool_bytes: float | None


def parts_of(candidate: Candidate, facts: Facts) -> list[Part] | None:
    """On what the rows with GPUs compute; None where an instance of theirs is not known."""
    members: dict[tuple[str, str, str], list[int]] = {}
    for place, row in enumerate(candidate.rows):
        if row.solo.is_cpu:
            continue
        members.setdefault(_part_key(row, place), []).append(place)
    found = []
    for (devices, name, pool), places in members.items():
        row = candidate.rows[places[0]]
        device = facts.device(row.solo.host, devices)
        mig = row.collocation.mig
        if mig is None:
            card = f"GPU {devices}"
            found.append(Part(card, tuple(places), 1.0, 1.0, card, device.memory_bytes))
            continue
        profile = device.divisible.profile(mig.gpu_instance) if device.divisible else None
        if profile is None or device.divisible is None:
            return None
        whole_mb = max(one.memory_mb for one in device.divisible.card.profiles)
        slices = mig.compute_slices or profile.slices
        found.append(
            Part(
                name,
                tuple(places),
                slices / device.divisible.slices,
                profile.memory_mb / whole_mb,
                pool,
                float(profile.memory_mb * _MIB),
            )
        )
    return found


def _part_key(row: Row, place: int) -> tuple[str, str, str]:
    """The device, the part of it, and whose memory that has."""
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
    # Compute instances of one profile share as few GPU instances as hold them: here, one.
    pool = wanted.mig.gpu_instance if wanted.mig.compute_slices else name
    own = "" if shared else f" {place}"
    return devices, f"{name}{own}", pool if wanted.mig.compute_slices else f"{pool}{own}"


def rooms_of(
    candidate: Candidate, facts: Facts, parts: Sequence[Part], margin: float
) -> Iterator[Room]:
    """The memory of each device or instance, and the machine's."""
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
        yield Room(name, need, capacity, (capacity or 0.0) * margin)
    yield from _host_rooms(candidate, facts, margin)


def _host_rooms(candidate: Candidate, facts: Facts, margin: float) -> Iterator[Room]:
    host = facts.host(candidate.rows[0].solo.host)
    known = [row.solo.host_bytes for row in candidate.rows if row.solo.host_bytes is not None]
    complete = len(known) == len(candidate.rows) and host.memory_bytes is not None
    # Of runs on GPUs the machine's memory is looked at where it was measured; they need it less.
    if complete or any(row.solo.is_cpu for row in candidate.rows):
        yield Room(
            HOST,
            sum(known) if len(known) == len(candidate.rows) else None,
            host.memory_bytes,
            (host.memory_bytes or 0.0) * margin,
        )


def impossible(candidate: Candidate, facts: Facts) -> str:
    """Why the rows cannot even be placed beside each other; empty if they can."""
    wanted = sum(row.solo.own_cpus or 0 for row in candidate.rows)
    cores = facts.host(candidate.rows[0].solo.host).cores
    if cores is not None and wanted > cores:
        return f"{plural(wanted, 'CPU')} of their own, and there are {cores}"
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
        divisible = facts.device(candidate.rows[0].solo.host, devices).divisible
        if divisible is not None and not divisible.packs(names):
            return f"{' + '.join(names)} do not lie beside each other on GPU {devices}"
    return ""


def fits_alone(row: Row, divisible: Divisible, profile: str, margin: float) -> Fit:
    """Whether one run has room in an instance."""
    found = divisible.profile(profile)
    need = None if row.solo.footprint is None else row.solo.footprint.peak_bytes
    capacity = None if found is None else float(found.memory_mb * _MIB)
    return Room(profile, need, capacity, (capacity or 0.0) * margin).fit
