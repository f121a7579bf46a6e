"""Power from the growth of a card's energy counter.

What boards show as power is a mean over a window that need not be the time between two readings:
A100 and Hopper look at 25 of every 100 ms, Hopper's average goes over a second (Yang et al.,
"Accurate and Convenient Energy Measurements for GPUs", SC24). The counter misses nothing.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from radt.model import MissingReason

#: The counter moves every 20 to 100 ms, so a difference is taken over at least this time: it is
#: then right to about a tenth in the worst case. A bit less than a second, so that readings at
#: 1 Hz need not be exact.
WINDOW_NS = 900_000_000


class PowerMeter:
    """Mean power of one card, in W.

    A counter that stands still over a whole window does not count, as a card always takes power:
    then there is no power from here, for good, so that a series keeps to one method.
    """

    METHOD: ClassVar[str] = (
        "growth of the energy counter since the previous reading, over at least 0.9 s"
    )

    def __init__(self) -> None:
        self._readings: deque[tuple[int, float]] = deque()
        self._works = False
        self._absent = False
        #: Whether the card has a counter that does not count.
        self.stands_still = False

    @property
    def useless(self) -> bool:
        """Whether power must come from elsewhere."""
        return self._absent or self.stands_still

    def power(self, at_ns: int, energy_j: float | MissingReason) -> float | MissingReason | None:
        """The mean power until now; None where it is too early, or `useless`."""
        if energy_j is MissingReason.UNSUPPORTED and not self._works:
            self._absent = True
        if self.useless:
            return None
        if isinstance(energy_j, MissingReason):
            self.interrupted()
            return energy_j
        readings = self._readings
        if readings and energy_j < readings[-1][1]:
            readings.clear()  # the driver was loaded again
        readings.append((at_ns, energy_j))
        while len(readings) > 2 and at_ns - readings[1][0] >= WINDOW_NS:
            readings.popleft()
        start_ns, start_j = readings[0]
        if at_ns - start_ns < WINDOW_NS:
            return None
        if energy_j > start_j:
            self._works = True
            return (energy_j - start_j) / (at_ns - start_ns) * 1e9
        if self._works:
            return MissingReason.LOST
        self.stands_still = True
        return None

    def interrupted(self) -> None:
        """The counter could not be read: begin anew."""
        self._readings.clear()
