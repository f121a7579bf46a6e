"""What an attempt says in the shared folder while it runs: signs of life, statuses, its output.

One thread writes all of it, so that a folder that is away or does not answer holds up nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from radt.backoff import Backoff
from radt.cluster.spool import Attempt, JobKey, Spool
from radt.experiment.columns import parse_repeats, parse_repeats_asked, parse_status
from radt.experiment.status import RowStatus, merged
from radt.model import RunStatus
from radt.runner.active import status_text
from radt.runner.outcome import RunEnd

#: How often output is brought to the shared folder, which somebody may be following.
OUTPUT_S = 2.0
_LONGEST_BACKOFF_S = 10.0
_LOOK_S = 0.1


class NodeStatuses:
    """The statuses of a job's rows, in the place of an experiment file; safe from several threads.

    The end of a run is said in the shared folder once its archive is there: whoever reads FINISHED
    there has all of the run.

    Args:
        rows: As earlier attempts left them.
        kept: Runs of earlier attempts that count.
    """

    def __init__(self, rows: Mapping[int, RowStatus], kept: frozenset[str]) -> None:
        self._lock = threading.Lock()
        self._rows = dict(rows)
        self._said = dict(rows)
        self._arrived = set(kept)
        #: Runs of a row that have ended and whose archives are not there yet, by its line.
        self._coming: dict[int, set[str]] = {}
        #: Called after a change of what is said.
        self.on_change: Callable[[], None] = lambda: None

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        """Take statuses; this never fails."""
        with self._lock:
            for line, status in statuses.items():
                self._rows[line] = merged(self._rows.get(line), status)
                coming = self._coming.setdefault(line, set())
                has_ended = parse_status(status.text) is not RunStatus.RUNNING
                if has_ended and status.run_id and status.run_id not in self._arrived:
                    coming.add(status.run_id)
                if not coming:
                    self._said[line] = self._rows[line]
        self.on_change()

    def flush(self) -> None:
        """Nothing waits that another call could write."""

    def arrived(self, run_id: str) -> None:
        """The archive of a run that has ended is in the shared folder."""
        with self._lock:
            self._arrived.add(run_id)
            for line, coming in self._coming.items():
                coming.discard(run_id)
                if not coming:
                    self._said[line] = self._rows[line]
        self.on_change()

    def lose(self, reason: str) -> None:
        """Give up on the runs that have not arrived: their rows were killed, and run again."""
        with self._lock:
            for line, coming in self._coming.items():
                if coming:
                    row = self._rows[line]
                    done = parse_repeats(self._said[line].text) if line in self._said else 0
                    text = status_text(
                        RunEnd(RunStatus.KILLED, reason), done + 1, parse_repeats_asked(row.text)
                    )
                    self._rows[line] = RowStatus(text, row.run_id)

    @property
    def rows(self) -> dict[int, RowStatus]:
        """How the rows stand."""
        with self._lock:
            return dict(self._rows)

    @property
    def said(self) -> tuple[dict[int, RowStatus], frozenset[str]]:
        """What is to be said of the rows now, and the runs that have ended and are there."""
        with self._lock:
            return dict(self._said), frozenset(self._arrived)


class Pulse:
    """The thread that writes; from `start` to `finish` or `drop`.

    Args:
        spool: The submission.
        job: The job.
        attempt: This attempt of it.
        statuses: Its rows.
        output: Its output, on the node's disk.
        beat_s: Between two beats.
        on_superseded: Called once, with its number, when there is a newer attempt; from then on
            nothing is written.
    """

    def __init__(
        self,
        spool: Spool,
        job: JobKey,
        attempt: Attempt,
        statuses: NodeStatuses,
        output: Path,
        *,
        beat_s: float,
        on_superseded: Callable[[int], None],
    ) -> None:
        self._spool = spool
        self._job = job
        self._attempt = attempt
        self._statuses = statuses
        self._output = output
        self._beat_s = beat_s
        self._on_superseded = on_superseded
        self._is_changed = True
        self._beat_at_s = time.monotonic()
        self._copied = 0
        self._wake = threading.Event()
        self._last_reason: str | None = None
        self._is_dropped = False
        self._thread = threading.Thread(target=self._work, name="pulse", daemon=True)
        statuses.on_change = self._changed

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def finish(self, reason: str, deadline_s: Callable[[], float]) -> bool:
        """Write the last word, and try until it is there; return whether it is.

        Args:
            reason: Why not all rows were run; "" if they were.
            deadline_s: Until when to try, by the monotonic clock; asked again and again.
        """
        self._last_reason = reason
        self._wake.set()
        while self._thread.is_alive() and time.monotonic() < deadline_s():
            self._thread.join(_LOOK_S)
        return not self._thread.is_alive()

    def drop(self) -> None:
        """Write nothing any more."""
        self._is_dropped = True
        self._wake.set()

    def _changed(self) -> None:
        self._is_changed = True
        self._wake.set()

    def _work(self) -> None:
        backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        while not self._is_dropped:
            self._wake.clear()
            last_reason = self._last_reason
            try:
                self._turn(last_reason)
            except OSError:
                # The folder is full or away; what it lacks is written when it is back.
                self._pause(backoff.next_s())
                continue
            backoff.reset()
            if last_reason is not None:
                return
            self._wake.wait(min(OUTPUT_S, self._beat_s))

    def _pause(self, pause_s: float) -> None:
        end_s = time.monotonic() + pause_s
        while not self._is_dropped and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left_s))

    def _turn(self, last_reason: str | None) -> None:
        if last_reason is not None or time.monotonic() >= self._beat_at_s:
            newest = self._spool.last_attempt(self._job)
            if newest > self._attempt.number:
                self._is_dropped = True
                self._on_superseded(newest)
                return
        if self._is_changed:
            self._is_changed = False
            try:
                rows, kept = self._statuses.said
                self._attempt.put_statuses(rows, kept=kept)
            except OSError:
                self._is_changed = True
                raise
        if time.monotonic() >= self._beat_at_s:
            self._attempt.beat()
            self._beat_at_s = time.monotonic() + self._beat_s
        self._copy_output()
        if last_reason is not None:
            _, kept = self._statuses.said
            self._attempt.put_statuses(
                self._statuses.rows, kept=kept, ended=True, reason=last_reason
            )

    def _copy_output(self) -> None:
        """Add what is new of the output; what was half written is written again at its place."""
        with self._output.open("rb") as source:
            source.seek(self._copied)
            new = source.read()
        if not new:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        target = os.open(self._attempt.output_log, flags, 0o600)
        try:
            while new:
                written = os.pwrite(target, new, self._copied)
                self._copied, new = self._copied + written, new[written:]
        finally:
            with suppress(OSError):
                os.close(target)
