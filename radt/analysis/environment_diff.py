"""Differences between A and B besides the numbers: another machine, driver or parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt.analysis.matching import MatchedWorkload
from radt.analysis.operand_names import SHORT_COMMIT
from radt.analysis.operands import COMMIT_TAG, Operand
from radt.analysis.summaries import RunSummary, WorkloadSummary
from radt.model import RunStatus
from radt.store.records import RunRecord
from radt.tags import PROFILED, PRUNED

#: More are counted, not named.
_MAX_PARAMS = 4
_MAX_CHARS = 40
_NOTHING = "none"
_DIRTY_TAG = "radt.git.dirty"


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that differs.

    Attributes:
        what: ``GPU``, ``--lr``.
        a: Its value in A.
        b: Its value in B.
        is_warning: It may explain a difference in the numbers and is rarely what is compared.
    """

    what: str
    a: str
    b: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.a} → {self.b}"


@dataclass(frozen=True, slots=True)
class _Property:
    """A property of each run; empty where it was not recorded."""

    what: str
    value: Callable[[RunRecord, Mapping[str, str]], str]
    is_warning: bool = False


def _tag(key: str) -> Callable[[RunRecord, Mapping[str, str]], str]:
    return lambda _run, tags: tags.get(key, "")


_PROPERTIES = (
    _Property("machine", lambda run, _tags: run.host, is_warning=True),
    _Property("GPU", _tag("radt.gpus"), is_warning=True),
    _Property("driver", _tag("radt.driver"), is_warning=True),
    _Property("CPU", _tag("radt.cpu"), is_warning=True),
    _Property("Python", _tag("radt.python"), is_warning=True),
    _Property("profiler", lambda _run, tags: tags.get(PROFILED) or _NOTHING, is_warning=True),
    _Property(
        "samples",
        lambda _run, tags: "thinned" if PRUNED in tags else "all kept",
        is_warning=True,
    ),
    _Property("listeners", lambda run, _tags: run.listeners or _NOTHING, is_warning=True),
    _Property("devices", lambda run, _tags: run.devices),
    _Property("collocation", lambda run, _tags: run.collocation),
    _Property("commit", lambda _run, tags: tags.get(COMMIT_TAG, "")[:SHORT_COMMIT]),
)


def differences(a: Operand, b: Operand, workload: MatchedWorkload) -> list[Difference]:
    """Return what differs between the runs of a workload of A and B, warnings first."""
    rows_a, rows_b = _rows(workload.a), _rows(workload.b)
    found = []
    for one in _PROPERTIES:
        of_a, of_b = (
            _values(one.value(row.run, operand.tags.get(row.run.run_id, {})) for row in rows)
            for operand, rows in ((a, rows_a), (b, rows_b))
        )
        if of_a and of_b and of_a != of_b:
            found.append(Difference(one.what, _joined(of_a), _joined(of_b), one.is_warning))
    dirty = [_is_dirty(operand, rows) for operand, rows in ((a, rows_a), (b, rows_b))]
    if dirty[0] != dirty[1]:
        texts = ["with uncommitted changes" if one else "clean" for one in dirty]
        found.append(Difference("files", texts[0], texts[1], is_warning=True))
    if len(rows_a) != len(rows_b):
        found.append(Difference("runs at once", str(len(rows_a)), str(len(rows_b))))
    if not ended_alike(workload):
        ends = [_ends_text(_unfinished(rows), len(rows)) for rows in (rows_a, rows_b)]
        found.append(Difference("ends", ends[0], ends[1], is_warning=True))
    found += _params(
        [a.params.get(row.run.run_id, {}) for row in rows_a],
        [b.params.get(row.run.run_id, {}) for row in rows_b],
    )
    return sorted(found, key=lambda one: not one.is_warning)


def ended_alike(workload: MatchedWorkload) -> bool:
    """Return whether the same rows ended early in A and B.

    Otherwise their common time and energy are of different work.
    """
    return _unfinished(_rows(workload.a)) == _unfinished(_rows(workload.b))


def _rows(workload: WorkloadSummary) -> list[RunSummary]:
    return [row for group in workload.groups for row in group.runs]


def _is_dirty(operand: Operand, rows: Iterable[RunSummary]) -> bool:
    return any(operand.tags.get(row.run.run_id, {}).get(_DIRTY_TAG) == "true" for row in rows)


def _unfinished(rows: Sequence[RunSummary]) -> list[RunStatus]:
    return sorted(row.status for row in rows if row.status is not RunStatus.FINISHED)


def _ends_text(unfinished: Sequence[RunStatus], count: int) -> str:
    """``all finished``, ``2 of 3 OOM``."""
    if not unfinished:
        return "all finished"
    kinds = dict.fromkeys(unfinished)
    return ", ".join(f"{list(unfinished).count(one)} of {count} {one}" for one in kinds)


def _params(a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]) -> list[Difference]:
    """Return the parameters that differ; values of several runs are joined."""
    # "Params" is the whole command line, whose parts are parameters of their own.
    keys = dict.fromkeys(key for one in (*a, *b) for key in one if key != "Params")
    found = [
        Difference(key, _joined(of_a) or _NOTHING, _joined(of_b) or _NOTHING)
        for key in keys
        if (of_a := _values(one.get(key, "") for one in a))
        != (of_b := _values(one.get(key, "") for one in b))
    ]
    if len(found) <= _MAX_PARAMS:
        return found
    rest = len(found) - _MAX_PARAMS + 1
    return [*found[: _MAX_PARAMS - 1], Difference(f"{rest} more parameters", "A", "B")]


def _values(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def _joined(values: Sequence[str]) -> str:
    text = ", ".join(values)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def difference_sentences(
    workloads: Sequence[tuple[str, Sequence[Difference]]], *, warnings: bool
) -> Iterator[str]:
    """Yield differences in all workloads once, and the others with the workloads' names.

    Args:
        workloads: Names of workloads with their differences.
        warnings: Yield the warnings; else the others.
    """
    places: dict[str, list[str]] = {}
    for name, differences in workloads:
        for one in differences:
            if one.is_warning is warnings:
                places.setdefault(str(one), []).append(name)
    everywhere = [text for text, names in places.items() if len(names) == len(workloads)]
    if everywhere:
        yield "; ".join(everywhere)
    by_names: dict[tuple[str, ...], list[str]] = {}
    for text, names in places.items():
        if len(names) < len(workloads):
            by_names.setdefault(tuple(names), []).append(text)
    for some, texts in by_names.items():
        named = ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
        yield f"{named}: {'; '.join(texts)}"
