"""Decide which runs of an experiment count, and why the others do not.

Every start of a workload creates new runs. One start of each workload counts, because only runs of
the same start shared the hardware; in a series of repeats, all starts count. A start under a
profiler measures the profiler, even in rows beside the profiled one, so it never counts. Neither do
archived runs. A run that did not finish has no values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from sqlalchemy import bindparam, text

from radt.analysis.stretches import lived, merged
from radt.model import STATUS_WORDS, Role, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import (
    ARCHIVED,
    CLUSTER_HARDWARE,
    GROUPED_BY,
    PARENT,
    PROFILED,
    PROFILED_BESIDE,
    PRUNED,
    ROLE,
    SERIES,
    YES,
)
from radt.units import plural

#: Collocations of runs that share a device undivided, or have it to themselves.
NO_COLLOCATION = ("", "-")

#: Final statuses that are a result of the row. KILLED and SKIPPED rows run again.
RESULTS = (RunStatus.FINISHED, RunStatus.OOM, RunStatus.TIMEOUT, RunStatus.FAILED)
#: Final statuses in reports. A killed row has no result but is listed.
SHOWN = (*RESULTS, RunStatus.KILLED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a workload.

    Attributes:
        label: The workload's label, else the series, else the workload's id.
        runs: The run that represents each row that had a result or was killed.
        series: Series that its repeats share; empty without repeats.
        complete: All rows but services have a result, or are running in `Selection.running`.
        is_profiled: A profiler slowed down one of the runs.
        host: The machine that it ran on, or several joined by a plus.
        services: Ids of its runs that served the others. They are measured, but the result of a
            start depends only on the others, which share the hardware with their service.
        children: Runs within its runs, which share processes and hardware with them.
        hardware: The machine, or on a cluster its kind.
    """

    label: str
    runs: tuple[RunRecord, ...]
    series: str
    complete: bool
    is_profiled: bool = False
    host: str = ""
    services: frozenset[str] = frozenset()
    children: tuple[RunRecord, ...] = ()
    hardware: str = ""

    @property
    def of_children(self) -> Attempt:
        """Return a start whose runs are its children, to measure each of them."""
        return replace(self, runs=self.children, services=frozenset(), children=())

    @property
    def trained(self) -> tuple[RunRecord, ...]:
        """Return its runs without services."""
        if not self.services:
            return self.runs
        return tuple(run for run in self.runs if run.run_id not in self.services)

    @property
    def finished(self) -> bool:
        return self.complete and all(run.status is RunStatus.FINISHED for run in self.trained)

    @property
    def has_result(self) -> bool:
        """Return whether any row has a result."""
        return any(run.status in RESULTS for run in self.trained)

    @property
    def solo(self) -> bool:
        """Return True if its run had no neighbours. A service is not a neighbour."""
        return self.complete and len(self.trained) == 1

    @property
    def collocation(self) -> str:
        """Return how its runs share devices, several ways joined by a comma; empty if not."""
        ways = dict.fromkeys(run.collocation for run in self.trained)
        return ", ".join(way for way in ways if way not in NO_COLLOCATION)

    @property
    def makespan_s(self) -> float | None:
        """Return the time from its first start to its last end.

        None if a row did not finish, or if for a while none of its runs ran: a row resumed later
        did not run together with the others.
        """
        stretches = lived(self.trained)
        if not self.finished or len(stretches) < len(self.trained):
            return None
        (first_ns, last_ns), *more = merged(stretches)
        return None if more or last_ns <= first_ns else (last_ns - first_ns) / 1e9

    @property
    def created_ns(self) -> int:
        return max(run.created_ns for run in self.runs)


class Omission(StrEnum):
    """Why a finished run does not count."""

    ARCHIVED = "archived"
    BESIDE_ARCHIVED = "beside an archived run"
    PROFILED = "profiled"
    SUPERSEDED = "superseded"  # another start of the workload counts


#: Why a run does not count: it was left out, or did not finish.
Reason: TypeAlias = Omission | RunStatus


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs of an experiment that count, and why the others do not.

    Attributes:
        run_count: Number of all runs.
        attempts: All ended starts, the oldest first, without archived runs.
        current: For each workload the start that counts, or all repeats of one series.
        reasons: Why a run does not count, by run id, for runs that do not.
        running: The starts with a running run, which is among their runs.
    """

    run_count: int = 0
    attempts: Sequence[Attempt] = ()
    current: Sequence[Sequence[Attempt]] = ()
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    running: Sequence[Attempt] = ()

    @property
    def starts(self) -> list[Sequence[Attempt]]:
        """Return all starts, also superseded and running ones, with repeats in one group."""
        known = {id(attempt) for repeats in self.current for attempt in repeats}
        others = [attempt for attempt in self.attempts if id(attempt) not in known]
        return [*self.current, *([attempt] for attempt in (*others, *self.running))]

    @property
    def open_count(self) -> int:
        """Return the number of runs that are running or waiting."""
        return sum(self.count(status) for status in RunStatus if not status.ended)

    def count(self, *reasons: Reason) -> int:
        """Return the number of runs that do not count for these reasons."""
        return sum(reason in reasons for reason in self.reasons.values())

    def among(self, run_ids: Collection[str]) -> Selection:
        """Return the counts and reasons of some of its runs."""
        reasons = {run_id: self.reasons[run_id] for run_id in run_ids if run_id in self.reasons}
        return Selection(len(run_ids), reasons=reasons)


def counts_text(selections: Sequence[Selection]) -> str:
    """Return ``4 runs, 3 count: 1 superseded``; ``4 runs`` if all count."""
    total = sum(selection.run_count for selection in selections)
    reasons = Counter(reason for each in selections for reason in each.reasons.values())
    if not reasons:
        return plural(total, "run")
    count = total - reasons.total()
    counted = f"{count:,} {'counts' if count == 1 else 'count'}" if count else "none counts"
    words = [*Omission, *STATUS_WORDS]
    listed = (f"{reasons[word]:,} {reason_text(word)}" for word in words if word in reasons)
    return f"{plural(total, 'run')}, {counted}: {', '.join(listed)}"


def reason_text(reason: Reason) -> str:
    """Return a reason in words: ``superseded``, ``timed out``."""
    return STATUS_WORDS[reason] if isinstance(reason, RunStatus) else reason.value


def select(
    runs: Sequence[RunRecord],
    tags: Mapping[str, Mapping[str, str]],
    *,
    profiled: bool = False,
    archived: bool = False,
) -> Selection:
    """Return which runs of an experiment count.

    Args:
        runs: All runs of the experiment.
        tags: The result of `read_tags`.
        profiled: Also count profiled starts.
        archived: Also count archived runs.
    """
    hidden = set() if archived else _archived(runs, tags)
    # Runs beside an archived run did not run alone, so the whole start is left out.
    hidden_starts = {
        run.workload_id
        for run in runs
        if run.run_id in hidden and PARENT not in tags.get(run.run_id, ())
    }
    attempts = attempts_of(
        (run for run in runs if run.run_id not in hidden and run.workload_id not in hidden_starts)
        if hidden
        else runs,
        tags,
    )
    current = current_attempts(attempts, profiled=profiled)
    counted = {
        run.run_id
        for repeats in current
        for attempt in repeats
        for run in (*attempt.runs, *attempt.children)
        if run.status is RunStatus.FINISHED
    }
    profiled_starts = {
        run.workload_id for attempt in attempts if attempt.is_profiled for run in attempt.runs
    }
    known_starts = {run.workload_id for attempt in attempts for run in attempt.runs}
    unfinished = {
        run.workload_id: run.status
        for run in runs
        if run.status is not RunStatus.FINISHED and run.run_id not in hidden
    }

    def reason(run: RunRecord) -> Reason | None:
        if run.run_id in hidden:
            return Omission.ARCHIVED
        if run.workload_id in hidden_starts:
            return Omission.BESIDE_ARCHIVED
        if run.status is not RunStatus.FINISHED:
            return run.status
        if run.workload_id in profiled_starts and not profiled:
            return Omission.PROFILED
        if run.workload_id in known_starts:
            return Omission.SUPERSEDED
        return unfinished.get(run.workload_id)  # a service or child of runs without a result

    others = (run for run in runs if run.run_id not in counted)
    reasons = {run.run_id: why for run in others if (why := reason(run)) is not None}
    going = {run.workload_id for run in runs if run.status is RunStatus.RUNNING} - hidden_starts
    running = attempts_of(
        (run for run in runs if run.workload_id in going and run.run_id not in hidden),
        tags,
        (*SHOWN, RunStatus.RUNNING),
    )
    return Selection(len(runs), attempts, current, reasons, running)


def _archived(runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return the ids of archived runs and their children."""
    marked = {run_id for run_id, own in tags.items() if own.get(ARCHIVED) == YES}
    return marked and {
        run.run_id
        for run in runs
        if run.run_id in marked or tags.get(run.run_id, {}).get(PARENT) in marked
    }


_TAGS = text(
    "SELECT tag.run_id, tag.key, tag.value FROM tag JOIN run ON run.run_id = tag.run_id "
    "WHERE run.experiment = :experiment AND tag.key IN :keys"
).bindparams(bindparam("keys", expanding=True))
_KEYS = (
    *(ARCHIVED, CLUSTER_HARDWARE, GROUPED_BY, PARENT, PROFILED, PROFILED_BESIDE, PRUNED),
    *(ROLE, SERIES),
)


def read_tags(reader: StoreReader, experiment: str) -> dict[str, dict[str, str]]:
    """Return the tags that classify an experiment's runs, by run and key.

    Raises:
        StoreError: The store cannot be read.
    """
    tags: dict[str, dict[str, str]] = {}
    with reader.snapshot() as connection:
        for run_id, key, value in connection.execute(
            _TAGS, {"experiment": experiment, "keys": list(_KEYS)}
        ):
            tags.setdefault(run_id, {})[key] = value
    return tags


def current_attempts(attempts: Iterable[Attempt], *, profiled: bool = False) -> list[list[Attempt]]:
    """Return for each workload the start that counts, or all repeats of one series, oldest first.

    The newest start in which all rows finished counts; otherwise the newest in which all rows have
    a result, then the newest in which any row has one, then the newest killed one. A run without a
    workload counts by itself, or with the other repeats of its series. Starts of one label on
    several machines are different workloads, except on nodes of a cluster with the same hardware.

    Args:
        attempts: All starts, the oldest first.
        profiled: Include profiled starts, beside the others.
    """
    by_label: dict[tuple[str, str, bool], list[Attempt]] = {}
    for attempt in attempts:
        if profiled or not attempt.is_profiled:
            key = (attempt.label, attempt.hardware, attempt.is_profiled)
            by_label.setdefault(key, []).append(attempt)
    current = []
    for same in by_label.values():
        best = same[0] if len(same) == 1 else max(same, key=_rank)
        current.append(
            [
                attempt
                for attempt in same
                if attempt is best
                or (best.series and attempt.series == best.series and attempt.complete)
            ]
        )
    return sorted(current, key=lambda repeats: repeats[-1].created_ns)


def _rank(attempt: Attempt) -> tuple[bool, bool, bool, int]:
    return attempt.finished, attempt.complete, attempt.has_result, attempt.created_ns


_NO_TAGS: Mapping[str, str] = {}


def attempts_of(
    runs: Iterable[RunRecord],
    tags: Mapping[str, Mapping[str, str]],
    shown_statuses: Collection[RunStatus] = SHOWN,
) -> list[Attempt]:
    """Return the starts with a run in one of the states, the oldest first."""
    started: dict[str, list[RunRecord]] = {}
    children: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.created_ns):
        parent_id = tags.get(run.run_id, _NO_TAGS).get(PARENT)
        if parent_id is None:
            started.setdefault(run.workload_id, []).append(run)
        elif run.status in shown_statuses:
            children.setdefault(parent_id, []).append(run)
    attempts = []
    for rows in started.values():
        counted: dict[str, RunRecord] = {}
        for run in rows:  # a row resumed within its workload has several
            known = counted.get(run.letter)
            is_going = run.status is RunStatus.RUNNING and run.status in shown_statuses
            if known is None or is_going or _weight(run) >= _weight(known):
                counted[run.letter] = run
        shown = tuple(run for run in counted.values() if run.status in shown_statuses)
        of_rows = {run.run_id: tags.get(run.run_id, _NO_TAGS) for run in rows}
        services = frozenset(
            run_id for run_id, own in of_rows.items() if own.get(ROLE) == Role.SERVICE
        )
        if not services.issuperset(run.run_id for run in shown):
            series = of_rows[shown[0].run_id].get(SERIES, "")
            # Repeats of a directly started script have a series, but no workload.
            label = rows[0].workload or series or rows[0].workload_id
            is_profiled = any(PROFILED in own for own in of_rows.values())
            hardware = {of_rows[run.run_id].get(CLUSTER_HARDWARE, run.host) for run in rows}
            attempts.append(
                Attempt(
                    label,
                    shown,
                    series,
                    all(
                        run.status in RESULTS
                        or (run.status is RunStatus.RUNNING and run.status in shown_statuses)
                        for run in counted.values()
                        if run.run_id not in services
                    ),
                    is_profiled,
                    "+".join(sorted({run.host for run in rows})),
                    services,
                    tuple(child for run in shown for child in children.get(run.run_id, ())),
                    "+".join(sorted(hardware)),
                )
            )
    return sorted(attempts, key=lambda attempt: attempt.created_ns)


def _weight(run: RunRecord) -> int:
    if run.status is RunStatus.FINISHED:
        return 3
    return 2 if run.status in RESULTS else int(run.status in SHOWN)
