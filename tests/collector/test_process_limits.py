"""The collector has limits, priority, CPUs and masks of its own, whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from collector_kit import holder

#: A script that runs under limits and starts a collector.
CONFINED = """
import os, resource, signal
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
resource.setrlimit(resource.RLIMIT_CPU, (3600, resource.getrlimit(resource.RLIMIT_CPU)[1]))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.nice(7)
os.umask(0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
from radt.collector.client import CollectorClient
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
CollectorClient(start=True, timeout_s=180).reach().close()
"""


def test_a_collector_that_a_confined_script_starts_is_not_confined(collector: None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONFINED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    own = Path("/proc/self")
    rise = [sys.executable, "-c", "import os; os.nice(-1)"]
    may_rise = subprocess.run(rise, capture_output=True, check=False).returncode == 0
    for name in ("guardian", "worker"):
        pid = holder(name)
        assert pid is not None
        process = Path(f"/proc/{pid}")
        limits = _limits(process)
        assert limits["Max file size"][0] == limits["Max file size"][1]
        assert limits["Max cpu time"][0] == limits["Max cpu time"][1]
        assert limits["Max open files"][0] == limits["Max open files"][1]
        status = _status(process)
        assert status["Umask"] == "0077"
        assert int(status["SigBlk"], 16) == 0
        assert status["Cpus_allowed"] == _status(own)["Cpus_allowed"]
        if may_rise:  # others may not take a better priority than they were given
            assert os.sched_getscheduler(pid) == os.SCHED_OTHER
            assert os.getpriority(os.PRIO_PROCESS, pid) == 0


def _limits(process: Path) -> dict[str, tuple[str, str]]:
    """Soft and hard limits by name."""
    lines = (process / "limits").read_text().splitlines()[1:]
    return {line[:26].strip(): (line[26:47].strip(), line[47:68].strip()) for line in lines}


def _status(process: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in (process / "status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}
