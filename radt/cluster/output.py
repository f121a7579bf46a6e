"""Shows the output of remote runs as it grows in the shared folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from radt.cluster.monitor import SubmissionMonitor
from radt.cluster.overview import current_workload
from radt.cluster.spool import JobKey, Spool
from radt.runner.console import RunConsole
from radt.runner.output import Tail

#: Maximum bytes to show of output from before the user attached.
_FIRST_BYTES = 4000


class OutputTails:
    """Prints the output of running jobs' node runners, each line with its workload and node."""

    def __init__(self, spool: Spool, console: RunConsole) -> None:
        self._spool = spool
        self._console = console
        self._tails: dict[Path, Tail] = {}
        self._running: dict[JobKey, str] = {}

    def relay(self, monitor: SubmissionMonitor) -> None:
        """Print the output since the last call, including that of jobs that have ended since."""
        now = {
            job.key: f"{current_workload(job).label} on {job.state.nodes}"
            for job in monitor.jobs.values()
            if job.is_running and job.state is not None
        }
        for key, where in {**self._running, **now}.items():
            with suppress(OSError):  # not there yet, or temporarily unreachable
                for attempt in self._spool.attempts(key)[-1:]:
                    log = attempt.output_log
                    for line in self._tails.setdefault(log, Tail(log, _FIRST_BYTES)).lines():
                        if text := line.strip():
                            self._console.relay(f"  {where} │ {text}")
        self._running = now
