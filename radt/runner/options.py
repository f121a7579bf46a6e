"""Options of one start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from radt import settings
from radt.collocation.busy import BusyPolicy
from radt.settings import Settings


class SyncPoint(StrEnum):
    """Where the rows of a workload wait for each other."""

    START = "start"  # as processes
    CONTEXT = "context"  # at the entrance of their `with radt.Run()`


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Options of one start.

    ``only`` are labels of workloads, empty for all. ``max_time_s`` and ``max_epoch`` end the
    script's ``with radt.Run()`` block. ``notify`` is a command line or an address.
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


def experiment_options(
    found: Settings, *, rerun: bool = False, only: tuple[str, ...] = ()
) -> ExperimentOptions:
    """What the settings say; ``rerun`` and ``only`` are of one start and in no settings file.

    Raises:
        UsageError: A setting has no value of its kind.
    """
    return ExperimentOptions(
        rerun=rerun,
        only=only,
        repeat=found[settings.REPEAT],
        cooldown_s=found[settings.COOLDOWN],
        max_time_s=found[settings.MAX_TIME],
        max_epoch=found[settings.MAX_EPOCH],
        sync=SyncPoint(found[settings.SYNC]),
        fail_fast=found[settings.FAIL_FAST],
        busy=BusyPolicy(found[settings.BUSY]),
        notify=found[settings.NOTIFY],
        yes=found[settings.YES],
        quiet=found[settings.QUIET],
    )
