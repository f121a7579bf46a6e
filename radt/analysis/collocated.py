"""Decide whether an experiment compares workloads, or the runs in them."""

from __future__ import annotations

from collections import Counter

from radt.analysis.baselines import Work, ignored_params, work_of
from radt.analysis.selection import NO_COLLOCATION, Selection
from radt.store.records import RunRecord

_SEEDS = frozenset({"seed", "random-seed"})


def output_params() -> frozenset[str]:
    """Return the params that do not change the work except seeds, which distinguish runs.

    Raises:
        UsageError: The settings file cannot be read.
    """
    return ignored_params() - _SEEDS


def is_about_collocation(selection: Selection) -> bool:
    """Return whether an experiment compares ways to share hardware, and so its workloads.

    It does if the same work runs

    - several times on one device in one workload, or
    - in workloads that differ in the number of runs on its device, or in the collocation.

    Work is a command without the paths of its output. In a sweep, each work runs in one workload,
    and its neighbours merely run at the same time. Seeds in batches are a sweep as well.

    Raises:
        UsageError: The settings file cannot be read.
    """
    ignored = output_params()
    sharing_of: dict[Work, tuple[str, int]] = {}
    for attempt in (*(repeats[-1] for repeats in selection.current), *selection.running):
        rows = attempt.trained
        runs_on = Counter(device for run in rows for device in _devices(run))
        placed: set[tuple[Work, str]] = set()
        for run in rows:
            work = work_of(run.command, ignored)
            collocation = "" if run.collocation in NO_COLLOCATION else run.collocation
            sharing = collocation, max(runs_on[device] for device in _devices(run))
            places = {(work, device) for device in _devices(run)}
            if sharing_of.setdefault(work, sharing) != sharing or places & placed:
                return True
            placed |= places
    return False


def _devices(run: RunRecord) -> list[str]:
    return run.devices.split("+")
