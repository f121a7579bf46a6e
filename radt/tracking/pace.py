"""When the deliverer's threads work: woken by news, told to finish up."""

from __future__ import annotations

import threading


class Pace:
    """Wakes a thread early, and tells it to finish up."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._poked = False
        self._nudged = False
        self.finishing = False

    def poke(self) -> None:
        """Something may be new."""
        with self._condition:
            self._poked = True
            self._condition.notify_all()

    def nudge(self) -> None:
        """Something that the thread itself began is done; ends every wait."""
        with self._condition:
            self._nudged = True
            self._condition.notify_all()

    def finish(self) -> None:
        """Do what is left and end."""
        with self._condition:
            self.finishing = True
            self._condition.notify_all()

    def wait(self, timeout_s: float | None, *, for_poke: bool = True) -> None:
        """Until poked (unless ``for_poke`` is false), nudged, told to finish, or the time is over.

        Pokes that were not waited for are kept.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: self.finishing or self._nudged or (for_poke and self._poked), timeout_s
            )
            self._nudged = False
            if for_poke:
                self._poked = False

    def wait_for_nudge(self, timeout_s: float | None = None) -> None:
        """Until nudged, or the time is over, also when told to finish."""
        with self._condition:
            self._condition.wait_for(lambda: self._nudged, timeout_s)
            self._nudged = False
