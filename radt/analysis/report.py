"""Read an experiment as a report: time per epoch, throughput and load of each workload.

Method: the first epoch is warm-up and omitted if there is another one. Times come from epoch
markers, load from the samples inside the counted epochs. Repeats of a row are averaged, and runs
are compared with the same run alone (`radt.analysis.baselines`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import text

from radt.analysis.attempts import (
    Attempt,
    attempts_of,
    current_attempts,
    distinct_names,
    profiled_runs,
)
from radt.analysis.baselines import (
    baseline_of,
    baselines_of,
    best_baselines,
    earlier_baselines,
    keys_of,
    keys_to_compare,
    ran_alone,
    unmatched,
)
from radt.analysis.footnotes import RecordedWorkload, footnotes
from radt.analysis.quantities import Quantity
from radt.analysis.recording import TrackerOverhead, total_overhead
from radt.analysis.series_quantities import AnyQuantity, KnownSeries, SeriesQuantity
from radt.analysis.series_values import known_series
from radt.analysis.summaries import (
    SUMS_WITH_SERVICES,
    Interference,
    WorkloadData,
    WorkloadSummary,
    interference,
    read_workloads,
    workload_summary,
)
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.analysis.windows import window_notes
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import WorkloadRecord
from radt.tags import CLUSTER_HARDWARE, PARENT, PROFILED, PROFILED_BESIDE, ROLE, SERIES
from radt.units import plural

#: Workloads that are read at once, before the progress is told.
_AT_ONCE = 500
#: The limit on workloads of which the report says why they have no baseline.
_MOST_REASONS = 5
#: The runs of a workload, each with its revision.
Version = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment in numbers.

    Attributes:
        experiment: Its name.
        workloads: Summaries, the oldest first.
        left_out: Number of runs omitted because a profiler slowed them down.
        open: Number of runs that are still running or waiting.
        window: The part of each run that counts.
        footnotes: Sentences on doubtful measurements.
        tracker: The tracker's own overhead.
        series: The requested quantities of series.
    """

    experiment: str
    workloads: Sequence[WorkloadSummary] = ()
    left_out: int = 0
    open: int = 0
    window: WindowSpec = DEFAULT_WINDOW
    footnotes: tuple[str, ...] = ()
    tracker: TrackerOverhead = field(default_factory=TrackerOverhead)
    series: KnownSeries = field(default_factory=KnownSeries)

    @property
    def interference(self) -> Interference:
        """Return how much models slow each other down."""
        return interference(self.workloads)

    @property
    def quantities(self) -> tuple[AnyQuantity, ...]:
        """Return the quantities that any workload has, in order; those of series last.

        Utilisation is omitted if each workload that has it also has SM activity, which is more
        informative; the throughput of a run if it equals that of all; sums of all runs where no
        workload has a service.
        """
        measured: set[AnyQuantity] = set()
        for workload in self.workloads:
            measured.update(workload.values)
            for group in workload.groups:
                for each in (group, *group.children):
                    measured.update(each.values)
        if all(
            Quantity.SM_ACTIVE in workload.values
            for workload in self.workloads
            if Quantity.GPU_UTILIZATION in workload.values
        ):
            measured.discard(Quantity.GPU_UTILIZATION)
        if not any(
            group.values[Quantity.SAMPLES_PER_S].parts
            for workload in self.workloads
            for group in workload.groups
            if Quantity.SAMPLES_PER_S in group.values
        ):
            measured.discard(Quantity.SAMPLES_PER_S_OF_RUN)
        if not any(workload.is_served for workload in self.workloads):
            measured -= SUMS_WITH_SERVICES.keys()
        return (
            *(quantity for quantity in Quantity if quantity in measured),
            *self.series.quantities,
        )


class ReportCache:
    """Caches data and summaries of workloads whose runs have not changed.

    Concurrent threads are safe but may read twice.

    Attributes:
        progress: While a report is read, how many workloads have been, and how many have to be.
    """

    def __init__(self) -> None:
        self.progress: tuple[int, int] | None = None
        self._asked: tuple[WindowSpec, tuple[SeriesQuantity, ...]] = (DEFAULT_WINDOW, ())
        self._data: dict[Version, WorkloadData] = {}
        self._summaries: dict[Hashable, WorkloadSummary] = {}

    def read(
        self,
        reader: StoreReader,
        workloads: Sequence[Sequence[Attempt]],
        versions: Sequence[Version],
        window: WindowSpec,
        series: tuple[SeriesQuantity, ...] = (),
    ) -> list[WorkloadData]:
        """Return the data of workloads; only changed ones are read.

        Raises:
            StoreError: The store cannot be read.
        """
        if (window, series) != self._asked:
            self._asked, self._data, self._summaries = (window, series), {}, {}
        missing = [place for place, version in enumerate(versions) if version not in self._data]
        known = dict(self._data)
        for start in range(0, len(missing), _AT_ONCE):
            self.progress = start, len(missing)
            places = missing[start : start + _AT_ONCE]
            fresh = read_workloads(reader, [workloads[place] for place in places], window, series)
            known.update(zip((versions[place] for place in places), fresh, strict=True))
        self._data = {version: known[version] for version in versions}  # drops the others
        return [known[version] for version in versions]

    def summaries(
        self, keys: Sequence[Hashable], summarise: Callable[[int], WorkloadSummary]
    ) -> list[WorkloadSummary]:
        """Return summaries by keys of all their inputs; new keys are summarised."""
        known = {key: self._summaries.get(key) or summarise(at) for at, key in enumerate(keys)}
        self._summaries = known
        self.progress = None
        return [known[key] for key in keys]


def left_out_text(count: int) -> str:
    """Return ``2 runs were slowed down by a profiler and left out``."""
    were = "was" if count == 1 else "were"
    return f"{plural(count, 'run')} {were} slowed down by a profiler and left out"


def read_report(
    reader: StoreReader,
    experiment: str,
    *,
    profiled: bool = False,
    window: WindowSpec = DEFAULT_WINDOW,
    cache: ReportCache | None = None,
    series: tuple[SeriesQuantity, ...] = (),
) -> Report:
    """Read an experiment in numbers.

    Args:
        reader: The store.
        experiment: The experiment's name.
        profiled: Include workloads that a profiler slowed down. They are never baselines.
        window: The part of each run that counts.
        cache: Cache of earlier reports; it is updated.
        series: Quantities of series to read as well.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    # Read before the runs: later writes are then read once more, not missed.
    revisions = _revisions(reader, experiment)
    runs = [run for run in reader.runs(experiment=experiment) if run.run_id in revisions]
    tags = _tags(reader, experiment)
    attempts = attempts_of(runs, tags)
    current = current_attempts(attempts, profiled=profiled)
    shown = [run for repeats in current for attempt in repeats for run in attempt.runs]
    params = reader.params_of([run.run_id for run in shown])
    names = distinct_names(shown, params)
    keys = keys_of(reader, shown, params)
    compared = keys_to_compare(current, keys)
    read = [*current, *earlier_baselines(reader, attempts, current, keys, compared)]
    versions: list[Version] = [
        tuple(
            (run.run_id, revisions[run.run_id])
            for attempt in repeats
            for run in (*attempt.runs, *attempt.children)
        )
        for repeats in read
    ]
    cache = cache or ReportCache()
    data = cache.read(reader, read, versions, window, series)
    finished = [run.run_id for run in shown if run.status is RunStatus.FINISHED]
    baselines = best_baselines(
        (key, baseline)
        for place, (repeats, workload_data) in enumerate(zip(read, data, strict=True))
        if ran_alone(repeats)
        and (key := keys[repeats[-1].trained[0].run_id]) in compared
        and (
            baseline := baseline_of(
                repeats,
                workload_data.measures,
                workload_data.recordings,
                is_current=place < len(current),
            )
        )
    )
    own_baselines = [baselines_of(repeats, baselines, keys) for repeats in current]
    workloads = cache.summaries(
        [
            (
                versions[place],
                tuple(names[run.run_id] for attempt in repeats for run in attempt.runs),
                tuple(own_baselines[place].items()),
            )
            for place, repeats in enumerate(current)
        ],
        lambda place: workload_summary(
            current[place], data[place], keys, names, tags, own_baselines[place], series
        ),
    )
    return Report(
        experiment,
        workloads,
        0 if profiled else len(profiled_runs(attempts)),
        sum(not run.status.ended for run in runs),
        window,
        _footnotes(
            workloads,
            current,
            data,
            {start.workload_id: start for start in reader.workloads(experiment)},
            unmatched(current, keys, compared - baselines.keys(), _MOST_REASONS),
        ),
        total_overhead([workload_data.overhead for workload_data in data[: len(current)]]),
        known_series(reader, finished, series, experiment),
    )


def _footnotes(
    workloads: Sequence[WorkloadSummary],
    current: Sequence[Sequence[Attempt]],
    data: Sequence[WorkloadData],
    starts: Mapping[str, WorkloadRecord],
    without_baseline: tuple[Mapping[int, str], int],
) -> tuple[str, ...]:
    shown, earlier = data[: len(current)], data[len(current) :]
    windows = (
        run.window
        for workload_data in shown
        for row in workload_data.measures.rows.values()
        for run in row
        if run is not None
    )
    return (
        *footnotes(
            [
                RecordedWorkload(workload, repeats, starts, workload_data.recordings)
                for workload, repeats, workload_data in zip(workloads, current, shown, strict=True)
            ],
            {
                run_id: recording
                for workload_data in earlier
                for run_id, recording in workload_data.recordings.items()
            },
        ),
        *_not_compared(workloads, *without_baseline),
        *(f"{note}." for note in window_notes(windows)),
    )


def _not_compared(
    workloads: Sequence[WorkloadSummary], reasons: Mapping[int, str], others: int
) -> Iterator[str]:
    """Yield the sentence on workloads that no run alone matches."""
    texts = [f"{workloads[place].name} ({reason})" for place, reason in reasons.items()]
    if texts:
        more = f" and {others:,} more" if others else ""
        yield f"Not compared, as no run alone did the same: {', '.join(texts)}{more}."


_REVISIONS = text("SELECT run_id, revision FROM run WHERE experiment = :experiment")


def _revisions(reader: StoreReader, experiment: str) -> dict[str, int]:
    with reader.snapshot() as connection:
        rows = connection.execute(_REVISIONS, {"experiment": experiment}).all()
    return {str(row[0]): int(row[1]) for row in rows}


def _tags(reader: StoreReader, experiment: str) -> dict[str, dict[str, str]]:
    """Return the tags of the experiment's runs that attempts and summaries depend on."""
    tags: dict[str, dict[str, str]] = {}
    for key in (CLUSTER_HARDWARE, PARENT, PROFILED, PROFILED_BESIDE, ROLE, SERIES):
        for run_id, value in reader.tagged(key, experiment).items():
            tags.setdefault(run_id, {})[key] = value
    return tags
