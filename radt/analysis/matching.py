"""Match workloads of A and B by their names, and their runs by theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from radt.analysis.operands import Operand, OperandKind
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.errors import UsageError
from radt.model import RunStatus
from radt.units import NO_VALUE

ItemT = TypeVar("ItemT")
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class MatchedWorkload:
    """A workload of A and one of B, and their like runs that are compared."""

    name: str
    a: WorkloadSummary
    b: WorkloadSummary
    groups: Sequence[tuple[GroupSummary, GroupSummary]]


@dataclass(frozen=True, slots=True)
class Matching:
    """Matched workloads, and the names of those that only A or only B has."""

    workloads: Sequence[MatchedWorkload]
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()


def match(a: Operand, b: Operand) -> Matching:
    """Match workloads of equal names, or the only workloads of A and B.

    Workloads of several machines are matched by name and machine; the others by name, where A and B
    have one each. Workloads without a label go by the names of their runs, and the newest counts.

    Raises:
        UsageError: A or B is an experiment with several workloads and the other is not.
    """
    if a.kind is b.kind is OperandKind.EXPERIMENT:
        pairs, only_a, only_b = _by_name(a.workloads, b.workloads)
        counts = Counter(one.name for one, _ in pairs)
        return Matching(
            [_matched(*pair, with_host=counts[pair[0].name] > 1) for pair in pairs],
            only_a,
            only_b,
        )
    for operand, other in ((a, b), (b, a)):
        if operand.kind is OperandKind.EXPERIMENT and len(operand.workloads) > 1:
            labels = [one.label for one in operand.workloads if one.label != NO_VALUE]
            example = f": '{operand.experiment}/{labels[0]}'" if labels else ""
            raise UsageError(
                f"{operand.text} has {len(operand.workloads)} workloads, {other.text} is one",
                f"Name one of them{example}",
            )
    return Matching([_matched(a.workloads[0], b.workloads[0])])


def _by_name(
    a: Sequence[WorkloadSummary], b: Sequence[WorkloadSummary]
) -> tuple[list[tuple[WorkloadSummary, WorkloadSummary]], list[str], list[str]]:
    """Return pairs in the order of A, and the names of workloads that only A or only B has."""
    pairs: list[tuple[WorkloadSummary, WorkloadSummary]] = []
    left_a, left_b = _newest(a), _newest(b)
    for key in (_name_and_host, _name):
        left_a, left_b, matched = _joined(left_a, left_b, key)
        pairs += matched
    place = {id(one): number for number, one in enumerate(a)}
    pairs.sort(key=lambda pair: place[id(pair[0])])
    names = {one.name for one in (*left_a, *left_b)}
    several = len(names) < len(left_a) + len(left_b)  # machines have workloads of the same name
    return (
        pairs,
        [_name_text(one, with_host=several) for one in left_a],
        [_name_text(one, with_host=several) for one in left_b],
    )


def _newest(workloads: Sequence[WorkloadSummary]) -> list[WorkloadSummary]:
    """Return the last workload of each name and machine."""
    return list({_name_and_host(one): one for one in workloads}.values())


def _joined(
    a: Sequence[ItemT], b: Sequence[ItemT], key: Callable[[ItemT], Key]
) -> tuple[list[ItemT], list[ItemT], list[tuple[ItemT, ItemT]]]:
    """Return the items left of A and of B, and pairs whose key is unique in A and in B."""
    of_a, of_b = _unique(a, key), _unique(b, key)
    shared = {one: None for one in of_a if one in of_b}
    return (
        [one for one in a if key(one) not in shared],
        [one for one in b if key(one) not in shared],
        [(of_a[one], of_b[one]) for one in shared],
    )


def _unique(items: Iterable[ItemT], key: Callable[[ItemT], Key]) -> dict[Key, ItemT]:
    by_key: dict[Key, list[ItemT]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return {one: same[0] for one, same in by_key.items() if len(same) == 1}


def _name(workload: WorkloadSummary) -> Key:
    if workload.label != NO_VALUE:
        return (workload.label,)
    return (NO_VALUE, *sorted(group.name for group in workload.groups))


def _name_and_host(workload: WorkloadSummary) -> Key:
    return (*_name(workload), "on", workload.host)


def _name_text(workload: WorkloadSummary, *, with_host: bool) -> str:
    return f"{workload.name} on {workload.host}" if with_host and workload.host else workload.name


def _matched(a: WorkloadSummary, b: WorkloadSummary, *, with_host: bool = False) -> MatchedWorkload:
    of_a, of_b = _name_text(a, with_host=with_host), _name_text(b, with_host=with_host)
    name = of_b if of_a == of_b else f"{of_b} vs {of_a}"
    return MatchedWorkload(name, a, b, _groups(a, b))


def _groups(
    workload_a: WorkloadSummary, workload_b: WorkloadSummary
) -> list[tuple[GroupSummary, GroupSummary]]:
    """Return pairs of like runs that finished, by name; a single rest of each is a pair, too."""
    a, b = (
        [group for group in one.groups if group.status is RunStatus.FINISHED]
        for one in (workload_a, workload_b)
    )
    left_a, left_b, pairs = _joined(a, b, lambda group: (group.name,))
    if len(left_a) == len(left_b) == 1:
        pairs.append((left_a[0], left_b[0]))
    place = {id(group): number for number, group in enumerate(a)}
    return sorted(pairs, key=lambda pair: place[id(pair[0])])
