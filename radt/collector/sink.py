"""A store and the thread that writes to it, so that a slow or stuck store does not delay others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from radt.clock import Clock
from radt.collector.delivery import Deliverers
from radt.collector.journal_import import sync_to_disk
from radt.collector.processes import ProcessTable
from radt.collector.protocol import Registration
from radt.collector.recorder import ClaimedError, Pending, RunRecorder
from radt.collector.recovery import drain
from radt.collector.runs import RegisteredRun
from radt.errors import RunNotFoundError, StoreError
from radt.home import Home
from radt.processes import Backoff
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

#: Pause after a failed write; doubled up to the second value.
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 10.0
#: How often deliverers are notified if there are only hardware samples.
_HARDWARE_NOTIFY_S = 10.0
#: Number of series written per turn; with more, samples wait for up to this many turns.
_SERIES_A_TURN = 100
_MAX_TURNS = 5


class StoreSink:
    """Writes the runs of one store.

    Args:
        path: The store's file.
        clock: Returns the clock for runs that begin now.
        flush_s: Seconds between writes.
        table: Processes of the runs.
        deliverers: Upload processes to notify.
        on_ended: Called from this thread with a run that is completely stored or was given up.
        disk_sync_s: How often to wait until the disk has the written data; 0 for never.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], Clock],
        flush_s: float,
        table: ProcessTable,
        deliverers: Deliverers,
        on_ended: Callable[[RegisteredRun], None],
        *,
        disk_sync_s: float = 0.0,
    ) -> None:
        self.path = path
        #: Current failure of the store; empty if none.
        self.problem = ""
        #: Monotonic time since when there has been nothing to record; None while there is.
        self.idle_since_s: float | None = None
        self._clock = clock
        self._flush_s = flush_s
        self._table = table
        self._deliverers = deliverers
        self._on_ended = on_ended
        self._disk_sync_s = disk_sync_s
        self._synced_s = time.monotonic()
        self._condition = threading.Condition()
        self._runs: dict[str, RegisteredRun] = {}
        self._urgent = False
        self._left: list[Registration] = []
        #: True from opening the store until unended runs have been searched for.
        self._undrained = False
        self._stopping = False
        self._writer: StoreWriter | None = None
        self._reader: StoreReader | None = None
        self._recorders: dict[str, RunRecorder] = {}
        self._backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        self._notified_s = 0.0
        self._samples_s = 0.0
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def add(self, run: RegisteredRun) -> None:
        """Record this run from now on."""
        with self._condition:
            self._runs[run.run_id] = run
            self.idle_since_s = None
        self.wake()

    def drain(self, registration: Registration) -> None:
        """Store the remaining data of a run that is not being recorded."""
        with self._condition:
            self._left.append(registration)
        self.wake()

    def wake(self) -> None:
        """Write now instead of at the next turn."""
        with self._condition:
            self._urgent = True
            self._condition.notify_all()

    def stop(self, timeout_s: float) -> None:
        """Write a last time and close the store."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(timeout_s)

    # Thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        pause_s = 0.0
        while self._wait(pause_s):
            pause_s = self._turn()
        self._turn()
        self._turn()  # data that arrived after a failed write
        self._close()

    def _wait(self, pause_s: float) -> bool:
        """Wait for the next turn; return False if it is the last."""
        deadline = time.monotonic() + pause_s
        with self._condition:
            while not (self._stopping or self._urgent):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                # Without runs, there is nothing to do until `wake`.
                self._condition.wait(left_s if self._runs or self._left else None)
            self._urgent = False
            return not self._stopping

    def _turn(self) -> float:
        """Write once; return how long to pause."""
        begun_s = time.monotonic()
        with self._condition:
            runs = list(self._runs.values())
            left, self._left = self._left, []
        if not runs and not left:
            return self._flush_s
        try:
            if not left and not self._may_open(runs):
                return self._flush_s
            self._open()
            self._flush(runs)
            if left or self._undrained:  # after the rows of runs whose children may be left
                self._drain()
            for registration in left:
                self._notify_deliverers(registration)
            self._end_all(runs)
            self._sync()
        except StoreError as error:
            self._left += left
            return self._failed(error)
        # Whatever the error, sampling continues and writing is retried.
        except Exception as error:
            self._left += left
            log.exception("writing %s", self.path)
            return self._failed(StoreError(f"{type(error).__name__}: {error}"))
        if self.problem:
            self._recovered(runs)
        return max(0.0, self._flush_s - (time.monotonic() - begun_s))

    def _sync(self) -> None:
        """Sync written data to the disk if configured, as protection against power cuts."""
        now_s = time.monotonic()
        if self._disk_sync_s and now_s - self._synced_s >= self._disk_sync_s:
            sync_to_disk(self.path)
            self._synced_s = now_s

    def _failed(self, error: StoreError) -> float:
        if self._vanished():
            self._lost()
            return self._flush_s
        if not self.problem:
            log.warning("%s", error)
        self.problem = str(error)
        return self._backoff.next_s()

    def _recovered(self, runs: Sequence[RegisteredRun]) -> None:
        log.warning("the store %s can be written again", self.path)
        for run in runs:
            run.note("store unavailable", self.problem)
        self.problem = ""
        self._backoff.reset()

    def _may_open(self, runs: Sequence[RegisteredRun]) -> bool:
        """Return whether the store exists, or a run without a runner may create it."""
        if self._writer is not None or self.path.exists():
            return True
        if any(
            run.standalone is not None
            and run.ending is None
            and Path(run.registration.spool).is_dir()  # else its data folder was moved or deleted
            for run in runs
        ):
            return True
        for run in runs:
            self._give_up(run, f"the store {self.path} does not exist")
        return False

    def _open(self) -> None:
        """Open the store unless it is open."""
        if self._writer is not None:
            if self._vanished():
                raise StoreError(f"the store {self.path} is gone")
            return
        self._writer = StoreWriter(self.path)
        try:
            self._reader = StoreReader(self.path)
        except BaseException:
            self._close()  # the next turn starts over
            raise
        self._undrained = True

    def _drain(self) -> None:
        assert self._writer is not None
        assert self._reader is not None
        drain(self._writer, self._reader, self._clock(), Home(self.path.parent))
        self._undrained = False
        with self._condition:
            if not self._runs:
                self.idle_since_s = time.monotonic()

    def _vanished(self) -> bool:
        return self._writer is not None and self._writer.vanished

    def _lost(self) -> None:
        log.error("the store %s was deleted; its runs are given up", self.path)
        with self._condition:
            runs = list(self._runs.values())
        for run in runs:
            self._give_up(run, f"the store {self.path} was deleted while the run was recorded")
        self._close()
        self.problem = ""

    # Runs ------------------------------------------------------------------------------------

    def _flush(self, runs: Sequence[RegisteredRun]) -> None:
        recorders = [
            recorder
            for run in runs
            if (recorder := self._recorder(run)) is not None and run.ending is None
        ]
        with_samples = self._samples_due(runs)
        work = [
            (recorder, pending)
            for recorder in recorders
            if (pending := self._prepared(recorder, with_samples=with_samples)) is not None
        ]
        if not work:
            return
        assert self._writer is not None
        try:
            with self._writer.transaction():
                for recorder, pending in work:
                    recorder.write(pending)
        except StoreError:
            raise
        except Exception:  # data of one run must not keep that of others from the store
            log.exception("writing %d runs to %s", len(work), self.path)
            work = [pair for pair in work if self._write_alone(*pair)]
        for recorder, pending in work:
            recorder.written(pending)
        self._notify(work)
        if any(pending.journal.more for _, pending in work):
            self.wake()

    def _samples_due(self, runs: Sequence[RegisteredRun]) -> bool:
        """Return whether to write samples now.

        The cost of writing depends on the number of series, not of points: with many series, the
        samples of several turns are written together.
        """
        series = sum(run.waiting_series for run in runs)
        turns = min(_MAX_TURNS, max(1.0, series / _SERIES_A_TURN))
        now_s = time.monotonic()
        if not self._stopping and now_s - self._samples_s < (turns - 0.5) * self._flush_s:
            return False
        self._samples_s = now_s
        return True

    def _prepared(self, recorder: RunRecorder, *, with_samples: bool) -> Pending | None:
        """Return the rows of a run to write; None if there are none."""
        pending = None
        with self._giving_up(recorder.run):
            pending = recorder.prepare(with_samples=with_samples)
        return None if pending is None or pending.empty else pending

    def _write_alone(self, recorder: RunRecorder, pending: Pending) -> bool:
        assert self._writer is not None
        with self._giving_up(recorder.run), self._writer.transaction():
            recorder.write(pending)
            return True
        return False

    @contextmanager
    def _giving_up(self, run: RegisteredRun) -> Iterator[None]:
        """Give up a run if its own data, rather than the store, causes an error."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            log.exception("writing run %s", run.run_id)
            self._give_up(run, f"it cannot be written: {type(error).__name__}: {error}")

    def _recorder(self, run: RegisteredRun) -> RunRecorder | None:
        recorder = self._recorders.get(run.run_id)
        if recorder is not None:
            return recorder
        assert self._writer is not None
        assert self._reader is not None
        try:
            recorder = RunRecorder(run, self._writer, self._reader, self._clock(), self._table)
        except RunNotFoundError as error:
            self._give_up(run, str(error))
            return None
        except ClaimedError:  # another collector records it; ask again with the next turn
            return None
        self._recorders[run.run_id] = recorder
        return recorder

    def _end_all(self, runs: Iterable[RegisteredRun]) -> None:
        """End all runs; a failing one is retried and must not stop the others."""
        failed: Exception | None = None
        for run in runs:
            if run.run_id not in self._recorders or run.ending is None:
                continue
            try:
                status = self._recorders[run.run_id].finish(run.ending)
                log.info("run %s ended %s", run.run_id, status)
                self._let_go(run)
            except ClaimedError as error:  # the next turn starts at the store's position
                self._recorders.pop(run.run_id).close()
                failed = error
            except StoreError:
                raise
            except Exception as error:
                log.exception("ending run %s", run.run_id)
                failed = error
        if failed is not None:
            raise StoreError(f"{type(failed).__name__}: {failed}") from failed

    def _give_up(self, run: RegisteredRun, why: str) -> None:
        log.error("run %s: %s", run.run_id, why)
        run.failure = why
        self._let_go(run)

    def _let_go(self, run: RegisteredRun) -> None:
        with self._condition:
            self._runs.pop(run.run_id, None)
            if not self._runs:
                self.idle_since_s = time.monotonic()
        if (recorder := self._recorders.pop(run.run_id, None)) is not None:
            recorder.close()
        self._on_ended(run)
        run.recorded.set()
        run.done.set()
        self._notify_deliverers(run.registration)

    # Delivery --------------------------------------------------------------------------------

    def _notify(self, work: Sequence[tuple[RunRecorder, Pending]]) -> None:
        now_s = time.monotonic()
        due = now_s - self._notified_s >= _HARDWARE_NOTIFY_S
        if due:
            self._notified_s = now_s
        for recorder, pending in work:
            if due or pending.announce or not pending.journal.empty:
                self._notify_deliverers(recorder.run.registration)

    def _notify_deliverers(self, registration: Registration) -> None:
        for deliverer in self._deliverers.of(registration):
            deliverer.notify()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        for recorder in self._recorders.values():
            recorder.close()
        self._recorders.clear()
