"""Totals of runs: the kernel's accounting, and the increase of energy counters.

A total of energy is complete if its counters were read for the whole run, apart from a negligible
stretch (`_unread_limit_s`). Otherwise it is a lower bound and its key says so
(docs/energy.md#complete-totals-and-lower-bounds).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from radt.model import SOFTWARE, MissingReason, SeriesKind
from radt.store.records import GapRecord, RunRecord, SeriesRecord
from radt.store.summaries import SeriesSummary
from radt.usage import KERNEL, TOTALS, lower_bound

if TYPE_CHECKING:
    from radt.store.reader import StoreReader

#: Keys of the kernel's totals, by the metric that stores them.
KERNEL_KEYS = {total.metric: total.key for total in TOTALS}
GPU_ENERGY_KEY = "gpu_energy_j"
#: Keys of the sums over devices, by energy counter.
_ENERGY_KEYS = {"gpu.energy": GPU_ENERGY_KEY, "cpu.energy": "cpu_energy_j"}
_METRICS = (*KERNEL_KEYS, *_ENERGY_KEYS)

#: Maximum delay until a collector that a script starts itself reads the counters, usually 1 to 2 s.
_COLLECTOR_START_S = 3.0
#: Longer stretches without readings are negligible up to this share of the run.
_UNREAD_SHARE = 0.01
#: Stretches of more than this share are never negligible.
_MOST_UNREAD_SHARE = 0.5


class Extent(IntEnum):
    """How much of a run a counter covers. Lower is better."""

    COMPLETE = 0
    PART = 1
    NOTHING = 2


#: Start and end of a run, or of its part on a node (ns since 1970); None if unknown.
_Span = tuple[int | None, int | None]


def read_totals(reader: StoreReader, runs: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """Return the totals of runs by key, by run id, without quantities that were not counted.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = [run.run_id for run in runs]
    summaries: dict[str, list[SeriesSummary]] = {run_id: [] for run_id in run_ids}
    series: dict[str, list[SeriesRecord]] = {run_id: [] for run_id in run_ids}
    gaps: dict[str, list[GapRecord]] = {run_id: [] for run_id in run_ids}
    for summary in reader.summary(run_ids, _METRICS):
        summaries[summary.series.run_id].append(summary)
    for record in reader.series(run_ids, list(_ENERGY_KEYS)):
        series[record.run_id].append(record)
    for gap in reader.gaps(run_ids):
        gaps[gap.run_id].append(gap)
    return {
        run.run_id: totals_of(run, summaries[run.run_id], series[run.run_id], gaps[run.run_id])
        for run in runs
    }


def totals_of(
    run: RunRecord,
    summaries: Sequence[SeriesSummary],
    series: Iterable[SeriesRecord],
    gaps: Iterable[GapRecord],
) -> dict[str, float]:
    """Return the totals of a run by key, without quantities that were not counted.

    Args:
        run: The run.
        summaries: Those of its series that have points. Summaries that are not part of totals are
            ignored.
        series: Those of energy counters, including those without points. Others are ignored.
        gaps: The stretches without values.
    """
    totals: dict[str, float] = {}
    for summary in summaries:
        record, value = summary.series, total_value(summary)
        if value is not None and record.listener == KERNEL and record.metric in KERNEL_KEYS:
            key = key_of(record)  # of a run on several nodes, each node has one
            if record.kind is SeriesKind.COUNTER:
                totals[key] = totals.get(key, 0.0) + value
            else:
                totals[key] = max(totals.get(key, value), value)
    extents = extents_of(run, summaries, gaps)
    joules = {summary.series.series_no: total_value(summary) or 0.0 for summary in summaries}
    #: The best counter of each device: two listeners may read it.
    devices: dict[str, dict[str, tuple[Extent, float]]] = {}
    for record in series:
        if _is_energy(record):
            number = record.series_no
            new = extents.get(number, Extent.NOTHING), joules.get(number, 0.0)
            best = devices.setdefault(_ENERGY_KEYS[record.metric], {})
            if best.setdefault(record.entity, new)[0] > new[0]:
                best[record.entity] = new
    for key, best in devices.items():
        if sum_j := sum(amount_j for _, amount_j in best.values()):
            is_complete = all(extent is Extent.COMPLETE for extent, _ in best.values())
            totals[key if is_complete else lower_bound(key)] = sum_j
    if (duration_s := run.lasted_s()) is not None:
        totals["duration_s"] = duration_s
    return totals


def extents_of(
    run: RunRecord, summaries: Sequence[SeriesSummary], gaps: Iterable[GapRecord]
) -> dict[int, Extent]:
    """Return how much of a run its energy counters cover, by series number.

    Args: as `totals_of`.
    """
    lost = {gap.series_no for gap in gaps if gap.reason is MissingReason.LOST}
    spans = _spans_of_nodes(summaries)
    of_run = run.started_ns, run.ended_ns
    return {
        summary.series.series_no: _extent(summary, spans.get(summary.series.node, of_run), lost)
        for summary in summaries
        if _is_energy(summary.series)
    }


def key_of(series: SeriesRecord) -> str:
    """Return the key of a kernel total, or that of a lower bound if it is estimated."""
    key = KERNEL_KEYS[series.metric]
    return lower_bound(key) if series.estimated else key


def total_value(summary: SeriesSummary) -> float | None:
    """Return a counter's increase or another series' peak; None without readings.

    An energy counter that has not increased is ignored: devices always draw power.
    """
    if summary.series.kind is SeriesKind.COUNTER:
        is_energy = summary.series.metric in _ENERGY_KEYS
        return (summary.growth or None) if is_energy else summary.growth
    return summary.maximum


def _is_energy(series: SeriesRecord) -> bool:
    return (
        series.metric in _ENERGY_KEYS
        and series.kind is SeriesKind.COUNTER
        and series.listener not in (KERNEL, SOFTWARE)
    )


def _spans_of_nodes(summaries: Iterable[SeriesSummary]) -> Mapping[str, _Span]:
    """Return start and end of the parts of a run on other nodes, by their own clocks.

    The series of a part's kernel totals begin and end with the part.
    """
    return {
        summary.series.node: (summary.first_ns, summary.last_ns)
        for summary in summaries
        if summary.series.node
        and summary.series.listener == KERNEL
        and summary.series.kind is SeriesKind.COUNTER
    }


def _extent(summary: SeriesSummary, span: _Span, lost: Collection[int]) -> Extent:
    """Return how much of a run, or of its part on a node, an energy counter covers.

    It covers only a part if it was first read late, last read long before the end, could not be
    read in between (its device was lost or it stood still), or restarted from 0.
    """
    if not summary.growth:
        return Extent.NOTHING
    first_ns, last_ns = summary.first_finite_ns, summary.last_finite_ns
    first, last = summary.first_finite, summary.last_finite
    assert first_ns is not None
    assert last_ns is not None
    assert first is not None
    assert last is not None
    began_again = last - first < summary.growth * (1 - 1e-6) and summary.series.wraps_at is None
    start_ns = first_ns if span[0] is None else span[0]
    end_ns = last_ns if span[1] is None else span[1]
    unread_s = (max(0, first_ns - start_ns) + max(0, end_ns - last_ns)) / 1e9
    if began_again or summary.series.series_no in lost:
        return Extent.PART
    is_short = unread_s <= _unread_limit_s((end_ns - start_ns) / 1e9)
    return Extent.COMPLETE if is_short else Extent.PART


def _unread_limit_s(lasted_s: float) -> float:
    """Return how long a counter may go unread in a run for its total to count as complete."""
    limit_s = max(_COLLECTOR_START_S, _UNREAD_SHARE * lasted_s)
    return min(limit_s, _MOST_UNREAD_SHARE * lasted_s)
