"""How an experiment is to be run, apart from what its file says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SyncPoint(StrEnum):
    """Where the rows of a workload wait for each other."""

    START = "start"  # as processes
    CONTEXT = "context"  # at the entrance of their `with radt.Run()`


class BusyPolicy(StrEnum):
    """What to do when somebody else's process is on a device that a workload needs."""

    WAIT = "wait"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Options of one start.

    ``only`` are labels of workloads, empty for all. ``max_time_s`` and ``max_epoch`` end the
    script's ``with radt.Run()`` block. ``notify`` is a command line or an http(s) address.
    """

    rerun: bool = False
    only: tuple[str, ...] = ()
    repeat: int = 1
    cooldown_s: float = 0.0
    max_time_s: float | None = None
    max_epoch: int | None = None
    sync: SyncPoint = SyncPoint.START
    fail_fast: bool = False
    busy: BusyPolicy = BusyPolicy.WAIT
    notify: str = ""
    yes: bool = False
    quiet: bool = False
