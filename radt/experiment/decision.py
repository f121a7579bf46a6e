"""What the next start does with a row, from the status the last one left."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from radt.model import RunStatus


class Action(StrEnum):
    """What a start does with a row."""

    RUN = "run"
    RESUME = "resume"  # run again: the last run did not end by itself
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with a row, and why (``reason`` is for people; empty for a first run)."""

    action: Action
    reason: str = ""

    @property
    def runs(self) -> bool:
        """Whether the row is started."""
        return self.action is not Action.SKIP

    def __str__(self) -> str:
        return f"{self.action} ({self.reason})" if self.reason else str(self.action)


def decide(status: RunStatus | None, rerun: bool = False) -> Decision:
    """What a start does with a row of this status; the caller holds the file's lock.

    Under the lock no other runner lives, so a row that says RUNNING lost its runner.

    Args:
        status: What the row's Status cell says, None if it is empty.
        rerun: Whether the user asked for failed rows again.
    """
    match status:
        case RunStatus.FINISHED:
            return Decision(Action.SKIP, "FINISHED")
        case RunStatus.FAILED if not rerun:
            return Decision(Action.SKIP, "FAILED, --rerun runs it again")
        case RunStatus.FAILED:
            return Decision(Action.RUN, "again, it FAILED")
        case RunStatus.RUNNING:
            return Decision(Action.RESUME, "its runner died")
        case RunStatus.KILLED:
            return Decision(Action.RESUME, "it was KILLED")
        case _:
            return Decision(Action.RUN)
