"""Time per epoch, throughput and load of each workload, and what collocation cost it.

Method: the first epoch is warm-up and left out if there is another one. Times come from epoch
markers, load from the samples inside the epochs that count. Repeats of a row are averaged. A run's
baseline is the run of the same experiment that had the same file, parameters, devices and machine
and ran alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import text

from radt.model import RunStatus
from radt.report.attempts import SERIES_TAG, Attempt, profiled_runs, standing_attempts
from radt.report.energy import WorkloadEnergy
from radt.report.estimates import Estimate, of_rows
from radt.report.measures import RunMeasures, WorkloadMeasures, measure
from radt.report.names import telling_names
from radt.report.quantities import ABOUT, Of, Quantity
from radt.report.windows import DEFAULT_WINDOW, WindowSpec
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.tags import PROFILED, PROFILED_BESIDE
from radt.units import plural

BaselineKey = tuple[str, ...]
#: Workloads by the revisions of their runs.
_Version = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One row of a workload: its run, the newest that finished, and how many repeats did.

    ``profiled`` says which profiler it ran under, or beside. ``name`` tells it from others of the
    experiment.
    """

    run: RunRecord
    name: str
    repeats: int
    profiled: str = ""

    @property
    def status(self) -> RunStatus:
        """FINISHED if one repeat did."""
        return RunStatus.FINISHED if self.repeats else self.run.status


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The like runs of a workload together: mean of their times, sum of their throughput and CPU.

    ``values`` has what was measured of them. Runs that did not finish have a group of their own,
    without numbers; its ``status`` says how they ended.
    """

    name: str
    runs: Sequence[RunSummary]
    status: RunStatus
    values: Mapping[Quantity, Estimate] = field(default_factory=dict)

    @property
    def repeats(self) -> int:
        """How many times each of them finished, at least."""
        return min(run.repeats for run in self.runs)

    def mean(self, quantity: Quantity) -> float | None:
        """A value; None where it was not measured."""
        estimate = self.values.get(quantity)
        return None if estimate is None else estimate.mean

    @property
    def time_per_epoch_s(self) -> float | None:
        return self.mean(Quantity.TIME_PER_EPOCH)

    @property
    def slowdown(self) -> float | None:
        """Time per epoch over that of the same run alone, None without one."""
        return self.mean(Quantity.SLOWDOWN)

    @property
    def samples_per_s(self) -> float | None:
        return self.mean(Quantity.SAMPLES_PER_S)

    @property
    def cpu_cores(self) -> float | None:
        """CPU time per time of their process trees."""
        return self.mean(Quantity.CPU)


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One workload in numbers.

    ``values`` has what is no single run's: of the devices that it used, of all its runs as one.
    ``workload_id`` is that of the newest start that stands for it; ``workload_ids`` are all.
    """

    label: str
    groups: Sequence[GroupSummary]
    energy: WorkloadEnergy
    host: str = ""
    values: Mapping[Quantity, Estimate] = field(default_factory=dict)
    workload_ids: tuple[str, ...] = ()

    @property
    def run_count(self) -> int:
        return sum(len(group.runs) for group in self.groups)

    @property
    def workload_id(self) -> str:
        return self.workload_ids[-1]

    def estimate(self, quantity: Quantity, group: GroupSummary) -> Estimate | None:
        """A value of one of its groups, or of all of it, whose ever it is."""
        return (group.values if ABOUT[quantity].of is Of.RUNS else self.values).get(quantity)


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment in numbers.

    ``left_out`` counts the runs that a profiler slowed down and that are not in it, ``open`` those
    that run or wait. ``window`` is what of each run counts.
    """

    experiment: str
    workloads: Sequence[WorkloadSummary] = ()
    left_out: int = 0
    open: int = 0
    window: WindowSpec = DEFAULT_WINDOW

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What was measured of any workload, in order.

        Utilisation is left out where each workload that has it has the activity of its SMs, which
        says the same and more; a run's throughput where it is that of all.
        """
        there = {
            quantity
            for workload in self.workloads
            for values in (workload.values, *(group.values for group in workload.groups))
            for quantity in values
        }
        if all(
            Quantity.SM_ACTIVE in workload.values
            for workload in self.workloads
            if Quantity.GPU_UTILIZATION in workload.values
        ):
            there.discard(Quantity.GPU_UTILIZATION)
        if not any(
            group.values[Quantity.SAMPLES_PER_S].parts
            for workload in self.workloads
            for group in workload.groups
            if Quantity.SAMPLES_PER_S in group.values
        ):
            there.discard(Quantity.SAMPLES_PER_S_OF_RUN)
        return tuple(quantity for quantity in Quantity if quantity in there)


class Memory:
    """What was measured of workloads whose runs have not changed since, and what follows from it.

    Two threads at once do no harm but read twice.
    """

    def __init__(self) -> None:
        self._window = DEFAULT_WINDOW
        self._known: dict[_Version, WorkloadMeasures] = {}
        self._summaries: dict[Hashable, WorkloadSummary] = {}

    def measured(
        self,
        reader: StoreReader,
        standing: Sequence[Sequence[Attempt]],
        versions: Sequence[_Version],
        window: WindowSpec,
    ) -> list[WorkloadMeasures]:
        """What the workloads measured; only those that changed are read."""
        if window != self._window:
            self._window, self._known = window, {}
            self._summaries = {}
        missing = [place for place, version in enumerate(versions) if version not in self._known]
        found = measure(reader, [standing[place] for place in missing], window)
        fresh = {versions[place]: one for place, one in zip(missing, found, strict=True)}
        known = {version: self._known.get(version) or fresh[version] for version in versions}
        self._known = known  # what no longer stands is forgotten
        return [known[version] for version in versions]

    def summarised(
        self, keys: Sequence[Hashable], make: Callable[[int], WorkloadSummary]
    ) -> list[WorkloadSummary]:
        """Summaries by all that they follow from; those that are not known are made by place."""
        known = {key: self._summaries.get(key) or make(place) for place, key in enumerate(keys)}
        self._summaries = known
        return [known[key] for key in keys]


def profiled_count(reader: StoreReader, experiment: str) -> int:
    """How many runs of an experiment `summarise` leaves out: profiled ones and their neighbours.

    Raises:
        StoreError: The store cannot be read.
    """
    return len(profiled_runs(reader.runs(experiment=experiment), _tags(reader, experiment)))


def left_out_text(count: int) -> str:
    """What is said of them."""
    were = "was" if count == 1 else "were"
    return f"{plural(count, 'run')} {were} slowed down by a profiler and left out"


def summarise(
    reader: StoreReader, experiment: str, *, profiled: bool = False
) -> list[WorkloadSummary]:
    """The runs that stand for the rows of an experiment, workload by workload.

    Args:
        reader: The store.
        experiment: The experiment's name.
        profiled: Include workloads that a profiler slowed down. They are no baseline to others.

    Raises:
        StoreError: The store cannot be read.
    """
    return list(read_report(reader, experiment, profiled=profiled).workloads)


def read_report(
    reader: StoreReader,
    experiment: str,
    *,
    profiled: bool = False,
    window: WindowSpec = DEFAULT_WINDOW,
    memory: Memory | None = None,
) -> Report:
    """An experiment in numbers.

    Args:
        reader: The store.
        experiment: The experiment's name.
        profiled: Include workloads that a profiler slowed down. They are no baseline to others.
        window: What of each run counts.
        memory: What was measured before; it is brought up to date.

    Raises:
        StoreError: The store cannot be read.
    """
    # Before the runs: what is written in between is then read once more, not missed.
    revisions = _revisions(reader, experiment)
    runs = [run for run in reader.runs(experiment=experiment) if run.run_id in revisions]
    tags = _tags(reader, experiment)
    standing = standing_attempts(runs, tags, profiled=profiled)
    shown = [run for repeats in standing for attempt in repeats for run in attempt.runs]
    params = reader.params_of([run.run_id for run in shown])
    names = telling_names(shown, params)
    keys = {run.run_id: _baseline_key(run, params.get(run.run_id, {})) for run in shown}
    memory = memory or Memory()
    versions: list[_Version] = [
        tuple((run.run_id, revisions[run.run_id]) for one in repeats for run in one.runs)
        for repeats in standing
    ]
    measures = memory.measured(reader, standing, versions, window)
    measured_alone = [
        all(attempt.solo for attempt in repeats) and not repeats[0].is_profiled
        for repeats in standing
    ]
    baselines = _baselines(
        [one for one, alone in zip(measures, measured_alone, strict=True) if alone], keys
    )

    def make(place: int) -> WorkloadSummary:
        baseline = None if measured_alone[place] else baselines
        return _workload(standing[place], measures[place], keys, names, tags, baseline or {})

    workloads = memory.summarised(
        [
            (
                version,
                tuple(names[run.run_id] for one in repeats for run in one.runs),
                tuple(
                    None if alone else baselines.get(keys[run.run_id])
                    for one in repeats
                    for run in one.runs
                ),
            )
            for version, repeats, alone in zip(versions, standing, measured_alone, strict=True)
        ],
        make,
    )
    return Report(
        experiment,
        workloads,
        0 if profiled else len(profiled_runs(runs, tags)),
        sum(not run.status.ended for run in runs),
        window,
    )


def _workload(
    repeats: Sequence[Attempt],
    measured: WorkloadMeasures,
    keys: Mapping[str, BaselineKey],
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
    baselines: Mapping[BaselineKey, float],
) -> WorkloadSummary:
    rows = {letter: _row(row, names, tags) for letter, row in measured.rows.items()}
    return WorkloadSummary(
        label=repeats[-1].runs[0].workload or "–",
        groups=[
            _group(
                [rows[letter] for letter in letters],
                [measured.rows[letter] for letter in letters],
                baselines.get(keys[rows[letters[0]].run.run_id]),
            )
            for letters in _alike(rows, keys)
        ],
        energy=measured.energy,
        host=repeats[-1].host,
        values=measured.devices,
        workload_ids=tuple(one.runs[0].workload_id for one in repeats),
    )


_REVISIONS = text("SELECT run_id, revision FROM run WHERE experiment = :experiment")


def _revisions(reader: StoreReader, experiment: str) -> dict[str, int]:
    with reader.snapshot() as connection:
        rows = connection.execute(_REVISIONS, {"experiment": experiment}).all()
    return {str(row[0]): int(row[1]) for row in rows}


def _tags(reader: StoreReader, experiment: str) -> dict[str, dict[str, str]]:
    """Those tags of the experiment's runs that matter here."""
    found: dict[str, dict[str, str]] = {}
    for key in (PROFILED, PROFILED_BESIDE, SERIES_TAG):
        for run_id, value in reader.tagged(key, experiment).items():
            found.setdefault(run_id, {})[key] = value
    return found


def _baseline_key(run: RunRecord, params: Mapping[str, str]) -> BaselineKey:
    return params.get("File", ""), params.get("Params", ""), run.devices, run.host


def _row(
    row: Sequence[RunMeasures | None],
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
) -> RunSummary:
    known = [one.run for one in row if one is not None]
    finished = [run for run in known if run.status is RunStatus.FINISHED]
    run = (finished or known)[-1]
    return RunSummary(run, names[run.run_id], len(finished), _profiled(tags.get(run.run_id, {})))


def _alike(
    rows: Mapping[str, RunSummary], keys: Mapping[str, BaselineKey]
) -> Iterable[Sequence[str]]:
    """Letters of rows that are compared as one."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for letter, row in rows.items():
        groups.setdefault((keys[row.run.run_id], row.status, row.profiled), []).append(letter)
    return groups.values()


def _profiled(tags: Mapping[str, str]) -> str:
    beside = tags.get(PROFILED_BESIDE, "")
    return tags.get(PROFILED, "") or (f"beside {beside}" if beside else "")


def _baselines(
    workloads: Iterable[WorkloadMeasures], keys: Mapping[str, BaselineKey]
) -> dict[BaselineKey, float]:
    """Time per epoch of what ran alone; the newest wins."""
    found = {}
    for measured in workloads:
        ((*row,),) = measured.rows.values()
        time = _values([row], Quantity.TIME_PER_EPOCH)
        run = next((one.run for one in row if one is not None), None)
        if time is not None and run is not None:
            found[keys[run.run_id]] = time.mean
    return found


def _group(
    runs: Sequence[RunSummary],
    rows: Sequence[Sequence[RunMeasures | None]],
    baseline_s: float | None,
) -> GroupSummary:
    name = ", ".join(dict.fromkeys(run.name for run in runs))
    values = {
        quantity: estimate
        for quantity, about in ABOUT.items()
        if about.of is Of.RUNS and (estimate := _values(rows, quantity)) is not None
    }
    time = values.get(Quantity.TIME_PER_EPOCH)
    if time is not None and baseline_s:
        values[Quantity.SLOWDOWN] = time.over(baseline_s)
    return GroupSummary(
        name=f"{name} ({runs[0].profiled})" if runs[0].profiled else name,
        runs=runs,
        status=runs[0].status,
        values=values,
    )


def _values(rows: Sequence[Sequence[RunMeasures | None]], quantity: Quantity) -> Estimate | None:
    found = [[None if one is None else one.values.get(quantity) for one in row] for row in rows]
    known = [value for row in found for value in row if value is not None]
    return of_rows(
        [[None if value is None else value.value for value in row] for row in found],
        ABOUT[quantity].combine,
        metrics=[value.metric for value in known if value.metric],
        methods=[value.method for value in known],
        is_estimated=any(value.is_estimated for value in known),
    )
