"""Stopping: Ctrl-C once asks the training processes to end, twice kills them.

The terminal does not deliver Ctrl-C to the training processes themselves (each has a session of
its own), so what reaches them, and when, is decided here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

#: Seconds from the polite signal to SIGTERM, and from there to SIGKILL.
INTERRUPT_GRACE_S = 10.0
TERMINATE_GRACE_S = 5.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Escalation:
    """Which signal is due: the user's own first, then SIGTERM, then SIGKILL."""

    first: signal.Signals
    _due: list[tuple[float, signal.Signals]] = field(init=False)

    def __post_init__(self) -> None:
        now_s = time.monotonic()
        self._due = [(now_s, self.first)]
        if self.first == signal.SIGINT:
            self._due.append((now_s + INTERRUPT_GRACE_S, signal.SIGTERM))
            self._due.append((now_s + INTERRUPT_GRACE_S + TERMINATE_GRACE_S, signal.SIGKILL))
        else:
            self._due.append((now_s + INTERRUPT_GRACE_S, signal.SIGKILL))

    def kill_now(self) -> None:
        """Skip to SIGKILL."""
        self._due = [(0.0, signal.SIGKILL)]

    def next_signal(self) -> signal.Signals | None:
        """The signal to send now, if one is due; each is returned once."""
        if self._due and time.monotonic() >= self._due[0][0]:
            return self._due.pop(0)[1]
        return None


class StopRequest:
    """Whether the user wants the runner to stop, and how urgently."""

    def __init__(self) -> None:
        self.escalation: Escalation | None = None
        self.on_request: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return self.escalation is not None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells have it."""
        first = self.escalation.first if self.escalation else signal.SIGINT
        return 128 + first

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP while inside; main thread only.

        A signal that whoever started radt has switched off (nohup, a shell's background job) stays
        switched off.
        """
        previous = {
            number: signal.signal(number, self._handle)
            for number in _STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.escalation is None:
            self.escalation = Escalation(signal.Signals(number))
        else:
            self.escalation.kill_now()
        self.on_request()
