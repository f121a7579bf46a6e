"""Watches an experiment from another process: status, attach and stop.

Watching does not disturb the runner: the file and the store are only read, the lock is only
inspected, and a collector that is not running is not started.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Self

from radt.experiment.lock import ExperimentLock, Holder
from radt.home import Home
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.progress import ExperimentProgress

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
