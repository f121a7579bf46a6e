"""End a `with radt.Run()` block when its epochs or its time are used up.

`radt.Run.epochs` ends its loop, so that the code after it (evaluation, saving) still runs. In a
script that does not use it, calls of the run raise `LimitReached`; the outermost block swallows it,
and the script continues after the block.

Logging a value must stay fast, so it checks nothing: when the time is over, the attribute
``log_metric`` of the runs is replaced by a function that raises.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

from radt.errors import UsageError
from radt.home import MAX_EPOCH_VARIABLE, MAX_TIME_VARIABLE
from radt.journal.format import EventKind
from radt.journal.values import to_step
from radt.journal.writer import JournalWriter, LogScalar, Number
from radt.run.notices import warn_once
from radt.run.steps import ASKING
from radt.units import duration_text, plural

LIMIT_TAG = "radt.limit"

#: Delay after the time limit before a block that makes no call of the run is interrupted.
GRACE_S = 10.0
_RETRY_S = 0.05
_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep


class LimitReached(BaseException):
    """The epochs or the time of a `with radt.Run()` block are used up.

    Not an Exception, so that it passes ``except Exception`` in training code and reaches the block.
    """


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum number of different epochs of a block, and its maximum duration.

    Raises:
        UsageError: A limit is not above 0.
    """

    max_epoch: int | None = None
    max_time_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_epoch is not None and self.max_epoch < 1:
            raise UsageError(f"max_epoch must be 1 or more, not {self.max_epoch}")
        if self.max_time_s is not None and not 0 < self.max_time_s < math.inf:
            raise UsageError(f"max_time_s must be above 0, not {self.max_time_s}")

    def within(self, environ: Mapping[str, str] = os.environ) -> Limits:
        """Return these limits, or the runner's where they are stricter."""
        return Limits(
            _narrower(self.max_epoch, _number(environ, MAX_EPOCH_VARIABLE, int)),
            _narrower(self.max_time_s, _number(environ, MAX_TIME_VARIABLE, float)),
        )

    def __bool__(self) -> bool:
        return self.max_epoch is not None or self.max_time_s is not None

    def reached(self, epochs: int, time_s: float) -> str:
        """Return the limit that this use reaches, as text (``3 epochs``); "" if none."""
        if self.max_epoch is not None and epochs >= self.max_epoch:
            return plural(self.max_epoch, "epoch")
        if self.max_time_s is not None and time_s >= self.max_time_s:
            return duration_text(self.max_time_s)
        return ""


class LimitWatch:
    """Watches the limits of one block from its start, in the thread that entered it.

    Other threads and processes continue to log: only the block's own thread can leave it.

    Args:
        journal: Where values go, and the tag that says which limit was reached.
        rebind: Called with the function that replaces ``log_metric`` of the block's runs.
    """

    def __init__(
        self, limits: Limits, journal: JournalWriter, rebind: Callable[[LogScalar], None]
    ) -> None:
        self._limits = limits
        self._journal = journal
        self._rebind = rebind
        self._epochs: set[int] = set()
        self._is_reached = False
        self._time_over = False
        self._thrown = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread_id = threading.get_ident()
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        if limits.max_time_s is not None:
            threading.Thread(target=self._watch_time, name="radt limit", daemon=True).start()

    def epochs_of(self, count: int) -> int:
        """Return how many of ``count`` further epochs the limit allows, apart from time."""
        return count if self._limits.max_epoch is None else min(count, self._limits.max_epoch)

    def allows_epoch(self, number: int) -> bool:
        """Return True if another epoch may begin. For loops that end by themselves.

        Once the time limit has ended a loop, the code after it is not interrupted and may log.
        """
        if self._time_over:
            self._reach(time_s=math.inf)
            self._ended.set()
            self._rebind(self._journal.scalar)
            return False
        if not self._count(number):
            self._reach(epochs=len(self._epochs))
            return False
        return True

    def check_epoch(self, number: SupportsIndex) -> None:
        """Count an epoch that begins, or in which something is logged.

        Raises:
            LimitReached: The epoch exceeds the limit, and this is the block's thread.
        """
        if not self._count(to_step(number)) and self._is_own_thread():
            self._reach(epochs=len(self._epochs))
            raise LimitReached

    def check_time(self) -> None:
        """Raise if the time is over.

        Raises:
            LimitReached: The time is over, and this is the block's thread.
        """
        if self._time_over and not self._ended.is_set() and self._is_own_thread():
            self._reach(time_s=math.inf)
            raise LimitReached

    def end(self) -> None:
        """Raise nothing from now on: the block is being left. Harmless if repeated."""
        if os.getpid() != self._pid:  # a forked child may have inherited a held lock
            return
        try:
            self._end()
        except LimitReached:  # the asynchronous exception arrived just now
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._ended.set()
            if self._thrown and self._is_own_thread():
                self._thrown = False
                _throw(self._thread_id, None)  # cancel it if it has not arrived yet

    def _count(self, number: int) -> bool:
        """Count an epoch. Return False if it exceeds the limit."""
        maximum = self._limits.max_epoch
        if maximum is not None and number not in self._epochs and len(self._epochs) >= maximum:
            return False
        self._epochs.add(number)
        return True

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread_id and os.getpid() == self._pid

    def _reach(self, epochs: int = 0, time_s: float = 0.0) -> None:
        """Report once, to the run and on standard error, which limit was reached."""
        if not self._is_reached and os.getpid() == self._pid:
            self._is_reached = True
            text = self._limits.reached(epochs, time_s)
            self._journal.say(EventKind.TAGS, values={LIMIT_TAG: text})
            warn_once(f"the run ends here: its limit of {text} is reached")

    # The time --------------------------------------------------------------------------------

    def _watch_time(self) -> None:
        assert self._limits.max_time_s is not None
        if self._ended.wait(min(self._limits.max_time_s, threading.TIMEOUT_MAX)):
            return
        self._rebind(self._refuse)
        self._time_over = True  # last: a loop that sees it restores the fast function
        if self._ended.wait(GRACE_S) or not self._in_main_thread:
            return
        while not self._ended.wait(_RETRY_S):
            if self._interrupt():
                return

    def _refuse(self, name: str, value: Number, step: SupportsIndex | None = None) -> None:
        """Replace ``log_metric`` after the time limit."""
        self.check_time()
        self._journal.scalar(name, value, step)

    def _interrupt(self) -> bool:
        """Raise LimitReached in the block's thread between two bytecodes. Return False to retry.

        This is the only way to end a block that spends its time in one call (``trainer.fit()``) and
        never calls radt. C code is not interrupted; the exception arrives when it returns. It is
        raised once: if the script swallows it (``except:``), the block continues until the Timeout
        of its row. It is never raised in radt's own code, which holds locks and is about to leave
        the block.
        """
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - its only name
        if _is_ours(frame):
            return False
        with self._lock:
            if not self._ended.is_set():
                self._reach(time_s=math.inf)
                self._thrown = True
                _throw(self._thread_id, LimitReached)
        return True


def _throw(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise ``error`` in a thread at its next bytecode; None cancels an exception still pending."""
    import ctypes  # most scripts do not need it

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if error is None else ctypes.py_object(error)
    )


def _is_ours(frame: FrameType | None) -> bool:
    innermost = frame
    while frame is not None:
        # A loader may be interrupted while `radt.Run.batches` waits for its next batch.
        asking = frame is not innermost and frame.f_code in ASKING
        if frame.f_code.co_filename.startswith(_OWN_FOLDER) and not asking:
            return True
        frame = frame.f_back
    return False


def _narrower(first: Any, other: Any) -> Any:
    return min((value for value in (first, other) if value is not None), default=None)


def _number(environ: Mapping[str, str], name: str, convert: Callable[[str], Any]) -> Any:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        value = convert(text)
        Limits(max_time_s=value)
    except (ValueError, UsageError):
        warn_once(f"{name}={text} is not a valid limit and is ignored")
        return None
    return value
