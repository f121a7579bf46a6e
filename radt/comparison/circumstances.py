"""What is not the same in A and B besides the numbers: another machine, driver, parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt.comparison.commits import SHORT
from radt.comparison.matching import Matched
from radt.comparison.sides import COMMIT_TAG, Side
from radt.model import RunStatus
from radt.report.summary import RunSummary, WorkloadSummary
from radt.store.records import RunRecord
from radt.store.tags import PROFILED, PRUNED

#: The whole command line, which is there in its parts as well; and what names no part of it.
_PARTS_OF_OTHERS = frozenset({"Params"})
#: More are counted, not named.
_MAX_PARAMS = 4
_MAX_CHARS = 40
_NOTHING = "none"
_DIRTY_TAG = "radt.git.dirty"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs.

    Attributes:
        what: ``GPU``, ``--lr``.
        a: As A has it.
        b: As B has it.
        disturbs: It may be the reason of a difference in the numbers without being what was to be
            compared: a warning.
    """

    what: str
    a: str
    b: str
    disturbs: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.a} → {self.b}"


@dataclass(frozen=True, slots=True)
class _Of:
    """A thing to look at in each run; what a tag holds that was not recorded is not known."""

    what: str
    value: Callable[[RunRecord, Mapping[str, str]], str]
    disturbs: bool = False


def _tag(key: str) -> Callable[[RunRecord, Mapping[str, str]], str]:
    return lambda _run, tags: tags.get(key, "")


_THINGS = (
    _Of("machine", lambda run, _tags: run.host, disturbs=True),
    _Of("GPU", _tag("radt.gpus"), disturbs=True),
    _Of("driver", _tag("radt.driver"), disturbs=True),
    _Of("CPU", _tag("radt.cpu"), disturbs=True),
    _Of("Python", _tag("radt.python"), disturbs=True),
    _Of("profiler", lambda _run, tags: tags.get(PROFILED) or _NOTHING, disturbs=True),
    _Of(
        "samples",
        lambda _run, tags: "thinned" if PRUNED in tags else "all kept",
        disturbs=True,
    ),
    _Of("listeners", lambda run, _tags: run.listeners or _NOTHING, disturbs=True),
    _Of("devices", lambda run, _tags: run.devices),
    _Of("collocation", lambda run, _tags: run.collocation),
    _Of("commit", lambda _run, tags: tags.get(COMMIT_TAG, "")[:SHORT]),
)


def differences(a: Side, b: Side, workload: Matched) -> list[Difference]:
    """What differs between the runs of a workload that is on both sides, warnings first."""
    rows_a, rows_b = _rows(workload.a), _rows(workload.b)
    found = []
    for thing in _THINGS:
        of_a = _values(thing.value(row.run, a.tags.get(row.run.run_id, {})) for row in rows_a)
        of_b = _values(thing.value(row.run, b.tags.get(row.run.run_id, {})) for row in rows_b)
        if of_a and of_b and of_a != of_b:
            found.append(Difference(thing.what, _said(of_a), _said(of_b), thing.disturbs))
    dirty = [_is_dirty(side, rows) for side, rows in ((a, rows_a), (b, rows_b))]
    if dirty[0] != dirty[1]:
        words = ["with changes not committed" if one else "clean" for one in dirty]
        found.append(Difference("files", words[0], words[1], disturbs=True))
    if len(rows_a) != len(rows_b):
        found.append(Difference("runs at once", str(len(rows_a)), str(len(rows_b))))
    if (ends := _ends(rows_a, rows_b)) is not None:
        found.append(ends)
    found += _params(
        [a.params.get(row.run.run_id, {}) for row in rows_a],
        [b.params.get(row.run.run_id, {}) for row in rows_b],
    )
    return sorted(found, key=lambda one: not one.disturbs)


def ended_alike(workload: Matched) -> bool:
    """Whether the same share of its rows finished on both sides: else what they used together, or
    how long they took, is of different work."""
    of_a, of_b = (_unfinished(_rows(one)) for one in (workload.a, workload.b))
    return of_a == of_b


def _rows(workload: WorkloadSummary) -> list[RunSummary]:
    return [row for group in workload.groups for row in group.runs]


def _is_dirty(side: Side, rows: Iterable[RunSummary]) -> bool:
    return any(side.tags.get(row.run.run_id, {}).get(_DIRTY_TAG) == "true" for row in rows)


def _unfinished(rows: Sequence[RunSummary]) -> list[RunStatus]:
    return sorted(row.status for row in rows if row.status is not RunStatus.FINISHED)


def _ends(a: Sequence[RunSummary], b: Sequence[RunSummary]) -> Difference | None:
    of_a, of_b = _unfinished(a), _unfinished(b)
    if of_a == of_b:
        return None
    return Difference("ends", _ended(of_a, len(a)), _ended(of_b, len(b)), disturbs=True)


def _ended(unfinished: Sequence[RunStatus], count: int) -> str:
    """``all finished``, ``2 of 3 OOM``."""
    if not unfinished:
        return "all finished"
    kinds = dict.fromkeys(unfinished)
    return ", ".join(f"{list(unfinished).count(one)} of {count} {one}" for one in kinds)


def _params(a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]) -> list[Difference]:
    """Parameters whose values are others; those of several runs are put together."""
    keys = dict.fromkeys(key for one in (*a, *b) for key in one if key not in _PARTS_OF_OTHERS)
    found = [
        Difference(key, _said(of_a) or _NOTHING, _said(of_b) or _NOTHING)
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


def _said(values: Sequence[str]) -> str:
    text = ", ".join(values)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def told(found: Sequence[tuple[str, Sequence[Difference]]], *, disturbing: bool) -> Iterator[str]:
    """Sentences: what differs in all workloads once, the rest with the workloads' names.

    Args:
        found: The differences of each workload, by its name.
        disturbing: Those that warn, or the others.
    """
    places: dict[str, list[str]] = {}
    for name, differences in found:
        for one in differences:
            if one.disturbs is disturbing:
                places.setdefault(str(one), []).append(name)
    everywhere = [text for text, names in places.items() if len(names) == len(found)]
    if everywhere:
        yield "; ".join(everywhere)
    by_names: dict[tuple[str, ...], list[str]] = {}
    for text, names in places.items():
        if len(names) < len(found):
            by_names.setdefault(tuple(names), []).append(text)
    for some, texts in by_names.items():
        named = ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
        yield f"{named}: {'; '.join(texts)}"
