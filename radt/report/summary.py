"""Time per epoch, throughput and load of each workload, and what collocation cost it.

Method: the first epoch is warm-up and left out if there is another one. Times come from epoch
markers, load from the samples inside the epochs that count. Repeats of a row are averaged. A run's
baseline is the run of the same experiment that had the same file, parameters, devices and machine
and ran alone: on its device as a whole if there is one, else under MPS or on a MIG instance. It may
be of an earlier start, if the experiment's file no longer has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from sqlalchemy import text

from radt.report.attempts import (
    SERIES_TAG,
    Attempt,
    attempts_of,
    earlier_alone,
    profiled_in,
    profiled_runs,
    standing_of,
)
from radt.report.baselines import (
    Baseline,
    BaselineKey,
    baseline_of,
    chosen,
    is_undivided,
    ran_alone,
)
from radt.report.footnotes import Recorded, footnotes
from radt.report.grouping import value_of, workload_summary
from radt.report.interference import Interference, interference
from radt.report.memory import Gathered, Memory, Version
from radt.report.names import telling_names
from radt.report.quantities import Quantity
from radt.report.results import GroupSummary, RunSummary, WorkloadSummary
from radt.report.tracker_cost import TrackerCost, total
from radt.report.windows import DEFAULT_WINDOW, WindowSpec, window_notes
from radt.store.reader import StoreReader
from radt.store.records import WorkloadRecord
from radt.store.tags import PROFILED, PROFILED_BESIDE
from radt.units import plural

__all__ = [
    "GroupSummary",
    "Memory",
    "Report",
    "RunSummary",
    "WorkloadSummary",
    "left_out_text",
    "profiled_count",
    "read_report",
    "summarise",
]


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment in numbers.

    ``left_out`` counts the runs that a profiler slowed down and that are not in it, ``open`` those
    that run or wait. ``window`` is what of each run counts. ``footnotes`` are sentences on what is
    poor about it, none where nothing is; ``tracker`` is what recording cost.
    """

    experiment: str
    workloads: Sequence[WorkloadSummary] = ()
    left_out: int = 0
    open: int = 0
    window: WindowSpec = DEFAULT_WINDOW
    footnotes: tuple[str, ...] = ()
    tracker: TrackerCost = field(default_factory=TrackerCost)

    @property
    def interference(self) -> Interference:
        """Who slows down whom."""
        return interference(self.workloads)

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
    attempts = attempts_of(runs, tags)
    standing = standing_of(attempts, profiled=profiled)
    shown = [run for repeats in standing for attempt in repeats for run in attempt.runs]
    params = reader.params_of([run.run_id for run in shown])
    names = telling_names(shown, params)
    keys = {run.run_id: BaselineKey.of(run, params.get(run.run_id, {})) for run in shown}
    compared = {
        keys[run.run_id]
        for repeats in standing
        if not (ran_alone(repeats) and is_undivided(repeats))
        for attempt in repeats
        for run in attempt.runs
    }
    earlier = _earlier(reader, attempts, standing, keys, compared)
    memory = memory or Memory()
    read = [*standing, *earlier]
    versions: list[Version] = [
        tuple((run.run_id, revisions[run.run_id]) for one in repeats for run in one.runs)
        for repeats in read
    ]
    gathered = memory.gathered(reader, read, versions, window)
    baselines = chosen(
        (key, found)
        for place, repeats in enumerate(read)
        if ran_alone(repeats)
        and (key := keys[repeats[-1].runs[0].run_id]) in compared
        and (found := _baseline(repeats, gathered[place], is_standing=place < len(standing)))
    )
    starts = {one.workload_id: one for one in reader.workloads(experiment)}
    against = [_against(repeats, baselines, keys) for repeats in standing]
    workloads = memory.summarised(
        [
            (
                version,
                tuple(names[run.run_id] for one in repeats for run in one.runs),
                tuple(found.items()),
            )
            for version, repeats, found in zip(
                versions[: len(standing)], standing, against, strict=True
            )
        ],
        lambda place: workload_summary(
            standing[place], gathered[place], keys, names, tags, against[place]
        ),
    )
    return Report(
        experiment,
        workloads,
        0 if profiled else len(profiled_in(attempts)),
        sum(not run.status.ended for run in runs),
        window,
        _footnotes(workloads, standing, gathered, starts),
        total([found.cost for found in gathered[: len(standing)]]),
    )


def _earlier(
    reader: StoreReader,
    attempts: Sequence[Attempt],
    standing: Sequence[Sequence[Attempt]],
    keys: dict[str, BaselineKey],
    compared: AbstractSet[BaselineKey],
) -> list[list[Attempt]]:
    """Single runs of earlier starts, for keys of which the report has no run on a whole device.

    Their keys join the others.
    """
    wanted = compared - {
        keys[repeats[-1].runs[0].run_id]
        for repeats in standing
        if ran_alone(repeats)
        and is_undivided(repeats)
        and any(attempt.finished for attempt in repeats)
    }
    if not wanted:
        return []
    found = [one for one in earlier_alone(attempts, standing) if is_undivided(one)]
    params = reader.params_of([run.run_id for repeats in found for run in repeats[-1].runs])
    newest: dict[BaselineKey, list[Attempt]] = {}
    for repeats in found:
        (run,) = repeats[-1].runs
        key = BaselineKey.of(run, params.get(run.run_id, {}))
        if key in wanted:
            newest[key] = repeats
            keys[run.run_id] = key
    return list(newest.values())


def _baseline(repeats: Sequence[Attempt], found: Gathered, *, is_standing: bool) -> Baseline | None:
    """What a workload of one run is to others; None if it never finished."""
    if not any(attempt.finished for attempt in repeats):
        return None
    ((*row,),) = found.measures.rows.values()
    return baseline_of(
        repeats, value_of([row], Quantity.TIME_PER_EPOCH), found.recordings, is_standing=is_standing
    )


def _against(
    repeats: Sequence[Attempt],
    baselines: Mapping[BaselineKey, Baseline],
    keys: Mapping[str, BaselineKey],
) -> dict[BaselineKey, Baseline]:
    """The baselines of a workload's runs.

    A run that is alone on a part of its device is put against the one that has all of it.
    """
    found = {}
    is_alone = ran_alone(repeats)
    if is_alone and is_undivided(repeats):
        return {}
    for attempt in repeats:
        for run in attempt.runs:
            baseline = baselines.get(keys[run.run_id])
            if baseline is not None and not (is_alone and baseline.collocation):
                found[keys[run.run_id]] = baseline
    return found


def _footnotes(
    workloads: Sequence[WorkloadSummary],
    standing: Sequence[Sequence[Attempt]],
    gathered: Sequence[Gathered],
    starts: Mapping[str, WorkloadRecord],
) -> tuple[str, ...]:
    shown, earlier = gathered[: len(standing)], gathered[len(standing) :]
    windows = (
        one.window
        for found in shown
        for row in found.measures.rows.values()
        for one in row
        if one is not None
    )
    return (
        *footnotes(
            [
                Recorded(workload, repeats, starts, found.recordings)
                for workload, repeats, found in zip(workloads, standing, shown, strict=True)
            ],
            {key: one for found in earlier for key, one in found.recordings.items()},
        ),
        *(f"{note}." for note in window_notes(windows)),
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
