"""What of a run counts: by default not its warm-up.

A `WindowSpec` is what the user asked for, a `Window` what a run has of it; `radt.report.windowing`
finds one in the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from radt.errors import UsageError
from radt.model import MarkerKind
from radt.report.stretches import Stretches, length_s
from radt.units import plural

#: What `WindowSpec.parse` takes, for help and errors.
WINDOW_FORMS = (
    "epoch:2, epoch:2-4, epoch:2- (from 2 on), train (what a phase or span is called), "
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
#: More different notes would be no help.
_MAX_NOTES = 6


class WindowKind(StrEnum):
    """By what the part of a run that counts is told from the rest."""

    AFTER_FIRST = ""  # all epochs but the first; where there are none, the steady state
    EPOCHS = "epoch"
    MARKED = _MARKER_WORD  # phases or spans of a name
    STEADY = "steady"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """What of each run of a report counts, as the user asked for it.

    Attributes:
        kind: By what it is found.
        first_epoch: Number of the first epoch that counts, as the script counts them: the
            marker's step, so 0 or 1 for a script's first epoch.
        last_epoch: That of the last one, None for no limit.
        name: What phases or spans are called.
        marker: Whether it is a phase or a span, None for either.
        overlap: Only while all runs of the workload ran, from the last one's start to the first
            one's end.
    """

    kind: WindowKind = WindowKind.AFTER_FIRST
    first_epoch: int = 0
    last_epoch: int | None = None
    name: str = ""
    marker: MarkerKind | None = None
    overlap: bool = False

    @classmethod
    def parse(cls, text: str, *, overlap: bool = False) -> WindowSpec:
        """``epoch:2-4``, ``train``, ``span:load``, ``steady``, ``all``; nothing for the default.

        Epochs are numbered as the script numbers them: `radt.Run.epochs` begins with 1 unless it is
        given another ``start``. The name of a phase or span that could be read otherwise is written
        with ``phase:``, ``span:`` or, for either, ``marker:`` before it.

        Raises:
            UsageError: It is none of these.
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

    def to_text(self) -> str:
        """What `parse` makes this of, but for the overlap."""
        match self.kind:
            case WindowKind.EPOCHS:
                last = "" if self.last_epoch is None else self.last_epoch
                dash = "" if self.last_epoch == self.first_epoch else f"-{last}"
                return f"{self.kind}:{self.first_epoch}{dash}"
            case WindowKind.MARKED if self.marker is not None:
                return f"{self.marker}:{self.name}"
            case WindowKind.MARKED:
                return self.name if _is_plain(self.name) else f"{_MARKER_WORD}:{self.name}"
        return self.kind.value

    @property
    def text(self) -> str:
        """In words, for tables and pages."""
        match self.kind:
            case WindowKind.AFTER_FIRST:
                said = "all epochs after the first"
            case WindowKind.EPOCHS:
                said = self.epochs_text
            case WindowKind.MARKED:
                said = f"{self.marker_text} after the first epoch"
            case WindowKind.STEADY:
                said = "the steady state"
            case WindowKind.ALL:
                said = "whole runs"
        if self.overlap:
            said = f"{said}, while all runs of the workload ran"
        if self.kind is WindowKind.MARKED:
            said = f"{said}; time per epoch is what it takes of each"
        return said

    @property
    def epochs_text(self) -> str:
        """The epochs asked for by number."""
        if self.last_epoch is None:
            return f"epochs from {self.first_epoch} on"
        if self.last_epoch == self.first_epoch:
            return f"epoch {self.first_epoch}"
        return f"epochs {self.first_epoch} to {self.last_epoch}"

    @property
    def marker_text(self) -> str:
        """The phase or span asked for."""
        return f"{self.marker or 'phase or span'} '{self.name}'"


#: Of reports for which nobody asked for another.
DEFAULT_WINDOW = WindowSpec()


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts.

    Attributes:
        stretches: When; none where the run does not have what was asked for.
        epochs_s: Seconds of each epoch that lies wholly in them; of a phase or span what it took in
            each of these epochs.
        epochs: The part of the stretches that belongs to these epochs.
        how: How it was found where that is not what was asked for, without the subject: "only one
            epoch, which counts".
        missing: Why there is none, likewise: "no phase or span 'train'".
    """

    stretches: Stretches = ()
    epochs_s: tuple[float, ...] = ()
    epochs: Stretches = ()
    how: str = ""
    missing: str = ""

    @property
    def time_per_epoch_s(self) -> float | None:
        return fmean(self.epochs_s) if self.epochs_s else None

    @property
    def length_s(self) -> float | None:
        """Of all stretches; None without any, and where the run's start or end is not known."""
        return length_s(self.stretches)


def window_notes(windows: Iterable[Window]) -> tuple[str, ...]:
    """Sentences on how the windows of runs were found, where that has to be said."""
    counts: Counter[str] = Counter()
    for window in windows:
        if window.missing:
            counts[f"without values: {window.missing}"] += 1
        elif window.how:
            counts[window.how] += 1
    most = counts.most_common()
    said = [f"{plural(count, 'run')}: {text}" for text, count in most[:_MAX_NOTES]]
    rest = sum(count for _, count in most[_MAX_NOTES:])
    if rest:
        said.append(f"{plural(rest, 'run')}: for other reasons not all that was asked for")
    return tuple(said)


def _is_plain(name: str) -> bool:
    """Whether a name alone is understood as one."""
    try:
        spec = WindowSpec.parse(name)
    except UsageError:
        return False
    return spec.kind is WindowKind.MARKED and spec.name == name and spec.marker is None


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
        f"{asked!r} is no window",
        remedy
        or f"There are {WINDOW_FORMS}; a name that has a colon is written after span: or phase:",
    )
