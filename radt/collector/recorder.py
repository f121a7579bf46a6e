"""Write one run into the store. Used by the store's thread only.

The data of one moment (readings, journal records with their cursors, ledger) is one transaction, so
that after a crash, store and journal agree on the position and nothing is counted twice. Failed
writes are kept and retried.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from radt.clock import Clock
from radt.collector.journal_import import JournalImport, JournalPart, sync_to_disk
from radt.collector.ledger import Losses, MissedStretch
from radt.collector.manifest import Claim, Manifest, forget
from radt.collector.processes import ProcessTable
from radt.collector.protocol import RunRequest
from radt.collector.routing import Gap, Numbering, PendingSamples
from radt.collector.rows import put_rows
from radt.collector.runs import RegisteredRun, RunEnding
from radt.collector.totals import LastReading, total_batches
from radt.errors import JournalError, RunNotFoundError, StoreError
from radt.home import RunDir
from radt.journal.format import RECORD_BYTES, SEGMENT_BYTES
from radt.journal.reader import JournalReader
from radt.journal.unwritten import UNWRITTEN
from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.procfs import is_shortage
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
)
from radt.store.writer import StoreWriter
from radt.tags import MLFLOW_RUN_NAME, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES
from radt.usage import discard_usage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pending:
    """Rows of one transaction, with all numbers and wall-clock times assigned."""

    samples: PendingSamples
    journal: JournalPart
    series: Sequence[SeriesRecord]
    batches: Sequence[SeriesBatch]
    markers: Sequence[MarkerRecord]
    ledgers: Sequence[LedgerRecord]
    gaps: Sequence[GapRecord]
    announce: bool

    @property
    def empty(self) -> bool:
        return self.samples.empty and self.journal.empty and not self.announce


class ClaimedError(StoreError):
    """Another process stores the run's journals."""


class RunRecorder:
    """Records one run. For the store's thread only.

    Attributes:
        problem: Why the run's journals could not be read; empty if they were.
        points: Number of values from the journals that this recorder has stored.
        markers: Number of markers from the journals, likewise.

    Raises:
        RunNotFoundError: The run has no row although its runner should have created one.
        ClaimedError: Another process stores the run's journals.
        StoreError: The store cannot be written.
    """

    def __init__(
        self,
        run: RegisteredRun,
        writer: StoreWriter,
        reader: StoreReader,
        clock: Clock,
        table: ProcessTable,
    ) -> None:
        self.run = run
        self.problem = ""
        self.points = self.markers = 0
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._table = table
        self._pending: Pending | None = None
        self._pids: set[int] = set()
        self._has_stored = False
        #: Markers added at the end, created once because the store may fail in between.
        self._last_markers: list[MarkerRecord] | None = None
        self._totals: list[SeriesBatch] = []
        standalone = run.standalone
        self._last_reading: LastReading | None = None
        if standalone is not None and not run.parent_id:  # a child's totals are its parent's
            self._last_reading = LastReading(standalone.pid)
        self._spool = RunDir(Path(run.registration.spool))
        self._claim = Claim(self._spool.path)
        if not self._claim.take():
            raise ClaimedError(f"another process reads the journals of run {run.run_id}")
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        run, reader = self.run, self._reader
        row = self._put_rows()
        self._workload_id, self._created_ns = row.workload_id, row.created_ns
        #: Whether the store has the run's start.
        self._announced = row.started_ns is not None
        if self._announced or row.status.ended:
            run.recorded.set()
        self._losses = Losses(run.run_id)
        self._resume()
        #: Position up to which each journal was read.
        self._cursors = reader.cursors(run.run_id)
        self._journals = JournalReader(self._spool.journal, self._cursors)
        series, markers = reader.series([run.run_id]), reader.markers([run.run_id])
        self._numbering = Numbering(run.run_id, series, markers)
        self._import = JournalImport(self._journals, self._clock, self._numbering, self._losses)

    def close(self) -> None:
        """Let other processes store the run's journals."""
        self._claim.release()

    # Beginning -------------------------------------------------------------------------------

    def _put_rows(self) -> RunRecord:
        """Return the run's row, which is created unless it exists.

        Raises:
            RunNotFoundError: There is no row although its runner should have created one.
        """
        run_id, standalone = self.run.run_id, self.run.standalone
        (row,) = self._reader.runs(run_ids=[run_id]) or [
            put_rows(self._writer, self._reader, standalone or self._description(), self._clock)
        ]
        if standalone is not None:
            self.run.standalone = replace(standalone, name=row.name)
        return row

    def _description(self) -> RunRequest:
        """Return a run's description from its manifest, if its runner could not write its rows."""
        try:
            manifest = Manifest.read(self._spool.path)
        except JournalError:
            manifest = None
        if manifest is None:
            raise RunNotFoundError(f"run {self.run.run_id} is not in the store {self._writer.path}")
        return manifest.run

    def _resume(self) -> None:
        run_id, reader = self.run.run_id, self._reader
        ledgers = {row.listener: row for row in reader.ledger([run_id])}
        last_ns: dict[str, int] = {}
        points = 0
        for summary in reader.summary([run_id]):
            listener = summary.series.listener
            points += summary.count if listener == SOFTWARE else 0
            if listener in ledgers:
                at_ns = summary.last_ns - self._clock.offset_ns
                last_ns[listener] = max(last_ns.get(listener, at_ns), at_ns)
        self._losses.resume(ledgers.get(SOFTWARE), points)
        # A journal without values to store was read as far as the others.
        any_ns = max(last_ns.values(), default=None)
        self.run.resume(
            {
                listener: (row, last_ns.get(listener, any_ns if row.received else None))
                for listener, row in ledgers.items()
            }
        )

    # -- recording --------------------------------------------------------------------------------

    def prepare(self, *, with_samples: bool = True, final: bool = False) -> Pending:
        """Return the next rows to write: those of a failed write, else new ones.

        They are kept until `written` is called, unless they are empty.

        Args:
            with_samples: Include samples of listeners; False lets them accumulate.
            final: Whether the run has ended.
        """
        if self._last_reading is not None and not final:
            self._last_reading.read()
        if self._pending is not None:
            return self._pending
        journal = self._read_journal(final=final)  # before `take`: it may fail
        samples = self.run.take() if with_samples else PendingSamples()
        pending = self._numbered(samples, journal)
        self._pending = None if pending.empty else pending
        return pending

    def write(self, pending: Pending) -> None:
        """Write the rows, inside a transaction.

        Raises:
            StoreError: The store cannot be written; the transaction must be rolled back.
        """
        run_id, writer = self.run.run_id, self._writer
        if pending.announce:
            assert self.run.started_ns is not None
            started_ns = self._clock.to_wall_ns(self.run.started_ns)
            writer.begin_run(run_id, self.run.pid, started_ns)
        writer.add_series(pending.series)
        writer.append(run_id, pending.batches)
        writer.put_markers(pending.markers)
        for ledger in pending.ledgers:
            writer.put_ledger(ledger)
        writer.put_gaps(pending.gaps)
        writer.put_params(run_id, pending.journal.params)
        writer.put_tags(run_id, pending.journal.tags)
        if name := pending.journal.tags.get(MLFLOW_RUN_NAME):  # the script has renamed the run
            writer.update_run(run_id, name=name)
        writer.put_cursors(run_id, pending.journal.cursors)

    def written(self, pending: Pending) -> None:
        """Record that the transaction was committed."""
        self._pending = None
        self._has_stored = self._has_stored or not pending.empty
        self._announced = self._announced or pending.announce
        self._numbering.stored(pending.series)
        self.run.stored(pending.samples)
        self.run.logged(pending.journal.update)
        self.points += pending.journal.update.points
        self.markers += len(pending.journal.markers)
        if new := pending.journal.pids - self._pids:
            self._pids |= new
            self._table.add(self.run.run_id, new)
        self._cursors |= {cursor.journal: cursor for cursor in pending.journal.cursors}
        self._cut_journals(pending.journal.cursors)
        if self._announced:
            self.run.recorded.set()

    def _cut_journals(self, cursors: Sequence[JournalCursor]) -> None:
        """Delete the data from the journals that the store now has."""
        store = Path(self.run.registration.store_path)
        try:
            self._journals.delete_consumed(cursors, before=lambda: sync_to_disk(store))
        except OSError as error:
            log.warning("the journal of run %s is not cut yet: %s", self.run.run_id, error)

    def _discard_journals(self) -> None:
        """Remove the journals of an ended run that is completely in the store."""
        try:
            sync_to_disk(Path(self.run.registration.store_path))
        except OSError as error:
            log.warning("the journals of run %s stay: %s", self.run.run_id, error)
        else:
            self._journals.remove_finished()

    def _read_journal(self, *, final: bool) -> JournalPart:
        try:
            return self._import.read(final=final)
        except (JournalError, OSError) as error:
            if is_shortage(error):  # it is read as soon as possible, even after the run's end
                raise StoreError(f"the journal of run {self.run.run_id}: {error}") from error
            # A damaged journal must affect neither the hardware samples nor the run's end.
            if not self.problem:
                self.problem = str(error)
                log.exception("the journal of run %s", self.run.run_id)
                self.run.note("journal unreadable", str(error))
            return JournalPart()

    def _numbered(self, samples: PendingSamples, journal: JournalPart) -> Pending:
        number, wall_ns = self._numbering.series, self._clock.to_wall_ns
        batches = [
            SeriesBatch(
                number(key, column.metric, column.interval_s, column.method),
                Samples(
                    np.array(column.times_ns, np.int64) + self._clock.offset_ns,
                    np.array(column.values, np.float64),
                ),
            )
            for key, column in samples.columns.items()
        ]
        gaps = [
            self._gap(
                gap.key.listener, number(gap.key, gap.metric, gap.interval_s, gap.method), gap
            )
            for gap in samples.missing
        ]
        gaps += [
            self._gap(listener, -1, stretch, stretch.detail)
            for listener, stretches in samples.stretches.items()
            for stretch in stretches
        ]
        markers = [
            self._numbering.marker(
                MarkerKind.EVENT, event.name, wall_ns(event.at_ns), detail=event.detail
            )
            for event in samples.events
        ]
        return Pending(
            samples=samples,
            journal=journal,
            series=self._numbering.new_series(),
            batches=[*batches, *journal.batches],
            markers=[*markers, *journal.markers],
            ledgers=[*samples.ledgers, *([journal.ledger] if journal.ledger is not None else ())],
            gaps=gaps,
            announce=not self._announced and self.run.started_ns is not None,
        )

    def _gap(
        self, listener: str, series_no: int, gap: Gap | MissedStretch, detail: str = ""
    ) -> GapRecord:
        start_ns, end_ns = map(self._clock.to_wall_ns, (gap.start_ns, gap.end_ns))
        return GapRecord(self.run.run_id, listener, series_no, start_ns, end_ns, gap.reason, detail)

    # End -------------------------------------------------------------------------------------

    @property
    def unreadable(self) -> frozenset[str]:
        """Return the journals that are damaged or of a later version."""
        return self._journals.unreadable

    def write_rest(self) -> None:
        """Write all that is left once no process writes to the run any more.

        Raises:
            ClaimedError: Another process has stored some of it.
            StoreError: The store cannot be written; retry later.
        """
        more = True
        while more:
            # A failed batch was read before the end, so more data may follow it.
            more = self._pending is not None
            pending = self.prepare(final=True)
            with self._writer.transaction():
                # Without a lock, another process may have written before this one claimed the run.
                if not self._claim.is_locked and self._cursors != self._reader.cursors(
                    self.run.run_id
                ):
                    raise ClaimedError(
                        f"another process has read the journals of {self.run.run_id}"
                    )
                self.write(pending)
            self.written(pending)
            more = more or pending.journal.more

    def finish(self, ending: RunEnding) -> RunStatus:
        """Write the rest, seal it, and record the outcome in the run's row.

        Raises:
            StoreError: The store cannot be written; retry later.
        """
        self.write_rest()
        ended_ns = self._clock.to_wall_ns(self._ended_ns(ending))
        if self._last_markers is None:
            open_markers = self._numbering.open_markers()
            self._last_markers = [self._numbering.close(each, ended_ns) for each in open_markers]
            started_ns = self.run.started_ns
            begin_ns = (
                self._created_ns if started_ns is None else self._clock.to_wall_ns(started_ns)
            )
            folder, last = self._spool.path, self._last_reading
            totals = total_batches(folder, self._numbering, begin_ns, ended_ns, last)
            self._totals = list(totals)
        status, reason = self._outcome(ending)
        with self._writer.transaction():
            self._writer.put_markers(self._last_markers)
            self._writer.add_series(self._numbering.new_series())
            self._writer.append(self.run.run_id, self._totals)
            self._writer.put_tags(self.run.run_id, self._cost())
            first = self._writer.end_run(
                self.run.run_id, status, ended_ns, ending.exit_code, reason
            )
            # The runner reports it too, if it is alive.
            self._writer.end_workload(self._workload_id)
        self._writer.seal(self.run.run_id)
        # Ended by another process before, so it may be marked as uploaded.
        if not first and (self._has_stored or self._last_markers or self._totals):
            self._writer.deliver_again(self.run.run_id)
        self._discard_journals()
        discard_usage(self._spool.path)
        try:
            forget(self._spool.path)
        except OSError as error:
            log.warning("run %s: %s", self.run.run_id, error)
        return status

    def _cost(self) -> dict[str, str]:
        """Return the overhead of recording the run, as tags."""
        cost = {}
        if self._cursors:
            cost[TRACKER_JOURNAL_BYTES] = str(sum(map(_journal_bytes, self._cursors.values())))
        if self.run.tracker_cpu_s is not None:
            cost[TRACKER_CPU_S] = f"{self.run.tracker_cpu_s:.3f}"
        return cost

    def _ended_ns(self, ending: RunEnding) -> int:
        """Return the monotonic time of the run's end: the script's own, if its journal has one."""
        finish = self._journals.finish() if ending.status is None else None
        if finish is None or finish.ended_ns is None:
            return ending.ended_ns
        return finish.ended_ns

    def _outcome(self, ending: RunEnding) -> tuple[RunStatus, str]:
        if ending.status is not None:
            return ending.status, ending.reason
        if (finish := self._journals.finish()) is not None:
            # The reason belongs to the fallback, unless the script itself reports the same outcome.
            given = ending.reason if ending.fallback is RunStatus.FINISHED else ""
            return finish.status, finish.reason or given
        return ending.fallback, ending.reason


def _journal_bytes(cursor: JournalCursor) -> int:
    """Return the number of bytes that a process had written up to a cursor."""
    if cursor.journal == UNWRITTEN:
        return 0
    return cursor.segment * SEGMENT_BYTES + cursor.slot * RECORD_BYTES + cursor.event_offset
