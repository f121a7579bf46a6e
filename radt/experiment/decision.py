"""What the next start does with a row, from the status the last one left."""

from __future__ import annotations

from enum import StrEnum

from radt.model import RunStatus


class Action(StrEnum):
    """What a start does with a row."""

    RUN = "run"
    RESUME = "resume"  # run again: the last run did not end by itself
    SKIP = "skip"

    @property
    def runs(self) -> bool:
        """Whether the row is started."""
        return self is not Action.SKIP


def decide(status: RunStatus | None, *, rerun: bool = False) -> Action:
    """What a start does with a row of this status; the caller holds the file's lock.

    Under the lock no other runner lives, so a row that says RUNNING lost its runner.

    Args:
        status: What the row's Status cell says, None if it is empty.
        rerun: Whether the user asked for failed rows again.
    """
    match status:
        case RunStatus.FINISHED:
            return Action.SKIP
        case RunStatus.FAILED:
            return Action.RUN if rerun else Action.SKIP
        case RunStatus.RUNNING | RunStatus.KILLED:
            return Action.RESUME
        case _:
            return Action.RUN
