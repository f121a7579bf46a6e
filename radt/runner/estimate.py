"""When an experiment will probably end, from those of its workloads that have ended."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import TypeVar

from rich.text import Text

from radt import units

#: Columns of the bar; below that many columns in all there is none.
_BAR_COLUMNS = 20
_MIN_COLUMNS_WITH_BAR = 72

K = TypeVar("K", bound=Hashable)


def remaining_s(
    left: Sequence[K],
    ended_s: Mapping[K, Sequence[float]],
    *,
    running_s: float = 0.0,
    cooldown_s: float = 0.0,
) -> float | None:
    """Seconds until all is done; None as long as nothing has ended.

    A workload takes what its earlier repeats took on average; one without any what the others
    did, each workload counting once.

    Args:
        left: The workloads still to be done, in order; several times one that is repeated.
        ended_s: How long those took that have ended.
        running_s: How long the first of ``left`` has been running.
        cooldown_s: Pause before each workload but the first of ``left``.
    """
    means_s = {key: fmean(taken) for key, taken in ended_s.items() if taken}
    if not left:
        return 0.0
    if not means_s:
        return None
    usual_s = fmean(means_s.values())
    first_s, *others_s = (means_s.get(key, usual_s) for key in left)
    return max(0.0, first_s - running_s) + sum(others_s) + cooldown_s * len(others_s)


@dataclass(frozen=True, slots=True)
class ProgressView:
    """How far an experiment is, as known at one instant; ``done`` and ``total`` count workloads.

    ``remaining_s`` is None where nothing is known.
    """

    done: int
    total: int
    elapsed_s: float
    remaining_s: float | None = None
    at_monotonic_s: float = field(default_factory=time.monotonic)

    def later(self, monotonic_s: float) -> ProgressView:
        """The same at another instant, if nothing has ended in between."""
        passed_s = max(0.0, monotonic_s - self.at_monotonic_s)
        return replace(
            self,
            elapsed_s=self.elapsed_s + passed_s,
            remaining_s=None if self.remaining_s is None else max(0.0, self.remaining_s - passed_s),
            at_monotonic_s=monotonic_s,
        )

    @property
    def fraction(self) -> float:
        """The part that is done: of the time if its end can be estimated, else of workloads."""
        if self.remaining_s is not None and self.elapsed_s + self.remaining_s > 0:
            by_time = self.elapsed_s / (self.elapsed_s + self.remaining_s)
            return by_time if self.done < self.total else 1.0
        return self.done / self.total if self.total else 1.0


def progress_line(view: ProgressView, width: int, now: datetime | None = None) -> Text:
    """``━━━━╺━━━━  3/12 workloads  01:12:30  about 2 h left, until 16:42``, of now unless given."""
    if now is None:
        view = view.later(time.monotonic())
    line = Text("  ")
    if width >= _MIN_COLUMNS_WITH_BAR:
        filled = math.floor(view.fraction * _BAR_COLUMNS)
        line.append("━" * filled, "cyan").append("─" * (_BAR_COLUMNS - filled), "dim").append("  ")
    line.append(f"{view.done}/{view.total} workloads  {units.stopwatch(view.elapsed_s)}")
    if (text := ending_text(view.remaining_s, now or datetime.now().astimezone())) is not None:
        line.append(f"  {text}", "dim")
    line.truncate(width, overflow="ellipsis")
    return line


def ending_text(remaining_s: float | None, now: datetime) -> str | None:
    """``about 35 min left, until 16:42``, with the day if it is another; None if not known."""
    if remaining_s is None:
        return None
    end = now + timedelta(seconds=remaining_s)
    until = ""
    if remaining_s >= 3600 or end.date() != now.date():
        days = (end.date() - now.date()).days
        day = "" if days == 0 else f"{end:%a} " if days < 7 else f"{end:%Y-%m-%d} "
        until = f", until {day}{end:%H:%M}"
    return f"about {roughly(remaining_s)} left{until}"


def roughly(seconds: float) -> str:
    """A length of time no more exact than an estimate is.

    >>> roughly(3), roughly(47), roughly(400), roughly(9000), roughly(400000)
    ('5 s', '45 s', '7 min', '2.5 h', '4.6 days')
    """
    if seconds < 57.5:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 59.5 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 47.5 * 3600:
        return f"{seconds / 3600:.2g} h" if seconds < 9.95 * 3600 else f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.2g} days"
