"""Watches an experiment from another process: status, attach and stop.

Watching does not disturb the runner: the file and the store are only read, the lock is only
inspected, and a collector that is not running is not started.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Self

from rich.text import Text

from radt import procfs
from radt.errors import HeldError, UsageError
from radt.experiment.files import call
from radt.experiment.lock import ExperimentLock, Holder
from radt.home import Home
from radt.runner.active import INTERRUPT_GRACE_S, TERMINATE_GRACE_S, StopRequest
from radt.runner.console import RunConsole
from radt.runner.detach import last_log
from radt.runner.local_progress import LocalProgress
from radt.runner.output import LogTail
from radt.runner.progress import ExperimentProgress
from radt.runner.supervisor import exit_code

#: Seconds between reads of an experiment's output and lock, and between full updates.
POLL_S, LOOK_S = 0.1, 1.0


class Watcher(ABC):
    """Watches one experiment from another process. Use as a context manager.

    Attributes:
        file: The experiment file.
        subject: What continues after the user stops watching, for the message.
        options: The options that resume it once it was stopped.
    """

    subject: str
    options = ""

    def __init__(self, file: Path, find_home: Callable[[], Home]) -> None:
        self.file = file
        self._find_home = find_home
        self.lock = ExperimentLock(file)

    @cached_property
    def home(self) -> Home:
        """Its data folder, looked up when it is needed: a stop goes without.

        Raises:
            UsageError: The settings do not name a usable folder.
        """
        return self._find_home()

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def look(self) -> ExperimentProgress:
        """Return the current progress.

        Raises:
            RadtError: It cannot be read.
        """

    @abstractmethod
    def follow(self, console: RunConsole, stop: StopRequest) -> int:
        """Show its output and a live table until it ends or the user stops watching.

        Returns:
            The exit code of the experiment.

        Raises:
            RadtError: It is not running, or cannot go on.
        """

    @abstractmethod
    def stop(self, console: RunConsole, *, now: bool) -> bool:
        """End its runs and wait until their statuses are written.

        Args:
            console: Printed to.
            now: Kill them at once.

        Returns:
            True if it was running.

        Raises:
            RadtError: This user or machine may not stop it, or it did not end in time.
        """

    def wait_for_release(
        self, holder: Holder, patience_s: float, has_ended: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait for the holder of the lock to end; return True if it did."""
        end_s = time.monotonic() + patience_s
        while self.lock.holder() == holder and not has_ended():
            if time.monotonic() > end_s:
                return False
            time.sleep(POLL_S)
        return True


#: Number of earlier output lines to show, taken from the last bytes of the output.
SHOWN_LINES = 20
_TAIL_BYTES = 64_000
#: Seconds after the runner's end for its supervisor to write the last line.
_LAST_LINE_S = 5.0
#: Seconds for runs to end, and then for their values and artifacts to be collected.
STOP_PATIENCE_S = INTERRUPT_GRACE_S + TERMINATE_GRACE_S + 45.0


class LocalWatcher(Watcher):
    """Watches an experiment whose runs are processes of a runner.

    Args:
        file: The experiment file.
        find_home: Finds its data folder, unless its runner says which.
    """

    subject = "the experiment continues"

    def __init__(self, file: Path, find_home: Callable[[], Home]) -> None:
        super().__init__(file, find_home)
        self._progress = LocalProgress(file, lambda: self.home)

    def __exit__(self, *_: object) -> None:
        self._progress.close()

    def look(self) -> ExperimentProgress:
        return self._progress.read(self.lock.holder())

    def follow(self, console: RunConsole, stop: StopRequest) -> int:
        holder = self.lock.holder()
        if holder is None:
            raise self._not_running()
        log = _Log(holder, console)
        next_look_s = 0.0
        while not stop and self.lock.holder() == holder:
            log.relay()
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + LOOK_S
                progress = self.look()
                console.experiment = progress.progress
                if progress.running is None:
                    console.hide_live()
                else:
                    console.show_live(progress.running)
            stop.wait(POLL_S)
        console.hide_live()
        end_s = time.monotonic() + _LAST_LINE_S
        log.relay()
        while not stop and log.is_unfinished and time.monotonic() < end_s:
            stop.wait(POLL_S)
            log.relay()
        if stop or log.exit_code is not None:
            return log.exit_code or 0
        resumed = call(self.file, options=holder.options)
        console.say(f"ended; exit code unknown; {resumed} resumes it", "dim")
        return 0 if self.look().has_finished else 1

    def _not_running(self) -> UsageError:
        if not self.file.exists():
            return UsageError(
                f"Expected an experiment file, got {self.file}, which does not exist",
                "Name the file that was started; `radt ls` lists runs",
            )
        log = last_log(self.file, self.home)
        return UsageError(
            f"{self.file} is not running",
            f"Its last output is in {log}"
            if log
            else f"{call(self.file, 'status')} shows its progress",
        )

    # Stop ----------------------------------------------------------------------------------------

    def stop(self, console: RunConsole, *, now: bool) -> bool:
        holder = self.lock.holder()
        if holder is None:
            return False
        self.options = holder.options
        if not holder.is_here:
            raise UsageError(
                f"{self.file} is being run by {holder}",
                f"On {holder.host}: {call(self.file, 'stop')}",
            )
        self._ask_to_end(holder, now=now)
        console.show_wait(f"{holder} was {'killed' if now else 'asked to end'}")
        if not self.wait_for_release(holder, STOP_PATIENCE_S):
            raise HeldError(
                f"{holder} did not stop {self.file} within {STOP_PATIENCE_S:.0f} s",
                f"Run kill -9 {holder.pid}; the next start cleans up after its runs"
                if now
                else call(self.file, "stop --now"),
            )
        return True

    def _ask_to_end(self, holder: Holder, *, now: bool) -> None:
        """Signal the runner as its terminal would; with ``now``, signal it twice."""
        # In a shell's background job SIGINT is ignored, and the runner leaves it so.
        ignored = procfs.status_mask(holder.pid, "SigIgn") or 0
        polite = signal.SIGTERM if ignored >> (signal.SIGINT - 1) & 1 else signal.SIGINT
        second = signal.SIGTERM if polite is signal.SIGINT else signal.SIGHUP
        try:
            os.kill(holder.pid, polite)
            if now:  # a different signal, because two pending equal ones are merged into one
                os.kill(holder.pid, second)
        except ProcessLookupError:
            pass  # it has ended by itself
        except PermissionError:
            raise UsageError(
                f"{self.file} is being run by {holder}; only that user may stop it",
                f"Ask {holder.user}, or: sudo {call(self.file, 'stop')}",
            ) from None


class _Log:
    """Relays the output of a runner that prints into a file.

    ``exit_code`` comes from the log's last line; None until that is written.
    """

    def __init__(self, holder: Holder, console: RunConsole) -> None:
        self._console = console
        self._tail: LogTail | None = None
        self.exit_code: int | None = None
        if not holder.log:
            console.say(f"{holder} prints to its own terminal", "dim")
            return
        try:
            tail = LogTail(Path(holder.log), _TAIL_BYTES)
            lines = tail.lines()
        except OSError as error:
            console.say(Text(f"{holder.log} cannot be read: {error.strerror}", "red"))
            return
        self._tail = tail
        if len(lines) > SHOWN_LINES:
            console.say(f"  … see {holder.log} for earlier output", "dim")
        self._print(lines[-SHOWN_LINES:])

    @property
    def is_unfinished(self) -> bool:
        """Return True if the last line may still be written."""
        return self._tail is not None and self.exit_code is None

    def relay(self) -> None:
        """Print the output since the last call."""
        if self._tail is not None:
            with suppress(OSError):  # removed, or its disk is not available at present
                self._print(self._tail.lines())

    def _print(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.relay(line)
            self.exit_code = exit_code(line)
