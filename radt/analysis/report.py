"""Read an experiment as a report: time per epoch, throughput and load of each workload.

Method: the first epoch is warm-up and omitted if there is another one. Times come from epoch
markers, load from the samples inside the counted epochs. Repeats of a row are averaged, and runs
are compared with the same run alone (`radt.analysis.baselines`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from radt import units
from radt.analysis.baselines import Baselines, keys_of
from radt.analysis.footnotes import ReportedWorkload, footnotes, losses
from radt.analysis.measures import WorkloadMeasures, measure
from radt.analysis.names import distinct_names
from radt.analysis.quantities import Quantity
from radt.analysis.recording import TrackerOverhead, overhead_of
from radt.analysis.selection import Attempt, Selection, read_tags, select
from radt.analysis.series_quantities import AnyQuantity, KnownSeries, SeriesQuantity
from radt.analysis.series_values import known_series
from radt.analysis.summaries import (
    SUMS_WITH_SERVICES,
    WorkloadSummary,
    workload_summary,
)
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.analysis.windows import window_notes
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.tags import GROUPED_BY

#: Number of workloads read at once, between two updates of the progress.
_AT_ONCE = 500
#: Maximum number of workloads for which a report explains the missing baseline.
_MOST_REASONS = 5
#: Allocations between two garbage collections. With Python's 700, they take a quarter of a report's
#: time.
_OBJECTS_PER_COLLECTION = 100_000
#: The runs of a workload, each with its revision.
Version = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment in numbers.

    Attributes:
        experiment: Its name.
        workloads: Summaries, the oldest first.
        selection: Which of its runs count, and why the others do not.
        window: The part of each run that counts.
        footnotes: Sentences on doubtful measurements.
        losses: Sentences among these on devices that were lost during runs.
        tracker: The tracker's own overhead.
        series: The requested quantities of series.
    """

    experiment: str
    workloads: Sequence[WorkloadSummary] = ()
    selection: Selection = field(default_factory=Selection)
    window: WindowSpec = DEFAULT_WINDOW
    footnotes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    tracker: TrackerOverhead = field(default_factory=TrackerOverhead)
    series: KnownSeries = field(default_factory=KnownSeries)

    @property
    def quantities(self) -> tuple[AnyQuantity, ...]:
        """Return the quantities that any workload has, in order; those of series last.

        Some are omitted: utilisation, if each workload with it also has SM activity, which is more
        informative; the throughput of a run, if it equals that of all; sums of all runs, if no
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

    Thread-safe, but concurrent threads may read twice.

    Attributes:
        progress: While a report is read: workloads read so far, and their total. The caller resets
            it.
    """

    def __init__(self) -> None:
        self.progress: tuple[int, int] | None = None
        self._asked: tuple[WindowSpec, tuple[SeriesQuantity, ...]] = (DEFAULT_WINDOW, ())
        self._data: dict[Version, WorkloadMeasures] = {}
        self._summaries: dict[Hashable, WorkloadSummary] = {}

    def read(
        self,
        reader: StoreReader,
        workloads: Sequence[Sequence[Attempt]],
        versions: Sequence[Version],
        window: WindowSpec,
        series: tuple[SeriesQuantity, ...] = (),
    ) -> list[WorkloadMeasures]:
        """Return the data of workloads, reading only changed ones.

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
            fresh = measure(reader, [workloads[place] for place in places], window, series)
            known.update(zip((versions[place] for place in places), fresh, strict=True))
        self._data = {version: known[version] for version in versions}  # drops the others
        return [known[version] for version in versions]

    def summaries(
        self, keys: Sequence[Hashable], summarise: Callable[[int], WorkloadSummary]
    ) -> list[WorkloadSummary]:
        """Return summaries by keys of all their inputs; new keys are summarised."""
        known = {key: self._summaries.get(key) or summarise(at) for at, key in enumerate(keys)}
        self._summaries = known
        return [known[key] for key in keys]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Reduce garbage collections: a report creates millions of objects, which stay."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_rare_collections()
def read_report(
    reader: StoreReader,
    experiment: str,
    *,
    profiled: bool = False,
    archived: bool = False,
    window: WindowSpec = DEFAULT_WINDOW,
    cache: ReportCache | None = None,
    series: tuple[SeriesQuantity, ...] = (),
    only: Collection[str] | None = None,
) -> Report:
    """Read an experiment in numbers.

    Args:
        reader: The store.
        experiment: The experiment's name.
        profiled: Include workloads that a profiler slowed down. They are never baselines.
        archived: Include archived runs.
        window: The part of each run that counts.
        cache: Cache of earlier reports; it is updated.
        series: Quantities of series to read as well.
        only: The runs to read, as if the store held no others; None for all.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    revisions = reader.revisions(experiment)  # before the runs
    read_ids: Collection[str] = revisions if only is None else revisions.keys() & only
    runs = [run for run in reader.runs(experiment=experiment) if run.run_id in read_ids]
    tags = read_tags(reader, experiment)
    selection = select(runs, tags, profiled=profiled, archived=archived)
    current = selection.current
    shown = [run for repeats in current for attempt in repeats for run in attempt.runs]
    params = reader.params_of([run.run_id for run in shown])
    names = distinct_names(shown, params)
    keys = keys_of(reader, shown, params)
    baselines = Baselines(reader, selection.attempts, current, keys)
    read = [*current, *baselines.earlier]
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
    recordings = {
        run_id: recording for workload in data for run_id, recording in workload.recordings.items()
    }
    finished = [run.run_id for run in shown if run.status is RunStatus.FINISHED]
    baselines.find(
        {
            measures.run.run_id: measured.value
            for workload in data
            for measures in workload.runs
            if (measured := measures.values.get(Quantity.TIME_PER_EPOCH)) is not None
        },
        recordings,
    )
    own_baselines = [baselines.of(repeats) for repeats in current]
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
    starts = {start.workload_id: start for start in reader.workloads(experiment)}
    recorded = [
        ReportedWorkload(workload, repeats, starts, recordings)
        for workload, repeats in zip(workloads, current, strict=True)
    ]
    windows = (measures.window for workload in data[: len(current)] for measures in workload.runs)
    return Report(
        experiment,
        workloads,
        selection,
        window,
        (
            *_grouped(workloads, tags),
            *footnotes(recorded),
            *_not_compared(workloads, *baselines.unmatched(_MOST_REASONS)),
            *(f"{note}." for note in window_notes(windows)),
        ),
        losses(recorded),
        overhead_of((attempt for repeats in current for attempt in repeats), recordings),
        known_series(reader, finished, series, experiment),
    )


def _grouped(
    workloads: Iterable[WorkloadSummary], tags: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield why radt put rows of the workload ``auto`` together."""
    names: dict[str, list[str]] = {}
    for workload in workloads:
        if why := tags.get(workload.groups[0].runs[0].run.run_id, {}).get(GROUPED_BY):
            names.setdefault(why, []).append(workload.name)
    for why, formed in names.items():
        yield f"radt formed {units.listed(formed, _MOST_REASONS)}: {why}."


def _not_compared(
    workloads: Sequence[WorkloadSummary], reasons: Mapping[int, str], others: int
) -> Iterator[str]:
    """Yield a sentence on workloads that match no run alone."""
    texts = [f"{workloads[place].name} ({reason})" for place, reason in reasons.items()]
    if texts:
        more = f" and {others:,} more" if others else ""
        yield f"Not compared, as no run alone did the same: {', '.join(texts)}{more}."
