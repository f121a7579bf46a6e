"""Which runs of an experiment stand for its rows.

Every start of a workload makes new runs. What counts is one start of each workload, as only its
runs were really collocated; of a series of repeats it is all of them. A start with a profiler in it
measures the profiler, in the rows beside the profiled one, too; it stands for nothing but itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.model import RunStatus
from radt.report.stretches import merged
from radt.store.records import RunRecord
from radt.store.tags import PROFILED

#: Set by the runner: what the repeats of a workload have in common.
SERIES_TAG = "radt.series"

#: What the column says of runs that share a device as it is, or have it for themselves.
NO_COLLOCATION = ("", "-")

#: Ends that say something of a row. KILLED and SKIPPED rows are run again.
RESULTS = (RunStatus.FINISHED, RunStatus.OOM, RunStatus.TIMEOUT, RunStatus.FAILED)
#: Ends that are shown. A row that somebody killed has no result, but is not to be forgotten.
SHOWN = (*RESULTS, RunStatus.KILLED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a workload: of each row the run that counts, if it had a result or was killed.

    ``host`` is the machine it ran on, or several with a plus. ``complete`` is whether all rows came
    to a result; ``is_profiled`` whether one of them was slowed down by a profiler.
    """

    label: str
    runs: tuple[RunRecord, ...]
    series: str
    complete: bool
    is_profiled: bool = False
    host: str = ""

    @property
    def finished(self) -> bool:
        return self.complete and all(run.status is RunStatus.FINISHED for run in self.runs)

    @property
    def has_result(self) -> bool:
        """Whether a row came to one."""
        return any(run.status in RESULTS for run in self.runs)

    @property
    def solo(self) -> bool:
        """Whether its run had no neighbours."""
        return self.complete and len(self.runs) == 1

    @property
    def collocation(self) -> str:
        """How its runs share their devices; several ways with a comma. Empty for none."""
        ways = dict.fromkeys(run.collocation for run in self.runs)
        return ", ".join(way for way in ways if way not in NO_COLLOCATION)

    @property
    def makespan_s(self) -> float | None:
        """From its first start to its last end.

        None where a row did not finish, as what it would have taken is not known; and where none
        of its runs ran for a while in between: a row that was resumed later did not run with
        others.
        """
        stretches = [
            (run.started_ns, run.ended_ns)
            for run in self.runs
            if run.started_ns is not None and run.ended_ns is not None
        ]
        if not self.finished or len(stretches) < len(self.runs):
            return None
        (first_ns, last_ns), *more = merged(stretches)
        return None if more or last_ns <= first_ns else (last_ns - first_ns) / 1e9

    @property
    def created_ns(self) -> int:
        return max(run.created_ns for run in self.runs)


def standing_attempts(
    runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]], *, profiled: bool = False
) -> list[list[Attempt]]:
    """For each workload the start that stands for it, or the repeats of one series, oldest first.

    What several machines ran of the same label are different workloads: nothing of one is compared
    with the other's.

    The newest in which all rows finished; else the newest in which all came to a result; else the
    newest in which one did; else the newest that was killed. A run without a workload stands for
    itself, or together with the other repeats of its series. ``profiled`` asks for those of
    profiled starts, too, which stand beside the others.
    """
    return standing_of(attempts_of(runs, tags), profiled=profiled)


def standing_of(attempts: Iterable[Attempt], *, profiled: bool = False) -> list[list[Attempt]]:
    """`standing_attempts` of all that there are, the oldest first."""
    by_label: dict[tuple[str, str, bool], list[Attempt]] = {}
    for attempt in attempts:
        if profiled or not attempt.is_profiled:
            key = (attempt.label, attempt.host, attempt.is_profiled)
            by_label.setdefault(key, []).append(attempt)
    chosen = []
    for same in by_label.values():
        best = max(same, key=_standing)
        together = [
            attempt
            for attempt in same
            if attempt is best
            or (best.series and attempt.series == best.series and attempt.complete)
        ]
        chosen.append(together)
    return sorted(chosen, key=lambda together: together[-1].created_ns)


def earlier_alone(
    attempts: Iterable[Attempt], standing: Iterable[Sequence[Attempt]]
) -> list[list[Attempt]]:
    """Single runs that finished and stand for nothing any longer, as the file was changed since.

    Repeats of a series are together, oldest first; those of profiled starts are left out.
    """
    known = {run.run_id for repeats in standing for attempt in repeats for run in attempt.runs}
    found: dict[tuple[str, str, str], list[Attempt]] = {}
    for attempt in attempts:
        (run, *others) = attempt.runs
        if others or attempt.is_profiled or not attempt.finished or run.run_id in known:
            continue
        key = (attempt.label, attempt.host, attempt.series or run.workload_id)
        found.setdefault(key, []).append(attempt)
    return list(found.values())


def _standing(attempt: Attempt) -> tuple[bool, bool, bool, int]:
    return attempt.finished, attempt.complete, attempt.has_result, attempt.created_ns


def profiled_runs(
    runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]]
) -> list[RunRecord]:
    """Runs that came to an end in profiled starts."""
    return profiled_in(attempts_of(runs, tags))


def profiled_in(attempts: Iterable[Attempt]) -> list[RunRecord]:
    """`profiled_runs` of all starts that there are."""
    return [run for attempt in attempts if attempt.is_profiled for run in attempt.runs]


def attempts_of(runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]]) -> list[Attempt]:
    """Starts that came to an end, the oldest first."""
    started: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.created_ns):
        started.setdefault(run.workload_id, []).append(run)
    attempts = []
    for rows in started.values():
        counted: dict[str, RunRecord] = {}
        for run in rows:  # a row that was resumed within its workload has several
            known = counted.get(run.letter)
            if known is None or _weight(run) >= _weight(known):
                counted[run.letter] = run
        shown = tuple(run for run in counted.values() if run.status in SHOWN)
        if shown:
            series = tags.get(shown[0].run_id, {}).get(SERIES_TAG, "")
            # Of a script that is run directly, repeats have no workload but a series.
            label = rows[0].workload or series or rows[0].workload_id
            is_profiled = any(PROFILED in tags.get(run.run_id, ()) for run in rows)
            attempts.append(
                Attempt(
                    label,
                    shown,
                    series,
                    all(run.status in RESULTS for run in counted.values()),
                    is_profiled,
                    "+".join(sorted({run.host for run in rows})),
                )
            )
    return sorted(attempts, key=lambda attempt: attempt.created_ns)


def _weight(run: RunRecord) -> int:
    if run.status is RunStatus.FINISHED:
        return 3
    return 2 if run.status in RESULTS else int(run.status in SHOWN)
