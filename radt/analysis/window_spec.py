"""The requested window: the part of each run that counts, by default without its warm-up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from radt.errors import UsageError
from radt.model import MarkerKind

#: Forms that `WindowSpec.parse` accepts, for help and errors.
WINDOW_FORMS = (
    "epoch:2, epoch:2-4, epoch:2- (from 2 on), train (the name of a phase or span), "
    "phase:train, span:load, steady or all"
)
_MARKER_WORD = "marker"
_MARKERS = {
    _MARKER_WORD: None,
    MarkerKind.PHASE.value: MarkerKind.PHASE,
    MarkerKind.SPAN.value: MarkerKind.SPAN,
}
_EPOCHS = re.compile(r"([0-9]+)\s*(?:([-–])\s*([0-9]+)?)?")
_NUMBERS = re.compile(r"[0-9]+\s*(?:[-–]\s*[0-9]*)?")


class WindowKind(StrEnum):
    """How the part of a run that counts is chosen."""

    AFTER_FIRST = ""  # all epochs but the first; without epochs, the steady state
    EPOCHS = "epoch"
    MARKED = _MARKER_WORD  # phases or spans of a name
    STEADY = "steady"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The window that the user requests.

    Attributes:
        kind: How the window is chosen.
        first_epoch: Number of the first epoch that counts, in the script's numbering: the marker's
            step, so 0 or 1 for a script's first epoch.
        last_epoch: Number of the last epoch, None for no limit.
        name: The name of phases or spans.
        marker: Phase or span, None for either.
        overlap: Only the time in which all runs of the workload ran, from the last start to the
            first end.
    """

    kind: WindowKind = WindowKind.AFTER_FIRST
    first_epoch: int = 0
    last_epoch: int | None = None
    name: str = ""
    marker: MarkerKind | None = None
    overlap: bool = False

    @classmethod
    def parse(cls, text: str, *, overlap: bool = False) -> WindowSpec:
        """Return the window for ``epoch:2-4``, ``train``, ``span:load``, ``steady``, ``all``.

        An empty text is the default.

        Epochs have the script's numbers: `radt.Run.epochs` begins with 1 unless it is given another
        ``start``. An ambiguous name of a phase or span needs the prefix ``phase:``, ``span:`` or,
        for either, ``marker:``.

        Raises:
            UsageError: The text is not a window.
        """
        asked = text.strip()
        if not asked.isprintable():
            raise _unknown(asked)
        if asked.lower() in (WindowKind.AFTER_FIRST, WindowKind.STEADY, WindowKind.ALL):
            return cls(WindowKind(asked.lower()), overlap=overlap)
        head, colon, rest = (part.strip() for part in asked.partition(":"))
        head = head.lower()
        if head == WindowKind.EPOCHS:
            first, last = _epoch_numbers(rest, asked)
            return cls(WindowKind.EPOCHS, first, last, overlap=overlap)
        if not colon and _NUMBERS.fullmatch(asked):
            raise _unknown(asked, f"Write epoch:{asked}")
        if not colon:
            return cls(WindowKind.MARKED, name=asked, overlap=overlap)
        if head not in _MARKERS or not rest:
            raise _unknown(asked)
        return cls(WindowKind.MARKED, name=rest, marker=_MARKERS[head], overlap=overlap)

    @property
    def text(self) -> str:
        """Return a description for tables and pages."""
        match self.kind:
            case WindowKind.AFTER_FIRST:
                words = "all epochs after the first"
            case WindowKind.EPOCHS:
                words = self.epochs_text
            case WindowKind.MARKED:
                words = f"{self.marker_text} after the first epoch"
            case WindowKind.STEADY:
                words = "the steady state"
            case WindowKind.ALL:
                words = "whole runs"
        if self.overlap:
            words = f"{words}, while all runs of the workload ran"
        if self.kind is WindowKind.MARKED:
            words = f"{words}; time per epoch is its time in each epoch"
        return words

    @property
    def epochs_text(self) -> str:
        """Return the requested epochs."""
        if self.last_epoch is None:
            return f"epochs from {self.first_epoch} on"
        if self.last_epoch == self.first_epoch:
            return f"epoch {self.first_epoch}"
        return f"epochs {self.first_epoch} to {self.last_epoch}"

    @property
    def marker_text(self) -> str:
        """Return the requested phase or span."""
        return f"{self.marker or 'phase or span'} '{self.name}'"


#: All epochs after the first.
DEFAULT_WINDOW = WindowSpec()


def _epoch_numbers(numbers: str, asked: str) -> tuple[int, int | None]:
    match = _EPOCHS.fullmatch(numbers)
    if match is None:
        raise UsageError(
            f"{asked!r} names no epochs", "Write epoch:2, epoch:2-4 or epoch:2- (from 2 on)"
        )
    first = int(match[1])
    if match[3] is None:
        return first, None if match[2] else first
    last = int(match[3])
    if last < first:
        raise UsageError(
            f"{asked!r} ends before it begins", f"Write epoch:{last}-{first} for these epochs"
        )
    return first, last


def _unknown(asked: str, remedy: str = "") -> UsageError:
    return UsageError(
        f"{asked!r} is not a window",
        remedy or f"Use {WINDOW_FORMS}; write span: or phase: before a name with a colon",
    )
