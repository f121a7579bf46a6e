"""Counts what scripts logged and could not be kept: an account of the journal, beside those of the
listeners.

There is one only where something was lost; a run without it has all that was logged.
"""

from __future__ import annotations

from dataclasses import dataclass

from radt.model import SOFTWARE
from radt.store.records import LedgerRecord

#: Marks the loss in the run, each time that one becomes known.
DROPPED = "journal records dropped"
REASON = "records that the script could not write, mostly for want of disk space"


@dataclass(slots=True)
class Losses:
    """Records of one run's journals, as far as they are known."""

    run_id: str
    received: int = 0
    missed: int = 0

    def resume(self, before: LedgerRecord | None, points: int) -> None:
        """Go on from what is in the store: its account, if there is one, and its points."""
        self.received = points
        self.missed = before.missed if before is not None else 0

    @property
    def record(self) -> LedgerRecord | None:
        """The account as a row; None where nothing was lost. Scripts log at no interval."""
        if not self.missed:
            return None
        return LedgerRecord(
            run_id=self.run_id,
            listener=SOFTWARE,
            interval_s=0.0,
            expected=self.received + self.missed,
            received=self.received,
            missed=self.missed,
            sampling_ns=0,
            state="incomplete",
            reason=REASON,
        )
