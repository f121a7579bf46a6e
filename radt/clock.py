"""One clock for all processes of a user on a machine.

Time is measured monotonically (``CLOCK_MONOTONIC`` is the same for all processes of a machine) and
converted to wall-clock time by adding one offset, which is fixed while any collector works. Samples
and journals of collocated runs therefore line up exactly, and a step of the wall clock (NTP, an
administrator) never makes time run backwards within a run. After that, the next process measures
the offset again: the clock may have been wrong before, or the machine was suspended, which the
monotonic clock does not count.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from radt.errors import RadtError
from radt.files import create_whole, lock, write_whole
from radt.home import runtime_dir
from radt.procfs import boot_id


def measure_offset_ns() -> int:
    """Return wall-clock minus monotonic time, from the tightest of five pairs of readings."""
    best_width_ns, best_offset_ns = None, 0
    for _ in range(5):
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        width_ns = after_ns - before_ns
        if best_width_ns is None or width_ns < best_width_ns:
            best_width_ns, best_offset_ns = width_ns, wall_ns - (before_ns + after_ns) // 2
    return best_offset_ns


#: Keep an offset that is off by less than this: more than the error of any synchronised clock.
_TOLERANCE_NS = 1_000_000_000


def _fixed_offset_ns(path: Path) -> int:
    return int(json.loads(path.read_text(encoding="ascii"))["offset_ns"])


def _fix(path: Path, *, anew: bool) -> int:
    """Store the current offset, unless another process was faster; return the stored one."""
    content = json.dumps({"offset_ns": measure_offset_ns()})
    if anew:
        write_whole(path, content)
    else:
        create_whole(path, content)
    return _fixed_offset_ns(path)


def _lock_file() -> Path:
    return runtime_dir() / "clock.lock"


def _agreed_file() -> Path:
    """Return the file with the offset of a machine that follows another machine's clock."""
    return runtime_dir() / "clock-agreed.json"


@dataclass(frozen=True, slots=True)
class Clock:
    """Converts monotonic time of this machine to wall-clock time."""

    offset_ns: int

    @classmethod
    def for_machine(cls) -> Clock:
        """Return this user's shared clock, re-measured if its offset is off and nobody holds it."""
        with suppress(FileNotFoundError):
            return cls(_fixed_offset_ns(_agreed_file()))
        boot = boot_id()
        if not boot:  # cannot distinguish this boot's offset from the next one's
            return cls(measure_offset_ns())
        path = runtime_dir() / f"clock-{boot}.json"
        try:
            fixed_ns = _fixed_offset_ns(path)
        except FileNotFoundError:
            return cls(_fix(path, anew=False))
        if abs(measure_offset_ns() - fixed_ns) <= _TOLERANCE_NS:
            return cls(fixed_ns)
        try:
            with _lock_file().open("ab") as file:
                if lock(file.fileno()):
                    return cls(_fix(path, anew=True))
        except OSError:
            pass  # locks do not work, so another process may hold the clock
        return cls(fixed_ns)

    @classmethod
    def agree(cls, offset_ns: int) -> None:
        """Set the offset of all processes with this runtime folder, whatever the wall clock says.

        For the runtime folder of a cluster job whose nodes share one clock. Call it before anything
        else uses the folder.
        """
        _agreed_file().write_text(json.dumps({"offset_ns": offset_ns}), encoding="ascii")

    @classmethod
    def held(cls) -> tuple[Clock, BinaryIO]:
        """Return `for_machine`, which keeps its offset until the returned file is closed.

        Raises:
            OSError, UsageError: The runtime folder cannot be written.
        """
        cls.for_machine()
        file = _lock_file().open("ab")
        with suppress(OSError):  # the file system has no locks
            lock(file.fileno(), shared=True)
        return cls.for_machine(), file

    @classmethod
    def as_it_is(cls) -> Clock:
        """Return the clock as fixed before, else from the wall clock. Write nothing."""
        try:
            for path in (_agreed_file(), runtime_dir() / f"clock-{boot_id()}.json"):
                if path.exists():
                    return cls(_fixed_offset_ns(path))
            return cls(measure_offset_ns())
        except (OSError, RadtError, ValueError, KeyError):
            return cls(measure_offset_ns())

    @classmethod
    def at_hand(cls) -> Clock:
        """Return `for_machine`, or an unshared clock if there is no runtime folder."""
        try:
            return cls.for_machine()
        except (OSError, RadtError):
            return cls(measure_offset_ns())

    def now_ns(self) -> int:
        """Return wall-clock nanoseconds since the epoch."""
        return time.monotonic_ns() + self.offset_ns

    def to_wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time of this boot to wall-clock time."""
        return monotonic_ns + self.offset_ns
