"""Handle the collector's requests, and supervise runs, listeners, stores and deliverers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from radt.clock import Clock
from radt.collector.delivery import Deliverers
from radt.collector.guardian import Heartbeat
from radt.collector.manifest import Manifest, RunnersEnd, ask_for_collection
from radt.collector.processes import ProcessTable, own_cpu_s
from radt.collector.protocol import (
    Begun,
    LiveView,
    RefusalCode,
    RefusedError,
    Registration,
    RunRequest,
)
from radt.collector.rows import record_runs
from radt.collector.run_finder import RunFinder, waiting
from radt.collector.runs import RegisteredRun, RunEnding, RunState, RunStates
from radt.collector.sampling import SamplerPool
from radt.collector.sink import StoreSink
from radt.collector.start import CollectorSettings
from radt.errors import RadtError
from radt.home import RunDir, runtime_dir
from radt.journal.reader import JournalReader
from radt.listeners import registry
from radt.listeners.registry import ALIASES
from radt.model import DEFAULT_LISTENERS, RunStatus
from radt.processes import stop_run
from radt.procfs import ExitWatch, ProcessId, is_shortage
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import LISTENERS

log = logging.getLogger(__name__)

#: Seconds from SIGTERM to SIGKILL of a run whose owner has died, and from SIGKILL to giving up.
_GRACE_S = 5.0

_STOP_TIMEOUT_S = 10.0


class Service:
    """All runs, listeners, stores and deliverers of one worker. Thread-safe."""

    def __init__(self, settings: CollectorSettings, heartbeat: Heartbeat) -> None:
        self.settings = settings
        self._clock = Clock.for_machine()
        #: Open file that keeps the clock's offset fixed while anything is recorded or about to be.
        self._clock_file: BinaryIO | None = None
        self._table = ProcessTable()
        self.pool = SamplerPool(self._table, heartbeat, settings.hang_s)
        self.deliverers = Deliverers(settings.upload_wait_s, lambda: bool(self._runs))
        self._memory = RunStates(runtime_dir() / "runs")
        self._points = settings.buffered_points
        self._lock = threading.RLock()
        self._runs: dict[str, RegisteredRun] = {}
        self._sinks: dict[Path, StoreSink] = {}
        self._run_finder = RunFinder()
        #: Runs that it found by their folders.
        self._taken_up: dict[str, RegisteredRun] = {}
        self._finder: threading.Thread | None = None

    # Requests --------------------------------------------------------------------------------

    def record(self, runs: Sequence[RunRequest]) -> list[str]:
        """Write the rows of runs that a runner will start, all in one store; return their names.

        Raises:
            StoreError: The store cannot be written; no row was created.
        """
        if not runs:
            return []
        path = Path(runs[0].registration.store_path)
        # A runner that waited too long for the answer may already have written its rows itself.
        with StoreWriter(path) as writer, StoreReader(path) as reader:
            return record_runs(writer, reader, runs, self._clock)

    def register(self, registration: Registration, owner: ProcessId | None) -> list[str]:
        """Record a run of a runner; return warnings."""
        registration = _with_defaults(registration)
        return self._adopt(RegisteredRun(registration, owner, buffered_points=self._points))

    def begin(self, run: RunRequest, owner: ProcessId | None, timeout_s: float = 0.0) -> Begun:
        """Record a run that is its own owner.

        Args:
            run: The run.
            owner: Its process; None if it cannot be watched.
            timeout_s: How long to wait for its rows; they are written as soon as the store is free.
        """
        registration = _with_defaults(run.registration)
        listeners = "+".join(map(str, registration.listeners))
        run = replace(run, registration=registration, tags=run.tags | {LISTENERS: listeners})
        active = RegisteredRun(registration, owner, standalone=run, buffered_points=self._points)
        warnings = self._adopt(active)
        active = self._runs.get(active.run_id, active)
        self.started(active.run_id, run.pid, run.started_monotonic_ns)
        if not active.recorded.wait(timeout_s):
            warnings.append(f"the store is not writable yet: {self._problem_of(active)}")
        if active.failure:
            raise RefusedError(active.failure)
        name = active.standalone.name if active.standalone is not None else run.name
        return Begun(name, tuple(warnings))

    def started(
        self,
        run_id: str,
        pid: int,
        monotonic_ns: int,
        devices: tuple[str, ...] | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        """Follow the processes of a run that passed its barrier, and sample for it.

        Args:
            run_id: The run.
            pid: Its process.
            monotonic_ns: The time of its start.
            devices: Its GPUs, if they differ from those at registration.
            resumed: An earlier worker received this request.
        """
        run = self._run(run_id)
        if run.started_ns is not None:
            return
        if not run.parent_id:  # a child's processes are its parent's
            if not resumed:  # an earlier worker has already used CPU time for it
                run.tracker_began_s = own_cpu_s(self.deliverers.pids)
            self._table.watch(run_id, pid, owns_group=run.standalone is None)
        run.started(pid, monotonic_ns, devices)
        self._remember(run)
        self.pool.wake()
        self._sink(Path(run.registration.store_path)).wake()

    def finish(
        self,
        run_id: str,
        ending: RunEnding,
        timeout_s: float,
        registration: Registration | None = None,
        owner: ProcessId | None = None,
    ) -> None:
        """End a run and wait until the store has all of it.

        Raises:
            RefusedError: The run is unknown, or the store cannot be written in time.
        """
        with self._lock:
            known = run_id in self._runs
        if not known and registration is not None:
            # The run is older than this worker, and its saved state is gone.
            self.register(registration, owner)
        run = self._run(run_id)
        deadline_s = time.monotonic() + timeout_s
        self._end(run, ending)
        family = (run, *self._children(run))
        if not all(one.done.wait(deadline_s - time.monotonic()) for one in family):
            raise RefusedError(
                f"run {run_id} is not in its store yet: {self._problem_of(run)}",
                "No data is lost; the collector keeps retrying",
                RefusalCode.UNFINISHED,
            )
        if run.failure:
            raise RefusedError(f"run {run_id} could not be recorded completely: {run.failure}")

    def live(self, run_ids: Sequence[str]) -> dict[str, LiveView]:
        """Return the current values of the given runs that are being recorded."""
        with self._lock:
            runs = [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
        return {run.run_id: run.live() for run in runs}

    # Supervision -----------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue the runs that an earlier worker recorded."""
        for known in self._memory.load():
            run = RegisteredRun(
                known.registration,
                known.owner,
                standalone=known.standalone,
                buffered_points=self._points,
            )
            log.info("continuing run %s", run.run_id)
            run.note("collector restarted", "")
            self._adopt(run)
            if run.parent_id:
                self._taken_up[run.run_id] = run
            if known.pid is not None and known.started_ns is not None:
                self.started(run.run_id, known.pid, known.started_ns, resumed=True)
            if known.ending is not None:
                self._end(run, known.ending)

    def supervise(self) -> None:
        """Check everything that can fail on its own. Called about every second."""
        self.check_owners()
        self._check_taken_up()
        self.pool.check()
        self.deliverers.check()
        self._release_stores()
        self._find()

    def _find(self) -> None:
        """Search for unknown runs and record them, in a thread of its own."""
        if self._finder is None or not self._finder.is_alive():
            self._finder = threading.Thread(target=self._take_up, name="finder", daemon=True)
            self._finder.start()

    def _take_up(self) -> None:
        with self._lock:
            homes = [path.parent for path in self._sinks]
        try:
            self._take_up_all(self._run_finder.look(homes))
        except OSError as error:
            log.warning("looking for runs: %s", error)

    def _take_up_all(self, manifests: Iterable[Manifest]) -> None:
        left: list[Manifest] = []
        try:
            left.extend(manifests)
            # Parents first: a workload must begin with its own runs, not with their children.
            left.sort(key=lambda manifest: bool(manifest.run.parent_id))
            while left:
                self._take_up_or_end(left[0])
                del left[0]
        except OSError:  # out of descriptors or memory; the next search finds them again
            for manifest in left:
                with suppress(FileExistsError):
                    ask_for_collection(Path(manifest.run.registration.spool))
            raise

    def _take_up_or_end(self, manifest: Manifest) -> None:
        registration = manifest.run.registration
        with self._lock:
            known = self._runs.get(registration.run_id)
        if known is not None:
            self._end_as_noted(known)
            return
        log.info("run %s was found in %s", registration.run_id, registration.spool)
        try:
            self._take_up_one(manifest)
        except Exception as error:
            if is_shortage(error):
                raise
            # One run that cannot be recorded must not prevent the recording of others.
            log.exception("run %s", registration.run_id)

    def _end_as_noted(self, run: RegisteredRun) -> bool:
        """End a run if its runner noted an end because it could not reach this collector."""
        end = RunnersEnd.read(Path(run.registration.spool))
        if end is None or run.ending is not None:
            return False
        self._end(run, RunEnding(end.ended_ns, end.status, end.exit_code, end.reason))
        return True

    def _take_up_one(self, manifest: Manifest) -> None:
        registration = manifest.run.registration
        spool = Path(registration.spool)
        parent_id, journal = manifest.run.parent_id, JournalReader(RunDir(spool).journal, {})
        if not manifest.run.has_runner and (
            journal.being_written or self._is_cut_off(parent_id, journal)
        ):
            is_watched = manifest.alive and not parent_id  # otherwise its parent is watched
            self.begin(manifest.run, manifest.owner if is_watched else None)
            with self._lock:
                run, parent = self._runs.get(registration.run_id), self._runs.get(parent_id)
                if run is not None:
                    self._taken_up[registration.run_id] = run
            if run is not None and parent is not None and parent.ending is not None:
                self._end(run, _as_parent(parent.ending))  # the parent has ended meanwhile
            return
        self.deliverers.ensure(registration)
        self._sink(Path(registration.store_path)).drain(registration)

    def _check_taken_up(self) -> None:
        """End runs that were found by their folders once their processes no longer write."""
        with self._lock:
            runs = list(self._taken_up.values())
        for run in runs:
            journal = JournalReader(RunDir(Path(run.registration.spool)).journal, {})
            try:
                if run.ending is None and journal.being_written:
                    continue
                if run.ending is None and self._is_cut_off(run.parent_id, journal):
                    continue
            except OSError as error:
                log.warning("run %s: %s", run.run_id, error)
                continue
            with self._lock:
                self._taken_up.pop(run.run_id, None)
            if run.ending is None:
                self.orphaned(run)

    def _is_cut_off(self, parent_id: str, journal: JournalReader) -> bool:
        """Return whether a child lacks an end of its own and will end with its active parent."""
        with self._lock:
            parent = self._runs.get(parent_id)
        return parent is not None and parent.ending is None and journal.finish() is None

    def check_owners(self) -> None:
        """End the runs whose owner has died."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.ending is None]
        for run in runs:
            if run.owner is not None and not run.owner.alive:
                self.orphaned(run)

    def orphaned(self, run: RegisteredRun) -> None:
        """End a run whose owner has died without finishing it."""
        if run.standalone is not None:
            code = None if run.exit_watch is None else run.exit_watch.exit_code()
            self._end(run, RunEnding.of_exit(code))
            return
        if self._end_as_noted(run):
            return
        with self._lock:
            if run.orphaned:
                return
            run.orphaned = True
        threading.Thread(target=self._stop_orphan, args=(run,), name="cleanup", daemon=True).start()

    def owned_without_process(self, run_ids: Iterable[str]) -> None:
        """End the runs of a closed connection whose process cannot be watched."""
        for run_id in run_ids:
            run = self._runs.get(run_id)
            if run is not None and run.owner is None and run.ending is None:
                self.orphaned(run)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Return the runs that are being recorded."""
        with self._lock:
            return tuple(self._runs)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return descriptions of current failures."""
        with self._lock:
            return tuple(sink.problem for sink in self._sinks.values() if sink.problem)

    def close(self) -> None:
        """Stop everything; runs stay saved for the next worker."""
        self.pool.close()
        with self._lock:
            sinks = list(self._sinks.values())
        for sink in sinks:
            sink.stop(_STOP_TIMEOUT_S)
        self.deliverers.close(0.0)

    def hold_clock(self) -> None:
        """Keep the clock's offset fixed, because a client has connected."""
        with self._lock:
            if self._clock_file is None:
                try:
                    self._clock, self._clock_file = Clock.held()
                except (OSError, RadtError):
                    log.exception("the clock is not held")

    def release_clock(self, connected: Callable[[], bool]) -> None:
        """Allow the offset to be measured again if there are no runs and no clients."""
        with self._lock:
            if self._clock_file is not None and not self._runs and not connected():
                self._clock_file.close()
                self._clock_file = None

    # Helpers ---------------------------------------------------------------------------------

    def _run(self, run_id: str) -> RegisteredRun:
        with self._lock:
            run = self._runs.get(run_id)
        if run is None:
            raise RefusedError(
                f"run {run_id} is not being recorded",
                "Register it first",
                RefusalCode.UNKNOWN_RUN,
            )
        return run

    def _adopt(self, run: RegisteredRun) -> list[str]:
        """Add a run; a known run only gets its new environment."""
        with self._lock:
            self.hold_clock()
            known = self._runs.get(run.run_id)
            if known is None:
                self._runs[run.run_id] = run
                if run.standalone is not None and run.owner is not None:
                    run.exit_watch = ExitWatch(run.owner)
                self._remember(run)
                self._sink(Path(run.registration.store_path))
        self.deliverers.ensure(run.registration)
        if known is not None:
            return []
        warnings = self.pool.subscribe(run)
        # Only now, because counts of an earlier worker are added to the listeners' open accounts.
        self._sink(Path(run.registration.store_path)).add(run)
        return warnings

    def _sink(self, path: Path) -> StoreSink:
        with self._lock:
            sink = self._sinks.get(path)
            if sink is None:
                sink = self._sinks[path] = StoreSink(
                    path,
                    lambda: self._clock,
                    self.settings.flush_s,
                    self._table,
                    self.deliverers,
                    self._ended,
                    disk_sync_s=self.settings.disk_sync_s,
                )
            return sink

    def _children(self, run: RegisteredRun) -> list[RegisteredRun]:
        """Return the children of a run that are being recorded."""
        with self._lock:
            return [child for child in self._runs.values() if child.parent_id == run.run_id]

    def _end_children(self, run: RegisteredRun, ending: RunEnding) -> None:
        """End the children of a run with its outcome, unless they have recorded their own."""
        try:
            self._take_up_all(waiting())
        except OSError as error:
            log.warning("looking for children of run %s: %s", run.run_id, error)
        for child in self._children(run):
            self._end(child, _as_parent(ending))

    def _end(self, run: RegisteredRun, ending: RunEnding) -> None:
        if not run.parent_id:
            self._end_children(run, ending)
        if run.sampling:
            self.pool.read_last(run)
        # Before the store's thread sees that the run has ended.
        run.tracker_ends(own_cpu_s(self.deliverers.pids))
        if run.end(ending):
            self.pool.unsubscribe(run.run_id)
            self._remember(run)
        with self._lock:
            sink = self._sinks.get(Path(run.registration.store_path))
        if sink is not None:
            sink.wake()

    def _ended(self, run: RegisteredRun) -> None:
        """Remove a run that the store has completely or never will have."""
        if run.exit_watch is not None:
            run.exit_watch.close()
        self.pool.unsubscribe(run.run_id)
        self._table.forget(run.run_id)
        self._memory.forget(run.run_id)
        with self._lock:
            self._runs.pop(run.run_id, None)

    def _stop_orphan(self, run: RegisteredRun) -> None:
        log.warning("the owner of run %s died; stopping the run", run.run_id)
        try:
            stop_run(run.run_id, terminate_s=_GRACE_S, kill_s=_GRACE_S)
        except OSError as error:  # the search for its processes failed
            log.warning("run %s is not stopped yet: %s", run.run_id, error)
            run.orphaned = False
            return
        self._end(
            run,
            RunEnding(time.monotonic_ns(), RunStatus.KILLED, reason="its runner was killed"),
        )

    def _remember(self, run: RegisteredRun) -> None:
        state = RunState(
            replace(run.registration, devices=run.devices),
            run.owner,
            standalone=run.standalone,
            pid=run.pid,
            started_ns=run.started_ns,
            ending=run.ending,
        )
        try:
            self._memory.keep(state)
        except OSError:  # its client or its folder reports it to the next worker
            log.exception("run %s is not remembered", run.run_id)

    def _problem_of(self, run: RegisteredRun) -> str:
        with self._lock:
            sink = self._sinks.get(Path(run.registration.store_path))
        return (sink.problem if sink is not None else "") or "it is busy"

    def _release_stores(self) -> None:
        """Close the stores without active runs."""
        now_s = time.monotonic()
        with self._lock:
            in_use = {Path(run.registration.store_path) for run in self._runs.values()}
            idle = [
                sink
                for path, sink in self._sinks.items()
                if path not in in_use
                and sink.idle_since_s is not None
                and now_s - sink.idle_since_s > self.settings.idle_s
            ]
            for sink in idle:
                del self._sinks[sink.path]
        for sink in idle:
            sink.stop(_STOP_TIMEOUT_S)
            self.deliverers.release(sink.path)


def _with_defaults(registration: Registration) -> Registration:
    """Resolve aliases and defaults: only this process knows which listeners work."""
    choices = {
        choice.name: choice
        for given in registration.listeners
        for choice in [replace(given, name=ALIASES.get(given.name, given.name))]
    }
    if DEFAULT_LISTENERS in choices:
        del choices[DEFAULT_LISTENERS]
        choices = {choice.name: choice for choice in registry.load().defaults} | choices
    return replace(registration, listeners=tuple(choices.values()))


def _as_parent(ending: RunEnding) -> RunEnding:
    """Return the outcome of a child that ends with its parent, unless it has recorded its own."""
    status = ending.status or ending.fallback
    fallback = RunStatus.KILLED if status is RunStatus.FINISHED else status
    return RunEnding(ending.ended_ns, reason=ending.reason, fallback=fallback)
