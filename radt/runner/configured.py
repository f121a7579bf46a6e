"""The options of a start as settings have them."""

from __future__ import annotations

from radt import settings
from radt.runner.options import BusyPolicy, ExperimentOptions, SyncPoint
from radt.settings import Settings


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
