"""Bars of a report, shared by HTML, the Report page and figure files.

Bars are ordered by the number of runs that share the hardware, then by the way in which they share
it. Whiskers are 95 % confidence intervals of the mean over repeats. Runs without a value keep their
place and show their status.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

from radt import units
from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary
from radt.model import STATUS_WORDS, RunStatus
from radt.render.model import Charts
from radt.render.numbers import ScaledQuantity, describe, error_bar, scaled
from radt.render.report_content import Content, Item, SharingMode, is_shared, runs_text, way_of

#: A static chart with more bars would be unreadable. The table has all values.
MAX_BARS = 40
#: Quantities drawn into the chart of another quantity, if there is room.
PEAKS: dict[AnyQuantity, Quantity] = {
    Quantity.MEMORY: Quantity.MEMORY_PEAK,
    Quantity.GPU_MEMORY: Quantity.GPU_MEMORY_PEAK,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: like runs of a workload, or the whole workload.

    Attributes:
        item: The workload.
        group: The like runs; None for a value of the whole workload.
        label: The name below the bar.
        estimate: The value; None for runs without one.
        peak: The highest value, drawn into the bar of a mean; None without one.
    """

    item: Item
    group: GroupSummary | None
    label: str
    estimate: Estimate | None
    peak: Estimate | None = None

    @property
    def known(self) -> Estimate | None:
        """Return the estimate if it can be drawn; the last loss of a diverged run is not finite."""
        is_known = self.estimate is not None and math.isfinite(self.estimate.mean)
        return self.estimate if is_known else None

    @property
    def word(self) -> str:
        """Return the text in place of a bar without a height: a status, or ``NaN``."""
        if self.estimate is None:
            return STATUS_WORDS[self.status]
        return units.not_finite(self.estimate.mean)

    @property
    def whisker(self) -> float:
        """Return the length of the interval's upper whisker.

        The interval of two repeats may be many times the mean, so the whisker ends at twice the
        mean. The explanation has the whole interval.
        """
        reach = None if self.known is None else error_bar(self.known)
        return 0.0 if self.known is None or not reach else min(reach.above, abs(self.known.mean))

    @property
    def degree(self) -> int:
        """Return the number of runs that shared the hardware."""
        return self.item.summary.run_count

    @property
    def way(self) -> SharingMode:
        return way_of(self.item.summary)

    @property
    def run_count(self) -> int:
        """Return the number of runs that the value belongs to."""
        return self.degree if self.group is None else len(self.group.runs)

    @property
    def groups(self) -> Sequence[GroupSummary]:
        """Return the like runs that the value belongs to."""
        return self.item.groups if self.group is None else [self.group]

    @property
    def status(self) -> RunStatus:
        return RunStatus.worst({group.status for group in self.groups})

    @property
    def name(self) -> str:
        """Return the workload and the runs of the bar."""
        return f"{self.item.name}  {', '.join(map(runs_text, self.groups))}"

    def explanation(self, quantity: AnyQuantity) -> list[str]:
        """Return the value with all details, in lines, or the word in place of the bar."""
        if self.estimate is None:
            return [self.word]
        lines = [describe(quantity, self.estimate, self.run_count)]
        if self.peak is not None:
            lines.append(f"peak {describe(PEAKS[quantity], self.peak, self.run_count)}")
        return [*lines, *self.estimate.methods]


@dataclass(frozen=True, slots=True)
class BarChart:
    """The first bars of a quantity. ``is_cut`` is True if there are more.

    ``has_blocks``: The bars are in blocks by degree of collocation.
    """

    axis: ScaledQuantity
    bars: tuple[Bar, ...]
    is_cut: bool
    has_blocks: bool = True

    @classmethod
    def of(cls, quantity: AnyQuantity, bars: Iterable[Bar], *, has_blocks: bool = True) -> BarChart:
        """Return a chart of at most `MAX_BARS` bars."""
        first = tuple(islice(bars, MAX_BARS + 1))
        drawn = [value for bar in first for value in (bar.known, bar.peak) if value is not None]
        is_cut = len(first) > MAX_BARS
        return cls(scaled(quantity, drawn), first[:MAX_BARS], is_cut, has_blocks)

    @property
    def is_against_one(self) -> bool:
        """Return whether a value of 1 means no difference."""
        return self.axis.quantity in (Quantity.SLOWDOWN, Quantity.SPEED_UP)

    @property
    def is_empty(self) -> bool:
        """Return whether no bar has a value."""
        return all(bar.known is None for bar in self.bars)

    @property
    def note(self) -> str:
        """Return the unit, the meaning of the bars, and a remark if some are left out."""
        words = [self.axis.unit]
        if any(bar.peak is not None for bar in self.bars):
            words.append("bar mean, line and number peak")
        words += [f"the first {len(self.bars)}"] if self.is_cut else []
        return " · ".join(filter(None, words))


def bars_of(items: Iterable[Item], quantity: AnyQuantity) -> Iterator[Bar]:
    """Yield the bars of a quantity: values, and runs that ended without one."""
    peak = PEAKS.get(quantity)
    for item in items:
        several = len({group.name for group in item.groups}) > 1
        for group in [None] if is_shared(quantity) else item.groups:
            label = f"{item.name} {group.name}" if group is not None and several else item.name
            bar = Bar(item, group, label, item.summary.estimate(quantity, group))
            is_finished = any(each.status is RunStatus.FINISHED for each in bar.groups)
            if bar.estimate is not None:
                highest = None if peak is None else item.summary.estimate(peak, group)
                yield replace(bar, peak=highest)
            elif not is_finished and quantity is not Quantity.SLOWDOWN:
                yield bar


def in_blocks(items: Iterable[Item]) -> list[Item]:
    """Return workloads by the number of runs that share the hardware, then by way of sharing."""
    return sorted(items, key=lambda item: (item.summary.run_count, way_of(item.summary).place))


def blocks_of(values: Iterable[object]) -> list[tuple[int, int]]:
    """Return start and end of each run of equal values.

    >>> blocks_of([1, 1, 2])
    [(0, 2), (2, 3)]
    """
    blocks: list[tuple[int, int]] = []
    for _, group in groupby(values):
        start = blocks[-1][1] if blocks else 0
        blocks.append((start, start + len(list(group))))
    return blocks


def charted(quantities: Iterable[AnyQuantity]) -> list[AnyQuantity]:
    """Return the quantities that have a separate chart."""
    known = tuple(quantities)
    elsewhere = {peak for mean, peak in PEAKS.items() if mean in known}
    return [quantity for quantity in known if quantity not in elsewhere]


def charts_of(content: Content, *, in_order: bool = False, single: bool = False) -> Charts:
    """Return the charts with several bars, and those that the user chose.

    Args:
        content: The report.
        in_order: Keep the order of the content instead of blocks.
        single: Also return charts with a single bar.
    """
    items = content.items if in_order else in_blocks(content.items)
    charts = [
        BarChart.of(quantity, bars_of(items, quantity), has_blocks=not in_order)
        for quantity in charted(content.quantities)
    ]
    drawn = [
        chart
        for chart in charts
        # The table says more than a single bar.
        if not chart.is_empty and (len(chart.bars) > 1 or single or content.is_chosen)
    ]
    used = {way_of(item.summary) for item in content.items}
    return Charts(drawn, [way for way in SharingMode if way in used])
