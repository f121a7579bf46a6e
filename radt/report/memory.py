"""What reports read of workloads, and what they remember of it while runs do not change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from radt.report.attempts import Attempt
from radt.report.carbon import Emissions, read_emissions
from radt.report.measures import WorkloadMeasures, measure
from radt.report.recording import RunRecording, read_ledgers, read_recordings
from radt.report.results import WorkloadSummary
from radt.report.shortage import MemoryShortage, read_shortages
from radt.report.tracker_cost import TrackerCost, cost_of
from radt.report.windows import DEFAULT_WINDOW, WindowSpec
from radt.store.reader import StoreReader

#: Workloads by the revisions of their runs.
Version = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that is read of a workload; what is of runs, by their ids."""

    measures: WorkloadMeasures
    emissions: Emissions
    recordings: Mapping[str, RunRecording]
    shortages: Mapping[str, MemoryShortage]
    cost: TrackerCost


def gather(
    reader: StoreReader, workloads: Sequence[Sequence[Attempt]], window: WindowSpec
) -> list[Gathered]:
    """Read workloads, each given by its repeats.

    Raises:
        StoreError: The store cannot be read.
    """
    runs_of = [[run for attempt in repeats for run in attempt.runs] for repeats in workloads]
    runs = [run for some in runs_of for run in some]
    measures = list(measure(reader, workloads, window))
    emissions = read_emissions(reader, workloads, measures)
    ledgers = read_ledgers(reader, runs)
    recordings = read_recordings(reader, runs, ledgers)
    shortages = read_shortages(reader, runs)
    return [
        Gathered(
            measured,
            emitted,
            {run.run_id: recordings[run.run_id] for run in some},
            {run.run_id: shortages[run.run_id] for run in some if run.run_id in shortages},
            cost_of(repeats, recordings, ledgers),
        )
        for repeats, measured, emitted, some in zip(
            workloads, measures, emissions, runs_of, strict=True
        )
    ]


class Memory:
    """What was read of workloads whose runs have not changed since, and what follows from it.

    Two threads at once do no harm but read twice.
    """

    def __init__(self) -> None:
        self._window = DEFAULT_WINDOW
        self._known: dict[Version, Gathered] = {}
        self._summaries: dict[Hashable, WorkloadSummary] = {}

    def gathered(
        self,
        reader: StoreReader,
        workloads: Sequence[Sequence[Attempt]],
        versions: Sequence[Version],
        window: WindowSpec,
    ) -> list[Gathered]:
        """What is known of workloads; only those that changed are read.

        Raises:
            StoreError: The store cannot be read.
        """
        if window != self._window:
            self._window, self._known = window, {}
            self._summaries = {}
        missing = [place for place, version in enumerate(versions) if version not in self._known]
        found = gather(reader, [workloads[place] for place in missing], window)
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
