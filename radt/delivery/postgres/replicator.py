"""The loop that copies a store to Postgres: the order of copying, and the handling of failures.

Live runs come first, a piece of each when due. In between, ended runs are copied one after the
other, the newest first. An ended run is compared with its copy before it is recorded as copied, and
checked again only after a later change.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from radt.delivery.postgres.contents import CopyDifference, compare, contents
from radt.delivery.postgres.local import DueRun, due_runs, due_workloads
from radt.delivery.postgres.run_copy import Pace, RunCopy
from radt.delivery.postgres.shipment import EXPERIMENT, Shipment, row_of
from radt.delivery.postgres.target import NotStoredError, PostgresTarget, StaleError
from radt.delivery.problems import EVERYTHING, POSTGRES, ProblemLog
from radt.delivery.process import Retries
from radt.errors import CodecError, StoreError
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import WorkloadRecord
from radt.store.tables import to_column
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

_WORKLOADS_AT_A_TIME = 500
_RUNS_AT_A_TIME = 32
#: Number of conflicts in a row with another writer of a run before the run is deferred.
_STALE_TRIES = 3
#: Longest wait before a failed run is retried, while others continue.
_LONGEST_DELAY_S = 600.0
#: How long an unused connection stays open.
_IDLE_S = 60.0
#: Minimum interval between records that the copy is complete.
_NOTE_S = 60.0


class GoneError(StoreError):
    """The store on this machine was deleted or replaced."""


class Replicator:
    """Copies all due data on each call, and keeps the connections in between.

    Raises:
        StoreError: The file cannot be read or written.
    """

    def __init__(self, store: Path, address: StoreAddress, pace: Pace) -> None:
        self._address = address
        self._pace = pace
        self._problems = ProblemLog(store, POSTGRES, str(address))
        self._reader = StoreReader(store)
        try:
            self._writer = StoreWriter(store)
        except StoreError as error:
            self._problems.failed(EVERYTHING, error)
            self._reader.close()
            raise
        self._remote: PostgresTarget | None = None
        self._target = ""
        self._copies: dict[str, RunCopy] = {}
        self._retries = Retries(_LONGEST_DELAY_S)
        self._token: int | None = None
        self._look_after_s = 0.0
        self._live: list[DueRun] = []
        self._ended: list[DueRun] = []
        self._workloads: dict[WorkloadRecord, int] = {}
        self._used_s = 0.0
        self._noted_s = -_NOTE_S
        #: Identity of the database that is recorded as reached.
        self._recorded = ""
        #: Whether anything was copied since the copy was recorded as complete.
        self._copied = True

    def close(self) -> None:
        self._disconnect()
        self._writer.close()
        self._reader.close()

    # -- one turn ---------------------------------------------------------------------------------

    def turn(self, *, everything: bool = False) -> float | None:
        """Copy all due data; return the seconds until more is due, None if only new data will be.

        `everything` also copies data that is not due yet, for the last turn.

        Raises:
            GoneError: The store on this machine was deleted.
            StoreError: One side failed; a later turn copies the rest.
        """
        try:
            wait_s = self._turn(everything=everything)
        except Exception as error:
            if isinstance(error, StoreError):
                self._disconnect()
                if self._writer.vanished:
                    raise GoneError(f"the store {self._writer.path} is gone") from error
            self._problems.failed(EVERYTHING, error)
            raise
        self._problems.solved(EVERYTHING)
        return wait_s

    def _turn(self, *, everything: bool) -> float | None:
        self._writer.check_in_place()
        if everything:
            self._retries.flush()
            for copy in self._copies.values():
                copy.flush()
        self._look(everything=everything)
        if self._remote is None and (not self._target or self._anything_due):
            self._connect()
            self._look(everything=True)  # only now the missing runs are known
        if self._remote is None:
            return None
        self._copy_workloads()
        self._copy_live()
        self._copy_ended(everything=everything)
        self._record_reached()
        return self._wait_s()

    @property
    def look_after_s(self) -> float:
        """Return the monotonic time before which new data makes no difference."""
        return self._look_after_s

    @property
    def left(self) -> int:
        """Return the ended runs without a complete copy, as of the last turn."""
        return len(self._ended)

    @property
    def _anything_due(self) -> bool:
        """Return whether a connection is needed."""
        if self._ended or self._workloads:
            return True
        known = {run_id: copy.sent_revision for run_id, copy in self._copies.items()}
        return any(known.get(run.run_id) != run.revision for run in self._live)

    def _look(self, *, everything: bool) -> None:
        """Read what has changed in the local store, at a limited frequency."""
        now_s = time.monotonic()
        if not self._target or (now_s < self._look_after_s and not everything):
            return
        token = self._reader.change_token()
        if token == self._token and not everything:
            return
        self._token = token
        with self._reader.snapshot() as connection:
            self._workloads = due_workloads(connection, self._target)
            due = due_runs(connection, self._target)
        self._live = [run for run in due if not run.ended]
        self._ended = [run for run in due if run.ended]
        known = {run.run_id for run in due}
        for run_id in [run_id for run_id in self._copies if run_id not in known]:
            del self._copies[run_id]
        self._retries.keep(known)
        self._problems.keep(known)
        for run in self._ended:  # a run that has just ended is due
            if run.run_id in self._copies:
                self._copies[run.run_id].flush()
        took_s = time.monotonic() - now_s
        self._look_after_s = now_s + max(self._pace.look_s, took_s / self._pace.look_share)

    def _wait_s(self) -> float | None:
        now_s = time.monotonic()
        if any(run.run_id not in self._retries for run in self._ended):
            return 0.0
        times_s = [
            self._copies[run.run_id].due_s for run in self._live if run.run_id not in self._retries
        ]
        next_s = min(*times_s, self._retries.next_s, math.inf)
        if next_s == math.inf:
            next_s = self._used_s + _IDLE_S
            if now_s >= next_s:
                self._disconnect(idle=True)
                return None
        return max(0.0, next_s - now_s)

    # -- the connection ---------------------------------------------------------------------------

    def _connect(self) -> None:
        self._remote = PostgresTarget(self._address)
        self._target = self._remote.identity
        self._used_s = time.monotonic()

    def _disconnect(self, *, idle: bool = False) -> None:
        if self._remote is not None:
            self._remote.close()
            self._remote = None
        for copy in self._copies.values():
            if idle:
                copy.forget()
            else:
                copy.lost()

    def _record_reached(self) -> None:
        """Record that the database works, and whether the copy is complete.

        Rarely, because this changes the local store, too, and after copying, which must not depend
        on space for this record.
        """
        now_s, complete = time.monotonic(), not self._ended
        news = complete and self._copied and now_s - self._noted_s >= _NOTE_S
        if news or self._recorded != self._target:
            self._writer.mark_replica(self._target, str(self._address), complete=complete)
            self._recorded = self._target
            if complete:
                self._copied, self._noted_s = False, now_s

    # -- copying ----------------------------------------------------------------------------------

    def _copy_workloads(self) -> None:
        due = list(self._workloads.items())
        for start in range(0, len(due), _WORKLOADS_AT_A_TIME):
            some = dict(due[start : start + _WORKLOADS_AT_A_TIME])
            shipment = Shipment(durable=True)
            for workload in some:
                experiment = to_column(workload.experiment)
                shipment.add(EXPERIMENT, (experiment, workload.created_ns))
                shipment.add(*row_of(workload))
            self._ship(shipment)
            marks = {workload.workload_id: revision for workload, revision in some.items()}
            self._writer.mark_replicated(self._target, marks)
        self._workloads = {}

    def _copy_live(self) -> None:
        """Copy a piece of each due run, many in one transaction."""
        now_s = time.monotonic()
        for run in self._live:
            if run.run_id not in self._copies:
                self._copies[run.run_id] = RunCopy(run.run_id, self._reader, self._pace)
            self._copies[run.run_id].seen_revision = run.revision
        live = [run.run_id for run in self._live if not self._retries.wait_s(run.run_id)]
        due = [copy for run_id in live if (copy := self._copies[run_id]).due_s <= now_s]
        while due:
            due = self._copy_together(due)

    def _copy_together(self, copies: Sequence[RunCopy], *, final: bool = False) -> list[RunCopy]:
        """Send as much as fits into one shipment; return the runs that have more."""
        self._ask(copies)
        shipment, inside, left = Shipment(durable=final), [], []
        for copy in copies:
            if shipment.full:
                left.append(copy)
                continue
            if copy.add_to(shipment, final=final):
                left.append(copy)
            if copy.run_id in shipment.revisions:
                inside.append(copy)
        if not inside:
            return left
        try:
            self._ship(shipment)
        except NotStoredError as error:
            left = [copy for copy in left if copy not in inside]
            return left + self._not_stored(inside, error, final=final)
        for copy in inside:
            copy.stale_tries = 0
            self._arrived(copy, shipment, final=final and copy not in left)
            if not final:
                self._succeeded(copy.run_id)
        return left

    def _not_stored(
        self, copies: Sequence[RunCopy], error: NotStoredError, *, final: bool
    ) -> list[RunCopy]:
        """Send each of several runs alone, as one of them may be the cause; defer a single one.

        Return the run if it has to be sent again.
        """
        for copy in copies:
            copy.lost()
            copy.stale_tries += 1
        if len(copies) > 1:
            for copy in copies:
                self._copy_alone(copy, final=final)
            return []
        (copy,) = copies
        if isinstance(error, StaleError) and copy.stale_tries <= _STALE_TRIES:
            return [copy]
        copy.stale_tries = 0
        self._defer(copy.run_id, error.message)
        return []

    def _copy_alone(self, copy: RunCopy, *, final: bool = False) -> None:
        """Send all of one run, or defer it."""
        left = [copy]
        while left:
            left = self._copy_together(left, final=final)

    def _arrived(self, copy: RunCopy, shipment: Shipment, *, final: bool) -> None:
        """Resend the ends of series that have many small chunks in the copy."""
        assert self._remote is not None
        if copy.run_id in shipment.unordered:
            copy.forget()  # the database has computed summaries that are unknown here
            self._ask([copy])
        assert copy.copied is not None
        scattered = copy.copied.scattered(copy.series, final=final)
        if not scattered:
            return
        if copy.rewind(self._remote.ends(copy.run_id, scattered)):
            self._copy_alone(copy, final=final)
        else:  # this side has lost some of the points, so the copy is kept
            copy.copied.settle(scattered)

    def _copy_ended(self, *, everything: bool) -> None:
        """Copy the ended runs, the newest first, until new data is due."""
        due = [run for run in self._ended if not self._retries.wait_s(run.run_id)]
        for start in range(0, len(due), _RUNS_AT_A_TIME):
            some = due[start : start + _RUNS_AT_A_TIME]
            assert self._remote is not None
            removed = self._remote.removed([run.run_id for run in some])
            done = removed | self._complete(
                [
                    self._copies.setdefault(
                        run.run_id, RunCopy(run.run_id, self._reader, self._pace)
                    )
                    for run in some
                    if run.run_id not in removed
                ]
            )
            marks = {run.run_id: run.revision for run in some if run.run_id in done}
            self._writer.mark_replicated(self._target, marks)
            for run_id in done:
                self._copies.pop(run_id, None)
                self._succeeded(run_id)
            self._copied = self._copied or bool(done)
            self._ended = [run for run in self._ended if run.run_id not in done]
            if not everything and time.monotonic() >= self._look_after_s:
                return

    def _complete(self, copies: Sequence[RunCopy]) -> set[str]:
        """Copy ended runs and verify the copies; return the runs whose copy is complete.

        The others are deferred.
        """
        assert self._remote is not None
        done: set[str] = set()
        for again in (False, True):
            left = list(copies)
            while left:
                left = self._copy_together(left, final=True)
                self._copy_live()  # live runs must not wait for long ended ones
            copies = [copy for copy in copies if not self._retries.wait_s(copy.run_id)]
            ids = [copy.run_id for copy in copies]
            if not ids:
                break
            with self._reader.snapshot() as connection:
                original = contents(connection, ids)
            copied = self._remote.contents(ids)
            different = {
                copy: difference
                for copy in copies
                if (difference := compare(original[copy.run_id], copied[copy.run_id])) is not None
            }
            done |= {copy.run_id for copy in copies if copy not in different}
            copies = [copy for copy in different if self._redo(copy, different[copy], again=again)]
        return done

    def _redo(self, copy: RunCopy, difference: CopyDifference, *, again: bool) -> bool:
        """Schedule different parts of a copy to be sent again; return False if that cannot help."""
        if copy.damaged:
            series, why = next(iter(copy.damaged.items()))
            self._defer(copy.run_id, f"series {series}: {why}")
            return False
        if again:
            self._defer(copy.run_id, "its copy differs")
            return False
        log.warning("run %s differs in the database; copying it again", copy.run_id)
        copy.lost()
        self._ask([copy])
        try:
            copy.redo(difference)
        except CodecError as error:
            self._defer(copy.run_id, error.message)
        return True

    # -- helpers ----------------------------------------------------------------------------------

    def _defer(self, run_id: str, why: str) -> None:
        self._retries.failed(run_id)
        self._problems.note(run_id, why)

    def _succeeded(self, run_id: str) -> None:
        self._retries.succeeded(run_id)
        self._problems.solved(run_id)

    def _ask(self, copies: Sequence[RunCopy]) -> None:
        """Query the other store for runs whose progress is unknown."""
        unknown = [copy for copy in copies if copy.copied is None]
        if unknown:
            assert self._remote is not None
            copied = self._remote.copied([copy.run_id for copy in unknown])
            for copy in unknown:
                copy.copied = copied[copy.run_id]

    def _ship(self, shipment: Shipment) -> None:
        assert self._remote is not None
        self._used_s = time.monotonic()
        self._remote.ship(shipment)
        self._copied = True
