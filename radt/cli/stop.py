"""``radt stop``: stop an experiment that runs in the background or another terminal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from radt import units
from radt.cli.options import call
from radt.cluster.opened import open_submission
from radt.errors import HeldError, UsageError
from radt.experiment.lock import ExperimentLock, Holder
from radt.runner.active import INTERRUPT_GRACE_S, TERMINATE_GRACE_S
from radt.runner.console import shown_path

_POLL_S = 0.1
#: Time for runs to end, and then to collect their values and artifacts.
PATIENCE_S = INTERRUPT_GRACE_S + TERMINATE_GRACE_S + 45.0


@click.command("stop")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--now", is_flag=True, help="Kill the runs at once.")
def command(file: Path, now: bool) -> int:
    """Stop the running experiment FILE, as Ctrl-C in its terminal does, and wait for its end.

    Runs have ten seconds to end by themselves, then radt kills them. Stopped runs are KILLED; the
    next start runs them again. Jobs on a cluster are cancelled, from any of its logins.
    """
    console = Console(highlight=False, stderr=True)
    if not file.exists():
        raise UsageError(f"file {file} not found", "Check the path")
    if (spool := open_submission(file)) is not None:
        from radt.cli.cluster_jobs import stop_jobs

        return stop_jobs(file, spool, now=now)
    lock = ExperimentLock(file)
    holder = lock.holder()
    if holder is None:
        console.print(Text(f"{shown_path(file)} is not running", "dim"))
        return 0
    if not holder.is_here:
        raise UsageError(
            f"{file} is being run by {holder}", f"On {holder.host}: {call(file, 'stop')}"
        )
    _ask_to_end(file, holder, now=now)
    started_s = time.monotonic()
    asked = "killed" if now else "asked to end"
    with console.status(Text(f"{holder} was {asked}"), spinner="line"):
        while _still(lock, holder):
            if time.monotonic() - started_s > PATIENCE_S:
                raise _stuck(file, holder, now=now)
            time.sleep(_POLL_S)
    took = units.duration(time.monotonic() - started_s)
    console.print(Text(f"{shown_path(file)} was stopped in {took}"))
    console.print(Text(f"  {call(file, options=holder.options)} resumes it", "dim"))
    return 0


def _ask_to_end(file: Path, holder: Holder, *, now: bool) -> None:
    """Signal the runner as its terminal would; twice with ``now``."""
    # A shell's job in the background has SIGINT switched off, and the runner leaves it so.
    polite = signal.SIGTERM if _ignores(holder.pid, signal.SIGINT) else signal.SIGINT
    second = signal.SIGTERM if polite is signal.SIGINT else signal.SIGHUP
    try:
        os.kill(holder.pid, polite)
        if now:  # another signal, because two equal ones may become one
            os.kill(holder.pid, second)
    except ProcessLookupError:
        pass  # it has ended by itself
    except PermissionError:
        raise UsageError(
            f"{file} is being run by {holder}; only that user may stop it",
            f"Ask {holder.user}, or: sudo {call(file, 'stop')}",
        ) from None


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process has this signal switched off (``SigIgn``, proc_pid_status(5))."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        if name == b"SigIgn":
            return bool(int(value, 16) >> (number - 1) & 1)
    return False


def _still(lock: ExperimentLock, holder: Holder) -> bool:
    return lock.holder() == holder


def _stuck(file: Path, holder: Holder, *, now: bool) -> HeldError:
    remedy = (
        f"Run kill -9 {holder.pid}; the next start cleans up after its runs"
        if now
        else call(file, "stop --now")
    )
    return HeldError(f"{holder} did not stop {file} within {PATIENCE_S:.0f} s", remedy)
