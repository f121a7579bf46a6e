"""Choose which rows of the workload ``auto`` run next, and together: a pure function.

Rows of a kind do the same work. A kind that was never measured runs alone first. Then the waiting
rows are divided into sets that share a device, so that the sum of what the sets take is as small as
possible; this is predicted until it was measured. Sets of similar length run side by side on the
devices of the machine. CARMA shows what such a policy gains on the trace of a cluster
(Yousefzadeh-Asl-Miandoab et al., 2025, arXiv 2508.19073).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from radt.analysis.kinds import Kind, KindMeasurements, Member
from radt.collocation.spec import Collocation, Mps
from radt.devices.machine import CPU

#: All divisions are compared if the waiting rows have at most this many subsets, which takes up to
#: half a second. Otherwise each set is grown from its longest row, by the partner that saves most.
_MAX_SUBSETS = 1_000


class Reason(StrEnum):
    """Why rows run as they do."""

    NEVER_ALONE = "alone, to be measured"
    RAN_OUT = "alone, because it ran out of memory beside others"
    NO_PARTNER = "alone, because no waiting row fits beside it at a gain"
    PREDICTED = "predicted"
    MEASURED = "measured before"


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A row that waits to be run.

    Attributes:
        line: Its line in the file.
        kind: What it does.
        devices: Devices on which it can run: ``cpu``, ``0``; several GPUs at once are ``0+1``.
        collocation: How it shares its device; None to have it chosen.
        is_alone: It must have the machine to itself.
    """

    line: int
    kind: Kind
    devices: tuple[str, ...]
    collocation: Collocation | None = None
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row with its device and how it shares that."""

    line: int
    device: str
    collocation: Collocation


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that start together.

    ``serial_s`` is what they take one after the other, ``expected_s`` what they are expected to
    take together; None for a kind that was never measured.
    """

    rows: tuple[PlacedRow, ...]
    reason: Reason
    serial_s: float | None = None
    expected_s: float | None = None


def next_group(
    waiting: Sequence[WaitingRow], known: KindMeasurements, *, has_mps: bool = False
) -> Group:
    """Return the rows to run next.

    Args:
        waiting: All rows that wait, at least one.
        known: What was measured of their kinds.
        has_mps: GPUs are shared under MPS unless a row says otherwise, else naively.
    """
    for row in waiting:
        if known.alone_s(row.kind) is None:
            return _alone(row, Reason.NEVER_ALONE, known)
    sociable = [row for row in waiting if not row.is_alone]
    if not sociable:
        return _alone(waiting[0], Reason.RAN_OUT, known)
    return _side_by_side(_divided(sociable, known, has_mps), known)


def _alone(row: WaitingRow, reason: Reason, known: KindMeasurements) -> Group:
    placed = PlacedRow(row.line, row.devices[0], row.collocation or Collocation())
    alone_s = known.alone_s(row.kind)
    return Group((placed,), reason, alone_s, alone_s)


@dataclass(frozen=True, slots=True)
class _Set:
    """Rows that share a device; ``classes`` are those of `_Division`."""

    rows: tuple[WaitingRow, ...]
    classes: tuple[int, ...]
    devices: tuple[str, ...]
    seconds: float
    has_mps: bool

    def members(self, device: str) -> tuple[Member, ...]:
        """Return its rows on one of its devices."""
        return _members(self.rows, device, self.has_mps)


def _members(rows: Sequence[WaitingRow], device: str, has_mps: bool) -> tuple[Member, ...]:
    is_mps = has_mps and len(rows) > 1 and device != CPU
    usual = Collocation(mps=Mps()) if is_mps else Collocation()
    return tuple(Member(row.kind, row.collocation or usual, device) for row in rows)


def _common_devices(rows: Sequence[WaitingRow]) -> tuple[str, ...]:
    first, *others = rows
    return tuple(each for each in first.devices if all(each in row.devices for row in others))


def _divided(rows: Sequence[WaitingRow], known: KindMeasurements, has_mps: bool) -> list[_Set]:
    """Divide rows of measured kinds into sets that share a device."""
    classes: dict[object, list[WaitingRow]] = {}
    for row in sorted(rows, key=lambda row: -known.durations_s[row.kind]):
        classes.setdefault((row.kind, row.devices, row.collocation), []).append(row)
    examples = [same[0] for same in classes.values()]
    counts = tuple(map(len, classes.values()))
    division = _Division(examples, known, has_mps)
    chosen = (
        division.best(counts)[1]
        if math.prod(count + 1 for count in counts) <= _MAX_SUBSETS
        else division.grown(counts)
    )
    queues = list(map(iter, classes.values()))
    return [
        _Set(
            tuple(next(queues[each]) for each in together),
            together,
            _common_devices([examples[each] for each in together]),
            division.seconds(together),
            has_mps,
        )
        for together in chosen
    ]


class _Division:
    """Divides rows into sets, which are ascending indices of classes of interchangeable rows.

    Args:
        examples: One row of each class, the longest first.
        known: What was measured.
        has_mps: See `next_group`.
    """

    def __init__(
        self, examples: Sequence[WaitingRow], known: KindMeasurements, has_mps: bool
    ) -> None:
        self._examples = examples
        self._known = known
        self._has_mps = has_mps
        self.seconds = cache(self._seconds)
        self.best = cache(self._best)

    def _seconds(self, together: tuple[int, ...]) -> float:
        """Return what a set takes; infinity if its rows must not run together."""
        rows = [self._examples[each] for each in together]
        if len(rows) == 1:
            return self._known.durations_s[rows[0].kind]
        devices = _common_devices(rows)
        if not devices or "+" in devices[0]:
            return math.inf
        return self._known.together_s(_members(rows, devices[0], self._has_mps))

    def _best(self, counts: tuple[int, ...]) -> tuple[float, tuple[tuple[int, ...], ...]]:
        """Return the fewest seconds for rows of these numbers, and their sets."""
        if not any(counts):
            return 0.0, ()
        best: tuple[float, tuple[tuple[int, ...], ...]] = (math.inf, ())
        for together in self._sets_with(*_first_of(counts)):
            rest_s, rest = self.best(_without(counts, together))
            seconds = self.seconds(together) + rest_s
            if seconds < best[0]:
                best = seconds, (together, *rest)
        return best

    def _sets_with(
        self, together: tuple[int, ...], left: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        """Yield a set and all larger ones: rows that do not fit do not fit with others, either."""
        yield together
        for each in range(together[-1], len(left)):
            larger = (*together, each)
            if left[each] and math.isfinite(self.seconds(larger)):
                yield from self._sets_with(larger, _without(left, (each,)))

    def grown(self, counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield sets for rows of these numbers, each by its own best choice."""
        while any(counts):
            together, counts = _first_of(counts)
            while True:
                more = {
                    tuple(sorted((*together, each))): each
                    for each, count in enumerate(counts)
                    if count
                }
                larger = max(more, key=self._saved_s, default=together)
                if self._saved_s(larger) <= self._saved_s(together):
                    break
                together, counts = larger, _without(counts, (more[larger],))
            yield together

    def _saved_s(self, together: tuple[int, ...]) -> float:
        return sum(self.seconds((each,)) for each in together) - self.seconds(together)


def _first_of(counts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the longest row that is left, as a set, and the numbers without it."""
    first = next(each for each, count in enumerate(counts) if count)
    return (first,), _without(counts, (first,))


def _without(counts: tuple[int, ...], together: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count - together.count(each) for each, count in enumerate(counts))


def _side_by_side(sets: Sequence[_Set], known: KindMeasurements) -> Group:
    """Return the sets to run now, one on each device.

    The first is the set that occurs most often among those that were never measured, because its
    measurement helps most. The others are the nearest to its length that fit beside it.
    """
    formed = [each.classes for each in sets]
    first = max(
        sets,
        key=lambda each: (
            len(each.rows) > 1 and not known.has_measured(each.members(each.devices[0])),
            formed.count(each.classes),
            each.seconds,
        ),
    )
    chosen: dict[str, _Set] = {first.devices[0]: first}
    for other in sorted(sets, key=lambda each: abs(each.seconds - first.seconds)):
        free = next((device for device in other.devices if device not in chosen), None)
        if other is not first and free is not None and known.fits(_all(chosen | {free: other})):
            chosen[free] = other
    return _group(chosen, known)


def _all(chosen: Mapping[str, _Set]) -> list[Member]:
    return [member for device, each in chosen.items() for member in each.members(device)]


def _group(chosen: Mapping[str, _Set], known: KindMeasurements) -> Group:
    rows = []
    for device, each in chosen.items():
        for row, member in zip(each.rows, each.members(device), strict=True):
            rows.append(PlacedRow(row.line, device, member.collocation))
    shared = [each.members(device) for device, each in chosen.items() if len(each.rows) > 1]
    reason = Reason.PREDICTED
    if len(rows) == 1:
        reason = Reason.NO_PARTNER
    elif shared and all(map(known.has_measured, shared)):
        reason = Reason.MEASURED
    serial_s = sum(known.durations_s[row.kind] for each in chosen.values() for row in each.rows)
    return Group(tuple(rows), reason, serial_s, max(each.seconds for each in chosen.values()))


def divided(
    waiting: Sequence[WaitingRow], known: KindMeasurements, *, has_mps: bool = False
) -> list[Group]:
    """Return groups of all rows, of measured kinds, each for one device."""
    sets = _divided(waiting, known, has_mps)
    return [_group({each.devices[0]: each}, known) for each in sets]
