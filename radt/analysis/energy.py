"""Energy and emissions of workloads, counted once for each device (docs/energy.md).

A GPU counts its energy as a whole. For runs that share a GPU, only the sum is measured; a run has a
share if a listener has apportioned the energy and named its rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from radt.analysis.attempts import Attempt
from radt.analysis.reading import Key
from radt.analysis.stretches import Stretches, growth
from radt.model import Scope
from radt.store import chunks, counters
from radt.store.records import RunRecord, Samples, SeriesRecord

GPU_ENERGY = "gpu.energy"
RUN_ENERGY = "process.gpu.energy"
#: Process-scoped energy outside the run's processes is not the workload's.
ENERGY_SERIES = ((GPU_ENERGY, Scope.GPU), (RUN_ENERGY, Scope.PROCESS))

CARBON_METRICS = ("carbon.emissions.gpu", "carbon.emissions.cpu")

SeriesOf = Mapping[str, Sequence[SeriesRecord]]
Points = Mapping[Key, Samples]


@dataclass(frozen=True, slots=True)
class RunEnergy:
    """The estimated energy of one row, the mean of its repeats; ``method`` is the rule."""

    letter: str
    name: str
    estimated_j: float
    method: str


@dataclass(frozen=True, slots=True)
class WorkloadEnergy:
    """Energy of all GPUs, each counted once whoever used it, and of the runs.

    ``gpus_j`` is None if not measured.
    """

    gpus_j: float | None
    runs: Sequence[RunEnergy] = ()

    @property
    def rest_j(self) -> float | None:
        """Return the energy assigned to no run: idle power, and other users' processes."""
        if self.gpus_j is None or not self.runs:
            return None
        return max(0.0, self.gpus_j - sum(run.estimated_j for run in self.runs))


def gpus_j(
    runs: Sequence[RunRecord], series: SeriesOf, points: Points, within: Stretches | None = None
) -> float | None:
    """Return the joules of all GPUs of one start of a workload while one of its runs was there.

    All runs on a GPU have readings of the same counter, which are joined first. If two listeners
    read it, one counts, as each may start from another value: the listener that apportioned the
    energy, so that shares add up to the whole; otherwise the one that more runs have.

    `series` are those of energy, by run id. Only the stretches `within` count; None for all.
    """
    records = [record for run in runs for record in series[run.run_id]]
    apportioned = {record.listener for record in records if record.metric == RUN_ENERGY}
    readings: dict[tuple[str, str], dict[str, list[SeriesRecord]]] = {}
    for run in runs:
        for record in series[run.run_id]:
            if record.metric == GPU_ENERGY:
                by_listener = readings.setdefault((run.host, record.entity), {})
                by_listener.setdefault(record.listener, []).append(record)
    return _counted_once(readings.values(), points, within, prefer=apportioned)


def emissions_g(
    runs: Sequence[RunRecord], series: SeriesOf, points: Points, within: Stretches | None = None
) -> float | None:
    """Return the grams of CO2 equivalent of one start of a workload, as ``carbon`` estimates them.

    `series` are those of emissions, by run id. Only the stretches `within` count; None for all.
    """
    readings: dict[tuple[str, ...], dict[str, list[SeriesRecord]]] = {}
    for run in runs:
        for record in series[run.run_id]:
            # A counter with another rule or interval starts from another value.
            counter = f"{record.listener} {record.method} {record.interval_s}"
            by_counter = readings.setdefault((run.host, record.metric, record.entity), {})
            by_counter.setdefault(counter, []).append(record)
    return _counted_once(readings.values(), points, within)


def _counted_once(
    readings: Iterable[Mapping[str, Sequence[SeriesRecord]]],
    points: Points,
    within: Stretches | None = None,
    *,
    prefer: Collection[str] = (),
) -> float | None:
    """Return the increase of the counters of devices, each device counted once.

    `readings` are the series of each device by counter. The counter that most runs have represents
    the device; counters in `prefer` take precedence.
    """
    totals = []
    for by_counter in readings:
        chosen = max(sorted(by_counter), key=lambda name: (name in prefer, len(by_counter[name])))
        totals.append(_growth(by_counter[chosen], points, within))
    known = [total for total in totals if total is not None]
    return sum(known) if known else None


def estimates_j(
    runs: Iterable[RunRecord], series: SeriesOf, points: Points
) -> Mapping[str, RunEnergy]:
    """Return the estimated energy of each run, by its id."""
    by_run = {}
    for run in runs:
        estimates = [record for record in series[run.run_id] if record.metric == RUN_ENERGY]
        totals = [
            counters.total_of(points[key], record)
            for record in estimates
            if (key := (run.run_id, record.series_no)) in points
        ]
        known = [total for total in totals if total is not None]
        if known:
            by_run[run.run_id] = RunEnergy(run.letter, run.name, sum(known), estimates[0].method)
    return by_run


def workload_energy(
    repeats: Sequence[Attempt], wholes_j: Sequence[float], estimates: Mapping[str, RunEnergy]
) -> WorkloadEnergy:
    """Return the mean over the repeats of a workload."""
    rows: dict[str, list[RunEnergy]] = {}
    for attempt in repeats:
        for run in attempt.runs:
            if run.run_id in estimates:
                rows.setdefault(run.letter, []).append(estimates[run.run_id])
    return WorkloadEnergy(
        fmean(wholes_j) if wholes_j else None,
        [
            RunEnergy(
                row[-1].letter,
                row[-1].name,
                fmean(repeat.estimated_j for repeat in row),
                row[-1].method,
            )
            for row in rows.values()
        ],
    )


def _growth(
    series: Sequence[SeriesRecord], points: Points, within: Stretches | None
) -> float | None:
    parts = [
        points[key] for record in series if (key := (record.run_id, record.series_no)) in points
    ]
    parts = [part for part in parts if len(part) > 1]
    if not parts:
        return None
    joined = chunks.time_sorted(chunks.joined(parts))
    # Several runs have the same reading: it counts once.
    first = np.diff(joined.times_ns, prepend=joined.times_ns[0] - 1) > 0
    increases = counters.increases(joined.times_ns[first], joined.values[first], series[0].wraps_at)
    # Between two runs, one of them resumed later, no run of the workload used the device.
    counted = np.zeros(len(increases.amounts), dtype=bool)
    for part in parts:
        counted |= (increases.start_ns >= part.times_ns[0]) & (
            increases.end_ns <= part.times_ns[-1]
        )
    kept = counters.Increases(
        increases.start_ns[counted], increases.end_ns[counted], increases.amounts[counted]
    )
    return growth(kept, within)
