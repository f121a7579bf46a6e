"""Stopping: Ctrl-C once asks the training processes to end, twice kills them.

The terminal does not deliver Ctrl-C to the training processes themselves (each has a session of
its own), so what reaches them, and when, is decided here.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

#: Seconds from the polite signal to SIGTERM, and from there to SIGKILL.
INTERRUPT_GRACE_S = 10.0
TERMINATE_GRACE_S = 5.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Escalation:
    """Which signal is due: the first one, then SIGTERM, then SIGKILL.

    For all runs if the user asks, for one of them if radt ends it (its Timeout, another's failure).
    The second one comes ``patience_s`` later than it would, for what takes long to end well.
    ``is_hurried`` says that SIGKILL was asked for.
    """

    first: signal.Signals
    patience_s: float = 0.0
    is_hurried: bool = field(default=False, init=False)
    _due: list[tuple[float, signal.Signals]] = field(init=False)

    def __post_init__(self) -> None:
        now_s = time.monotonic()
        self._due = [(now_s, self.first)]
        second_s = now_s + INTERRUPT_GRACE_S + self.patience_s
        if self.first == signal.SIGINT:
            self._due.append((second_s, signal.SIGTERM))
            self._due.append((second_s + TERMINATE_GRACE_S, signal.SIGKILL))
        else:
            self._due.append((second_s, signal.SIGKILL))

    def kill_now(self) -> None:
        """Skip to SIGKILL."""
        self.is_hurried = True
        self._due = [(0.0, signal.SIGKILL)]

    def next_signal(self) -> signal.Signals | None:
        """The signal to send now, if one is due; each is returned once."""
        if self._due and time.monotonic() >= self._due[0][0]:
            return self._due.pop(0)[1]
        return None


class StopRequest:
    """Whether the user wants the runner to stop, and how urgently; from any thread."""

    def __init__(self) -> None:
        self.escalation: Escalation | None = None
        self.on_request: Callable[[], None] = lambda: None
        # A signal may come in the middle of any line; unlike events and locks, this may be used
        # in its handler then.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __bool__(self) -> bool:
        return self.escalation is not None

    @property
    def number(self) -> signal.Signals | None:
        """The signal that asked first; None while nobody has."""
        return self.escalation.first if self.escalation is not None else None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells have it."""
        return 128 + (self.number or signal.SIGINT)

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask to stop, as a signal of this number does; asked again, kill."""
        if self.escalation is None:
            self.escalation = Escalation(signal.Signals(number))
        else:
            self.escalation.kill_now()
        self._wake.put(None)
        self.on_request()

    def wait(self, timeout_s: float) -> bool:
        """Return when the user wants to stop, or the time is over; whether he does."""
        if not self:
            try:
                self._wake.get(timeout=timeout_s)
            except queue.Empty:
                return bool(self)
            self._wake.put(None)  # for whoever else waits
        return True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP while inside.

        A signal that whoever started radt has switched off (nohup, a shell's background job) stays
        switched off. Outside the main thread, which alone may take signals, `request` is the way.
        """
        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _STOP_SIGNALS:
                # None: a handler that is not Python's, which could not be put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.request(number)
