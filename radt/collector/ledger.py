"""Count expected, received and missed samples and logged values.

Ticks are numbered from the start of the monotonic clock: tick n of a listener is due at ``n *
interval``. A tick without a reading is missed, whatever the reason. Logged values have a ledger row
only if some were lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from radt.model import SOFTWARE, MissingReason
from radt.store.records import LedgerRecord

#: Maximum number of gaps recorded per listener; further ones are only counted.
MAX_GAPS = 1000


class ListenerState(StrEnum):
    """State of a listener, and its state in a run as in the ledger."""

    OPENING = "opening"
    RUNNING = "running"
    UNAVAILABLE = "unavailable"
    DROPPED = "dropped"
    ENDED = "ended"

    @property
    def is_open(self) -> bool:
        """Return whether readings are to be expected."""
        return self in (ListenerState.OPENING, ListenerState.RUNNING)


@dataclass(frozen=True, slots=True)
class MissedStretch:
    """A stretch without readings, in monotonic time."""

    start_ns: int
    end_ns: int
    detail: str
    reason: MissingReason = MissingReason.LOST


@dataclass(slots=True)
class Account:
    """One listener's account in one run; times are monotonic.

    ``explanation`` is the reason for the next missed stretch; ``last_ns`` is the time of the last
    reading, or of the start, 0 before that.
    """

    listener: str
    interval_ns: int
    start_ns: int | None = None
    state: ListenerState = ListenerState.OPENING
    reason: str = ""
    received: int = 0
    missed: int = 0
    sampling_ns: int = 0
    sampling_max_ns: int = 0
    late_ns: int = 0
    late_max_ns: int = 0
    explanation: str = ""
    stretches: list[MissedStretch] = field(default_factory=list)
    changed: bool = True
    last_ns: int = 0
    _before_ns: int | None = None
    _listed: int = 0

    def start(self, start_ns: int) -> None:
        """Expect readings from now on."""
        if self.start_ns is None:
            self.start_ns = self.last_ns = start_ns
            self.changed = True
            self._miss_before()

    def started_by(self, end_ns: int) -> None:
        """Expect no readings from a worker that was started after the run's end."""
        if self.start_ns is not None and self.start_ns > end_ns:
            self.start_ns = self.last_ns = end_ns

    def resume(self, before: LedgerRecord, last_ns: int | None) -> None:
        """Continue the counts of an earlier collector from its last reading, if any."""
        self.received += before.received
        self.missed += before.missed
        self.sampling_ns += before.sampling_ns
        self.sampling_max_ns = max(self.sampling_max_ns, before.sampling_max_ns)
        self.late_ns += before.late_ns
        self.late_max_ns = max(self.late_max_ns, before.late_max_ns)
        self.changed = True
        self._before_ns = last_ns
        self._miss_before()

    def _miss_before(self) -> None:
        """Count the gap between collectors once both of its ends are known."""
        if self.start_ns is not None and self._before_ns is not None:
            self._miss(self._before_ns, self.start_ns, "the collector was restarted")

    def reading(self, now_ns: int, took_ns: int) -> None:
        """Count a reading that began at ``now_ns``."""
        assert self.start_ns is not None
        self.received += 1
        self.sampling_ns += took_ns
        self.sampling_max_ns = max(self.sampling_max_ns, took_ns)
        late_ns = now_ns % self.interval_ns  # ticks are multiples of the interval
        self.late_ns += late_ns
        self.late_max_ns = max(self.late_max_ns, late_ns)
        self.state = ListenerState.RUNNING
        self._miss(self.last_ns, now_ns, self.explanation or "no reading", inclusive=False)
        self.explanation = ""
        self.last_ns = now_ns
        self.changed = True

    def end(self, end_ns: int) -> None:
        """Expect nothing after ``end_ns``."""
        if self.start_ns is None:
            return
        if self.state is ListenerState.UNAVAILABLE and not self.received:
            return  # it was never available, so no readings were expected
        # A tick that is just due and may be in progress is not missed.
        due_ns = end_ns - self.interval_ns // 4
        self._miss(self.last_ns, due_ns, self.explanation or self.reason or "no reading")
        if self.state.is_open:
            self.state = ListenerState.ENDED
        self.changed = True

    def take_stretches(self) -> Sequence[MissedStretch]:
        taken, self.stretches = self.stretches, []
        return taken

    def record(self, run_id: str) -> LedgerRecord:
        """Return the account as a row."""
        return LedgerRecord(
            run_id=run_id,
            listener=self.listener,
            interval_s=self.interval_ns / 1e9,
            expected=self.received + self.missed,
            received=self.received,
            missed=self.missed,
            sampling_ns=self.sampling_ns,
            sampling_max_ns=self.sampling_max_ns,
            late_ns=self.late_ns,
            late_max_ns=self.late_max_ns,
            state=str(self.state),
            reason=self.reason,
        )

    def _miss(self, after_ns: int, until_ns: int, detail: str, *, inclusive: bool = True) -> None:
        """Count the ticks that were due in a stretch."""
        missed = until_ns // self.interval_ns - after_ns // self.interval_ns
        if not inclusive:
            missed -= 1  # the tick at the end was read
        if missed <= 0:
            return
        self.missed += missed
        if self._listed < MAX_GAPS:
            self._listed += 1
            self.stretches.append(MissedStretch(after_ns, until_ns, detail))


#: Name of markers for records that the script dropped, and the reason.
DROPPED = "journal records dropped"
REASON = "records that the script could not write, usually because the disk was full"
#: The same for records that were written but are damaged.
DAMAGED = "journal damaged"
DAMAGE_REASON = "values lost to damaged files of the journal"


@dataclass(slots=True)
class Losses:
    """Counts a run's journal records."""

    run_id: str
    received: int = 0
    missed: int = 0
    reasons: tuple[str, ...] = ()

    def miss(self, count: int, reason: str) -> None:
        """Count lost values, with the reason."""
        self.missed += count
        if reason not in self.reasons:
            self.reasons += (reason,)

    def resume(self, before: LedgerRecord | None, points: int) -> None:
        """Continue from the store: from the run's ledger row, if any, and its number of points."""
        self.received = points
        if before is not None:
            self.missed = before.missed
            self.reasons = tuple(before.reason.split("; "))

    @property
    def record(self) -> LedgerRecord | None:
        """Return a ledger row without an interval; None if nothing was lost."""
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
            reason="; ".join(self.reasons),
        )
