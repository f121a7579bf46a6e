"""Points of MLflow's metrics and what follows from them, kept in memory as far as there is room.

Of metrics that still grow only what is new is read: by time, with a little before it, because
several processes may log at once. What came later than that is found when the run has ended.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection

from radt.frontend.foreign import statements
from radt.frontend.foreign.connection import MlflowConnection, rows_in_blocks
from radt.frontend.foreign.mlflow_run import NS_PER_MS
from radt.frontend.foreign.points import (
    between,
    collected,
    finite_or_none,
    joined,
    thinned_to_fit,
    with_steps_if_any,
)
from radt.store.records import Samples, SeriesRecord, SummaryRecord

#: Points kept of all series, 24 bytes each.
_CACHED_POINTS = 2_000_000
#: Points are read again this long before the last known one.
_OVERLAP_MS = 10_000
#: So many points are counted anew each time before what they add up to is kept.
_RECOUNTED = 5_000
_EARLIEST_MS, _LATEST_MS = -(2**53), 2**53


class Latest(NamedTuple):
    """The last point of a metric: it changes as points are logged."""

    timestamp: int
    step: int
    value: float
    is_nan: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """What points add up to; times in milliseconds. ``first`` is the value of the earliest."""

    count: int = 0
    finite: int = 0
    total: float = 0.0
    smallest: float | None = None
    largest: float | None = None
    first_ms: int = 0
    last_ms: int = 0
    first: float | None = None

    @classmethod
    def of_row(cls, row: Iterable[Any]) -> Totals:
        """From a row of `statements.STATISTICS`, without its key."""
        count, finite, total, smallest, largest, first_ms, last_ms = row
        return cls(
            int(count), int(finite or 0), float(total or 0), smallest, largest, first_ms, last_ms
        )

    @classmethod
    def of(cls, samples: Samples) -> Totals:
        """Of points in time order, of which there is at least one."""
        finite = samples.values[np.isfinite(samples.values)]
        some = len(finite) > 0
        return cls(
            len(samples),
            len(finite),
            float(finite.sum()),
            float(finite.min()) if some else None,
            float(finite.max()) if some else None,
            int(samples.times_ns[0]) // NS_PER_MS,
            int(samples.times_ns[-1]) // NS_PER_MS,
            finite_or_none(samples.values[0]),
        )

    def and_later(self, other: Totals) -> Totals:
        """Together with points after these."""
        if not self.count or not other.count:
            return other if other.count else self
        known = [one for one in (self.smallest, other.smallest) if one is not None]
        largest = [one for one in (self.largest, other.largest) if one is not None]
        return Totals(
            self.count + other.count,
            self.finite + other.finite,
            self.total + other.total,
            min(known, default=None),
            max(largest, default=None),
            self.first_ms,
            other.last_ms,
            self.first,
        )

    def summary(self, series: SeriesRecord, latest: Latest) -> SummaryRecord:
        """As a record; the last value is MLflow's own idea of it: that of the largest step."""
        return SummaryRecord(
            series,
            self.count,
            finite_or_none(self.total / self.finite) if self.finite else None,
            self.smallest,
            self.largest,
            self.first,
            None if latest.is_nan else finite_or_none(latest.value),
            self.first_ms * NS_PER_MS,
            self.last_ms * NS_PER_MS,
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Totals of a metric when ``latest`` was its last point; ``before`` are those before a time.

    ``cut_ms`` is that time; None where it has not been needed yet.
    """

    latest: Latest
    totals: Totals
    before: Totals = Totals()
    cut_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    """Points of a metric when ``latest`` was its last; ``complete`` says that these are all."""

    latest: Latest | None
    samples: Samples
    complete: bool
    ended: bool


class Histories:
    """Reads metrics of runs, by MLflow's ids. Thread-safe."""

    def __init__(self, database: MlflowConnection) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._counted: dict[str, dict[str, _Counted]] = {}
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._points = 0
        run_column = database.without_index("run_uuid")
        self._between = statements.points_between(run_column)

    # -- sums -------------------------------------------------------------------------------------

    def totals(self, run_id: str, latest: Mapping[str, Latest]) -> Mapping[str, Totals]:
        """What the points of each metric of a run add up to.

        Args:
            run_id: The run.
            latest: The last point of each of its metrics.

        Raises:
            StoreError: The database cannot be read.
        """
        known = self._counted.get(run_id, {})
        changed = [key for key in latest if key not in known]
        grown = [key for key in known if key in latest and known[key].latest != latest[key]]
        if changed or grown:
            with self._database.snapshot() as connection:
                fresh = self._first(connection, run_id, latest) if changed else {}
                for key in grown:
                    fresh[key] = self._more(connection, run_id, key, known[key], latest[key])
            known = {**known, **fresh}
            with self._lock:
                self._counted[run_id] = known
        return {key: one.totals for key, one in known.items() if key in latest}

    def _first(
        self, connection: Connection, run_id: str, latest: Mapping[str, Latest]
    ) -> dict[str, _Counted]:
        found = {}
        for key, *row in connection.execute(statements.STATISTICS, {"run_id": run_id}).all():
            totals = Totals.of_row(row)
            at = {"run_id": run_id, "key": key, "at": totals.first_ms}
            value, is_nan = connection.execute(statements.AT_TIME, at).one()
            if key in latest:
                first = None if is_nan else finite_or_none(value)
                found[key] = _Counted(latest[key], replace(totals, first=first))
        return found

    def _more(
        self, connection: Connection, run_id: str, key: str, known: _Counted, latest: Latest
    ) -> _Counted:
        before, cut_ms = known.before, known.cut_ms
        place = {"run_id": run_id, "key": key}
        if cut_ms is None:
            cut_ms = known.totals.last_ms - _OVERLAP_MS
            row = connection.execute(statements.STATISTICS_BEFORE, {**place, "end": cut_ms}).one()
            before = replace(Totals.of_row(row), first=known.totals.first) if row[0] else Totals()
        tail = self._since(connection, run_id, key, cut_ms)
        totals = before.and_later(Totals.of(tail)) if len(tail) else before
        if len(tail) > _RECOUNTED:
            new_cut_ms = totals.last_ms - _OVERLAP_MS
            older = between(tail, None, new_cut_ms * NS_PER_MS - 1)
            if len(older):
                before, cut_ms = before.and_later(Totals.of(older)), new_cut_ms
        return _Counted(latest, totals, before, cut_ms)

    # -- points -----------------------------------------------------------------------------------

    def points(
        self, run_id: str, key: str, start_ns: int | None, end_ns: int | None, *, ended: bool
    ) -> Samples:
        """Points of a metric in time order; of very many in a stretch those that matter.

        Raises:
            StoreError: The database cannot be read.
        """
        kept = self._up_to_date(run_id, key, ended=ended)
        samples = kept.samples
        if not kept.complete and (start_ns is not None or end_ns is not None):
            with self._database.snapshot() as connection:
                window = {
                    "start": _EARLIEST_MS if start_ns is None else -(-start_ns // NS_PER_MS),
                    "end": _LATEST_MS if end_ns is None else end_ns // NS_PER_MS,
                }
                result = connection.execute(self._between, {"run_id": run_id, "key": key, **window})
                samples, _ = collected(rows_in_blocks(result))
        return with_steps_if_any(between(samples, start_ns, end_ns))

    def _up_to_date(self, run_id: str, key: str, *, ended: bool) -> _Kept:
        place = {"run_id": run_id, "key": key}
        with self._lock:
            known = self._kept.get((run_id, key))
            if known is not None:
                self._kept.move_to_end((run_id, key))
        with self._database.snapshot() as connection:
            row = connection.execute(statements.LATEST_OF_ONE, place).first()
            latest = None if row is None else Latest(*row)
            if known is not None and known.latest == latest and known.ended >= ended:
                return known
            if known is None or known.ended or ended or not len(known.samples):
                result = connection.execute(statements.ALL_POINTS, place)
                samples, complete = collected(rows_in_blocks(result))
            else:
                cut_ms = int(known.samples.times_ns[-1]) // NS_PER_MS - _OVERLAP_MS
                older = between(known.samples, None, cut_ms * NS_PER_MS - 1)
                tail = self._since(connection, run_id, key, cut_ms)
                samples, fits = thinned_to_fit(joined([older, tail]))
                complete = known.complete and fits
        kept = _Kept(latest, samples, complete, ended)
        with self._lock:
            self._keep((run_id, key), kept)
        return kept

    def _since(self, connection: Connection, run_id: str, key: str, start_ms: int) -> Samples:
        window = {"run_id": run_id, "key": key, "start": start_ms, "end": _LATEST_MS}
        rows = connection.execute(self._between, window)
        return collected(rows_in_blocks(rows))[0]

    def _keep(self, place: tuple[str, str], kept: _Kept) -> None:
        before = self._kept.pop(place, None)
        self._points += len(kept.samples) - (0 if before is None else len(before.samples))
        self._kept[place] = kept
        while self._points > _CACHED_POINTS and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._points -= len(oldest.samples)
