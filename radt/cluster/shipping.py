"""Sends what a job records, and heartbeats, from its node's disk to the shared folder.

New data of a run is sent as one file with a new name, a bundle (`radt.cluster.spool` shows the
folder): it appears atomically, and a full or unreachable folder only causes delay. One thread sends
runs, another one everything else, so that a long file does not delay a heartbeat.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from radt.cluster.attempt import JobAttempt
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey
from radt.delivery.archive.spool import progress_of
from radt.errors import RadtError
from radt.experiment.columns import parse_repeats, parse_repeats_asked, parse_status
from radt.experiment.status import RowStatus, merged
from radt.files import whole_file
from radt.home import Home, RunDir
from radt.model import RunStatus
from radt.processes import Backoff
from radt.runner.outcome import RunEnd
from radt.store.reader import StoreReader
from radt.store.records import RunRecord

if TYPE_CHECKING:
    from radt.store.copy import Position


#: With this many uncollected files, no process is collecting: the next file replaces all of them.
MOST_WAITING = 30
_LONGEST_BACKOFF_S = 10.0
_LOOK_S = 0.1
#: Seconds between copies of the output to the shared folder, where the user may be following it.
OUTPUT_S = 2.0
_ARCHIVE = re.compile(r"files\.\d+\.tar")


def bundles_in(folder: Path) -> list[Path]:
    """Return the bundles of a run in transit, by number; none if there is no such folder."""
    # Imported here: it loads NumPy, which a node does not need to start its runs.
    from radt.store import bundle

    numbers = {name: found[1] for name in _names(folder) if (found := bundle.number_of(name))}
    return [folder / name for name in sorted(numbers, key=numbers.__getitem__)]


def archives_in(folder: Path) -> list[Path]:
    """Return the archives of a run's output and artifacts in transit."""
    return [folder / name for name in sorted(_names(folder)) if _ARCHIVE.fullmatch(name)]


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []


@dataclass(slots=True)
class _Sent:
    """The parts of a run in the shared folder; ``number`` is the highest that a file may have."""

    number: int = 0
    until: Position | None = None
    files: bool = False


class _Sender:
    """A thread that writes into the shared folder from `start` until it is done, or `drop`."""

    def __init__(self, name: str) -> None:
        self._is_dropped = False
        #: Set when there is work before the next interval.
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def drop(self) -> None:
        """Stop writing."""
        self._is_dropped = True
        self._wake.set()

    def _work(self) -> None:
        raise NotImplementedError

    def _has_ended(self, deadline_s: Callable[[], float]) -> bool:
        """Wait for the thread until the deadline; return True if it has ended."""
        while self._thread.is_alive() and time.monotonic() < deadline_s():
            self._thread.join(_LOOK_S)
        return not self._thread.is_alive()


class Shipper(_Sender):
    """Sends the runs of a job from its own thread, until `finish`.

    Args:
        home: The job's data folder, on the node's disk.
        attempt: The destination.
        interval_s: Seconds between two files of a run.
        with_files: Also send output and artifacts of ended runs.
        on_arrived: Called with the id of an ended run once its archive has arrived.
    """

    def __init__(
        self,
        home: Home,
        attempt: JobAttempt,
        interval_s: float,
        *,
        with_files: bool = True,
        on_arrived: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__("shipping")
        self._home = home
        self._attempt = attempt
        self._interval_s = interval_s
        self._with_files = with_files
        self._on_arrived = on_arrived
        self._sent: dict[str, _Sent] = {}
        #: Why runs cannot be sent; "" if they can.
        self.problem = ""

    def finish(self, deadline_s: Callable[[], float], is_hurried: Callable[[], bool]) -> str:
        """Send the rest, retrying until the deadline; return why it failed, "" on success.

        Args:
            deadline_s: Returns the current deadline on the monotonic clock.
            is_hurried: Returns True if there is no time to merge files.
        """
        self._wake.set()
        if not self._has_ended(deadline_s):
            return "the shared folder does not answer"
        backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        while self._send_all(is_tidy=not is_hurried()):
            again_s = time.monotonic() + backoff.next_s()
            while time.monotonic() < min(again_s, deadline_s()):
                time.sleep(_LOOK_S)
            if time.monotonic() >= deadline_s():
                break
        return self.problem

    def _work(self) -> None:
        backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        wait_s = self._interval_s
        while not self._wake.wait(wait_s):
            if self._send_all():
                wait_s = min(backoff.next_s(), self._interval_s)
            else:
                backoff, wait_s = Backoff(longest_s=_LONGEST_BACKOFF_S), self._interval_s

    def _send_all(self, *, is_tidy: bool = False) -> str:
        problem = self.problem = ""
        if not self._home.store_path.exists():
            return ""  # nothing was recorded
        try:
            with StoreReader(self._home.store_path) as reader:
                for run in reader.runs():
                    if self._is_dropped:
                        break
                    try:
                        self._send(reader, run, is_tidy=is_tidy)
                    except (RadtError, OSError) as error:
                        problem = _message(error)
        except RadtError as error:
            problem = _message(error)
        self.problem = problem
        return problem

    def _send(self, reader: StoreReader, run: RunRecord, *, is_tidy: bool) -> None:
        sent = self._sent.setdefault(run.run_id, _Sent())
        folder = self._attempt.run_folder(run.run_id)
        is_new = (
            sent.until is None or progress_of(reader, run.run_id).revision != sent.until.revision
        )
        if is_new or is_tidy:
            waiting = bundles_in(folder)
            if len(waiting) >= ((1 if is_new else 2) if is_tidy else MOST_WAITING):
                self._send_bundle(reader, run, sent, folder, replaced=waiting)
            elif is_new:
                self._send_bundle(reader, run, sent, folder)
        if self._with_files and run.status.ended and not sent.files:
            self._send_files(run, sent, folder)

    def _send_bundle(
        self,
        reader: StoreReader,
        run: RunRecord,
        sent: _Sent,
        folder: Path,
        replaced: Sequence[Path] = (),
    ) -> None:
        """Send new data; with ``replaced``, send the whole run in place of these files.

        The submit host may have lost its store.
        """
        from radt.store import bundle
        from radt.store.copy import Position, changes

        since = (None if replaced else sent.until) or Position()
        _make_folder(folder)
        # A failed write may leave its file behind, and the next one has other content.
        sent.number += 1
        batches = changes(reader, run.run_id, since)
        until = bundle.write(batches, folder / bundle.name_of(run.run_id, sent.number), since)
        if until is None:
            return
        sent.until = until
        if run.status.ended:
            self._on_arrived(run.run_id)
        # Newest first, so that the remaining files have no gap.
        for old in reversed(replaced):
            old.unlink(missing_ok=True)

    def _send_files(self, run: RunRecord, sent: _Sent, folder: Path) -> None:
        files = {}
        for file in RunDir(Path(run.spool)).files():
            name = str(file.relative_to(run.spool))
            if os.access(file, os.R_OK):
                files[name] = file
            else:
                print(  # noqa: T201 - the job's own log
                    f"radt: {run.run_id}: {name} cannot be read, and is not sent",
                    file=sys.stderr,
                    flush=True,
                )
        if files:
            sent.number += 1
            pack_files(folder / f"files.{sent.number}.tar", files)
        sent.files = True


def pack_files(path: Path, files: Mapping[str, Path]) -> None:
    """Write files, by name, into an archive in ``runs/RUN``, atomically.

    Raises:
        OSError: A file cannot be read, the disk is full, or the folder ``runs`` is missing.
    """
    _make_folder(path.parent)
    alone = path.with_name(f".{path.name}")
    with (
        whole_file(path, mode=0o600, durable=True, temporary=alone) as temporary,
        tarfile.open(temporary, mode="w", dereference=True) as tar,
    ):
        for name, file in files.items():
            tar.add(file, name, recursive=False)


def _make_folder(folder: Path) -> None:
    """Make the folder of a run.

    Do not make its parents: with the shared folder unmounted, they would be on the node's own disk.
    """
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)


def _message(error: RadtError | OSError) -> str:
    if isinstance(error, RadtError):
        return error.message
    return f"{error.filename or 'the shared folder'}: {error.strerror or error}"


class NodeStatuses:
    """The statuses of a job's rows, in place of an experiment file. Thread-safe.

    The end of a run is reported only once its archive is in the shared folder: a reader that sees
    FINISHED there also finds the complete run.

    Args:
        rows: The statuses that earlier attempts left.
        kept: Runs of earlier attempts that remain valid.
    """

    def __init__(self, rows: Mapping[int, RowStatus], kept: frozenset[str]) -> None:
        self._lock = threading.Lock()
        self._rows = dict(rows)
        self._reported = dict(rows)
        self._arrived = set(kept)
        #: Ended runs whose archives have not arrived yet, by the line of their row.
        self._not_arrived: dict[int, set[str]] = {}
        #: Called after a change of the reported statuses.
        self.on_change: Callable[[], None] = lambda: None

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        """Update statuses; never fails."""
        with self._lock:
            for line, status in statuses.items():
                self._rows[line] = merged(self._rows.get(line), status)
                not_arrived = self._not_arrived.setdefault(line, set())
                has_ended = parse_status(status.text) is not RunStatus.RUNNING
                if has_ended and status.run_id and status.run_id not in self._arrived:
                    not_arrived.add(status.run_id)
                if not not_arrived:
                    self._reported[line] = self._rows[line]
        self.on_change()

    def flush(self) -> None:
        """Do nothing, as there are no delayed writes."""

    def arrived(self, run_id: str) -> None:
        """Note that the archive of an ended run is in the shared folder."""
        with self._lock:
            self._arrived.add(run_id)
            for line, not_arrived in self._not_arrived.items():
                not_arrived.discard(run_id)
                if not not_arrived:
                    self._reported[line] = self._rows[line]
        self.on_change()

    def lose(self, reason: str) -> None:
        """Give up on runs that have not arrived: their rows count as killed, and run again."""
        with self._lock:
            for line, not_arrived in self._not_arrived.items():
                if not_arrived:
                    row = self._rows[line]
                    done = parse_repeats(self._reported[line].text) if line in self._reported else 0
                    asked = parse_repeats_asked(row.text)
                    text = RunEnd(RunStatus.KILLED, reason).text(done + 1, asked)
                    self._rows[line] = RowStatus(text, row.run_id)

    @property
    def rows(self) -> dict[int, RowStatus]:
        """Return the status of each row."""
        with self._lock:
            return dict(self._rows)

    @property
    def reported(self) -> tuple[dict[int, RowStatus], frozenset[str]]:
        """Return the statuses to report now, and the ended runs that have arrived."""
        with self._lock:
            return dict(self._reported), frozenset(self._arrived)


class AttemptHeartbeat(_Sender):
    """Writes heartbeats, statuses and output.

    Args:
        spool: The submission.
        job: The job.
        attempt: This attempt of it.
        statuses: The statuses of its rows.
        output: Its output, on the node's disk.
        beat_s: Seconds between two heartbeats.
        on_superseded: Called once with the number of a newer attempt, if one exists; after that,
            nothing is written.
    """

    def __init__(
        self,
        spool: Spool,
        job: JobKey,
        attempt: JobAttempt,
        statuses: NodeStatuses,
        output: Path,
        *,
        beat_s: float,
        on_superseded: Callable[[int], None],
    ) -> None:
        super().__init__("heartbeat")
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
        self._last_reason: str | None = None
        statuses.on_change = self._changed

    def finish(self, reason: str, deadline_s: Callable[[], float]) -> bool:
        """Write the last report, retrying until the deadline; return True if it was written.

        Args:
            reason: Why not all rows were run; "" if they were.
            deadline_s: Returns the current deadline on the monotonic clock.
        """
        self._last_reason = reason
        self._wake.set()
        return self._has_ended(deadline_s)

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
                # The folder is full or unreachable; missing writes are made up for later.
                self._wake.wait(backoff.next_s())
                continue
            backoff.reset()
            if last_reason is not None:
                return
            self._wake.wait(min(OUTPUT_S, self._beat_s))

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
                rows, kept = self._statuses.reported
                self._attempt.put_statuses(rows, kept=kept)
            except OSError:
                self._is_changed = True
                raise
        if time.monotonic() >= self._beat_at_s:
            self._attempt.beat()
            self._beat_at_s = time.monotonic() + self._beat_s
        self._copy_output()
        if last_reason is not None:
            _, kept = self._statuses.reported
            self._attempt.put_statuses(
                self._statuses.rows, kept=kept, ended=True, reason=last_reason
            )

    def _copy_output(self) -> None:
        """Append new output; after a partial write, write it again at the same position."""
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
