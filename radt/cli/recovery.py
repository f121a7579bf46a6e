"""What runs left behind: processes of ended runs, and runs without a process."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from radt import procfs
from radt.clock import Clock
from radt.collector.recovery import recover_runs
from radt.collocation.processes import identify
from radt.errors import RunNotFoundError, StoreError
from radt.home import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, Home
from radt.model import RunStatus
from radt.processes import stop
from radt.procfs import ProcessId
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

#: A run that ended less than this many seconds ago may still be cleaned up by its runner.
SETTLE_S = 10.0
#: Seconds from SIGTERM to SIGKILL, and from there until giving up.
_TERMINATE_S = 5.0
_KILL_S = 5.0
_REASON = "its processes are gone"


@dataclass(frozen=True, slots=True)
class LeftoverProcess:
    """A live process that was started for a run, by ``RADT_RUN_ID``, and the run has ended."""

    process: ProcessId
    command: str
    run_id: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.process.pid}) of run {self.run_id}"


def leftover_processes() -> list[LeftoverProcess]:
    """Return this user's processes whose run has ended, in any data folder.

    Ancestors of this process are left out, as are processes whose run cannot be read.
    """
    readers: dict[Path, StoreReader | None] = {}
    spared = set(_ancestors())
    leftovers = []
    try:
        for pid in sorted(procfs.all_pids() - spared):
            ticks = procfs.start_ticks(pid)
            run_id = (
                procfs.variable(pid, RUN_ID_VARIABLE) if ticks is not None and _is_mine(pid) else ""
            )
            if not run_id or ticks is None:
                continue
            spool = procfs.variable(pid, RUN_DIR_VARIABLE)
            if spool and _has_ended(run_id, Home(Path(spool).parent.parent), readers):
                command = identify(pid).command or "a process"
                leftovers.append(LeftoverProcess(ProcessId(pid, ticks), command, run_id))
    finally:
        for reader in readers.values():
            if reader is not None:
                reader.close()
    return leftovers


def end_process(leftover: LeftoverProcess) -> bool:
    """Ask a process to end, then kill it; return False if it survives."""
    return stop(leftover.process, _TERMINATE_S, _KILL_S)


def lost_runs(reader: StoreReader, recorded: Collection[str]) -> list[RunRecord]:
    """Return unended runs of this machine without a process that the collector does not know."""
    alive = {
        procfs.variable(pid, RUN_ID_VARIABLE) for pid in procfs.all_pids() if pid != os.getpid()
    }
    here = platform.node()
    return [
        run
        for run in reader.unended_runs()
        if run.host == here
        and run.run_id not in recorded
        and run.run_id not in alive
        and not _is_root(run)
    ]


def end_run(home: Home, run: RunRecord) -> bool:
    """Record that a lost run was killed; return False if it has ended meanwhile."""
    with StoreWriter(home.store_path) as writer:
        ended = writer.end_run(
            run.run_id, RunStatus.KILLED, Clock.for_machine().now_ns(), reason=_REASON
        )
        if ended:
            writer.seal(run.run_id)
            writer.end_workload(run.workload_id)
    if ended:
        recover_runs(home)  # values that its script had written
    return ended


def _has_ended(run_id: str, home: Home, readers: dict[Path, StoreReader | None]) -> bool:
    path = home.store_path
    if path not in readers:
        try:
            readers[path] = StoreReader(path)
        except StoreError:
            readers[path] = None
    reader = readers[path]
    if reader is None:
        return False
    try:
        ended_ns = reader.run(run_id).ended_ns
    except (RunNotFoundError, StoreError):
        return False
    return ended_ns is not None and ended_ns < Clock.for_machine().now_ns() - SETTLE_S * 1e9


def _is_root(run: RunRecord) -> bool:
    """Return True if the run's first process is alive; a later process may have reused its pid."""
    stat = procfs.process_stat(run.pid) if run.pid is not None else None
    if stat is None or not stat.alive:
        return False
    boot_ns = Clock.for_machine().now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    began_ns = boot_ns + stat.started_ticks * 1_000_000_000 // procfs.TICKS_PER_S
    return began_ns <= (run.started_ns or run.created_ns) + SETTLE_S * 1e9


def _is_mine(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def _ancestors() -> Iterator[int]:
    """Yield this process and its ancestors: a shell that a run has left behind is still in use."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        stat = procfs.process_stat(pid)
        pid = stat.parent if stat is not None else 0
