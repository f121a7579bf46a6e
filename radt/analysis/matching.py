"""Match the workloads and runs of A and B by name, and find differences other than the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from radt.analysis.operands import SHORT_COMMIT, Operand, OperandKind
from radt.analysis.summaries import GroupSummary, RunSummary, WorkloadSummary
from radt.errors import UsageError
from radt.model import RunStatus
from radt.store.records import RunRecord
from radt.tags import CPU, DRIVER, GIT_COMMIT, GIT_DIRTY, GPUS, PROFILED, PRUNED, PYTHON
from radt.units import NO_VALUE, listed

ItemT = TypeVar("ItemT")
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class MatchedWorkload:
    """A workload of A and one of B, and their groups of like runs to compare.

    ``unpaired`` are finished groups that are missing or did not finish on the other side, except
    those that only B has.
    """

    name: str
    a: WorkloadSummary
    b: WorkloadSummary
    groups: Sequence[tuple[GroupSummary, GroupSummary]]
    unpaired: Sequence[GroupSummary] = ()


@dataclass(frozen=True, slots=True)
class Matching:
    """Matched workloads, and the names of those in only A or only B."""

    workloads: Sequence[MatchedWorkload]
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()


def match(a: Operand, b: Operand) -> Matching:
    """Match workloads of equal names, or the only workloads of A and B.

    Workloads of several machines are matched by name and machine; the others by name, if A and B
    have one each. Workloads without a label are matched by the names of their runs; the newest
    counts.

    Raises:
        UsageError: A or B is an experiment with several workloads and the other is not.
    """
    if a.kind is b.kind is OperandKind.EXPERIMENT:
        pairs, only_a, only_b = _by_name(a.workloads, b.workloads)
        counts = Counter(workload.name for workload, _ in pairs)
        return Matching(
            [_matched(*pair, with_host=counts[pair[0].name] > 1) for pair in pairs],
            only_a,
            only_b,
        )
    for operand, other in ((a, b), (b, a)):
        if operand.kind is OperandKind.EXPERIMENT and len(operand.workloads) > 1:
            labels = [
                workload.label for workload in operand.workloads if workload.label != NO_VALUE
            ]
            example = f": '{operand.experiment}/{labels[0]}'" if labels else ""
            raise UsageError(
                f"{operand.text} has {len(operand.workloads)} workloads, {other.text} is one",
                f"Name one of them{example}",
            )
    return Matching([_matched(a.workloads[0], b.workloads[0])])


def _by_name(
    a: Sequence[WorkloadSummary], b: Sequence[WorkloadSummary]
) -> tuple[list[tuple[WorkloadSummary, WorkloadSummary]], list[str], list[str]]:
    """Return pairs in the order of A, and the names of workloads in only A or only B."""
    pairs: list[tuple[WorkloadSummary, WorkloadSummary]] = []
    left_a, left_b = _newest(a), _newest(b)
    for key in (_name_and_host, _name):
        left_a, left_b, matched = _joined(left_a, left_b, key)
        pairs += matched
    place = {id(workload): number for number, workload in enumerate(a)}
    pairs.sort(key=lambda pair: place[id(pair[0])])
    names = {workload.name for workload in (*left_a, *left_b)}
    several = len(names) < len(left_a) + len(left_b)  # names repeat across machines
    return (
        pairs,
        [_name_text(workload, with_host=several) for workload in left_a],
        [_name_text(workload, with_host=several) for workload in left_b],
    )


def _newest(workloads: Sequence[WorkloadSummary]) -> list[WorkloadSummary]:
    """Return the last workload of each name and machine."""
    return list({_name_and_host(workload): workload for workload in workloads}.values())


def _joined(
    a: Sequence[ItemT], b: Sequence[ItemT], key: Callable[[ItemT], Key]
) -> tuple[list[ItemT], list[ItemT], list[tuple[ItemT, ItemT]]]:
    """Return the unmatched items of A and of B, and pairs whose key is unique in A and in B."""
    counts_a, counts_b = Counter(map(key, a)), Counter(map(key, b))
    shared = {value for value, count in counts_a.items() if count == counts_b[value] == 1}
    of_b = {key(item): item for item in b}
    return (
        [item for item in a if key(item) not in shared],
        [item for item in b if key(item) not in shared],
        [(item, of_b[key(item)]) for item in a if key(item) in shared],
    )


def _name(workload: WorkloadSummary) -> Key:
    if workload.label != NO_VALUE:
        return (workload.label,)
    return (NO_VALUE, *sorted(group.name for group in workload.trained))


def _name_and_host(workload: WorkloadSummary) -> Key:
    return (*_name(workload), "on", workload.host)


def _name_text(workload: WorkloadSummary, *, with_host: bool) -> str:
    return f"{workload.name} on {workload.host}" if with_host and workload.host else workload.name


def _matched(a: WorkloadSummary, b: WorkloadSummary, *, with_host: bool = False) -> MatchedWorkload:
    of_a, of_b = _name_text(a, with_host=with_host), _name_text(b, with_host=with_host)
    name = of_b if of_a == of_b else f"{of_b} vs {of_a}"
    return MatchedWorkload(name, a, b, *_groups(a, b))


def _groups(
    workload_a: WorkloadSummary, workload_b: WorkloadSummary
) -> tuple[list[tuple[GroupSummary, GroupSummary]], list[GroupSummary]]:
    """Return pairs of finished groups by name, and the unpaired groups of `MatchedWorkload`.

    If one of each remains and neither name is on the other side, they are a pair, too.
    """
    a, b = (
        [group for group in workload.trained if group.status is RunStatus.FINISHED]
        for workload in (workload_a, workload_b)
    )
    left_a, left_b, pairs = _joined(a, b, lambda group: (group.name,))
    names_a, names_b = (
        {group.name for group in workload.trained} for workload in (workload_a, workload_b)
    )
    of_both = [group for group in left_b if group.name in names_a]
    is_in_b = any(group.name in names_b for group in left_a)
    if len(left_a) == len(left_b) == 1 and not of_both and not is_in_b:
        pairs.append((left_a.pop(), left_b.pop()))
    place = {id(group): number for number, group in enumerate(a)}
    return sorted(pairs, key=lambda pair: place[id(pair[0])]), [*left_a, *of_both]


#: Maximum number of names listed; the rest is counted.
_MAX_PARAMS = 4
_MAX_CHARS = 40
_NOTHING = "none"


@dataclass(frozen=True, slots=True)
class Difference:
    """A property that differs.

    Attributes:
        what: ``GPU``, ``--lr``.
        a: Its value in A.
        b: Its value in B.
        is_warning: It may explain a difference in the numbers and is rarely the subject of the
            comparison.
    """

    what: str
    a: str
    b: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.a} → {self.b}"


@dataclass(frozen=True, slots=True)
class _Property:
    """A property of each run; empty if not recorded."""

    what: str
    value: Callable[[RunRecord, Mapping[str, str]], str]
    is_warning: bool = False


def _tag(key: str) -> Callable[[RunRecord, Mapping[str, str]], str]:
    return lambda _run, tags: tags.get(key, "")


_PROPERTIES = (
    _Property("machine", lambda run, _tags: run.host, is_warning=True),
    _Property("GPU", _tag(GPUS), is_warning=True),
    _Property("driver", _tag(DRIVER), is_warning=True),
    _Property("CPU", _tag(CPU), is_warning=True),
    _Property("Python", _tag(PYTHON), is_warning=True),
    _Property("profiler", lambda _run, tags: tags.get(PROFILED) or _NOTHING, is_warning=True),
    _Property(
        "samples",
        lambda _run, tags: "thinned" if PRUNED in tags else "all kept",
        is_warning=True,
    ),
    _Property("listeners", lambda run, _tags: run.listeners or _NOTHING, is_warning=True),
    _Property("devices", lambda run, _tags: run.devices),
    _Property("collocation", lambda run, _tags: run.collocation),
    _Property("commit", lambda _run, tags: tags.get(GIT_COMMIT, "")[:SHORT_COMMIT]),
)


def differences(a: Operand, b: Operand, workload: MatchedWorkload) -> list[Difference]:
    """Return the differences between the runs of a workload of A and B, warnings first."""
    rows_a, rows_b = _rows(workload.a), _rows(workload.b)
    differing = []
    for prop in _PROPERTIES:
        of_a, of_b = (
            _values(prop.value(row.run, operand.tags.get(row.run.run_id, {})) for row in rows)
            for operand, rows in ((a, rows_a), (b, rows_b))
        )
        if of_a and of_b and of_a != of_b:
            differing.append(
                Difference(prop.what, _values_text(of_a), _values_text(of_b), prop.is_warning)
            )
    dirty = [
        any(operand.tags.get(row.run.run_id, {}).get(GIT_DIRTY) == "true" for row in rows)
        for operand, rows in ((a, rows_a), (b, rows_b))
    ]
    if dirty[0] != dirty[1]:
        texts = ["with uncommitted changes" if is_dirty else "clean" for is_dirty in dirty]
        differing.append(Difference("files", texts[0], texts[1], is_warning=True))
    if len(rows_a) != len(rows_b):
        differing.append(Difference("runs at once", str(len(rows_a)), str(len(rows_b))))
    services = [_services_text(each) for each in (workload.a, workload.b)]
    if services[0] != services[1]:
        differing.append(Difference("services", services[0], services[1]))
    if not ended_alike(workload):
        ends = [_ends_text(_unfinished(rows), len(rows)) for rows in (rows_a, rows_b)]
        differing.append(Difference("ends", ends[0], ends[1], is_warning=True))
    differing += _params(
        [a.params.get(row.run.run_id, {}) for row in rows_a],
        [b.params.get(row.run.run_id, {}) for row in rows_b],
    )
    return sorted(differing, key=lambda difference: not difference.is_warning)


def ended_alike(workload: MatchedWorkload) -> bool:
    """Return True if the same rows ended early in A and B.

    Otherwise their total time and energy are for different work.
    """
    return _unfinished(_rows(workload.a)) == _unfinished(_rows(workload.b))


def _rows(workload: WorkloadSummary) -> list[RunSummary]:
    """Return its rows without services, which are not compared."""
    return [row for group in workload.trained for row in group.runs]


def _services_text(workload: WorkloadSummary) -> str:
    names = [row.name for group in workload.groups if group.is_service for row in group.runs]
    return _values_text(names) or _NOTHING


def _unfinished(rows: Sequence[RunSummary]) -> list[RunStatus]:
    return sorted(row.status for row in rows if row.status is not RunStatus.FINISHED)


def _ends_text(unfinished: Sequence[RunStatus], count: int) -> str:
    """Return ``all finished``, ``2 of 3 OOM``."""
    if not unfinished:
        return "all finished"
    kinds = dict.fromkeys(unfinished)
    return ", ".join(f"{list(unfinished).count(status)} of {count} {status}" for status in kinds)


def _params(a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]) -> list[Difference]:
    """Return the parameters that differ, with the values of several runs joined."""
    # "Params" is the whole command line, whose parts are separate parameters.
    keys = dict.fromkeys(key for run_params in (*a, *b) for key in run_params if key != "Params")
    differing = [
        Difference(key, _values_text(of_a) or _NOTHING, _values_text(of_b) or _NOTHING)
        for key in keys
        if (of_a := _values(run_params.get(key, "") for run_params in a))
        != (of_b := _values(run_params.get(key, "") for run_params in b))
    ]
    if len(differing) <= _MAX_PARAMS:
        return differing
    rest = len(differing) - _MAX_PARAMS + 1
    return [*differing[: _MAX_PARAMS - 1], Difference(f"{rest} more parameters", "A", "B")]


def _values(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def _values_text(values: Sequence[str]) -> str:
    text = ", ".join(values)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def difference_sentences(
    workloads: Sequence[tuple[str, Sequence[Difference]]], *, warnings: bool
) -> Iterator[str]:
    """Yield the warnings, or the other differences, of named workloads.

    A difference in all workloads is yielded once; the others follow the workloads' names.
    """
    places: dict[str, list[str]] = {}
    for name, differences in workloads:
        for difference in differences:
            if difference.is_warning is warnings:
                places.setdefault(str(difference), []).append(name)
    everywhere = [text for text, names in places.items() if len(names) == len(workloads)]
    if everywhere:
        yield "; ".join(everywhere)
    by_names: dict[tuple[str, ...], list[str]] = {}
    for text, names in places.items():
        if len(names) < len(workloads):
            by_names.setdefault(tuple(names), []).append(text)
    for workload_names, texts in by_names.items():
        yield f"{listed(workload_names, 3)}: {'; '.join(texts)}"
