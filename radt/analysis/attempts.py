"""Choose the runs that represent an experiment's rows, and name them.

Every start of a workload creates new runs. One start of each workload counts, because only runs of
the same start shared the hardware; in a series of repeats, all starts count. A start under a
profiler measures the profiler, also in the rows beside the profiled one, so it never counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from radt.analysis.stretches import merged
from radt.model import Role, RunStatus
from radt.run_name import script_of
from radt.store.records import RunRecord
from radt.tags import CLUSTER_HARDWARE, PARENT, PROFILED, ROLE, SERIES

#: Collocations of runs that share a device undivided, or have it to themselves.
NO_COLLOCATION = ("", "-")

#: Ends that are a result of the row. KILLED and SKIPPED rows run again.
RESULTS = (RunStatus.FINISHED, RunStatus.OOM, RunStatus.TIMEOUT, RunStatus.FAILED)
#: Ends that reports show. A killed row has no result but is still listed.
SHOWN = (*RESULTS, RunStatus.KILLED)
#: The command line, whose parts are separate parameters, and parameters outside of the model.
_NOT_IN_NAMES = frozenset({"Params", "Cpus", "Timeout", "Environment"})
#: Maximum number of parameters in a name.
_MAX_PARAMS = 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a workload.

    Attributes:
        label: The workload's label, else the series, else the workload's id.
        runs: The run that represents each row that had a result or was killed.
        series: Series that its repeats share; empty without repeats.
        complete: All rows but services have a result.
        is_profiled: A profiler slowed down one of the runs.
        host: The machine that it ran on, or several joined by a plus.
        services: Ids of those of its runs that served the others. They are measured, but what a
            start came to depends on the others, which share the hardware with their service.
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
        """Return its children as if they were its runs, to be measured each for itself."""
        return replace(self, runs=self.children, services=frozenset(), children=())

    @property
    def trained(self) -> tuple[RunRecord, ...]:
        """Return its runs without services."""
        return tuple(run for run in self.runs if run.run_id not in self.services)

    @property
    def finished(self) -> bool:
        return self.complete and all(run.status is RunStatus.FINISHED for run in self.trained)

    @property
    def has_result(self) -> bool:
        """Return whether a row has a result."""
        return any(run.status in RESULTS for run in self.trained)

    @property
    def solo(self) -> bool:
        """Return whether its run had no neighbours; a service is none."""
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
        did not run with the others.
        """
        stretches = [
            (run.started_ns, run.ended_ns)
            for run in self.trained
            if run.started_ns is not None and run.ended_ns is not None
        ]
        if not self.finished or len(stretches) < len(self.trained):
            return None
        (first_ns, last_ns), *more = merged(stretches)
        return None if more or last_ns <= first_ns else (last_ns - first_ns) / 1e9

    @property
    def created_ns(self) -> int:
        return max(run.created_ns for run in self.runs)


def current_attempts(attempts: Iterable[Attempt], *, profiled: bool = False) -> list[list[Attempt]]:
    """Return for each workload the start that counts, or all repeats of one series, oldest first.

    The newest start in which all rows finished counts; otherwise the newest in which all rows have
    a result, then the newest in which one has, then the newest killed one. A run without a workload
    counts by itself, or with the other repeats of its series. Starts of one label on several
    machines are different workloads, but not on nodes of a cluster with the same hardware.

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
        best = max(same, key=_rank)
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


def profiled_runs(attempts: Iterable[Attempt]) -> list[RunRecord]:
    """Return the runs of profiled starts."""
    return [run for attempt in attempts if attempt.is_profiled for run in attempt.runs]


def attempts_of(runs: Iterable[RunRecord], tags: Mapping[str, Mapping[str, str]]) -> list[Attempt]:
    """Return the ended starts, oldest first."""
    started: dict[str, list[RunRecord]] = {}
    children: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.created_ns):
        parent_id = tags.get(run.run_id, {}).get(PARENT)
        if parent_id is None:
            started.setdefault(run.workload_id, []).append(run)
        elif run.status in SHOWN:
            children.setdefault(parent_id, []).append(run)
    attempts = []
    for rows in started.values():
        counted: dict[str, RunRecord] = {}
        for run in rows:  # a row resumed within its workload has several
            known = counted.get(run.letter)
            if known is None or _weight(run) >= _weight(known):
                counted[run.letter] = run
        shown = tuple(run for run in counted.values() if run.status in SHOWN)
        services = frozenset(
            run.run_id for run in rows if tags.get(run.run_id, {}).get(ROLE) == Role.SERVICE
        )
        if not services.issuperset(run.run_id for run in shown):
            series = tags.get(shown[0].run_id, {}).get(SERIES, "")
            # Repeats of a directly started script have a series, but no workload.
            label = rows[0].workload or series or rows[0].workload_id
            is_profiled = any(PROFILED in tags.get(run.run_id, ()) for run in rows)
            hardware = {tags.get(run.run_id, {}).get(CLUSTER_HARDWARE, run.host) for run in rows}
            attempts.append(
                Attempt(
                    label,
                    shown,
                    series,
                    all(
                        run.status in RESULTS
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


def distinct_names(
    runs: Sequence[RunRecord], params: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return a name for each run, by id: its own and the parameters that differ among namesakes.

    The runs of a sweep all have the script's name; a learning rate tells them apart. Runs of the
    same name and parameters keep the name: they are repeats of each other. A name that only
    says script, arguments and number is replaced by the parameters, in the order in which they are
    given.
    """
    namesakes: dict[str, list[RunRecord]] = {}
    scripts = {run.run_id: _script(run, params) for run in runs}
    for run in runs:
        namesakes.setdefault(scripts[run.run_id] or run.name, []).append(run)
    names = {}
    for name, same in namesakes.items():
        differing = _differing([params.get(run.run_id, {}) for run in same])
        for run in same:
            values = _params_text(params.get(run.run_id, {}), differing)
            is_own = not scripts[run.run_id]
            names[run.run_id] = f"{name}, {values}" if values and is_own else values or name
    return names


def _script(run: RunRecord, params: Mapping[str, Mapping[str, str]]) -> str:
    """Return the script that a run is named after; empty if the run has a name of its own."""
    return script_of(run.name, params.get(run.run_id, {}).get("File", ""))


def _differing(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parameters that have several values, in the order in which they are given."""
    keys = dict.fromkeys(
        key for run_params in params for key in run_params if key not in _NOT_IN_NAMES
    )
    return [key for key in keys if len({run_params.get(key) for run_params in params}) > 1]


def _params_text(params: Mapping[str, str], differing: Sequence[str]) -> str:
    # A run without a parameter is distinguished by the others having it.
    own = [key for key in differing if key in params]
    texts = [f"{key} {params[key]}" for key in own[:_MAX_PARAMS]]
    return ", ".join(texts) + (", …" if len(own) > _MAX_PARAMS else "")
