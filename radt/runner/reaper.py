"""The reaper: makes sure that no training process outlives a runner that was killed.

Run as ``python -I -S reaper.py``, once a runner, in a session of its own. The runner holds the
other end of its standard input and writes one line per event: ``+PGID RUN_ID`` when a run has
started, ``-PGID`` when it has ended. If the input ends while runs are left, the runner is dead:
their process groups get SIGTERM, what is left of them after a grace SIGKILL, and so does every
process that carries a run's id in its environment (children that left the group).

It imports nothing of radt, which ``-I -S`` hides from it, so that one is up in milliseconds.
"""

import os
import signal
import sys
import time

GRACE_S = 3.0
RUN_ID_VARIABLE = b"RADT_RUN_ID="


def group_alive(pgid: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(pgid: int, number: int) -> None:
    """Send a signal to a process group that may be gone."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        pass


def processes_of(run_ids: set[bytes]) -> list[int]:
    """Ids of the user's processes that were started, directly or not, by one of the runs."""
    wanted = {RUN_ID_VARIABLE + run_id for run_id in run_ids}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted.intersection(file.read().split(b"\0")):
                    found.append(int(entry))
        except OSError:  # gone meanwhile, or not the user's
            continue
    return found


def stop_all(groups: dict[int, bytes]) -> None:
    """End the process groups and everything that carries their run ids."""
    for pgid in groups:
        signal_group(pgid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(group_alive(pgid) for pgid in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pgid in groups:
        signal_group(pgid, signal.SIGKILL)
    for run_id in groups.values():
        stop_processes_of(run_id.decode())


def stop_processes_of(run_id: str) -> int:
    """End every process that carries the run's id, and say how many there were."""
    ids = processes_of({run_id.encode()})
    for pid in ids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(ids)


def main() -> int:
    """Follow the runner's lines until it says goodbye or dies."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, bytes] = {}
    for line in sys.stdin.buffer:
        if line.startswith(b"+"):
            pgid, run_id = line[1:].split()
            groups[int(pgid)] = run_id
        elif line.startswith(b"-"):
            groups.pop(int(line[1:]), None)
    stop_all(groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())
