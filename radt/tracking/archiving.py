"""Has the archives of runs written: by a short-lived process at a time, niced.

Of running runs every quarter of an hour, in the background; of a run that has ended at once, and
of all others that have ended by then in the same process, as it takes half a second to start.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from radt.archive.outcome import Outcome
from radt.archive.spool import ArchiveSpool
from radt.errors import ArchiveError
from radt.home import RunDir
from radt.store.records import RunRecord

log = logging.getLogger("radt.tracking")

ARCHIVE_VARIABLE = "RADT_ARCHIVE_S"
DEFAULT_INTERVAL_S = 900.0
#: Something is wrong with a disk where a process takes longer; the next one goes on there.
_LONGEST_S = 3600.0
#: Of the runs that one process archives.
MAX_RUNS = 64


class UnarchivableError(ArchiveError):
    """There will be no archive of a run, however often it is tried."""


def archive_interval_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How often a running run is archived; None for no archives at all (``RADT_ARCHIVE_S=0``)."""
    text = environ.get(ARCHIVE_VARIABLE, "").strip()
    try:
        interval_s = float(text) if text else DEFAULT_INTERVAL_S
    except ValueError:
        log.warning(
            "%s is %r, no number of seconds: %g", ARCHIVE_VARIABLE, text, DEFAULT_INTERVAL_S
        )
        return DEFAULT_INTERVAL_S
    return interval_s if interval_s > 0 else None


def archive_spool(run: RunRecord) -> ArchiveSpool:
    """Where the archive of a run comes into being."""
    return ArchiveSpool.of(RunDir(Path(run.spool)))


class Archiving:
    """The processes of one store, one at a time. Thread-safe.

    Args:
        store: The store's file.
        interval_s: Between archives of a running run.
    """

    def __init__(self, store: Path, interval_s: float) -> None:
        self._store = store
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._due_s: dict[str, float] = {}

    def keep_up(self, run: RunRecord) -> None:
        """Have a running run archived in the background when it is due; failures are logged."""
        if not self._lock.acquire(blocking=False):
            return  # ended runs come first
        try:
            now_s = time.monotonic()
            if run.run_id not in self._due_s:
                self._due_s[run.run_id] = now_s + (self._interval_s - self._age_s(run))
            if self._reap() and now_s >= self._due_s[run.run_id]:
                self._process = self._start([run.run_id])
                self._due_s[run.run_id] = now_s + self._interval_s
        finally:
            self._lock.release()

    def complete(self, run: RunRecord, wanted: Callable[[], Sequence[str]]) -> None:
        """Have the archive of an ended run complete, and return then.

        Args:
            run: The run.
            wanted: Ids of all runs whose archives shall be completed, this one first; none if it
                is complete. Called when no other process is at work for a run that has ended.

        Raises:
            UnarchivableError: There will be none.
            ArchiveError: It did not work now.
        """
        with self._lock:
            self._due_s.pop(run.run_id, None)
            if not (run_ids := wanted()):
                return
            if not self._reap():
                self._wait()
            self._process = self._start(run_ids)
            outcome = self._wait().get(run.run_id)
        if outcome is None:
            raise ArchiveError("the process that writes archives was ended")
        if outcome.problem:
            raise (UnarchivableError if outcome.final else ArchiveError)(outcome.problem)

    def close(self) -> None:
        """End what is under way; it is taken up again by whoever comes next."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._wait()

    def _age_s(self, run: RunRecord) -> float:
        """How old the archive is, which an earlier process may have written."""
        since_ns = run.started_ns or run.created_ns
        try:
            since_ns = archive_spool(run).manifest_file.stat().st_mtime_ns
        except OSError:
            pass  # none so far
        return min(max(0.0, (time.time_ns() - since_ns) / 1e9), self._interval_s)

    def _start(self, run_ids: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "radt.archive", "--store", str(self._store)]
        try:
            return subprocess.Popen(
                [*command, *run_ids],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise ArchiveError(f"no process to write archives: {error.strerror}") from error

    def _reap(self) -> bool:
        """Whether none is running (any more)."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            return False
        for outcome in self._wait().values():
            if outcome.problem:
                log.warning("run %s is not archived yet: %s", outcome.run_id, outcome.problem)
        return True

    def _wait(self) -> dict[str, Outcome]:
        """What the process says of its runs, when it has ended."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            output, _ = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode:
            log.warning("writing archives ended with exit code %d", process.returncode)
        found: dict[str, Outcome] = {}
        for line in output.splitlines():
            try:
                outcome = Outcome.parse(line)
            except ValueError:
                log.warning("writing archives said %.200r", line)
                continue
            found[outcome.run_id] = outcome
        return found
