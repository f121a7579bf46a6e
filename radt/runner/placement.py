"""Choose which rows of the workload ``auto`` run next, and together: a pure function.

Rows of a kind do the same work. A kind that was never measured runs alone first. Then the waiting
rows are divided into sets that share a device, so that the sum of what the sets take is as small as
possible; this is predicted until it was measured. Sets of similar length run side by side on the
devices of the machine. CARMA shows what such a policy gains on the trace of a cluster
(Yousefzadeh-Asl-Miandoab et al., 2025, arXiv 2508.19073).
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from radt.analysis.advice_choice import MIN_GAIN
from radt.analysis.kinds import Kind, KindMeasurements, Member
from radt.collocation.spec import Collocation, Mps
from radt.devices.machine import CPU

#: All divisions are compared if the waiting rows have at most this many subsets, which takes up to
#: half a second. Otherwise sets are grown, which is seldom more than a tenth worse.
_MAX_SUBSETS = 600
#: Rows share a device only if a timeout is longer by this than what they are expected to take.
_TIMEOUT_MARGIN = 1.25


class Reason(StrEnum):
    """Why rows run as they do."""

    NEVER_ALONE = "alone, to be measured"
    FAILED_BESIDE = "alone, because it ran out of memory or time before"
    UNMEASURED = "alone, because its memory or load was not measured"
    LAST = "alone, as no other row waits"
    NO_PARTNER = "alone, because sharing would not save time"
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
        timeout_s: What it may take, in s; None for no limit.
    """

    line: int
    kind: Kind
    devices: tuple[str, ...]
    collocation: Collocation | None = None
    is_alone: bool = False
    timeout_s: float | None = None


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
        # Only runs on a single device are measured, so a row on several GPUs is always unknown.
        if known.alone_s(row.kind) is None or "+" in row.devices[0]:
            return _alone(row, Reason.NEVER_ALONE)
    first, *others = waiting
    sociable = [row for row in waiting if not row.is_alone]
    if not sociable:
        return _alone(first, Reason.FAILED_BESIDE, known.alone_s(first.kind))
    if not others:
        return _alone(first, Reason.LAST, known.alone_s(first.kind))
    sets = _Sets(known, has_mps)
    return sets.group(_spread(_side_by_side(_divided(sociable, sets), sets), sets))


def divided(
    waiting: Sequence[WaitingRow], known: KindMeasurements, *, has_mps: bool = False
) -> list[Group]:
    """Return groups of all rows, of measured kinds, each for one device."""
    sets = _Sets(known, has_mps)
    return [sets.group({each.devices[0]: each}) for each in _divided(waiting, sets)]


def _alone(row: WaitingRow, reason: Reason, alone_s: float | None = None) -> Group:
    placed = PlacedRow(row.line, row.devices[0], row.collocation or Collocation())
    return Group((placed,), reason, alone_s, alone_s)


@dataclass(frozen=True, slots=True)
class _Set:
    """Rows that share a device, any of ``devices``. What they take is infinite if they must not."""

    rows: tuple[WaitingRow, ...]
    devices: tuple[str, ...]
    seconds: float
    serial_s: float

    @property
    def is_shared(self) -> bool:
        return len(self.rows) > 1

    @property
    def is_worthwhile(self) -> bool:
        """Return True for one row, and for several that gain enough by sharing."""
        return not self.is_shared or self.seconds * MIN_GAIN <= self.serial_s


@dataclass(frozen=True, slots=True)
class _Sets:
    """Makes sets of rows, and answers from the measurements what they take and whether they fit."""

    known: KindMeasurements
    has_mps: bool

    def of(self, *rows: WaitingRow) -> _Set:
        """Return rows of measured kinds as a set."""
        first, *others = rows
        serial_s = sum(self.known.durations_s[row.kind] for row in rows)
        if not others:
            return _Set(rows, first.devices, serial_s, serial_s)
        common = tuple(each for each in first.devices if all(each in row.devices for row in others))
        # What a row takes on a MIG instance does not follow from what it took on the whole GPU.
        is_whole = not any(row.collocation and row.collocation.mig for row in rows)
        seconds = math.inf
        if common and is_whole:
            seconds = self.known.together_s(self._members(rows, common[0]))
        if seconds * _TIMEOUT_MARGIN > min(row.timeout_s or math.inf for row in rows):
            seconds = math.inf
        return _Set(rows, common, seconds, serial_s)

    def has_measured(self, each: _Set) -> bool:
        return self.known.has_measured(self._members(each.rows, each.devices[0]))

    def fit(self, chosen: Mapping[str, _Set]) -> bool:
        """Return True if sets fit beside each other, by their devices."""
        return self.known.fits(
            [
                member
                for device, each in chosen.items()
                for member in self._members(each.rows, device)
            ]
        )

    def group(self, chosen: Mapping[str, _Set]) -> Group:
        rows = [
            PlacedRow(row.line, device, member.collocation)
            for device, each in chosen.items()
            for row, member in zip(each.rows, self._members(each.rows, device), strict=True)
        ]
        shared = [each for each in chosen.values() if each.is_shared]
        reason = Reason.PREDICTED
        if len(rows) == 1:
            (alone,) = (row for each in chosen.values() for row in each.rows)
            is_known = self.known.has_needs(alone.kind)
            reason = Reason.NO_PARTNER if is_known else Reason.UNMEASURED
        elif shared and all(map(self.has_measured, shared)):
            reason = Reason.MEASURED
        return Group(
            tuple(rows),
            reason,
            sum(each.serial_s for each in chosen.values()),
            max(each.seconds for each in chosen.values()),
        )

    def _members(self, rows: Sequence[WaitingRow], device: str) -> tuple[Member, ...]:
        is_mps = self.has_mps and len(rows) > 1 and device != CPU
        usual = Collocation(mps=Mps()) if is_mps else Collocation()
        return tuple(Member(row.kind, row.collocation or usual, device) for row in rows)


def _divided(rows: Sequence[WaitingRow], sets: _Sets) -> list[_Set]:
    """Divide rows of measured kinds into sets that share a device."""
    classes: dict[object, list[WaitingRow]] = {}
    for row in sorted(rows, key=lambda row: -sets.known.durations_s[row.kind]):
        interchangeable = row.kind, row.devices, row.collocation, row.timeout_s
        classes.setdefault(interchangeable, []).append(row)
    counts = tuple(map(len, classes.values()))
    devices = {device for row in rows for device in row.devices}
    division = _Division([same[0] for same in classes.values()], sets, len(devices))
    queues = list(map(iter, classes.values()))
    return [
        sets.of(*(next(queues[each]) for each in together)) for together in division.chosen(counts)
    ]


#: Rows as ascending indices of their classes.
_Indices = tuple[int, ...]
#: How good a set is by what its rows take one after the other, and together: by the time saved, or
#: by the throughput. Neither is always better.
_Score = Callable[[float, float], float]


class _Division:
    """Divides rows into sets.

    Args:
        examples: One row of each class of interchangeable rows, the longest first.
        sets: What is known of sets.
        devices: How many sets run at once.
    """

    def __init__(self, examples: Sequence[WaitingRow], sets: _Sets, devices: int) -> None:
        self._devices = devices
        self._set: Callable[[_Indices], _Set] = cache(
            lambda together: sets.of(*(examples[each] for each in together))
        )
        self._best = cache(self._find_best)

    def chosen(self, counts: tuple[int, ...]) -> Sequence[_Indices]:
        """Return sets for rows of these numbers that take as little time as possible."""
        ways = []
        if math.prod(count + 1 for count in counts) <= _MAX_SUBSETS:
            ways.append(self._best(counts)[1])
        if not ways or self._devices > 1:
            # Several devices may finish more small sets sooner than a few large ones.
            sizes = (sum(counts),) if self._devices == 1 else (1, 2, 4, sum(counts))
            ways += [
                tuple(self._grown(counts, score, most))
                for score in (operator.sub, operator.truediv)
                for most in sizes
            ]
        return min(ways, key=self._seconds)

    def _seconds(self, way: Sequence[_Indices]) -> float:
        """Return what sets take if those of similar length run side by side."""
        each_s = sorted((self._set(together).seconds for together in way), reverse=True)
        return sum(each_s[:: self._devices])

    def _find_best(self, counts: tuple[int, ...]) -> tuple[float, tuple[_Indices, ...]]:
        """Return the fewest seconds for rows of these numbers, and their sets."""
        if not any(counts):
            return 0.0, ()
        best: tuple[float, tuple[_Indices, ...]] = (math.inf, ())
        for together in self._sets_with(*_first_of(counts)):
            rest_s, rest = self._best(_without(counts, together))
            seconds = self._set(together).seconds + rest_s
            if seconds < best[0]:
                best = seconds, (together, *rest)
        return best

    def _sets_with(self, together: _Indices, left: tuple[int, ...]) -> Iterator[_Indices]:
        """Yield a set and all larger ones: rows that do not fit do not fit with others, either."""
        if self._set(together).is_worthwhile:
            yield together
        for each in range(together[-1], len(left)):
            larger = (*together, each)
            if left[each] and math.isfinite(self._set(larger).seconds):
                yield from self._sets_with(larger, _without(left, (each,)))

    def _grown(self, counts: tuple[int, ...], score: _Score, most: int) -> Iterator[_Indices]:
        """Yield sets of some rows at most, each grown from the longest row that is left."""
        while any(counts):
            first, left = _first_of(counts)
            together, counts = first, left
            while len(together) < most:
                partner = self._partner(together, counts, score)
                if partner is None:
                    break
                together = tuple(sorted((*together, partner)))
                counts = _without(counts, (partner,))
            if not self._set(together).is_worthwhile:
                together, counts = first, left
            yield together

    def _partner(self, together: _Indices, counts: tuple[int, ...], score: _Score) -> int | None:
        """Return the class of which a row improves a set most; None if none does."""
        now = self._set(together)
        partner, best = None, score(now.serial_s, now.seconds)
        for each in (each for each, count in enumerate(counts) if count):
            # Shorter rows cannot be better, as more rows are not expected to take less time.
            if score(now.serial_s + self._set((each,)).serial_s, now.seconds) <= best:
                break
            larger = self._set(tuple(sorted((*together, each))))
            if (scored := score(larger.serial_s, larger.seconds)) > best:
                partner, best = each, scored
        return partner


def _first_of(counts: tuple[int, ...]) -> tuple[_Indices, tuple[int, ...]]:
    """Return the longest row that is left, as a set, and the numbers without it."""
    first = next(each for each, count in enumerate(counts) if count)
    return (first,), _without(counts, (first,))


def _without(counts: tuple[int, ...], together: _Indices) -> tuple[int, ...]:
    return tuple(count - together.count(each) for each, count in enumerate(counts))


def _side_by_side(divided: Sequence[_Set], sets: _Sets) -> dict[str, _Set]:
    """Return the sets to run now by their devices.

    The first is the longest, the others are the nearest to its length that fit beside it; where no
    set does, a row of one may.
    """
    first = max(divided, key=lambda each: (each.seconds, len(each.rows)))
    single = [sets.of(row) for each in divided if each.is_shared for row in each.rows]
    bound = Counter(each.devices for each in divided if len(each.devices) == 1)
    chosen: dict[str, _Set] = {}
    started: set[int] = set()
    for offers in ([first], divided, single):
        for offer in sorted(offers, key=lambda each: abs(each.seconds - first.seconds)):
            free = [device for device in offer.devices if device not in chosen]
            lines = {row.line for row in offer.rows}
            if not free or started & lines:
                continue
            device = min(free, key=lambda each: bound[each,])
            if offer is first or sets.fit(chosen | {device: offer}):
                chosen[device] = offer
                started |= lines
    return chosen


def _spread(chosen: Mapping[str, _Set], sets: _Sets) -> Mapping[str, _Set]:
    """Divide sets in two if a device that they can use would idle."""
    order = sorted(chosen, key=lambda device: (chosen[device].seconds, len(chosen[device].rows)))
    for device in reversed(order):
        each = chosen[device]
        idle = next((other for other in each.devices if other not in chosen), None)
        if not each.is_shared or idle is None:
            continue
        half, rest = sets.of(*each.rows[::2]), sets.of(*each.rows[1::2])
        spread = {**chosen, device: half, idle: rest}
        is_better = all(one.is_worthwhile and one.seconds <= each.seconds for one in (half, rest))
        if is_better and sets.fit(spread):
            return _spread(spread, sets)
    return chosen
