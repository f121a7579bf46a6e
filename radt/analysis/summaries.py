"""Summaries of workloads and of groups of like runs, and the interference between them.

In the interference matrix a row is the measured model, a column the model of its neighbours. Runs
with neighbours of several models are listed separately, because the slowdown cannot be attributed
to one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from radt.analysis.baselines import Baseline, BaselineKey, makespan_values
from radt.analysis.energy import WorkloadEnergy
from radt.analysis.estimates import Estimate, Reached
from radt.analysis.measures import (
    RunMeasures,
    WorkloadMeasures,
    reached_of,
    value_of,
)
from radt.analysis.missing import why_missing
from radt.analysis.names import joint_name
from radt.analysis.quantities import Quantity, Subject
from radt.analysis.recording import (
    MemoryShortage,
    RunRecording,
    tracker_cpu,
)
from radt.analysis.selection import NO_COLLOCATION, Attempt
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.devices.visible import UNKNOWN
from radt.model import Role, RunStatus
from radt.run_name import family_of
from radt.store.records import RunRecord
from radt.tags import PARENT, PROFILED, PROFILED_BESIDE, ROLE
from radt.units import NO_VALUE

#: Sums over all rows of a workload, and the quantity that they add up. With services, they are the
#: workload's needs, regardless of where its work is done.
SUMS_WITH_SERVICES = {
    Quantity.CPU_OF_ALL: Quantity.CPU,
    Quantity.MEMORY_OF_ALL: Quantity.MEMORY,
}

_OF_RUNS = tuple(quantity for quantity in Quantity if quantity.info.subject is Subject.RUNS)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One row of a workload.

    Attributes:
        run: Its newest finished run, else its newest run.
        name: Name, unique among the models of the experiment.
        repeats: Number of finished runs.
        profiled: The profiler that it ran under or beside; empty without one.
        is_service: It served the other rows.
        is_child: It is a run within one of the other rows.
        metrics: The metrics of quantities that the run has.
    """

    run: RunRecord
    name: str
    repeats: int
    profiled: str = ""
    is_service: bool = False
    is_child: bool = False
    metrics: frozenset[str] = frozenset()

    @property
    def status(self) -> RunStatus:
        """Return FINISHED if one repeat finished."""
        return RunStatus.FINISHED if self.repeats else self.run.status


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The like runs of a workload: mean of their times, sum of their throughput and CPU.

    Attributes:
        name: Name of the runs.
        runs: One or more.
        status: How they ended. Unfinished runs have a group without values.
        values: The measured values.
        baseline: The runs alone that their slowdown refers to; None without any.
        shortage: The exhausted memory; None for other ends.
        reached: Number of finished runs that met the condition of each ``time_to``.
        children: The groups of runs within its runs. They share hardware and time with each other,
            so they are not neighbours, and have neither slowdown nor load.
    """

    name: str
    runs: Sequence[RunSummary]
    status: RunStatus
    values: Mapping[AnyQuantity, Estimate] = field(default_factory=dict)
    baseline: Baseline | None = None
    shortage: MemoryShortage | None = None
    reached: Mapping[AnyQuantity, Reached] = field(default_factory=dict)
    children: Sequence[GroupSummary] = ()

    @property
    def is_child(self) -> bool:
        """Return whether they are runs within other runs."""
        return self.runs[0].is_child

    @property
    def is_service(self) -> bool:
        """Return whether they served the other runs of the workload."""
        return self.runs[0].is_service

    @property
    def repeats(self) -> int:
        """Return the minimum number of times that each of them finished."""
        return min(run.repeats for run in self.runs)

    def mean(self, quantity: AnyQuantity) -> float | None:
        """Return a value; None if not measured."""
        estimate = self.values.get(quantity)
        return None if estimate is None else estimate.mean


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One workload in numbers.

    Attributes:
        label: Its label; `NO_VALUE` without one.
        groups: Its like runs, services last.
        energy: Energy of its GPUs and runs.
        host: Its machine.
        values: Values of its devices, and of all its runs together.
        workload_ids: Ids of the starts that count, oldest first.
        is_adjusted: Its runs trained more or fewer epochs than alone, and ``SERIAL`` is the time of
            the same number of epochs alone.
    """

    label: str
    groups: Sequence[GroupSummary]
    energy: WorkloadEnergy
    host: str = ""
    values: Mapping[AnyQuantity, Estimate] = field(default_factory=dict)
    workload_ids: tuple[str, ...] = ()
    is_adjusted: bool = False

    @property
    def trained(self) -> Sequence[GroupSummary]:
        """Return its like runs without services."""
        return [group for group in self.groups if not group.is_service]

    @property
    def is_served(self) -> bool:
        """Return whether it has a service."""
        return len(self.trained) < len(self.groups)

    @property
    def run_count(self) -> int:
        """Return the number of runs that shared the hardware, without services."""
        return sum(len(group.runs) for group in self.trained)

    @property
    def workload_id(self) -> str:
        """Return the id of the newest start."""
        return self.workload_ids[-1]

    @property
    def name(self) -> str:
        """Return its label, else the names of its runs."""
        if self.label != NO_VALUE:
            return self.label
        return ", ".join(group.name for group in self.trained)

    def estimate(self, quantity: AnyQuantity, group: GroupSummary | None = None) -> Estimate | None:
        """Return a value of like runs (by default the first group), or of the whole workload."""
        of_group = (group or self.groups[0]).values
        values = of_group if quantity.info.subject is Subject.RUNS else self.values
        return values.get(quantity)

    def why_missing(self, quantity: AnyQuantity, group: GroupSummary | None = None) -> str:
        """Return why `estimate` is None."""
        group = group or self.groups[0]
        return why_missing(
            quantity,
            group.runs[0].run,
            group.runs[0].metrics,
            is_alone=self.run_count == 1 and group.baseline is None,
            has_epochs=group.mean(Quantity.TIME_PER_EPOCH) is not None,
        )


def workload_summary(
    repeats: Sequence[Attempt],
    workload: WorkloadMeasures,
    keys: Mapping[str, BaselineKey],
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
    baselines: Mapping[BaselineKey, Baseline],
    series: Sequence[SeriesQuantity] = (),
) -> WorkloadSummary:
    """Summarise a workload from the measures of its starts.

    Runs with equal `keys` are alike. `keys`, `names` and `tags` are by run id. `series` are the
    quantities of series that were read.
    """
    measured = workload.rows
    rows = {letter: _row(row, names, tags) for letter, row in measured.items()}
    baseline_of_row = {
        letter: None if row.is_service else baselines.get(keys[row.run.run_id])
        for letter, row in rows.items()
    }
    joint, is_adjusted = makespan_values(
        repeats,
        [
            (
                baseline_of_row[letter],
                [
                    workload.recordings[measures.run.run_id].epochs.count
                    for measures in row
                    if measures is not None and measures.run.status is RunStatus.FINISHED
                ],
            )
            for letter, row in measured.items()
            if not rows[letter].is_service
        ],
    )
    values = {**workload.values, **joint, **_sums(list(measured.values()))}
    if (cpu := tracker_cpu(repeats, workload.recordings)) is not None:
        values[Quantity.TRACKER_CPU] = cpu
    return WorkloadSummary(
        label=repeats[-1].runs[0].workload or NO_VALUE,
        groups=[
            _group(
                [rows[letter] for letter in letters],
                [measured[letter] for letter in letters],
                baseline_of_row[letters[0]],
                workload.recordings,
                series,
                _groups_of_children(letters, workload, names, tags, series),
            )
            for letters in _like_rows(rows, keys)
        ],
        energy=workload.energy,
        host=repeats[-1].host,
        values=values,
        workload_ids=tuple(attempt.runs[0].workload_id for attempt in repeats),
        is_adjusted=is_adjusted,
    )


def _sums(rows: Sequence[Sequence[RunMeasures | None]]) -> dict[AnyQuantity, Estimate]:
    """Return the sums over all rows, except for quantities that a row lacks."""
    sums: dict[AnyQuantity, Estimate] = {}
    for quantity, part in SUMS_WITH_SERVICES.items():
        of_rows = [value_of([row], part) for row in rows]
        if None not in of_rows and (estimate := value_of(rows, part)) is not None:
            sums[quantity] = estimate
    return sums


def _row(
    row: Sequence[RunMeasures | None],
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
) -> RunSummary:
    known = [measures.run for measures in row if measures is not None]
    finished = [run for run in known if run.status is RunStatus.FINISHED]
    run = (finished or known)[-1]
    own = tags.get(run.run_id, {})
    neighbour = own.get(PROFILED_BESIDE, "")
    profiled = own.get(PROFILED, "") or (f"beside {neighbour}" if neighbour else "")
    is_service = own.get(ROLE) == Role.SERVICE
    own_names = [names.get(each.run_id, each.name) for each in known]
    # A single renamed repeat does not rename the others.
    name = Counter(reversed(own_names)).most_common(1)[0][0]
    metrics = frozenset().union(*(each.metrics for each in row if each is not None))
    return RunSummary(run, name, len(finished), profiled, is_service, PARENT in own, metrics)


def _groups_of_children(
    letters: Sequence[str],
    workload: WorkloadMeasures,
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
    series: Sequence[SeriesQuantity],
) -> list[GroupSummary]:
    """Return the children of like rows, grouped by name, in the order in which they began."""
    groups: dict[tuple[str, RunStatus], list[tuple[RunSummary, Sequence[RunMeasures | None]]]] = {}
    for letter, measured in workload.children.items():
        row_letter, child = family_of(letter)
        if row_letter in letters:
            row = _row(measured, names, tags)
            groups.setdefault((child, row.status), []).append((row, measured))
    return [
        _group(
            [row for row, _ in same],
            [measured for _, measured in same],
            None,
            workload.recordings,
            series,
        )
        for same in groups.values()
    ]


def _like_rows(
    rows: Mapping[str, RunSummary], keys: Mapping[str, BaselineKey]
) -> Iterable[Sequence[str]]:
    """Return the letters of rows, grouped to summarise each group as one, services last."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for letter, row in sorted(rows.items(), key=lambda item: item[1].is_service):
        key = (keys[row.run.run_id], row.status, row.profiled, row.is_service)
        groups.setdefault(key, []).append(letter)
    return groups.values()


def _group(
    runs: Sequence[RunSummary],
    rows: Sequence[Sequence[RunMeasures | None]],
    baseline: Baseline | None,
    recordings: Mapping[str, RunRecording],
    series: Sequence[SeriesQuantity],
    children: Sequence[GroupSummary] = (),
) -> GroupSummary:
    name = joint_name([run.name for run in runs])
    there = {key for row in rows for measures in row if measures for key in measures.values}
    values: dict[AnyQuantity, Estimate] = {
        quantity: estimate
        for quantity in _OF_RUNS
        if quantity in there and (estimate := value_of(rows, quantity)) is not None
    }
    time = values.get(Quantity.TIME_PER_EPOCH)
    alone = None if baseline is None else baseline.time_per_epoch
    if time is not None and alone is not None and alone.mean:
        values[Quantity.SLOWDOWN] = time.over(alone)
    for each in series:
        if (estimate := value_of(rows, each)) is not None:
            values[each] = estimate
    about = [
        *([runs[0].profiled] if runs[0].profiled else ()),
        *([Role.SERVICE] if runs[0].is_service else ()),
    ]
    shortages = (recordings[run.run.run_id].shortage for run in runs)
    return GroupSummary(
        name=f"{name} ({'; '.join(about)})" if about else name,
        runs=runs,
        status=runs[0].status,
        values=values,
        baseline=baseline,
        shortage=next(filter(None, shortages), None),
        reached={
            each: reached for each in series if (reached := reached_of(rows, each)) is not None
        },
        children=children,
    )


def models_text(counts: Iterable[tuple[str, int]]) -> str:
    """Return ``2 × resnet26 + resnet50``."""
    return " + ".join(f"{count} × {name}" if count > 1 else name for name, count in counts)


@dataclass(frozen=True, slots=True)
class Encounter:
    """The slowdown of a model by its neighbours in one workload.

    Attributes:
        model: The name of the measured runs.
        neighbours: Number of runs of each model that shared a device with each of them, by name.
        collocation: ``MPS`` or a MIG profile; empty without either.
        slowdown: Time per epoch over that of the same run alone.
        workload: The workload's label.
        host: Its machine.
    """

    model: str
    neighbours: tuple[tuple[str, int], ...]
    collocation: str
    slowdown: Estimate
    workload: str
    host: str = ""

    @property
    def degree(self) -> int:
        """Return the number of runs on the device, including itself."""
        return 1 + sum(count for _, count in self.neighbours)

    @property
    def is_mixed(self) -> bool:
        """Return whether its neighbours were of several models."""
        return len(self.neighbours) > 1

    @property
    def neighbours_text(self) -> str:
        """Return ``2 × resnet26 + resnet50``."""
        return models_text(self.neighbours)


def encounters_of(workload: WorkloadSummary) -> Iterator[Encounter]:
    """Yield the slowdowns of models by their neighbours in a workload.

    Nothing if a run did not finish or a profiler slowed it down: a neighbour that ended early did
    not share the device all the time.
    """
    runs = [(group, run) for group in workload.trained for run in group.runs]
    if any(group.status is not RunStatus.FINISHED or run.profiled for group, run in runs):
        return
    for group in workload.trained:
        slowdown = group.values.get(Quantity.SLOWDOWN)
        neighbours = _neighbours(group, runs)
        if slowdown is None or not neighbours:
            continue
        ways = dict.fromkeys(run.run.collocation for run in group.runs)
        yield Encounter(
            group.name,
            neighbours,
            ", ".join(way for way in ways if way not in NO_COLLOCATION),
            slowdown,
            workload.label,
            workload.host,
        )


def _neighbours(
    group: GroupSummary, runs: Sequence[tuple[GroupSummary, RunSummary]]
) -> tuple[tuple[str, int], ...]:
    """Return the neighbours of each run of a group, whose runs share their devices."""
    own = group.runs[0].run
    if own.devices == UNKNOWN:
        return ()
    devices = set(own.devices.split("+"))
    counts: dict[str, int] = {}
    for other, run in runs:
        if run.run.host == own.host and devices & set(run.run.devices.split("+")):
            counts[other.name] = counts.get(other.name, 0) + 1
    counts[group.name] -= 1  # itself
    return tuple((name, count) for name, count in counts.items() if count)
