"""Reset what the collector inherits from its starter: limits, niceness, CPU affinity, masks.

The collector records all of the user's runs and outlives the process that started it: a file size
limit meant for one script would end the recording of all. Standard library only.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

#: Limits that end or cripple a long-lived process that writes a lot.
_LIMITS = {
    "the size of files": resource.RLIMIT_FSIZE,
    "memory": resource.RLIMIT_AS,
    "data": resource.RLIMIT_DATA,
    "CPU time": resource.RLIMIT_CPU,
    "open files": resource.RLIMIT_NOFILE,
}
#: More CPUs than Linux supports; the kernel keeps those allowed by machine and container.
_ALL_CPUS = range(8192)


def reset_limits() -> None:
    """Reset this process's limits, priority, CPU affinity, umask and signals.

    Settings that would need a missing privilege are kept and reported on standard error (the log).
    """
    os.umask(0o077)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise a child's exit would go unnoticed
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.sched_setaffinity(0, _ALL_CPUS)
    for name, limit in _LIMITS.items():
        _raise(name, limit)
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except PermissionError:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        _say(f"the collector stays at niceness {niceness}, policy {os.sched_getscheduler(0)}")


def _raise(name: str, limit: int) -> None:
    """Raise a limit as far as this user may: remove it, or raise it to the hard limit."""
    _, hard = resource.getrlimit(limit)
    if limit != resource.RLIMIT_NOFILE and hard != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, PermissionError):
            _say(f"the collector stays under a hard limit of {hard} for {name}")
        else:
            return
    resource.setrlimit(limit, (hard, hard))


def _say(text: str) -> None:
    print(f"{text}, which it has from the process that started it", file=sys.stderr, flush=True)  # noqa: T201 - the log
