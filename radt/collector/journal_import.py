"""Turn the contents of a run's journals into rows of the store.

A commit is not synced to disk by itself (``synchronous = NORMAL``): a power failure may undo the
last commits, but only whole ones. The journals are then read again. A removed segment cannot be
read again, so its commits must be on disk before it is removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radt.clock import Clock
from radt.collector.ledger import DAMAGE_REASON, DAMAGED, DROPPED, REASON, Losses
from radt.collector.routing import LogUpdate, Numbering, SeriesKey
from radt.journal.reader import JournalBatch, JournalReader, ScalarColumn, SpanEvent
from radt.listeners.api import Metric
from radt.model import SOFTWARE, MarkerKind, Scope
from radt.store.records import (
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    Samples,
    SeriesBatch,
)

log = logging.getLogger(__name__)


def sync_to_disk(store: Path) -> None:
    """Return when all commits of an SQLite store are on disk; raise OSError if that fails.

    Commits are in the write-ahead log, or in the file, to which SQLite moves them with its own
    fsync (https://www.sqlite.org/wal.html#performance_considerations).
    """
    try:
        descriptor = os.open(store.with_name(f"{store.name}-wal"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Data from one read of a run's journals, ready for the store."""

    batches: Sequence[SeriesBatch] = ()
    markers: Sequence[MarkerRecord] = ()
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    cursors: Sequence[JournalCursor] = ()
    pids: frozenset[int] = frozenset()
    update: LogUpdate = field(default_factory=LogUpdate)
    ledger: LedgerRecord | None = None
    more: bool = False

    @property
    def empty(self) -> bool:
        return not (self.batches or self.markers or self.params or self.tags or self.cursors)


class JournalImport:
    """Reads the journals of one run, starting at the position in the store.

    Args:
        reader: Reader of its journals.
        clock: Clock that converts their times.
        numbering: Numbers of the run's series and markers, including those of listeners.
        losses: Counts the records.
    """

    def __init__(
        self, reader: JournalReader, clock: Clock, numbering: Numbering, losses: Losses
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._numbering = numbering
        self._losses = losses
        #: Open epochs and spans by process and token.
        self._open: dict[tuple[str, int], MarkerRecord] = {}

    def read(self, *, final: bool) -> JournalPart:
        """Read new records; ``final``: the processes have exited, so nothing more will follow.

        Raises:
            JournalError: A journal is damaged.
        """
        batch = self._reader.read(final=final)
        self._losses.received += sum(
            len(column.times_ns) for column in batch.scalars if _logged_by_script(column)
        )
        markers = self._markers(batch.spans)
        if batch.dropped:
            markers.append(self._loss(batch, DROPPED, batch.dropped, REASON))
        if batch.lost:
            markers.append(self._loss(batch, DAMAGED, batch.lost, DAMAGE_REASON))
        if batch.lost_events:
            log.warning(
                "run %s: %d damaged lines of events", self._losses.run_id, batch.lost_events
            )
        return JournalPart(
            batches=[self._series(column) for column in batch.scalars if len(column.times_ns)],
            markers=markers,
            ledger=self._losses.record,
            params=dict(batch.params),
            tags=dict(batch.tags),
            cursors=tuple(batch.cursors),
            pids=frozenset(batch.pids),
            update=_update(batch),
            more=batch.more,
        )

    def _loss(self, batch: JournalBatch, name: str, count: int, reason: str) -> MarkerRecord:
        """Count and log lost values, and mark the stretch up to the next values."""
        self._losses.miss(count, reason)
        log.warning("run %s: %d %s", self._losses.run_id, count, reason)
        times_ns = [int(column.times_ns.max()) for column in batch.scalars if len(column.times_ns)]
        times_ns += [event.monotonic_ns for event in batch.spans]
        at_ns = self._clock.to_wall_ns(max(times_ns)) if times_ns else self._clock.now_ns()
        detail = f"{count} {reason}"
        return self._numbering.marker(MarkerKind.EVENT, name, at_ns, detail=detail)

    def _series(self, column: ScalarColumn) -> SeriesBatch:
        key, metric = _identity(column)
        times_ns = np.asarray(column.times_ns, np.int64) + self._clock.offset_ns
        steps = None if column.steps is None else np.asarray(column.steps, np.int64)
        values = np.asarray(column.values, np.float64)
        return SeriesBatch(
            self._numbering.series(key, metric, None), Samples(times_ns, values, steps)
        )

    def _markers(self, events: Sequence[SpanEvent]) -> list[MarkerRecord]:
        changed: dict[int, MarkerRecord] = {}
        for event in events:
            at_ns = self._clock.to_wall_ns(event.monotonic_ns)
            if event.begin:
                marker = self._numbering.marker(
                    event.kind, event.name, at_ns, step=event.step, process=event.process
                )
                self._open[event.process, event.token] = marker
            else:
                begun = self._open.pop((event.process, event.token), None)
                # It began before a restart of the collector, so it is found in the store by name.
                begun = begun or self._numbering.find_open(
                    event.kind, event.name, event.step, event.process
                )
                if begun is None:
                    continue
                marker = self._numbering.close(begun, at_ns)
            changed[marker.marker_no] = marker
        return list(changed.values())


def _identity(column: ScalarColumn) -> tuple[SeriesKey, Metric]:
    """Return the identity of a column's series in the run."""
    series = column.series
    if series is None:
        return SeriesKey(SOFTWARE, column.name, column.process), Metric(column.name, "", Scope.RUN)
    # ``rank 1/cuda:1``: each process numbers its devices from 0.
    entity = "/".join(part for part in (column.process, series.entity) if part)
    metric = Metric(series.metric, series.unit, series.scope, series.kind, method=series.method)
    return SeriesKey(series.listener, series.metric, entity), metric


def _logged_by_script(column: ScalarColumn) -> bool:
    return column.series is None or column.series.listener == SOFTWARE


def _update(batch: JournalBatch) -> LogUpdate:
    epochs = [event for event in batch.spans if event.kind is MarkerKind.EPOCH and event.begin]
    return LogUpdate(
        metrics={
            column.name: float(column.values[-1])
            for column in batch.scalars
            if len(column.values) and not column.process and _logged_by_script(column)
        },
        points=sum(len(column.times_ns) for column in batch.scalars),
        epoch=epochs[-1].step if epochs else None,
        epochs_total=batch.epochs_total,
    )
