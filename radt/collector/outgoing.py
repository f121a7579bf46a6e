"""What has been read for a run and is on its way to the store, series by series.

Times are monotonic.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt.collector.ledger import MissedStretch
from radt.listeners.api import Metric
from radt.model import MissingReason
from radt.store.records import LedgerRecord


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """What makes a series one of its own within a run."""

    listener: str
    metric: str
    entity: str = ""


@dataclass(slots=True)
class Column:
    """Points of one series that have not reached the store."""

    metric: Metric
    interval_s: float | None
    method: str = ""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Missing:
    """A series without values from ``start_ns`` to ``end_ns``."""

    key: SeriesKey
    metric: Metric
    interval_s: float | None
    start_ns: int
    end_ns: int
    reason: MissingReason
    method: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that radt noticed during the run."""

    name: str
    at_ns: int
    detail: str = ""


@dataclass(slots=True)
class OpenGap:
    """A series that has no values now. ``told_ns`` is when the store last heard of it."""

    metric: Metric
    interval_s: float | None
    start_ns: int
    last_ns: int
    reason: MissingReason
    method: str
    told_ns: int = 0

    def until(self, key: SeriesKey, end_ns: int) -> Missing:
        """The gap as far as it goes by then."""
        return Missing(
            key, self.metric, self.interval_s, self.start_ns, end_ns, self.reason, self.method
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes to the store in one transaction."""

    columns: Mapping[SeriesKey, Column] = field(default_factory=dict)
    missing: Sequence[Missing] = ()
    events: Sequence[Event] = ()
    ledgers: Sequence[LedgerRecord] = ()
    stretches: Mapping[str, Sequence[MissedStretch]] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(len(column.times_ns) for column in self.columns.values())

    @property
    def empty(self) -> bool:
        return not (self.columns or self.missing or self.events or self.ledgers or self.stretches)
