"""How an experiment is to be run, apart from what its file says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from radt.collocation.busy import BusyPolicy

__all__ = ["BusyPolicy", "ExperimentOptions", "SyncPoint"]


class SyncPoint(StrEnum):
    """Where the rows of a workload wait for each other."""

    START = "start"  # as processes
    CONTEXT = "context"  # at the entrance of their `with radt.Run()`


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

    def with_repeat_of(self, repeat: int) -> ExperimentOptions:
        """The same, with the number of repeats that a file asks for unless more are asked for."""
        return replace(self, repeat=max(self.repeat, repeat))
