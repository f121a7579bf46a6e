"""The output of runs that are elsewhere, as it grows in the shared folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from radt.cluster.course import Course
from radt.cluster.overview import current_workload
from radt.cluster.spool import JobKey, Spool
from radt.runner.console import RunConsole

#: Of what was printed before somebody looked, at most.
_FIRST_BYTES = 4000


class OutputTails:
    """Prints what the node runners of running jobs print, each line with its workload and node."""

    def __init__(self, spool: Spool, console: RunConsole) -> None:
        self._spool = spool
        self._console = console
        self._read: dict[Path, int] = {}
        self._rest: dict[Path, bytes] = {}
        self._running: dict[JobKey, str] = {}

    def relay(self, course: Course) -> None:
        """Print what was written since the last call, also of jobs that have ended since."""
        now = {
            job.key: f"{current_workload(job).label} on {job.state.nodes}"
            for job in course.jobs.values()
            if job.is_running and job.state is not None
        }
        for key, where in {**self._running, **now}.items():
            with suppress(OSError):  # away for now
                for attempt in self._spool.attempts(key)[-1:]:
                    self._relay(attempt.output_log, where)
        self._running = now

    def _relay(self, log: Path, where: str) -> None:
        try:
            with log.open("rb") as stream:
                size = stream.seek(0, 2)
                start = self._read.get(log, max(0, size - _FIRST_BYTES))
                stream.seek(start)
                new = stream.read()
        except OSError:
            return  # not there yet, or away for now
        self._read[log] = start + len(new)
        *lines, self._rest[log] = (self._rest.get(log, b"") + new).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._console.relay(f"  {where} │ {text.strip()}")
