"""One clock for everything on a machine.

Time is measured monotonically and shown as wall-clock time by adding one offset, which is fixed
for as long as a collector has anything to do. After that, whoever comes next measures it anew: the
clock may have been wrong before, or the machine suspended, which the monotonic clock does not
count. Samples, journals and neighbours
therefore line up exactly, and a step of the wall clock (NTP, an administrator) never makes time
run backwards inside a run. ``CLOCK_MONOTONIC`` is the same for all processes of a machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from radt.errors import RadtError
from radt.home import runtime_dir
from radt.procfs import boot_id


def measure_offset_ns() -> int:
    """Wall-clock time minus monotonic time, now, from the tightest of five pairs of readings."""
    best_width_ns, best_offset_ns = None, 0
    for _ in range(5):
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        width_ns = after_ns - before_ns
        if best_width_ns is None or width_ns < best_width_ns:
            best_width_ns, best_offset_ns = width_ns, wall_ns - (before_ns + after_ns) // 2
    return best_offset_ns


#: An offset that is off by less is kept: more than a clock that is kept right is ever off.
_TOLERANCE_NS = 1_000_000_000


def _fixed_offset_ns(path: Path) -> int:
    return int(json.loads(path.read_text(encoding="ascii"))["offset_ns"])


def _fix(path: Path, *, anew: bool) -> int:
    """Write down the offset as it is now, unless another process was faster, and return it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"offset_ns": measure_offset_ns()}), encoding="ascii")
    try:
        if anew:
            os.replace(temporary, path)  # noqa: PTH105 - atomic, and says so
        else:
            os.link(temporary, path)  # atomic, and the first of two racing processes wins
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
    return _fixed_offset_ns(path)


def _lock_file() -> Path:
    return runtime_dir() / "clock.lock"


def _agreed_file() -> Path:
    """Has the offset of a machine that goes by another one's clock."""
    return runtime_dir() / "clock-agreed.json"


@dataclass(frozen=True, slots=True)
class Clock:
    """Converts monotonic time of this machine to wall-clock time."""

    offset_ns: int

    @classmethod
    def for_machine(cls) -> Clock:
        """The clock that all processes of this user share; measured anew if nobody holds it."""
        with suppress(FileNotFoundError):
            return cls(_fixed_offset_ns(_agreed_file()))
        boot = boot_id()
        if not boot:  # nothing would tell this boot's offset from the next one's
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
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(_fix(path, anew=True))
        except OSError:
            return cls(fixed_ns)  # somebody holds it, or that cannot be known

    @classmethod
    def agree(cls, offset_ns: int) -> None:
        """Have all processes with this runtime folder use an offset, whatever the wall clock says.

        For the runtime folder of a job whose nodes go by one clock; before anything else in it.
        """
        _agreed_file().write_text(json.dumps({"offset_ns": offset_ns}), encoding="ascii")

    @classmethod
    def held(cls) -> tuple[Clock, BinaryIO]:
        """`for_machine`, which stays as it is until the file is closed.

        Raises:
            OSError, UsageError: The runtime folder cannot be written.
        """
        cls.for_machine()
        file = _lock_file().open("ab")
        with suppress(OSError):  # somebody measures just now, or the file system has no locks
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return cls.for_machine(), file

    @classmethod
    def as_it_is(cls) -> Clock:
        """The one that was fixed, else the wall clock's; nothing is fixed by asking."""
        try:
            for path in (_agreed_file(), runtime_dir() / f"clock-{boot_id()}.json"):
                if path.exists():
                    return cls(_fixed_offset_ns(path))
            return cls(measure_offset_ns())
        except (OSError, RadtError, ValueError, KeyError):
            return cls(measure_offset_ns())

    @classmethod
    def at_hand(cls) -> Clock:
        """`for_machine`, or where there is no runtime folder to share it in, one of one's own."""
        try:
            return cls.for_machine()
        except (OSError, RadtError):
            return cls(measure_offset_ns())

    def now_ns(self) -> int:
        """Wall-clock nanoseconds since the epoch."""
        return time.monotonic_ns() + self.offset_ns

    def to_wall_ns(self, monotonic_ns: int) -> int:
        """The wall-clock time of a monotonic instant of this boot."""
        return monotonic_ns + self.offset_ns
