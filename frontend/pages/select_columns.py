"""Columns of the lists: what stands in them, how wide they are, what they are sorted by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from radt.frontend.catalog import STATUS_WORDS, Catalog, RunEntry, WorkloadEntry
from radt.frontend.searching.fields import active_ns, duration_s
from radt.frontend.searching.finding import FoundExperiment
from radt.frontend.searching.terms import as_number
from radt.model import RunStatus

_NS_PER_MS = 1_000_000
_DIGITS = re.compile(r"(\d+)")

EntryT = TypeVar("EntryT")


class Kind(StrEnum):
    """How the browser writes a cell."""

    TEXT = "text"
    NUMBER = "number"  # a text, too, to the right
    STATUS = "status"  # value and word
    OUTCOME = "outcome"  # value, word and clock: the word where it is not finished
    CLOCK = "clock"  # start and end in ms since 1970; without end it runs
    AGE = "age"  # ms since 1970


@dataclass(frozen=True, slots=True)
class Column(Generic[EntryT]):
    """``cell`` is what the browser gets, ``order`` what rows are sorted by (None comes last)."""

    key: str
    label: str
    kind: Kind
    min_px: int
    flex: float
    cell: Callable[[EntryT], Any]
    order: Callable[[EntryT], Any]
    title: str = ""

    def to_json(self) -> dict[str, str | float]:
        """What the browser has to know."""
        return {
            "key": self.key,
            "label": self.label,
            "kind": self.kind.value,
            "min_px": self.min_px,
            "flex": self.flex,
            "title": self.title or self.label,
        }


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """``w2`` before ``w10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text.casefold())
        if part
    )


def ordered(
    entries: Iterable[EntryT], columns: Sequence[Column[EntryT]], sort: str
) -> list[EntryT] | None:
    """Sorted by ``key`` or ``-key``; None without such a column. What has no value comes last."""
    column = next((one for one in columns if one.key == sort.removeprefix("-")), None)
    if column is None:
        return None
    keyed = [(column.order(entry), entry) for entry in entries]
    present = [one for one in keyed if one[0] is not None]
    present.sort(key=lambda one: one[0], reverse=sort.startswith("-"))
    return [entry for _, entry in present] + [entry for key, entry in keyed if key is None]


def experiment_columns(*, searched: bool) -> list[Column[FoundExperiment]]:
    """Columns of experiments; ``searched`` says that the runs are those that were found."""
    return [
        Column(
            "name",
            "Experiment",
            Kind.TEXT,
            80,
            1,
            lambda one: one.summary.name,
            lambda one: natural(one.summary.name),
        ),
        Column(
            "runs",
            "Found" if searched else "Runs",
            Kind.NUMBER,
            44,
            0,
            lambda one: f"{one.run_count:,}",
            lambda one: one.run_count,
            "Runs",
        ),
        Column(
            "age",
            "Age",
            Kind.AGE,
            48,
            0,
            _experiment_age,
            lambda one: -(one.summary.last_activity_ns or 0),
            "How long ago something came in",
        ),
    ]


def _experiment_age(one: FoundExperiment) -> Any:
    if running := one.summary.statuses.get(RunStatus.RUNNING, 0):
        return f"{running:,} live"
    return (one.summary.last_activity_ns or 0) // _NS_PER_MS


def workload_columns() -> list[Column[WorkloadEntry]]:
    """Columns of an experiment's workloads."""
    return [
        Column(
            "label",
            "Workload",
            Kind.TEXT,
            64,
            0.7,
            lambda one: one.record.label,
            lambda one: natural(one.record.label),
        ),
        Column("what", "What", Kind.TEXT, 96, 1.5, what, lambda one: natural(what(one))),
        # How long it took, or in a word what went otherwise.
        Column(
            "duration",
            "Took",
            Kind.OUTCOME,
            60,
            0,
            lambda one: [*_status(one.status), _workload_clock(one)],
            _workload_duration,
        ),
        Column(
            "age",
            "Age",
            Kind.AGE,
            48,
            0,
            lambda one: _workload_active(one) // _NS_PER_MS,
            lambda one: -_workload_active(one),
        ),
    ]


def what(workload: WorkloadEntry) -> str:
    """``3× cnn-small · mps``, ``cnn-small + cnn-large``: what ran beside what, shared how."""
    counts: dict[str, int] = {}
    for run in workload.runs:
        name = run.record.name or run.record.letter
        counts[name] = counts.get(name, 0) + 1
    names = " + ".join(f"{count}× {name}" if count > 1 else name for name, count in counts.items())
    ways = dict.fromkeys(
        run.record.collocation for run in workload.runs if run.record.collocation.strip("-")
    )
    return " · ".join([names, *ways]) if names else " · ".join(ways)


def run_columns(
    catalog: Catalog, params: Mapping[str, Mapping[str, str]], keys: Iterable[str]
) -> list[Column[RunEntry]]:
    """Columns of an experiment's runs; the last are the parameters with these names."""
    columns: list[Column[RunEntry]] = [
        Column(
            "run",
            "Run",
            Kind.TEXT,
            80,
            0.6,
            lambda run: run.own_name,
            lambda run: (natural(run.record.workload), len(run.record.letter), run.record.letter),
        ),
        Column(
            "name",
            "Name",
            Kind.TEXT,
            88,
            1,
            lambda run: run.record.name,
            lambda run: natural(run.record.name),
        ),
        Column(
            "status",
            "State",
            Kind.STATUS,
            60,
            0,
            lambda run: _status(run.record.status),
            lambda run: STATUS_WORDS[run.record.status],
        ),
        Column("duration", "Took", Kind.CLOCK, 60, 0, _run_clock, duration_s),
        Column(
            "age",
            "Age",
            Kind.AGE,
            48,
            0,
            lambda run: active_ns(run) // _NS_PER_MS,
            lambda run: -active_ns(run),
        ),
        Column(
            "device",
            "Device",
            Kind.TEXT,
            56,
            0.6,
            _device,
            lambda run: natural(_device(run)),
        ),
    ]
    if len(catalog.hosts) > 1:
        columns.append(
            Column(
                "host",
                "Host",
                Kind.TEXT,
                64,
                0.6,
                lambda run: run.record.host,
                lambda run: natural(run.record.host),
            )
        )
    if any(note(run) for run in catalog.runs.values()):
        columns.append(
            Column(
                "note",
                "Note",
                Kind.TEXT,
                72,
                0.6,
                note,
                lambda run: note(run) or None,
            )
        )
    return [*columns, *(_param_column(key, params) for key in keys)]


def differing(params: Mapping[str, Mapping[str, str]], run_count: int) -> list[str]:
    """Parameters that are not the same in all of so many runs, in order of the alphabet."""
    values: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for of_run in params.values():
        for key, value in of_run.items():
            values.setdefault(key, set()).add(value)
            counts[key] = counts.get(key, 0) + 1
    return sorted(key for key, found in values.items() if len(found) > 1 or counts[key] < run_count)


def note(run: RunEntry) -> str:
    """What makes a run no measurement like others, or not whole here."""
    notes = [f"profiled by {run.profiled}"] if run.profiled else []
    notes += ["thinned"] if run.pruned else []
    notes += ["on server"] if run.remote is not None else []
    return " · ".join(notes)


def _param_column(key: str, params: Mapping[str, Mapping[str, str]]) -> Column[RunEntry]:
    def value(run: RunEntry) -> str:
        return params.get(run.run_id, {}).get(key, "")

    def order(run: RunEntry) -> tuple[int, float, Any] | None:
        text = value(run)
        if not text:
            return None
        number = as_number(text)
        return (1, 0.0, natural(text)) if number is None else (0, number, ())

    numbers = all(as_number(one[key]) is not None for one in params.values() if one.get(key))
    kind, flex = (Kind.NUMBER, 0.0) if numbers else (Kind.TEXT, 0.6)
    # About what the name takes, with the arrow of a sorted column.
    min_px = max(64, min(144, 24 + 7 * len(key)))
    return Column(f"param.{key}", key, kind, min_px, flex, value, order, f"Parameter {key}")


def _device(run: RunEntry) -> str:
    ways = run.record.collocation.strip("-")
    return f"{run.record.devices} · {ways}" if ways else run.record.devices


def _status(status: RunStatus) -> list[str]:
    return [status.value, STATUS_WORDS[status]]


def _run_clock(run: RunEntry) -> list[int | None] | None:
    record = run.record
    if duration_s(run) is None:
        return None
    end_ms = None if record.ended_ns is None else record.ended_ns // _NS_PER_MS
    return [run.origin_ns // _NS_PER_MS, end_ms]


def _workload_clock(workload: WorkloadEntry) -> list[int | None] | None:
    clocks = [clock for run in workload.runs if (clock := _run_clock(run))]
    if not clocks:
        return None
    ends = [end for _, end in clocks]
    running = any(end is None for end in ends)
    return [
        min(start for start, _ in clocks if start is not None),
        None if running else max(end for end in ends if end is not None),
    ]


def _workload_duration(workload: WorkloadEntry) -> float | None:
    return max((s for run in workload.runs if (s := duration_s(run)) is not None), default=None)


def _workload_active(workload: WorkloadEntry) -> int:
    return max(
        (active_ns(run) for run in workload.runs),
        default=workload.record.ended_ns or workload.record.created_ns,
    )
