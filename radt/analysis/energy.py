"""Energy and emissions of workloads, counted once for each device (docs/energy.md).

A GPU counts its energy as a whole. For runs that share a GPU, only the sum is measured; a run has a
share only if a listener has apportioned the energy and named its rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radt.analysis.estimates import Measured
from radt.analysis.reading import Key
from radt.analysis.stretches import Stretches, growth
from radt.model import Scope
from radt.store import chunks, counters
from radt.store.records import RunRecord, Samples, SeriesRecord

GPU_ENERGY = "gpu.energy"
RUN_ENERGY = "process.gpu.energy"
#: Process-scoped energy outside the run's processes does not belong to the workload.
ENERGY_SERIES = ((GPU_ENERGY, Scope.GPU), (RUN_ENERGY, Scope.PROCESS))

CARBON_METRICS = ("carbon.emissions.gpu", "carbon.emissions.cpu")

SeriesOf = Mapping[str, Sequence[SeriesRecord]]
Points = Mapping[Key, Samples]


@dataclass(frozen=True, slots=True)
class RunEnergy:
    """The estimated energy of one row, the mean of its repeats. ``method`` is the rule."""

    letter: str
    name: str
    estimated_j: float
    method: str


@dataclass(frozen=True, slots=True)
class WorkloadEnergy:
    """Energy of all GPUs, each counted once regardless of its users, and of the runs.

    ``gpus_j`` is None if not measured, and a lower bound if a counter did not cover the whole of a
    run (`radt.store.totals`).
    """

    gpus_j: float | None
    runs: Sequence[RunEnergy] = ()
    is_lower_bound: bool = False

    @property
    def rest_j(self) -> float | None:
        """Return the energy assigned to no run: idle power, and other users' processes."""
        if self.gpus_j is None or not self.runs:
            return None
        return max(0.0, self.gpus_j - sum(run.estimated_j for run in self.runs))


def gpus_j(
    runs: Sequence[RunRecord], series: SeriesOf, points: Points, within: Stretches | None = None
) -> float | None:
    """Return the joules of all GPUs of one start of a workload while at least one run was active.

    All runs on a GPU have readings of the same counter, which are joined first. If two listeners
    read it, only one counts, as they may start from different values: the listener that apportioned
    the energy, so that shares add up to the whole; otherwise the one that most runs have.

    `series` are those of energy, by run id. Only the stretches `within` count; None for all.
    """
    records = [(run.host, record) for run in runs for record in series[run.run_id]]
    readings = (
        ((host, record.entity), record.listener, record)
        for host, record in records
        if record.metric == GPU_ENERGY
    )
    apportioned = {record.listener for _, record in records if record.metric == RUN_ENERGY}
    return _counted_once(readings, points, within, prefer=apportioned)


def emissions_g(
    runs: Sequence[RunRecord], series: SeriesOf, points: Points, within: Stretches | None = None
) -> float | None:
    """Return the grams of CO2 equivalent of one start of a workload, as ``carbon`` estimates them.

    `series` are those of emissions, by run id. Only the stretches `within` count; None for all.
    """
    readings = (
        (
            (run.host, record.metric, record.entity),
            # A counter with another rule or interval starts from another value.
            f"{record.listener} {record.method} {record.interval_s}",
            record,
        )
        for run in runs
        for record in series[run.run_id]
    )
    return _counted_once(readings, points, within)


def _counted_once(
    readings: Iterable[tuple[tuple[str, ...], str, SeriesRecord]],
    points: Points,
    within: Stretches | None,
    *,
    prefer: Collection[str] = (),
) -> float | None:
    """Return the increase of the counters of devices, each device counted once.

    `readings` are series with their device and counter. The counter that most runs have represents
    the device (the first of several); counters in `prefer` take precedence.
    """
    by_device: dict[tuple[str, ...], dict[str, list[SeriesRecord]]] = {}
    for device, counter, record in readings:
        by_device.setdefault(device, {}).setdefault(counter, []).append(record)
    totals = []
    for by_counter in by_device.values():
        chosen = max(by_counter, key=lambda name: (name in prefer, len(by_counter[name])))
        total = _growth(by_counter[chosen], points, within)
        # A GPU always draws power: a counter that stands still does not count, and the sum is a
        # lower bound (`WorkloadEnergy`).
        if total or by_counter[chosen][0].metric != GPU_ENERGY:
            totals.append(total)
    known = [total for total in totals if total is not None]
    return sum(known) if known else None


def estimate_j(series: Sequence[SeriesRecord], points: Points) -> Measured | None:
    """Return the estimated energy of a run, given its series of energy."""
    estimates = [record for record in series if record.metric == RUN_ENERGY]
    totals = [
        counters.total_of(points[key], record)
        for record in estimates
        if (key := (record.run_id, record.series_no)) in points
    ]
    known = [total for total in totals if total is not None]
    if not known:
        return None
    return Measured(sum(known), RUN_ENERGY, estimates[0].method, is_estimated=True)


def _growth(
    series: Sequence[SeriesRecord], points: Points, within: Stretches | None
) -> float | None:
    parts = [
        points[key] for record in series if (key := (record.run_id, record.series_no)) in points
    ]
    parts = [part for part in parts if len(part) > 1]
    if not parts:
        return None
    if len(parts) == 1:  # the common case, which needs no joining
        readings = parts[0]
        return growth(
            counters.increases(readings.times_ns, readings.values, series[0].wraps_at), within
        )
    joined = chunks.time_sorted(chunks.joined(parts))
    # A reading that several runs have counts once.
    first = np.diff(joined.times_ns, prepend=joined.times_ns[0] - 1) > 0
    increases = counters.increases(joined.times_ns[first], joined.values[first], series[0].wraps_at)
    # Between two runs, one of which was resumed later, no run of the workload used the device.
    counted = np.zeros(len(increases.amounts), dtype=bool)
    for part in parts:
        counted |= (increases.start_ns >= part.times_ns[0]) & (
            increases.end_ns <= part.times_ns[-1]
        )
    kept = counters.Increases(
        increases.start_ns[counted], increases.end_ns[counted], increases.amounts[counted]
    )
    return growth(kept, within)
