"""What the next start does with the rows of a workload, from the statuses the last one left.

A workload is a unit: if one of its rows has to run, all of them do, so that what is measured was
really collocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from radt.experiment.plan import RunSpec, WorkloadPlan
from radt.model import RunStatus

#: Ends that are results; only ``--rerun`` tries again.
_FAILURES = (RunStatus.FAILED, RunStatus.OOM, RunStatus.TIMEOUT)


class Action(StrEnum):
    """What a start does with a row."""

    RUN = "run"
    RESUME = "resume"  # run again: the last run did not end by itself
    REPEAT = "repeat"  # it is done, and more repeats are asked for
    AGAIN = "again"  # it is done, and its workload runs again
    SKIP = "skip"

    @property
    def runs(self) -> bool:
        """Whether the row is started."""
        return self is not Action.SKIP


def decide(row: RunSpec, *, rerun: bool = False, repeat: int = 1) -> Action:
    """What a start would do with a row if it were alone; the caller holds the file's lock.

    Under the lock no other runner lives, so a row that says RUNNING lost its runner.

    Args:
        row: Its status and how many repeats it has finished.
        rerun: Whether the user asked again for rows that failed.
        repeat: How often each row is to be run.
    """
    match row.status:
        case RunStatus.FINISHED:
            return Action.SKIP if row.repeats_done >= repeat else Action.REPEAT
        case status if status in _FAILURES:
            return Action.RUN if rerun else Action.SKIP
        case RunStatus.RUNNING | RunStatus.KILLED:
            return Action.RESUME
        case _:
            return Action.RUN


def actions(
    workload: WorkloadPlan, *, rerun: bool = False, repeat: int = 1
) -> Mapping[str, Action]:
    """What a start does with each row of a workload, by its letter.

    Repeats that are missing do not start a workload that failed: its next one would, too.
    """
    alone = {run.letter: decide(run, rerun=rerun, repeat=repeat) for run in workload.runs}
    failed = not rerun and any(run.status in _FAILURES for run in workload.runs)
    if not any(one.runs and not (failed and one is Action.REPEAT) for one in alone.values()):
        return dict.fromkeys(alone, Action.SKIP)
    return {row: action if action.runs else Action.AGAIN for row, action in alone.items()}


def first_repeat(workload: WorkloadPlan) -> int:
    """The number, from 1, of the repeat that comes next if the workload runs."""
    return min(run.repeats_done for run in workload.runs) + 1
