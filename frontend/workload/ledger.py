"""What the listeners of a workload read and missed, and what reading cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.frontend.catalog import RunEntry
from radt.frontend.source import Source
from radt.frontend.workload.subject import Subject
from radt.model import MissingReason
from radt.store.records import GapRecord, LedgerRecord

#: Gaps of one listener that are listed one by one.
MAX_GAPS = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """One listener of one run with its gaps, the longest first."""

    run: RunEntry
    record: LedgerRecord
    gaps: tuple[GapRecord, ...]

    @property
    def late_s(self) -> float | None:
        """How long after their due time readings began, on average."""
        count = self.record.received
        return self.record.late_ns / count / 1e9 if count else None

    @property
    def cost_s(self) -> float | None:
        """How long a reading took, on average."""
        count = self.record.received
        return self.record.sampling_ns / count / 1e9 if count else None

    @property
    def cost_share(self) -> float | None:
        """The part of the time that went into readings."""
        span_s = self.record.expected * self.record.interval_s
        return self.record.sampling_ns / 1e9 / span_s if span_s > 0 else None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All listeners of a workload."""

    entries: tuple[Entry, ...]

    @property
    def expected(self) -> int:
        return sum(entry.record.expected for entry in self.entries)

    @property
    def missed(self) -> int:
        return sum(entry.record.missed for entry in self.entries)

    @property
    def is_complete(self) -> bool:
        return self.missed == 0

    @property
    def text(self) -> str:
        """``complete``, or ``missed 18 of 412``; empty where nothing was to be read."""
        if not self.entries:
            return "nothing to read"
        if self.is_complete:
            return "complete"
        return f"missed {self.missed:,} of {self.expected:,}"

    @property
    def why(self) -> str:
        """Which listeners missed something, and why as far as it is known."""
        words: dict[str, None] = {}
        for entry in self.entries:
            if entry.record.missed:
                reason = entry.record.reason or next(
                    (reason_of(gap) for gap in entry.gaps if gap.reason is MissingReason.LOST), ""
                )
                name = f"{entry.record.listener} of {entry.run.record.letter or entry.run.short}"
                words[f"{name}: {reason}" if reason else name] = None
        return "; ".join(list(words)[:3]) + ("…" if len(words) > 3 else "")


def reason_of(gap: GapRecord) -> str:
    """``lost: the collector was restarted``."""
    return gap.detail or gap.reason.value


def ledger_of(source: Source, subject: Subject) -> Ledger:
    """The ledger of a workload, by listener, then by run.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = subject.run_ids
    records = source.remember(("ledger", run_ids), lambda reader: reader.ledger(run_ids))
    gaps = gaps_of(source, run_ids)
    by_listener: dict[tuple[str, str], list[GapRecord]] = {}
    for gap in gaps:
        by_listener.setdefault((gap.run_id, gap.listener), []).append(gap)
    return Ledger(tuple(_entries(subject.runs, records, by_listener)))


def gaps_of(source: Source, run_ids: tuple[str, ...]) -> Sequence[GapRecord]:
    """The gaps of the runs.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember(("gaps", run_ids), lambda reader: reader.gaps(run_ids))


def _entries(
    runs: Mapping[str, RunEntry],
    records: Iterable[LedgerRecord],
    gaps: Mapping[tuple[str, str], Sequence[GapRecord]],
) -> Iterable[Entry]:
    places = {run_id: place for place, run_id in enumerate(runs)}
    for record in sorted(records, key=lambda one: (one.listener, places[one.run_id])):
        own = sorted(
            gaps.get((record.run_id, record.listener), ()),
            key=lambda gap: gap.start_ns - gap.end_ns,
        )
        yield Entry(runs[record.run_id], record, tuple(own))
