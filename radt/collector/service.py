"""The collector's requests and its supervision of runs, listeners, stores and deliverers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from radt.clock import Clock
from radt.collector.delivery import Deliverers
from radt.collector.guardian import Heartbeat
from radt.collector.manifest import Manifest, RunnersEnd
from radt.collector.processes import OnTime, ProcessTable, RunsOn, own_cpu_s, stop_run
from radt.collector.protocol import Begun, LiveView, RefusalCode, Registration, StandaloneRun
from radt.collector.rows import put_rows
from radt.collector.run_finder import RunFinder, waiting
from radt.collector.runs import ActiveRun, Ending, RunState, RunStates
from radt.collector.sampling import SamplerPool
from radt.collector.sink import StoreSink
from radt.collector.start import CollectorSettings
from radt.errors import CollectorError, RadtError
from radt.home import RunDir, runtime_dir
from radt.journal.reader import JournalReader
from radt.listeners import registry
from radt.listeners.registry import ALIASES
from radt.model import DEFAULT_LISTENERS, RunStatus
from radt.procfs import ExitWatch, ProcessId, is_shortage
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import LISTENERS

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0


class RefusedError(CollectorError):
    """Refusal of a request; ``code`` is for the client to handle."""

    def __init__(
        self, message: str, remedy: str | None = None, code: RefusalCode = RefusalCode.NONE
    ) -> None:
        super().__init__(message, remedy)
        self.code = code


class Service:
    """All runs, listeners, stores and deliverers of one worker. Thread-safe."""

    def __init__(self, settings: CollectorSettings, heartbeat: Heartbeat) -> None:
        self.settings = settings
        self._clock = Clock.for_machine()
        #: What keeps the clock as it is, while anything is recorded or about to be.
        self._clock_file: BinaryIO | None = None
        self._table = ProcessTable()
        self._pool = SamplerPool(self._table, heartbeat, settings.hang_s)
        self._deliverers = Deliverers(settings.upload_wait_s, lambda: bool(self._runs))
        self._on = RunsOn(self._cpu_s)
        self._memory = RunStates(runtime_dir() / "runs")
        self._points = settings.buffered_points
        self._lock = threading.RLock()
        self._runs: dict[str, ActiveRun] = {}
        self._sinks: dict[Path, StoreSink] = {}
        self._run_finder = RunFinder()
        #: Those that it found by their folders.
        self._taken_up: dict[str, ActiveRun] = {}
        self._finder: threading.Thread | None = None

    # Requests --------------------------------------------------------------------------------

    def record(self, runs: Sequence[StandaloneRun]) -> list[str]:
        """Write the rows of runs that a runner will start in one store, and return their names.

        Raises:
            StoreError: The store cannot be written; it has none of them.
        """
        if not runs:
            return []
        path = Path(runs[0].registration.store_path)
        run_ids = [run.registration.run_id for run in runs]
        with StoreWriter(path) as writer, StoreReader(path) as reader, writer.transaction():
            # A runner that has waited too long for the answer has written its rows itself.
            names = {run.run_id: run.name for run in reader.runs(run_ids=run_ids)}
            return [
                names.get(run_id) or put_rows(writer, reader, run, self._clock)
                for run_id, run in zip(run_ids, runs, strict=True)
            ]

    def register(self, registration: Registration, owner: ProcessId | None) -> list[str]:
        """Record a run of a runner; return warnings."""
        registration = _with_defaults(registration)
        return self._adopt(ActiveRun(registration, owner, buffered_points=self._points))

    def begin(self, run: StandaloneRun, owner: ProcessId | None, timeout_s: float = 0.0) -> Begun:
        """Record a run that is its own owner.

        Args:
            timeout_s: How long to wait for its rows; they are written as soon as the store is free.
        """
        registration = _with_defaults(run.registration)
        listeners = "+".join(map(str, registration.listeners))
        run = replace(run, registration=registration, tags=run.tags | {LISTENERS: listeners})
        active = ActiveRun(registration, owner, standalone=run, buffered_points=self._points)
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
            resumed: An earlier worker received this request.
        """
        run = self._run(run_id)
        if run.started_ns is not None:
            return
        if not run.parent_id:  # a child's processes are its parent's
            if not resumed:  # otherwise an earlier worker has already used CPU time for it
                run.tracker_begins(self._cpu_s())
            self._on.begin(run_id)
            self._table.watch(run_id, pid, owns_group=run.standalone is None)
        run.started(pid, monotonic_ns, devices)
        self._remember(run)
        self._pool.wake()
        self._sink(Path(run.registration.store_path)).wake()

    def finish(
        self,
        run_id: str,
        ending: Ending,
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
            # This worker is younger than the run, and the run's state is gone.
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

    def hurry(self, store: Path) -> None:
        """Upload what a store has now: somebody waits for it."""
        self._deliverers.hurry(store)

    def deliver(self, registration: Registration) -> None:
        """Upload what a store has of runs that were recorded elsewhere."""
        self._deliverers.ensure(registration)

    # Supervision -----------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue the runs that an earlier worker recorded."""
        for known in self._memory.load():
            run = ActiveRun(
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
        self._pool.check()
        self._deliverers.check()
        self._release_stores()
        self._find()

    def _find(self) -> None:
        """Take up runs that this collector does not know, beside everything else."""
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
        # A workload begins with its own runs, not with the children of one.
        for manifest in sorted(manifests, key=lambda manifest: bool(manifest.run.parent_id)):
            registration = manifest.run.registration
            with self._lock:
                known = self._runs.get(registration.run_id)
            if known is not None:
                self._end_as_noted(known)
            else:
                log.info("run %s was found in %s", registration.run_id, registration.spool)
                try:
                    self._take_up_one(manifest)
                except Exception as error:
                    if is_shortage(error):
                        raise  # it is looked for again
                    # One run that cannot be recorded must not cost the others.
                    log.exception("run %s", registration.run_id)

    def _end_as_noted(self, run: ActiveRun) -> bool:
        """End a run if its runner, which could not reach this collector, has noted an end."""
        end = RunnersEnd.read(Path(run.registration.spool))
        if end is None or run.ending is not None:
            return False
        self._end(run, Ending(end.ended_ns, end.status, end.exit_code, end.reason))
        return True

    def _take_up_one(self, manifest: Manifest) -> None:
        registration = manifest.run.registration
        spool = Path(registration.spool)
        parent_id, journal = manifest.run.parent_id, JournalReader(RunDir(spool).journal, {})
        if not manifest.run.has_runner and (
            journal.being_written or self._is_cut_off(parent_id, journal)
        ):
            is_watched = manifest.alive and not parent_id  # else its parent is
            self.begin(manifest.run, manifest.owner if is_watched else None)
            with self._lock:
                run, parent = self._runs.get(registration.run_id), self._runs.get(parent_id)
                if run is not None:
                    self._taken_up[registration.run_id] = run
            if run is not None and parent is not None and parent.ending is not None:
                self._end(run, _as_parent(parent.ending))  # it ended meanwhile
            return
        self._deliverers.ensure(registration)
        self._sink(Path(registration.store_path)).drain(registration)

    def _check_taken_up(self) -> None:
        """End the found runs whose processes no longer write."""
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
        """Return whether a child has no end of its own: it ends as its parent, which has not."""
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

    def orphaned(self, run: ActiveRun) -> None:
        """End a run whose owner has died without finishing it."""
        if run.standalone is not None:
            code = None if run.exit_watch is None else run.exit_watch.exit_code()
            self._end(run, Ending.of_exit(code))
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
    def busy(self) -> bool:
        """Return whether any run is being recorded."""
        with self._lock:
            return bool(self._runs)

    @property
    def run_ids(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._runs)

    @property
    def listeners(self) -> tuple[str, ...]:
        return self._pool.names()

    @property
    def on(self) -> OnTime:
        """How long runs were on, and what that took of the CPU."""
        return self._on.time

    @property
    def deliverer_pids(self) -> list[int]:
        """Return the ids of the processes that upload to MLflow and Postgres."""
        return self._deliverers.pids

    @property
    def problems(self) -> tuple[str, ...]:
        """Return descriptions of current failures."""
        with self._lock:
            return tuple(sink.problem for sink in self._sinks.values() if sink.problem)

    def delivered(self) -> bool:
        """Let the deliverers finish; return whether they have."""
        return self._deliverers.close()

    def abandon_delivery(self) -> None:
        """Kill deliverers that did not finish in time; their successors continue."""
        self._deliverers.kill()

    def close(self) -> None:
        """Stop everything; runs stay saved for the next worker."""
        self._pool.close()
        with self._lock:
            sinks = list(self._sinks.values())
        for sink in sinks:
            sink.stop(_STOP_TIMEOUT_S)
        self._deliverers.close()

    def hold_clock(self) -> None:
        """Somebody has come: the clock must not change while there is anything to do."""
        with self._lock:
            if self._clock_file is None:
                try:
                    self._clock, self._clock_file = Clock.held()
                except (OSError, RadtError):
                    log.exception("the clock is not held")

    def release_clock(self, connected: Callable[[], bool]) -> None:
        """Let whoever comes next measure the clock anew, unless there is anything to do."""
        with self._lock:
            if self._clock_file is not None and not self._runs and not connected():
                self._clock_file.close()
                self._clock_file = None

    # Helpers ---------------------------------------------------------------------------------

    def _run(self, run_id: str) -> ActiveRun:
        with self._lock:
            run = self._runs.get(run_id)
        if run is None:
            raise RefusedError(
                f"run {run_id} is not being recorded",
                "Register it first",
                RefusalCode.UNKNOWN_RUN,
            )
        return run

    def _adopt(self, run: ActiveRun) -> list[str]:
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
        self._deliverers.ensure(run.registration)
        if known is not None:
            return []
        warnings = self._pool.subscribe(run)
        # The listeners' accounts are open now, so that an earlier worker's counts find them.
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
                    self._deliverers,
                    self._ended,
                    disk_sync_s=self.settings.disk_sync_s,
                )
            return sink

    def _cpu_s(self) -> float:
        return own_cpu_s(self._deliverers.pids)

    def _children(self, run: ActiveRun) -> list[ActiveRun]:
        """Return the children of a run that are being recorded."""
        with self._lock:
            return [child for child in self._runs.values() if child.parent_id == run.run_id]

    def _end_children(self, run: ActiveRun, ending: Ending) -> None:
        """End the children of a run that ends, as it ends unless they say how they ended."""
        try:
            self._take_up_all(waiting())
        except OSError as error:
            log.warning("looking for children of run %s: %s", run.run_id, error)
        for child in self._children(run):
            self._end(child, _as_parent(ending))

    def _end(self, run: ActiveRun, ending: Ending) -> None:
        if not run.parent_id:
            self._end_children(run, ending)
        if run.sampling:
            self._pool.read_last(run)
        run.tracker_ends(self._cpu_s())  # before the store's thread sees that it has ended
        self._on.end(run.run_id)
        if run.end(ending):
            self._pool.unsubscribe(run.run_id)
            self._remember(run)
        with self._lock:
            sink = self._sinks.get(Path(run.registration.store_path))
        if sink is not None:
            sink.wake()

    def _ended(self, run: ActiveRun) -> None:
        """Remove a run that the store has completely, or never will have."""
        if run.exit_watch is not None:
            run.exit_watch.close()
        self._pool.unsubscribe(run.run_id)
        self._table.forget(run.run_id)
        self._memory.forget(run.run_id)
        with self._lock:
            self._runs.pop(run.run_id, None)

    def _stop_orphan(self, run: ActiveRun) -> None:
        log.warning("the owner of run %s died; stopping the run", run.run_id)
        try:
            stop_run(run.run_id)
        except OSError as error:  # its processes cannot be looked for now
            log.warning("run %s is not stopped yet: %s", run.run_id, error)
            run.orphaned = False
            return
        self._end(
            run,
            Ending(time.monotonic_ns(), RunStatus.KILLED, reason="its runner was killed"),
        )

    def _remember(self, run: ActiveRun) -> None:
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

    def _problem_of(self, run: ActiveRun) -> str:
        with self._lock:
            sink = self._sinks.get(Path(run.registration.store_path))
        return (sink.problem if sink is not None else "") or "it is busy"

    def _release_stores(self) -> None:
        """Close stores of which no run is being recorded."""
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
            self._deliverers.release(sink.path)


def _with_defaults(registration: Registration) -> Registration:
    """Resolve aliases and defaults, as only this process knows which listeners work."""
    choices = {
        choice.name: choice
        for given in registration.listeners
        for choice in [replace(given, name=ALIASES.get(given.name, given.name))]
    }
    if DEFAULT_LISTENERS in choices:
        del choices[DEFAULT_LISTENERS]
        choices = {choice.name: choice for choice in registry.load().defaults} | choices
    return replace(registration, listeners=tuple(choices.values()))


def _as_parent(ending: Ending) -> Ending:
    """Return the end of a child whose parent ends, unless the child says how it ended."""
    status = ending.status or ending.fallback
    fallback = RunStatus.KILLED if status is RunStatus.FINISHED else status
    return Ending(ending.ended_ns, reason=ending.reason, fallback=fallback)
