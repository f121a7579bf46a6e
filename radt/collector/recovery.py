"""Recover runs that no collector finished: end them, and read their journals to the end.

A restarted worker remembers its runs, but a reboot of the machine erases that memory. The store
then still has the runs as RUNNING, and their last values are in their journals. The same recovery
is done for runs that ended while nobody read their journals, and for runs that no collector ever
recorded: their rows are created from their manifests (`radt.collector.manifest`).
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from radt.clock import Clock
from radt.collector.journal_import import JournalImport
from radt.collector.ledger import ListenerState
from radt.collector.manifest import (
    MANIFEST_FILE,
    Claim,
    Manifest,
    RunnersEnd,
    forget,
    has_ended,
    has_journals,
)
from radt.collector.rows import put_rows, row_of
from radt.collector.runs import NO_REPORT, RunStates
from radt.collector.totals import total_batches
from radt.errors import JournalError
from radt.home import Home, runtime_dir
from radt.journal.reader import JournalReader
from radt.model import RunStatus
from radt.procfs import boot_id, is_shortage
from radt.run_name import family_of
from radt.store.place import COPIED
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from radt.usage import discard_usage

log = logging.getLogger(__name__)

REASON = "the machine was restarted"
#: End reason of a run whose runner could not end it.
RUNNER_KILLED = "its runner was killed"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of `recover_runs`; runs by their ids.

    ``ended`` are runs that a reboot interrupted. ``drained`` are runs whose journals held data
    missing from the store; ``points`` is the number of those values. ``unknown`` are journals of
    runs with neither a row nor a manifest: they are kept. ``failed`` are runs whose journals could
    not be read or stored, with the reason; they are kept and retried. ``waiting`` are ended runs
    that another process has to store, such as a suspended collector. ``elsewhere`` are runs of
    other machines with journals, which may still be running, by machine name.
    """

    ended: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    points: int = 0
    unknown: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    elsewhere: dict[str, list[str]] = field(default_factory=dict)

    @property
    def left(self) -> bool:
        """Return whether an ended run is not completely in the store."""
        return bool(self.unknown or self.failed or self.waiting)


def recover_runs(home: Home) -> Recovered:
    """Store the remaining journals of earlier runs on this machine in a data folder's store.

    For `radt sync` and the like; the collector does the same when it opens a store. Safe beside a
    collector and concurrent calls: active runs are skipped, and data is stored in one transaction
    with its journal position, so that nothing is stored twice. Then the journals are removed. Ends
    runs from before the last boot of this machine and those of scripts that ended without a
    collector, creates rows for the latter, and skips runs of other hosts except those of scripts in
    other containers on this one.

    Raises:
        StoreError: There is neither a store nor a journal, or the store cannot be written.
    """
    if next(unfinished(home), None) is None:
        StoreReader(home.store_path).close()  # raises if there is no store; does not create one
    with StoreWriter(home.store_path) as writer, StoreReader(home.store_path) as reader:
        return drain(writer, reader, Clock.for_machine(), home)


def drain(writer: StoreWriter, reader: StoreReader, clock: Clock, home: Home) -> Recovered:
    """Do the work of `recover_runs` with an open store. A failing run does not stop others."""
    states = RunStates(runtime_dir() / "runs")
    left_ids = set(unfinished(home))
    waiting = [
        run_id  # ended by its collector; until then, its data stays in the journal
        for run_id in left_ids
        if states.has(run_id, home.store_path)
        and (
            has_ended(home.run_dir(run_id).path)  # the run's owner may be waiting here
            or (not states.owned(run_id) and has_journals(home.run_dir(run_id).path))
        )
    ]
    left_ids = {run_id for run_id in left_ids if not states.has(run_id, home.store_path)}
    runs = {run.run_id: run for run in reader.runs(run_ids=sorted(left_ids))}
    boot_ns = clock.now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    described, unknown, failed = _described(home, left_ids - runs.keys())
    runs |= described
    runs |= {run.run_id: run for run in reader.unended_runs()}
    runs = {run_id: run for run_id, run in runs.items() if not states.has(run_id, home.store_path)}
    elsewhere: dict[str, list[str]] = {}
    for run_id in [run_id for run_id, run in runs.items() if not _can_see_end(run, home)]:
        if run_id in left_ids:
            elsewhere.setdefault(runs[run_id].host, []).append(run_id)
        del runs[run_id]
    ended: list[str] = []
    drained: list[str] = []
    points = 0
    # Parents first: a workload must begin with its own runs, not with their children.
    for run_id, run in sorted(runs.items(), key=lambda item: family_of(item[1].letter)[1] != ""):
        folder = home.run_dir(run_id).path
        claim = Claim(folder)
        try:
            recovered = _UnendedRun(run, home, writer, reader, clock)
            if not recovered.is_over(boot_ns):
                continue
            if not claim.take():
                waiting.append(run_id)
                continue
            recovered.make_row()
            recovered.drain()
            recovered.end()
            if recovered.any_data:
                writer.deliver_again(run_id)
            recovered.journal_import.discard()
            discard_usage(home.run_dir(run_id).path)
            forget(folder)
        # A damaged journal or a full disk must not make the store unusable.
        except Exception as error:
            log.exception("the remaining data of run %s is not in the store yet", run_id)
            failed[run_id] = str(error)
        else:
            points += recovered.points
            if run.ended_ns is None:
                ended.append(run_id)
            if recovered.any_data:
                drained.append(run_id)
            if unreadable := recovered.journals.unreadable:
                failed[run_id] = f"unreadable: {', '.join(sorted(unreadable))}"
        finally:
            claim.release()
    return Recovered(
        tuple(ended),
        tuple(drained),
        points,
        tuple(unknown),
        failed,
        tuple(sorted(waiting)),
        elsewhere,
    )


def _can_see_end(run: RunRecord, home: Home) -> bool:
    """Return whether this process can determine that a run has ended.

    It cannot for a run of another machine. For a script in another container on this machine it
    can, by the locks on the script's journals; for a runner there it cannot.
    """
    if run.host == platform.node():
        return True
    manifest = _manifest(home, run.run_id)
    return (
        manifest is not None
        and manifest.boot == boot_id()
        and not manifest.run.has_runner
        and has_journals(home.run_dir(run.run_id).path)
    )


class _UnendedRun:
    """A run that no collector records."""

    def __init__(
        self, run: RunRecord, home: Home, writer: StoreWriter, reader: StoreReader, clock: Clock
    ) -> None:
        self._run = run
        self._writer = writer
        self._reader = reader
        self._folder = home.run_dir(run.run_id).path
        self._began_ns = run.started_ns or run.created_ns
        #: Number of values that `drain` has stored, and whether it has stored anything.
        self.points = 0
        self.any_data = False
        self._manifest = _manifest(home, run.run_id)
        self._end = RunnersEnd.read(self._folder)
        self.journals = JournalReader(home.run_dir(run.run_id).journal, reader.cursors(run.run_id))
        metas = self.journals.metas()
        self._boots = {meta.boot_id for meta in metas}
        # The machine may have been rebooted or suspended since, so its offset may differ now.
        self._clock = clock = Clock(metas[0].offset_ns) if metas else clock
        self.journal_import = JournalImport(
            run.run_id, self.journals, clock, reader, home.store_path
        )
        self._numbering = self.journal_import.numbering

    def is_over(self, boot_ns: int) -> bool:
        """Return whether no process writes to the run any more.

        A run without an end is over if it is from an earlier boot. Its journals record the boot;
        without any, its creation time decides, which is wrong if the clock was set since.
        """
        if self.journals.being_written:
            return False
        if self._run.ended_ns is not None or self._run.end_reason == COPIED:
            return True
        if self._manifest is not None and self._manifest.run.has_runner:
            return self._end is not None or not self._manifest.alive
        if self._manifest is not None:
            # A live process without a journal is about to create one.
            return bool(self._boots) or not self._manifest.alive
        if self._boots:
            return boot_id() not in self._boots
        return self._run.created_ns < boot_ns

    def make_row(self) -> None:
        """Create the run's rows from its manifest if no collector has."""
        manifest = self._manifest
        if manifest is None or self._run.started_ns is not None:
            return
        put_rows(self._writer, self._reader, manifest.run, manifest.clock)
        pid, started_ns = manifest.run.pid, manifest.run.started_monotonic_ns
        if manifest.run.has_runner:
            end = self._end or RunnersEnd(RunStatus.KILLED, 0)
            self._writer.put_tags(self._run.run_id, end.tags)
            if end.pid is None or end.started_ns is None:
                return
            pid, started_ns = end.pid, end.started_ns
        began_ns = self._began_ns = manifest.clock.to_wall_ns(started_ns)
        self._writer.begin_run(self._run.run_id, pid, began_ns)
        if self._reader.workload(self._run.workload_id).barrier_ns is None:
            self._writer.update_workload(self._run.workload_id, barrier_ns=began_ns)

    def drain(self) -> None:
        """Store the journals' new data; raise JournalError or StoreError."""
        more = True
        while more:
            with self._writer.transaction():
                # No other process can write now; an earlier drain would have stored its position.
                if not self.journals.stands_at(self._reader.cursors(self._run.run_id)):
                    break
                part = self.journal_import.read(final=True)
                series = self._numbering.new_series()
                part.write(self._writer, self._run.run_id, series)
            self._numbering.stored(series)
            self.points += part.update.points
            self.any_data = self.any_data or bool(part.batches or part.markers)
            more = part.more

    def end(self) -> None:
        """End the run and its open markers, unless they have ended; then seal it."""
        run, writer = self._run, self._writer
        last_ns = self._last_ns()
        with writer.transaction():
            writer.put_markers(self.journal_import.close_open(last_ns))
            totals = list(total_batches(self._folder, self._numbering, self._began_ns, last_ns))
            writer.add_series(self._numbering.new_series())
            writer.append(run.run_id, totals)
            if run.ended_ns is None:
                status, reason = self._outcome()
                log.warning("run %s: %s", run.run_id, reason or status)
                exit_code = None if self._end is None else self._end.exit_code
                writer.end_run(run.run_id, status, last_ns, exit_code, reason)
                for ledger in self._reader.ledger([run.run_id]):
                    if ledger.state in (ListenerState.RUNNING, ListenerState.OPENING):
                        writer.put_ledger(
                            replace(ledger, state=str(ListenerState.ENDED), reason=self._why)
                        )
                writer.end_workload(run.workload_id)
        writer.seal(run.run_id)

    def _outcome(self) -> tuple[RunStatus, str]:
        """Return the outcome noted by the runner, else that in the script's journal, if any."""
        if self._end is not None:
            return self._end.status, self._end.reason
        finish = self.journal_import.finish()
        if finish is not None:
            return finish.status, finish.reason
        parent_id = "" if self._manifest is None else self._manifest.run.parent_id
        for parent in self._reader.runs(run_ids=[parent_id]) if parent_id else ():
            if parent.status.ended and parent.status is not RunStatus.FINISHED:
                return parent.status, parent.end_reason  # a child without an end of its own
        return RunStatus.KILLED, self._why

    @property
    def _why(self) -> str:
        """Return the reason that the run was never ended."""
        if self._run.end_reason:
            return self._run.end_reason
        manifest = self._manifest
        if manifest is None or manifest.boot != boot_id():
            return REASON
        return RUNNER_KILLED if manifest.run.has_runner else NO_REPORT

    def _last_ns(self) -> int:
        """Return the time of the run's last record."""
        run = self._run
        times_ns = list(self._reader.newest_ns([run.run_id]).values())
        times_ns += [
            marker.start_ns if marker.end_ns is None else marker.end_ns
            for marker in self._reader.markers([run.run_id])
        ]
        if self._end is not None and self._manifest is not None and run.ended_ns is None:
            times_ns.append(self._manifest.clock.to_wall_ns(self._end.ended_ns))
        finish = self.journal_import.finish()
        if finish is not None and finish.ended_ns is not None:
            times_ns.append(self._clock.to_wall_ns(finish.ended_ns))
        known_ns = run.ended_ns or run.started_ns or run.created_ns
        return max([known_ns, *times_ns])


def _described(
    home: Home, run_ids: Iterable[str]
) -> tuple[dict[str, RunRecord], list[str], dict[str, str]]:
    """Return the rows of runs unknown to the store, the runs without a manifest, and errors."""
    rows: dict[str, RunRecord] = {}
    unknown: list[str] = []
    failed: dict[str, str] = {}
    for run_id in sorted(run_ids):
        try:
            manifest = Manifest.read(home.run_dir(run_id).path)
        except (JournalError, OSError) as error:
            failed[run_id] = str(error)
        else:
            if manifest is None:
                unknown.append(run_id)
            else:
                rows[run_id] = row_of(manifest.run, manifest.clock)
    return rows, unknown, failed


def _manifest(home: Home, run_id: str) -> Manifest | None:
    try:
        return Manifest.read(home.run_dir(run_id).path)
    except JournalError:
        return None  # the run is in the store, so its manifest is not needed


def unfinished(home: Home) -> Iterator[str]:
    """Yield the runs whose folder holds a journal or a manifest. Most have neither any more."""
    try:
        with os.scandir(home.path / "runs") as entries:
            folders = [Path(entry.path) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return
    for folder in folders:
        try:
            if has_journals(folder) or (folder / MANIFEST_FILE).exists():
                yield folder.name
        except OSError as error:
            if is_shortage(error):
                raise
            continue  # it is being removed, or is not a folder
