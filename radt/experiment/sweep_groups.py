"""Which runs of a sweep share a workload, and how the workloads are numbered.

What has a result stays where it was: a finished run that moved into another workload would have
to run again, for what was measured is the workload. All others are put together anew, so that
values may be added, removed and reordered between two starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.experiment.plan import letter
from radt.experiment.sweep_entry import RunNumber, StatusEntry
from radt.experiment.sweep_space import Combination, Key
from radt.model import RunStatus

_WITH_RESULT = frozenset((RunStatus.FINISHED, RunStatus.FAILED, RunStatus.OOM, RunStatus.TIMEOUT))


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A run of a sweep; ``position`` counts the combinations in the file's order, from 1.

    ``entry`` is what its last start left, if there was one.
    """

    position: int
    number: RunNumber
    combination: Combination
    entry: StatusEntry | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """Entries by the combination they are of; ``stale`` are of none, or older ones of the same."""

    entries: Mapping[Key, StatusEntry]
    stale: Sequence[StatusEntry]


def recorded(
    entries: Iterable[StatusEntry], combinations: Sequence[Combination], fixed: str
) -> Recorded:
    """Find the combination of each entry by its parameters."""
    names = [name for name, _ in combinations[0].values] if combinations else []
    keys = {one.key for one in combinations}
    by_text = {} if fixed else {one.original_params: one.key for one in combinations}
    found: dict[Key, StatusEntry] = {}
    stale: list[StatusEntry] = []
    for entry in sorted(entries, key=lambda one: (one.number.workload, one.number.letter)):
        key = entry.key(names, fixed)
        if key not in keys:
            key = by_text.get(entry.params)
        if key is None:
            stale.append(entry)
            continue
        earlier = found.get(key)
        # The original adds an entry with every start: one that finished counts, else the last.
        if earlier is not None and _status(earlier) is RunStatus.FINISHED:
            stale.append(entry)
            continue
        if earlier is not None:
            stale.append(earlier)
        found[key] = entry
    return Recorded(found, stale)


def grouped(
    combinations: Sequence[Combination], known: Recorded, at_once: int | None
) -> list[list[SweepRun]]:
    """The workloads of a sweep, in the order in which their first runs stand in it.

    Args:
        combinations: All runs, in the file's order.
        known: What is recorded of them.
        at_once: How many share a workload; None for all.
    """
    position = {one.key: index for index, one in enumerate(combinations)}
    before: dict[int, list[Combination]] = {}
    for one in combinations:
        if one.key in known.entries:
            before.setdefault(known.entries[one.key].number.workload, []).append(one)
    kept = {number: _staying(group, known, at_once) for number, group in before.items()}
    kept = {number: _by_letter(group, known) for number, group in kept.items() if group}
    placed = {one.key for group in kept.values() for one in group}
    free = [one for one in combinations if one.key not in placed]
    size = at_once or max(len(free), 1)
    used = {*kept, *(entry.number.workload for entry in known.stale)}
    # Gaps are filled, so that a workload keeps its number if others are run before it.
    barred = {*used, *before}
    unused = (number for number in itertools.count() if number not in barred)
    groups = dict(kept)
    for start in range(0, len(free), size):
        group = free[start : start + size]
        own = {known.entries[one.key].number.workload for one in group if one.key in known.entries}
        number = min(own - used, default=None)
        number = next(unused) if number is None else number
        used.add(number)
        groups[number] = group
    runs = [
        [
            SweepRun(
                position[one.key] + 1,
                RunNumber(number, letter(index) if len(group) > 1 else ""),
                one,
                known.entries.get(one.key),
            )
            for index, one in enumerate(group)
        ]
        for number, group in groups.items()
    ]
    return sorted(runs, key=lambda group: min(run.position for run in group))


def _staying(
    group: Sequence[Combination], known: Recorded, at_once: int | None
) -> list[Combination]:
    """Those of a workload's runs that stay together, under its number."""
    entries = [known.entries[one.key] for one in group]
    if at_once is None or len(group) <= at_once:
        return list(group) if any(map(_has_result, entries)) else []
    # More than are now wanted at once: what has finished is left alone, the others part.
    return [
        one
        for one, entry in zip(group, entries, strict=True)
        if _status(entry) is RunStatus.FINISHED
    ]


def _by_letter(group: Sequence[Combination], known: Recorded) -> list[Combination]:
    """As they were lettered: a … z come before aa."""
    numbers = {one.key: known.entries[one.key].number for one in group}
    return sorted(group, key=lambda one: (len(numbers[one.key].letter), numbers[one.key].letter))


def _status(entry: StatusEntry) -> RunStatus | None:
    """The entry's status; None for one that radt does not know, which the check complains of."""
    try:
        return RunStatus(entry.status.split()[0].rstrip(":").upper())
    except ValueError:
        return None


def _has_result(entry: StatusEntry) -> bool:
    """Whether the workload was measured, at least once."""
    count = entry.status.partition(":")[0].partition(" ")[2].partition("/")[0]
    return _status(entry) in _WITH_RESULT or (count.isdigit() and int(count) > 1)
