"""Bar charts of a report: which quantities have one, and the bars of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.summaries import WorkloadSummary
from radt.model import RunStatus
from radt.render.model import Bar, BarChart, Charts
from radt.render.numbers import ScaledQuantity, describe, error_bar, scaled
from radt.render.report_content import Content, Item, is_shared, runs_text
from radt.units import plural

#: Collocation in experiment files: the runs share the device without any mechanism.
_NAIVE = "-"
_CHARTS = (
    Quantity.TIME_PER_EPOCH,
    Quantity.SLOWDOWN,
    Quantity.SAMPLES_PER_S,
    Quantity.SPEED_UP,
    Quantity.SM_ACTIVE,
    Quantity.GPU_UTILIZATION,
    Quantity.CPU,
    Quantity.GPU_MEMORY_PEAK,
    Quantity.MEMORY_PEAK,
    Quantity.POWER,
    Quantity.ENERGY_PER_EPOCH,
    Quantity.PCIE_RX,
    Quantity.CARBON,
)
_GPU_ACTIVITY = frozenset({Quantity.SM_ACTIVE, Quantity.GPU_UTILIZATION})


class Way(StrEnum):
    """How runs share a device; the order is that of legends and colours."""

    NAIVE = "naive"
    MPS = "MPS"
    MIG = "MIG"
    MIXED = "mixed"


def way_of(workload: WorkloadSummary) -> Way:
    """Return how the runs of a workload share their device."""
    ways = {_way(run.run.collocation) for group in workload.groups for run in group.runs}
    return ways.pop() if len(ways) == 1 else Way.MIXED


def _way(collocation: str) -> Way:
    if collocation in (_NAIVE, ""):
        return Way.NAIVE
    # 3g.20gb+MPS counts as MIG: the instance separates it from its neighbours.
    return Way.MPS if collocation.upper().startswith("MPS") else Way.MIG


def charts_of(content: Content) -> Charts:
    """Return a chart for each quantity that is drawn and was measured."""
    skipped = {Quantity.CPU} if _GPU_ACTIVITY & set(content.quantities) else set()
    charts = [
        chart
        for quantity in _CHARTS
        if quantity in content.quantities and quantity not in skipped
        if (chart := _chart(content, quantity)) is not None
    ]
    used = {way_of(item.summary) for item in content.items}
    return Charts(charts, [(_style(way), way.value) for way in Way if way in used])


def _style(way: Way) -> str:
    return f"way-{way.name.lower()}"


def _chart(content: Content, quantity: Quantity) -> BarChart | None:
    """Bars by degree of collocation, then by way of sharing; None without any value."""
    items = sorted(
        content.items,
        key=lambda item: (item.summary.run_count, list(Way).index(way_of(item.summary))),
    )
    entries = [entry for item in items for entry in _entries(item, quantity)]
    known = [entry.estimate for entry in entries if entry.estimate is not None]
    if not known:
        return None
    axis = scaled(quantity, known)
    return BarChart(axis.title, axis.unit, [_bar(axis, entry) for entry in entries])


class _Entry(NamedTuple):
    """What a bar shows: an estimate, or the status of runs that came to none."""

    item: Item
    label: str
    runs: str
    status: RunStatus
    run_count: int
    estimate: Estimate | None


def _entries(item: Item, quantity: Quantity) -> Iterator[_Entry]:
    if is_shared(quantity):
        statuses = {group.status for group in item.groups}
        estimate = item.summary.estimate(quantity, item.groups[0])
        if estimate is not None or RunStatus.FINISHED not in statuses:
            runs = ", ".join(map(runs_text, item.groups))
            status, count = RunStatus.worst(statuses), item.summary.run_count
            yield _Entry(item, item.name, runs, status, count, estimate)
        return
    several = len({group.name for group in item.groups}) > 1
    for group in item.groups:
        finished = group.status is RunStatus.FINISHED
        estimate = group.values.get(quantity) if finished else None
        if estimate is not None or (not finished and quantity is not Quantity.SLOWDOWN):
            label = f"{item.name} {group.name}" if several else item.name
            count = len(group.runs)
            yield _Entry(item, label, runs_text(group), group.status, count, estimate)


def _bar(axis: ScaledQuantity, entry: _Entry) -> Bar:
    estimate = entry.estimate
    style = _style(way_of(entry.item.summary))
    block = plural(entry.item.summary.run_count, "run")
    about = f"{entry.item.name}  {entry.runs}"
    if estimate is None or not math.isfinite(estimate.mean):
        status = entry.status.value
        return Bar(entry.label, None, status, style, block, f"{about}: {status}")
    factor, reach = axis.scale.factor, error_bar(estimate)
    bounded = reach is not None and reach.above > 0
    return Bar(
        entry.label,
        estimate.mean * factor,
        axis.number(estimate.mean),
        style,
        block,
        f"{about}: {describe(axis.quantity, estimate, entry.run_count)}",
        (estimate.mean - reach.below) * factor if reach is not None and bounded else None,
        (estimate.mean + reach.above) * factor if reach is not None and bounded else None,
        estimate.is_estimated,
    )
