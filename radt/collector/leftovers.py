"""Ends runs that the machine's last restart cut off.

A worker that dies is followed by one that remembers its runs; a restart of the machine takes that
memory with it, and the store goes on saying that they are running.
"""

from __future__ import annotations

import logging
import platform
import time

from radt.clock import Clock
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

REASON = "the machine was restarted"


def end_runs_before_boot(writer: StoreWriter, reader: StoreReader, clock: Clock) -> None:
    """End the runs of this machine that began before it was started.

    Only those: whether a run of this boot is alive is for its own collector to say, which need not
    be this one (another runtime folder, a container).
    """
    boot_ns = clock.now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    here = platform.node()
    for run in reader.unended_runs():
        if run.host != here or run.created_ns >= boot_ns:
            continue
        log.warning("run %s: %s", run.run_id, REASON)
        writer.end_run(run.run_id, RunStatus.KILLED, _last_sign_ns(reader, run), reason=REASON)
        writer.seal(run.run_id)
        writer.end_workload(run.workload_id)


def _last_sign_ns(reader: StoreReader, run: RunRecord) -> int:
    """When the run was last heard of."""
    times_ns = [summary.last_ns for summary in reader.summary([run.run_id])]
    return max([run.started_ns or run.created_ns, *times_ns])
