"""Which runs of an experiment stand for its rows.

Every start of a workload makes new runs. What counts is one start of each workload, as only its
runs were really collocated; of a series of repeats it is all of them. A start with a profiler in it
measures the profiler, in the rows beside the profiled one, too; it stands for nothing but itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.model import RunStatus
from radt.store.records import RunRecord
from radt.store.tags import PROFILED

#: Set by the runner: what the repeats of a workload have in common.
SERIES_TAG = "radt.series"

#: Ends that say something of a row. KILLED and SKIPPED rows are run again.
RESULTS = (RunStatus.FINISHED, RunStatus.OOM, RunStatus.TIMEOUT, RunStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a workload: of each row the run that counts, if it came to a result.

    ``host`` is the machine it ran on, or several with a plus. ``complete`` is whether all rows did;
    ``is_profiled`` whether one of them was slowed down by a profiler.
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
    def solo(self) -> bool:
        """Whether its run had no neighbours."""
        return self.complete and len(self.runs) == 1

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
    newest in which one did. A run without a workload stands for itself. ``profiled`` asks for those
    of profiled starts, too, which stand beside the others.
    """
    by_label: dict[tuple[str, str, bool], list[Attempt]] = {}
    for attempt in _attempts(runs, tags):
        if profiled or not attempt.is_profiled:
            key = (attempt.label, attempt.host, attempt.is_profiled)
            by_label.setdefault(key, []).append(attempt)
    chosen = []
    for attempts in by_label.values():
        best = max(attempts, key=lambda a: (a.finished, a.complete, a.created_ns))
        together = [
            attempt
            for attempt in attempts
            if attempt is best
            or (best.series and attempt.series == best.series and attempt.complete)
        ]
        chosen.append(together)
    return sorted(chosen, key=lambda together: together[-1].created_ns)


def profiled_runs(
    runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]]
) -> list[RunRecord]:
    """Runs that came to a result in profiled starts."""
    return [run for attempt in _attempts(runs, tags) if attempt.is_profiled for run in attempt.runs]


def _attempts(
    runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]]
) -> Sequence[Attempt]:
    """Starts with a result, the oldest first."""
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
        results = tuple(run for run in counted.values() if run.status in RESULTS)
        if results:
            label = rows[0].workload or rows[0].workload_id
            series = tags.get(results[0].run_id, {}).get(SERIES_TAG, "")
            is_profiled = any(PROFILED in tags.get(run.run_id, ()) for run in rows)
            attempts.append(
                Attempt(
                    label,
                    results,
                    series,
                    len(results) == len(counted),
                    is_profiled,
                    "+".join(sorted({run.host for run in rows})),
                )
            )
    return sorted(attempts, key=lambda attempt: attempt.created_ns)


def _weight(run: RunRecord) -> int:
    return 2 if run.status is RunStatus.FINISHED else int(run.status in RESULTS)
