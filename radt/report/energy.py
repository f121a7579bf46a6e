"""Energy of workloads: what GPUs used as a whole, and what of it is estimated for each run.

GPUs count their energy as a whole. Of runs that share one, only their sum is known; a run's part
is there if a listener has apportioned it, and then says by which rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from radt.model import Scope
from radt.report.attempts import Attempt
from radt.report.growth import grown, there_of
from radt.report.reading import Key
from radt.report.stretches import Stretches
from radt.store import chunks, counters
from radt.store.records import RunRecord, Samples, SeriesRecord

GPU_ENERGY = "gpu.energy"
RUN_ENERGY = "process.gpu.energy"
#: Energy of a machine's GPUs that no run was given is not that of a workload.
COUNTED = ((GPU_ENERGY, Scope.GPU), (RUN_ENERGY, Scope.PROCESS))

SeriesOf = Mapping[str, Sequence[SeriesRecord]]
Points = Mapping[Key, Samples]


@dataclass(frozen=True, slots=True)
class RunEnergy:
    """What is estimated for one row, the mean of its repeats; ``method`` is the rule."""

    letter: str
    name: str
    estimated_j: float
    method: str


@dataclass(frozen=True, slots=True)
class WorkloadEnergy:
    """``gpus_j`` counts each GPU once, whoever used it; None where it was not measured."""

    gpus_j: float | None
    runs: Sequence[RunEnergy] = ()

    @property
    def rest_j(self) -> float | None:
        """What no run of the workload is given: idle power, and what others used."""
        if self.gpus_j is None or not self.runs:
            return None
        return max(0.0, self.gpus_j - sum(run.estimated_j for run in self.runs))


def gpus_j(
    runs: Sequence[RunRecord], series: SeriesOf, points: Points, within: Stretches | None = None
) -> float | None:
    """Joules of all GPUs of one start of a workload while at least one of its runs was there.

    All runs on a GPU have readings of the same counter, so these are put together first. Where two
    listeners read it, one counts, as each may count from another start: the one that apportioned
    it, or no part would be a share of the whole; else the one that more runs have.

    Args:
        runs: Its runs.
        series: Theirs, of the metrics of energy.
        points: Of these.
        within: Count only what was used in these stretches of time; None for all.
    """
    apportioned = {
        record.listener
        for run in runs
        for record in series[run.run_id]
        if record.metric == RUN_ENERGY
    }
    readings: dict[tuple[str, str], dict[str, list[SeriesRecord]]] = {}
    for run in runs:
        for record in series[run.run_id]:
            if record.metric == GPU_ENERGY:
                by_listener = readings.setdefault((run.host, record.entity), {})
                by_listener.setdefault(record.listener, []).append(record)
    return counted_once(readings.values(), points, within, prefer=apportioned)


def counted_once(
    readings: Iterable[Mapping[str, Sequence[SeriesRecord]]],
    points: Points,
    within: Stretches | None = None,
    *,
    prefer: Collection[str] = (),
) -> float | None:
    """What counters of devices grew by, each device counted once.

    Args:
        readings: For each device its series, by who counted: one of these stands for the device,
            the one that more runs have.
        points: Of these.
        within: Count only what they grew in these stretches of time; None for all.
        prefer: Who goes before others.
    """
    totals = []
    for by_counter in readings:
        chosen = max(sorted(by_counter), key=lambda name: (name in prefer, len(by_counter[name])))
        totals.append(_grown(by_counter[chosen], points, within))
    known = [total for total in totals if total is not None]
    return sum(known) if known else None


def estimates_j(
    runs: Iterable[RunRecord], series: SeriesOf, points: Points
) -> Mapping[str, RunEnergy]:
    """What is estimated for each run, by its id."""
    found = {}
    for run in runs:
        estimates = [one for one in series[run.run_id] if one.metric == RUN_ENERGY]
        totals = [
            counters.total_of(points[key], one)
            for one in estimates
            if (key := (run.run_id, one.series_no)) in points
        ]
        known = [total for total in totals if total is not None]
        if known:
            found[run.run_id] = RunEnergy(run.letter, run.name, sum(known), estimates[0].method)
    return found


def workload_energy(
    repeats: Sequence[Attempt], wholes_j: Sequence[float], estimates: Mapping[str, RunEnergy]
) -> WorkloadEnergy:
    """The mean over the repeats of a workload."""
    rows: dict[str, list[RunEnergy]] = {}
    for attempt in repeats:
        for run in attempt.runs:
            if run.run_id in estimates:
                rows.setdefault(run.letter, []).append(estimates[run.run_id])
    return WorkloadEnergy(
        fmean(wholes_j) if wholes_j else None,
        [
            RunEnergy(
                row[-1].letter, row[-1].name, fmean(one.estimated_j for one in row), row[-1].method
            )
            for row in rows.values()
        ],
    )


def _grown(
    series: Sequence[SeriesRecord], points: Points, within: Stretches | None
) -> float | None:
    parts = [points[key] for one in series if (key := (one.run_id, one.series_no)) in points]
    parts = [part for part in parts if len(part) > 1]
    if not parts:
        return None
    together = _united(parts)
    found = counters.increases(together.times_ns, together.values, series[0].wraps_at)
    # Between two runs, one of which was resumed later, nobody of the workload was there.
    there = there_of([(int(part.times_ns[0]), int(part.times_ns[-1])) for part in parts], found)
    return grown(found, within, there)


def _united(parts: Sequence[Samples]) -> Samples:
    """All readings in time order; what several runs have of one instant counts once."""
    together = chunks.time_sorted(chunks.joined(parts))
    first = np.diff(together.times_ns, prepend=together.times_ns[0] - 1) > 0
    return Samples(together.times_ns[first], together.values[first])
