"""Where a PyTorch trace lies on radt's clock.

A trace counts on a clock of its own. `radt.run.torch_trace` says how it is tied to the monotonic
clock: events of a known name (marks), and for each the monotonic time of its beginning, give or
take an uncertainty. So each mark leaves a range for the difference of the two clocks; one within
all ranges is known as well as the narrowest of them. If there is none, the clocks drifted (PyTorch
uses the wall clock, which is slewed and stepped), and times between two marks are stretched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: The trace's top-level key that ties it to the monotonic clock (`radt.run.torch_trace`).
CLOCK_KEY = "radt_clock"
#: The trace's top-level key with the wall-clock time of its time 0.
BASE_KEY = "baseTimeNanoseconds"
#: What marks are filed under on the CPU; their shadows on a GPU come later.
MARK_CATEGORY = "user_annotation"


class Alignment(StrEnum):
    """How a trace was brought to the run's clock."""

    MARKS = "marks"
    DRIFTING = "drifting"
    WALL_CLOCK = "wall clock"  # it has no marks, or does not say what radt's clock was


@dataclass(frozen=True, slots=True)
class Notes:
    """What the profiled process noted, in order of time (N,).

    ``offset_ns``, added to monotonic times, makes times of radt's clock; None if it is not said.
    (What the wall clock showed is noted, too, but may have been stepped since radt's was set.)
    """

    marker: str
    process: str
    monotonic_ns: tuple[int, ...]
    uncertainty_ns: tuple[int, ...]
    offset_ns: int | None

    @classmethod
    def read(cls, value: object) -> Notes | None:
        """The value of `CLOCK_KEY`; None if it cannot be used."""
        if not isinstance(value, Mapping) or not isinstance(value.get("marker"), str):
            return None
        monotonic_ns = _numbers(value.get("monotonic_ns"))
        uncertainty_ns = _numbers(value.get("uncertainty_ns"))
        if not monotonic_ns or list(monotonic_ns) != sorted(monotonic_ns):
            return None
        offset_ns = value.get("offset_ns")
        return cls(
            value["marker"],
            str(value.get("process", "")),
            monotonic_ns,
            (*uncertainty_ns, *(0 for _ in monotonic_ns[len(uncertainty_ns) :])),
            offset_ns if isinstance(offset_ns, int) else None,
        )


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) and all(type(x) is int for x in value) else ()


@dataclass(frozen=True, slots=True)
class ClockMap:
    """From times of the trace to times of radt's clock, never backwards; nanoseconds.

    ``error_ns`` is how far off a time may be; None if nobody knows.
    """

    anchors_ns: tuple[int, ...]  # of the trace
    offsets_ns: tuple[int, ...]  # at the anchors, to be added
    error_ns: int | None
    alignment: Alignment

    @property
    def drift_ns(self) -> int:
        """How much the clocks drifted apart from the first mark to the last; 0 if not at all."""
        return self.offsets_ns[-1] - self.offsets_ns[0]

    def to_wall_ns(self, trace_ns: int) -> int:
        """The time on radt's clock."""
        anchors, offsets = self.anchors_ns, self.offsets_ns
        place = bisect_right(anchors, trace_ns)
        if place == 0:
            return trace_ns + offsets[0]
        if place == len(anchors):
            return trace_ns + offsets[-1]
        before, after = anchors[place - 1], anchors[place]
        growth = offsets[place] - offsets[place - 1]
        return trace_ns + offsets[place - 1] + growth * (trace_ns - before) // (after - before)


def clock_map(
    marks_ns: Sequence[int], notes: Notes | None, run_offset_ns: int | None, base_ns: int
) -> ClockMap:
    """How to bring a trace to radt's clock.

    Args:
        marks_ns: When its events of the noted name begin, in order; a trace that was cut off may
            lack the last ones.
        notes: What the profiled process noted.
        run_offset_ns: What makes monotonic times of the run's process times of radt's clock, if
            that is known otherwise than by the notes.
        base_ns: Wall-clock time of the trace's time 0.
    """
    unsure = ClockMap((0,), (base_ns,), None, Alignment.WALL_CLOCK)
    if notes is None or not marks_ns:
        return unsure
    offset_ns = run_offset_ns if notes.offset_ns is None else notes.offset_ns
    if offset_ns is None:
        return unsure
    ranges = [
        (mark_ns, noted_ns + offset_ns - mark_ns, uncertainty_ns)
        for mark_ns, noted_ns, uncertainty_ns in zip(
            marks_ns, notes.monotonic_ns, notes.uncertainty_ns, strict=False
        )
    ]
    least_ns = max(difference - uncertainty for _, difference, uncertainty in ranges)
    most_ns = min(difference + uncertainty for _, difference, uncertainty in ranges)
    if least_ns <= most_ns:
        middle_ns, error_ns = (least_ns + most_ns) // 2, (most_ns - least_ns + 1) // 2
        return ClockMap((0,), (middle_ns,), error_ns, Alignment.MARKS)
    return ClockMap(
        tuple(mark_ns for mark_ns, _, _ in ranges),
        tuple(difference for _, difference, _ in ranges),
        max(uncertainty for _, _, uncertainty in ranges),
        Alignment.DRIFTING,
    )
