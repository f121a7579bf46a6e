"""By how much runs that share a device slow each other down: from what each takes of it alone.

Shares of a resource add up. Up to 1 nobody has to wait for it; above, those that use it get less
in proportion (Robroek 2024, section 4.4.2: the lower the SM activity of a run alone, the more
sharing gains). How the device is shared decides which resource that is:

- naive: kernels of different processes take turns, so the time in which kernels run adds up;
- MPS: kernels run side by side, so the activity of the SMs adds up;
- MIG: a run has a fixed share of SMs and memory bandwidth, whatever the others do.

The other end of the range is that they take turns altogether, as one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from radt.advice.facts import Facts
from radt.advice.rooms import Part
from radt.advice.words import Candidate, Range, Resource, Row

#: Who takes less of a resource than this hardly waits for it.
MIN_SHARE = 0.05

NOTHING = "nothing measured"
OWN_INSTANCE = "the size of its instance"
MEASURED_THERE = "measured on this instance"


def slowdown_of(
    candidate: Candidate, place: int, parts: Sequence[Part], facts: Facts
) -> tuple[Range, str] | None:
    """The range of one row's slowdown and what limits it; None where a share is missing.

    Args:
        candidate: The workload.
        place: The row's position in it.
        parts: `radt.advice.rooms.parts_of`.
        facts: Of the machine.
    """
    row = candidate.rows[place]
    cpu = _cpu(candidate, row, facts)
    if row.solo.is_cpu:
        if cpu is None:
            return None
        low, limit = cpu
        return Range(low, max(low, float(candidate.degree))), limit
    part = next(one for one in parts if place in one.rows)
    found = _gpu([candidate.rows[one] for one in part.rows], row, part)
    if found is None:
        return None
    bounds, limit = found
    if cpu is not None and cpu[0] > bounds.low:
        return Range(cpu[0], max(cpu[0], bounds.high)), cpu[1]
    return bounds, limit


def _cpu(candidate: Candidate, row: Row, facts: Facts) -> tuple[float, str] | None:
    """From the cores that all rows use together; None where that is not known of all."""
    if row.solo.own_cpus is not None:
        return 1.0, NOTHING  # nobody else is on its CPUs
    shares = [one.solo.shares.get(Resource.CORES) for one in candidate.rows]
    known = [share for share in shares if share is not None]
    if len(known) != len(shares) or facts.host(row.solo.host).cores is None:
        return None
    total = sum(known)
    cores = facts.host(row.solo.host).cores or 1
    if row.solo.shares[Resource.CORES] * cores < MIN_SHARE or total <= 1:
        return 1.0, NOTHING
    return total, Resource.CORES.value


def _gpu(members: Sequence[Row], row: Row, part: Part) -> tuple[Range, str] | None:
    solo = row.solo
    if any(Resource.SM not in one.solo.shares for one in members):
        return None
    if len(members) == 1 and row.collocation.mig is not None:
        return _instance(row, part)
    count = float(len(members))
    by_resource = {
        Resource.SM: (_sum(members, Resource.SM) or 0.0) / part.sm,
        Resource.DRAM: (_sum(members, Resource.DRAM) or 0.0) / part.dram,
    }
    mps = row.collocation.mps
    if mps is None and len(members) > 1:
        by_resource[Resource.KERNEL] = _sum(members, Resource.KERNEL) or 0.0
    low, limit = 1.0, NOTHING
    for resource, total in by_resource.items():
        if total > low and solo.shares.get(resource, 0.0) >= MIN_SHARE:
            low, limit = total, resource.value
    high = count / part.sm if len(members) > 1 else 1.0
    if mps is not None and mps.thread_percentage is not None:
        cap = mps.thread_percentage / 100 * part.sm
        if solo.shares[Resource.SM] / cap > low:
            low, limit = solo.shares[Resource.SM] / cap, f"its cap of {mps.thread_percentage:g} %"
        high = max(high, _stretched(row, cap))
    return Range(low, max(low, high)), limit


def _instance(row: Row, part: Part) -> tuple[Range, str]:
    """Alone on an instance: the neighbours do not matter."""
    assert row.collocation.mig is not None
    paces = row.solo.on_profile.get(str(row.collocation.mig).lower())
    known = None if paces is None else row.solo.slowdown_of(paces)
    if known is not None:
        return Range(known, known), MEASURED_THERE
    shares = row.solo.shares
    low = max(1.0, shares[Resource.SM] / part.sm, shares.get(Resource.DRAM, 0.0) / part.dram)
    limit = OWN_INSTANCE if low > 1 else NOTHING
    return Range(low, max(low, _stretched(row, part.sm))), limit


def _stretched(row: Row, fraction: float) -> float:
    """If all of its kernels could use the whole device: they take longer, the rest does not."""
    kernel = row.solo.shares.get(Resource.KERNEL, 1.0)
    if row.solo.sm_is_utilization:
        kernel = row.solo.shares[Resource.SM]
    return max(1.0, 1 - kernel + kernel / fraction)


def _sum(members: Sequence[Row], resource: Resource) -> float | None:
    """None where one of them lacks it."""
    found = [one.solo.shares.get(resource) for one in members]
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None
