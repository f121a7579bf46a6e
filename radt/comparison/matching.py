"""What of A is compared with what of B: workloads by their names, their runs by theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from radt.comparison.sides import Kind, Side
from radt.errors import UsageError
from radt.model import RunStatus
from radt.report.summary import GroupSummary, WorkloadSummary
from radt.units import NO_VALUE

ItemT = TypeVar("ItemT")
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """A workload on both sides, and its like runs that are compared."""

    name: str
    a: WorkloadSummary
    b: WorkloadSummary
    groups: Sequence[tuple[GroupSummary, GroupSummary]]


@dataclass(frozen=True, slots=True)
class Matching:
    """All of them; ``only_a`` and ``only_b`` name what the other side does not have."""

    workloads: Sequence[Matched]
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()


def matched(a: Side, b: Side) -> Matching:
    """Workloads of equal names, or the only ones there are.

    Workloads of several machines are matched by name and machine; what is left, by name, if it is
    the only one of that name on each side. Of several without a name the runs' names count, and of
    these the newest.

    Raises:
        UsageError: One side is an experiment with several workloads and the other is not.
    """
    whole = [side.kind is Kind.EXPERIMENT for side in (a, b)]
    if all(whole):
        pairs, only_a, only_b = _by_name(a.workloads, b.workloads)
        counts = Counter(_shown(one) for one, _ in pairs)
        return Matching(
            [_matched(*pair, with_host=counts[_shown(pair[0])] > 1) for pair in pairs],
            only_a,
            only_b,
        )
    for side, other in ((a, b), (b, a)):
        if side.kind is Kind.EXPERIMENT and len(side.workloads) > 1:
            names = [one.label for one in side.workloads if one.label != NO_VALUE]
            example = f": '{side.experiment}/{names[0]}'" if names else ""
            raise UsageError(
                f"{side.text} has {len(side.workloads)} workloads, {other.text} is one",
                f"Name one of them{example}",
            )
    return Matching([_matched(a.workloads[0], b.workloads[0])])


def _by_name(
    a: Sequence[WorkloadSummary], b: Sequence[WorkloadSummary]
) -> tuple[list[tuple[WorkloadSummary, WorkloadSummary]], list[str], list[str]]:
    """Pairs in the order of A, and the names of what has no counterpart."""
    pairs: list[tuple[WorkloadSummary, WorkloadSummary]] = []
    left_a, left_b = _newest(a), _newest(b)
    for key in (_name_and_host, _name):
        left_a, left_b, found = _joined(left_a, left_b, key)
        pairs += found
    place = {id(one): number for number, one in enumerate(a)}
    pairs.sort(key=lambda pair: place[id(pair[0])])
    names = {_shown(one) for one in (*left_a, *left_b)}
    several = len(names) < len(left_a) + len(left_b)  # of one name on several machines
    return (
        pairs,
        [_shown(one, with_host=several) for one in left_a],
        [_shown(one, with_host=several) for one in left_b],
    )


def _newest(workloads: Sequence[WorkloadSummary]) -> list[WorkloadSummary]:
    """Of those that nothing tells apart, the last."""
    return list({_name_and_host(one): one for one in workloads}.values())


def _joined(
    a: Sequence[ItemT], b: Sequence[ItemT], key: Callable[[ItemT], Key]
) -> tuple[list[ItemT], list[ItemT], list[tuple[ItemT, ItemT]]]:
    """What is left of both, and pairs of what alone has its key on each side."""
    of_a, of_b = _alone(a, key), _alone(b, key)
    shared = {one: None for one in of_a if one in of_b}
    return (
        [one for one in a if key(one) not in shared],
        [one for one in b if key(one) not in shared],
        [(of_a[one], of_b[one]) for one in shared],
    )


def _alone(items: Iterable[ItemT], key: Callable[[ItemT], Key]) -> dict[Key, ItemT]:
    found: dict[Key, list[ItemT]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return {one: some[0] for one, some in found.items() if len(some) == 1}


def _name(workload: WorkloadSummary) -> Key:
    if workload.label != NO_VALUE:
        return (workload.label,)
    return (NO_VALUE, *sorted(group.name for group in workload.groups))


def _name_and_host(workload: WorkloadSummary) -> Key:
    return (*_name(workload), "on", workload.host)


def _shown(workload: WorkloadSummary, *, with_host: bool = False) -> str:
    name = workload.label
    if name == NO_VALUE:
        name = ", ".join(group.name for group in workload.groups)
    return f"{name} on {workload.host}" if with_host and workload.host else name


def _matched(a: WorkloadSummary, b: WorkloadSummary, *, with_host: bool = False) -> Matched:
    of_a, of_b = _shown(a, with_host=with_host), _shown(b, with_host=with_host)
    name = of_b if of_a == of_b else f"{of_b} against {of_a}"
    return Matched(name, a, b, _groups(_measured(a), _measured(b)))


def _measured(workload: WorkloadSummary) -> list[GroupSummary]:
    """Like runs that came to an end with numbers."""
    return [group for group in workload.groups if group.status is RunStatus.FINISHED]


def _groups(
    a: Sequence[GroupSummary], b: Sequence[GroupSummary]
) -> list[tuple[GroupSummary, GroupSummary]]:
    """By name; what alone is left on both sides belongs together."""
    left_a, left_b, pairs = _joined(a, b, lambda group: (group.name,))
    if len(left_a) == len(left_b) == 1:
        pairs.append((left_a[0], left_b[0]))
    place = {id(group): number for number, group in enumerate(a)}
    return sorted(pairs, key=lambda pair: place[id(pair[0])])
