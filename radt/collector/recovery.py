"""Recover runs that no collector finished: end them, and read their journals to the end.

A restarted worker remembers its runs, but a reboot of the machine erases that memory. The store
then still has the runs as RUNNING, and their last values are in their journals. The same recovery
is done for runs that ended while nobody read their journals, and for runs that no collector ever
recorded: their rows are created from their manifests (`radt.collector.manifest`). A `RunRecorder`
writes them, as it does runs under way.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from radt.clock import Clock
from radt.collector.ledger import ListenerState
from radt.collector.manifest import (
    MANIFEST_FILE,
    Manifest,
    RunnersEnd,
    has_ended,
    has_journals,
)
from radt.collector.processes import ProcessTable
from radt.collector.protocol import Registration
from radt.collector.recorder import ClaimedError, RunRecorder
from radt.collector.rows import row_of
from radt.collector.runs import NO_REPORT, RegisteredRun, RunEnding, RunStates
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

log = logging.getLogger(__name__)

REASON = "the machine was restarted"
#: End reason of a run whose runner could not end it.
RUNNER_KILLED = "its runner was killed"


@dataclass(slots=True)
class Recovered:
    """The result of `recover_runs`; runs by their ids.

    ``ended`` are runs that a reboot interrupted. ``drained`` are runs whose journals held data
    missing from the store; ``points`` is the number of those values. ``unknown`` are journals of
    runs with neither a row nor a manifest: they are kept. ``failed`` are runs whose journals could
    not be read or stored, with the reason; they are kept and retried. ``waiting`` are ended runs
    that another process has to store, such as a suspended collector. ``elsewhere`` are runs of
    other machines with journals, which may still be running, by machine name.
    """

    ended: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    points: int = 0
    unknown: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
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
    recorded = {run_id for run_id in left_ids if states.has(run_id, home.store_path)}
    result = Recovered(
        waiting=[
            run_id  # ended by its collector; until then, its data stays in the journal
            for run_id in recorded
            if has_ended(home.run_dir(run_id).path)  # the run's owner may be waiting here
            or (not states.owned(run_id) and has_journals(home.run_dir(run_id).path))
        ]
    )
    left_ids -= recorded
    manifests, unreadable = _manifests(home, left_ids)
    runs = {run_id: row_of(each.run, each.clock) for run_id, each in manifests.items()}
    # Runs in the store do not need their manifests.
    runs |= {run.run_id: run for run in reader.runs(run_ids=sorted(left_ids))}
    runs |= {run.run_id: run for run in reader.unended_runs()}
    result.failed = {run_id: why for run_id, why in unreadable.items() if run_id not in runs}
    result.unknown = sorted(left_ids - runs.keys() - result.failed.keys())
    boot_ns = clock.now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    # Parents first: a workload must begin with its own runs, not with their children.
    for run_id, run in sorted(runs.items(), key=lambda item: family_of(item[1].letter)[1] != ""):
        if states.has(run_id, home.store_path):
            continue
        manifest = manifests.get(run_id)
        if _can_see_end(run, manifest, home):
            with _failing_alone(run_id, result):
                left = _UnendedRun(run, manifest, home, reader, clock)
                if left.is_over(boot_ns):
                    left.store(writer, result)
        elif run_id in left_ids:
            result.elsewhere.setdefault(run.host, []).append(run_id)
    result.waiting.sort()
    return result


def _manifests(home: Home, run_ids: Iterable[str]) -> tuple[dict[str, Manifest], dict[str, str]]:
    """Return the manifests of these runs, and why some cannot be read."""
    manifests: dict[str, Manifest] = {}
    unreadable: dict[str, str] = {}
    for run_id in sorted(run_ids):
        try:
            manifest = Manifest.read(home.run_dir(run_id).path)
        except JournalError as error:
            unreadable[run_id] = str(error)
        else:
            manifests |= {} if manifest is None else {run_id: manifest}
    return manifests, unreadable


@contextmanager
def _failing_alone(run_id: str, result: Recovered) -> Iterator[None]:
    """Keep a damaged journal or a full disk from making the store unusable."""
    try:
        yield
    except ClaimedError:
        result.waiting.append(run_id)
    except Exception as error:
        log.exception("the remaining data of run %s is not in the store yet", run_id)
        result.failed[run_id] = str(error)


def _can_see_end(run: RunRecord, manifest: Manifest | None, home: Home) -> bool:
    """Return whether this process can determine that a run has ended.

    It cannot for a run of another machine. For a script in another container on this machine it
    can, by the locks on the script's journals; for a runner there it cannot.
    """
    if run.host == platform.node():
        return True
    return (
        manifest is not None
        and manifest.boot == boot_id()
        and not manifest.run.has_runner
        and has_journals(home.run_dir(run.run_id).path)
    )


class _UnendedRun:
    """A run that no collector records."""

    def __init__(
        self,
        run: RunRecord,
        manifest: Manifest | None,
        home: Home,
        reader: StoreReader,
        clock: Clock,
    ) -> None:
        self._run = run
        self._manifest = manifest
        self._home = home
        self._reader = reader
        self._folder = home.run_dir(run.run_id).path
        self._end = RunnersEnd.read(self._folder)
        self._journals = JournalReader(home.run_dir(run.run_id).journal, {})
        metas = self._journals.metas()
        self._boots = {meta.boot_id for meta in metas}
        # The machine may have been rebooted or suspended since, so its offset may differ now.
        if metas:
            clock = Clock(metas[0].offset_ns)
        elif manifest is not None:
            clock = manifest.clock
        self._clock = clock

    def is_over(self, boot_ns: int) -> bool:
        """Return whether no process writes to the run any more.

        A run without an end is over if it is from an earlier boot. Its journals record the boot;
        without any, its creation time decides, which is wrong if the clock was set since.
        """
        if self._journals.being_written:
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

    def store(self, writer: StoreWriter, result: Recovered) -> None:
        """Write the run's remaining data, end it unless it has ended, and add it to the result.

        Raises:
            ClaimedError: Another process stores the run.
            JournalError: Its journals cannot be read.
            StoreError: The store cannot be written.
        """
        run, run_id = self._recorded(), self._run.run_id
        recorder = RunRecorder(run, writer, self._reader, self._clock, ProcessTable())
        with closing(recorder):
            if self._end is not None:
                writer.put_tags(run_id, self._end.tags)
            if run.started_ns is not None and self._run.started_ns is None:
                # Record the start of a workload whose runner could not.
                workload = self._reader.workload(self._run.workload_id)
                if workload.barrier_ns is None:
                    started_ns = self._clock.to_wall_ns(run.started_ns)
                    writer.update_workload(workload.workload_id, barrier_ns=started_ns)
            recorder.write_rest()
            if recorder.problem:
                raise JournalError(recorder.problem)
            if self._run.ended_ns is None:
                for ledger in self._reader.ledger([run_id]):
                    if ledger.state in (ListenerState.RUNNING, ListenerState.OPENING):
                        state = str(ListenerState.ENDED)
                        writer.put_ledger(replace(ledger, state=state, reason=self._why))
            recorder.finish(self._ending())
        result.points += recorder.points
        if self._run.ended_ns is None:
            (row,) = self._reader.runs(run_ids=[run_id])
            why = f": {row.end_reason}" if row.end_reason else ""
            log.warning("run %s ended %s%s", run_id, row.status, why)
            result.ended.append(run_id)
        if recorder.points or recorder.markers:
            result.drained.append(run_id)
        if recorder.unreadable:
            result.failed[run_id] = f"unreadable: {', '.join(sorted(recorder.unreadable))}"

    def _recorded(self) -> RegisteredRun:
        """Return the run for a recorder, with its start as far as known."""
        row, manifest, end = self._run, self._manifest, self._end
        registration = Registration(row.run_id, str(self._home.store_path), str(self._folder))
        standalone = None
        if manifest is not None:
            registration = manifest.run.registration
            standalone = None if manifest.run.has_runner else manifest.run
        run = RegisteredRun(registration, None, standalone=standalone, buffered_points=0)
        if row.started_ns is not None:
            run.started(row.pid, row.started_ns - self._clock.offset_ns)
        elif standalone is not None:
            run.started(standalone.pid, standalone.started_monotonic_ns)
        elif end is not None and end.started_ns is not None:
            run.started(end.pid, end.started_ns)
        return run

    def _ending(self) -> RunEnding:
        """Return the end noted by the runner, else one for a script without its own."""
        last_ns = self._last_ns() - self._clock.offset_ns
        if (end := self._end) is not None:
            return RunEnding(last_ns, end.status, end.exit_code, end.reason)
        parent_id = "" if self._manifest is None else self._manifest.run.parent_id
        for parent in self._reader.runs(run_ids=[parent_id]) if parent_id else ():
            if parent.status.ended and parent.status is not RunStatus.FINISHED:
                return RunEnding(last_ns, reason=parent.end_reason, fallback=parent.status)
        return RunEnding(last_ns, reason=self._why, fallback=RunStatus.KILLED)

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
        if self._end is not None and run.ended_ns is None:
            times_ns.append(self._clock.to_wall_ns(self._end.ended_ns))
        return max([run.ended_ns or run.started_ns or run.created_ns, *times_ns])


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
