"""What of a run counts: its warm-up does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from radt.store.records import MarkerRecord, RunRecord

#: The method in words, for tables and pages.
WINDOW_TEXT = "all epochs after the first"


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts; bounds None where it has no end on that side.

    ``epochs`` are their lengths in seconds, none where the script marked none.
    """

    start_ns: int | None
    end_ns: int | None
    epochs_s: tuple[float, ...] = ()

    @property
    def time_per_epoch_s(self) -> float | None:
        return fmean(self.epochs_s) if self.epochs_s else None

    @property
    def length_s(self) -> float | None:
        if self.start_ns is None or self.end_ns is None:
            return None
        return (self.end_ns - self.start_ns) / 1e9


def counted(run: RunRecord, epochs: Sequence[MarkerRecord]) -> Window:
    """All epochs but the first; the first one if there is no other; else all of the run.

    ``epochs`` are those that ended, in their order.
    """
    chosen = [one for one in (epochs[1:] or epochs) if one.end_ns is not None]
    if not chosen:
        return Window(run.started_ns, run.ended_ns)
    return Window(
        chosen[0].start_ns,
        chosen[-1].end_ns,
        tuple((one.end_ns - one.start_ns) / 1e9 for one in chosen if one.end_ns is not None),
    )
