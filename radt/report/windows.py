"""What of a run counts: its warm-up does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from radt.store.records import MarkerRecord, RunRecord


class WindowKind(StrEnum):
    """By what the part of a run that counts is told from the rest."""

    AFTER_FIRST = "after the first epoch"  # all epochs but the first, which is warm-up


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """What of each run of a report counts, as the user asked for it.

    Attributes:
        kind: By what it is found.
    """

    kind: WindowKind = WindowKind.AFTER_FIRST

    @property
    def text(self) -> str:
        """In words, for tables and pages."""
        return "all epochs after the first"


#: Of reports for which nobody asked for another.
DEFAULT_WINDOW = WindowSpec()


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


def counted(run: RunRecord, epochs: Sequence[MarkerRecord], window: WindowSpec) -> Window:
    """The window of one run.

    After the first epoch: all others; the first one if there is no other; else all of the run.

    Args:
        run: It.
        epochs: Those of it that ended, in their order.
        window: What counts.
    """
    match window.kind:
        case WindowKind.AFTER_FIRST:
            chosen = [one for one in (epochs[1:] or epochs) if one.end_ns is not None]
    if not chosen:
        return Window(run.started_ns, run.ended_ns)
    return Window(
        chosen[0].start_ns,
        chosen[-1].end_ns,
        tuple((one.end_ns - one.start_ns) / 1e9 for one in chosen if one.end_ns is not None),
    )
