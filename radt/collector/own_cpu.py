"""CPU time of the tracker itself: the collector, and all that it has started."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from radt.procfs import TICKS_PER_S, process_stat


def own_cpu_s(deliverer_pids: Iterable[int], guardian_pid: int | None = None) -> float:
    """What all processes of the tracker have used, those that have ended included.

    Args:
        deliverer_pids: Children of this process that are running; what they waited for counts.
        guardian_pid: This process' parent, None to leave it out: it sleeps.
    """
    # The living first: one that ends meanwhile is counted twice for now, rather than not.
    ticks = 0
    for pid in deliverer_pids:
        if (stat := process_stat(pid)) is not None:
            ticks += stat.cpu_ticks
    # The guardian's children are this process, and those that died before it.
    if guardian_pid is not None and (stat := process_stat(guardian_pid)) is not None:
        ticks += stat.own_cpu_ticks
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + ticks / TICKS_PER_S
