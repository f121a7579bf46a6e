"""What would keep a workload's runs off their GPUs, found before they start."""

from __future__ import annotations

from collections import Counter

from radt.collocation.compute_mode import compute_mode_problem
from radt.collocation.planner import DevicePlan
from radt.collocation.processes import ProcessLists


def check_compute_modes(plan: DevicePlan) -> None:
    """See that each GPU takes as many processes as the plan puts there.

    Where an administrator has made it exclusive, runs would fail with a message that does not name
    the cause.

    Raises:
        DeviceError: One does not, or the driver does not answer.
    """
    whole = [share for share in plan.shares.values() if share.compute is None]
    # All clients of an MPS daemon count as one process.
    daemons = {(index, share.mps) for share in whole if share.mps for index in share.gpus}
    counts = Counter(index for index, _ in daemons)
    counts.update(index for share in whole if not share.mps for index in share.gpus)
    if not counts:
        return
    with ProcessLists() as lists:
        for index, processes in sorted(counts.items()):
            problem = compute_mode_problem(lists, index, processes=processes, mps=False)
            if problem is not None:
                raise problem
