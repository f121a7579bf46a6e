"""One quantity as bars: a bar for the like runs of a workload, or for the workload as a whole.

What did not finish stands in its place: that memory did not suffice is a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.frontend.report.choices import BY_ORDER, Choices
from radt.frontend.report.data import Entry, Shown, sorted_groups
from radt.model import RunStatus
from radt.report.estimates import Estimate
from radt.report.formats.columns import Column, column
from radt.report.formats.content import runs_text
from radt.report.formats.tables import is_shared
from radt.report.quantities import ABOUT, Quantity
from radt.report.summary import GroupSummary

#: More are a table.
MAX_BARS = 60
#: Up to here three charts stand beside each other, or two.
_SMALL_BARS, _MEDIUM_BARS = 6, 20

#: What is drawn into the chart of another quantity.
PEAKS = {
    Quantity.MEMORY: Quantity.MEMORY_PEAK,
    Quantity.GPU_MEMORY: Quantity.GPU_MEMORY_PEAK,
}


class Size(StrEnum):
    """How wide charts are."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


_HEADINGS = {
    Quantity.TIME_PER_EPOCH: "Time per epoch",
    Quantity.SLOWDOWN: "Slowdown against solo",
    Quantity.MAKESPAN: "Makespan",
    Quantity.SERIAL: "One after the other",
    Quantity.SPEED_UP: "Speed-up over one after the other",
    Quantity.SAMPLES_PER_S: "Samples per second",
    Quantity.SAMPLES_PER_S_OF_RUN: "Samples per second and run",
    Quantity.CPU: "CPU",
    Quantity.MEMORY: "Memory",
    Quantity.MEMORY_PEAK: "Memory, peak",
    Quantity.SM_ACTIVE: "GPU: SM active",
    Quantity.GPU_UTILIZATION: "GPU: utilisation",
    Quantity.GPU_MEMORY_PEAK: "GPU memory, peak",
    Quantity.GPU_MEMORY_OF_RUN: "GPU memory of a run, peak",
    Quantity.ENERGY: "Energy of the GPUs",
    Quantity.ENERGY_PER_EPOCH: "Energy per epoch",
    Quantity.ENERGY_PER_SAMPLE: "Energy per sample",
    Quantity.ENERGY_OF_RUNS: "Energy of the runs, estimated",
    Quantity.CARBON: "Carbon",
    Quantity.CARBON_PER_EPOCH: "Carbon per epoch",
    Quantity.DISK_READ: "Read from disks",
    Quantity.DISK_WRITTEN: "Written to disks",
    Quantity.TRACKER_CPU: "CPU of the tracker",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar; without ``estimate`` the word for how the runs ended.

    ``tint`` is the place of its colour: that of its first run on all pages.
    """

    entry: Entry
    label: str
    runs: str
    status: RunStatus
    run_count: int
    estimate: Estimate | None
    peak: Estimate | None = None
    tint: int = 0

    @property
    def degree(self) -> int:
        """How many runs share the hardware."""
        return self.entry.summary.run_count


def charted(shown: Shown) -> tuple[Quantity, ...]:
    """The quantities that have a chart of their own."""
    drawn_elsewhere = {peak for mean, peak in PEAKS.items() if mean in shown.quantities}
    return tuple(one for one in shown.quantities if one not in drawn_elsewhere)


def bars_of(shown: Shown, quantity: Quantity, choices: Choices) -> list[Bar]:
    """The bars, in the table's order, or by degree of collocation where none was chosen.

    Those of workloads behind the first `MAX_BARS` bars are left out.
    """
    entries = list(shown.entries)
    if choices.sort == BY_ORDER:
        entries.sort(key=lambda entry: entry.summary.run_count)
    bars: list[Bar] = []
    for entry in entries:
        if len(bars) > MAX_BARS:
            break
        groups = sorted_groups(entry, choices)
        if is_shared(quantity):
            bars += _of_workload(entry, groups, quantity)
        else:
            several = len({group.name for group in groups}) > 1
            for group in groups:
                bars += _of_group(entry, group, quantity, several=several)
    return bars


def size_of(bar_count: int) -> Size:
    """How wide a chart with so many bars is."""
    if bar_count <= _SMALL_BARS:
        return Size.SMALL
    return Size.MEDIUM if bar_count <= _MEDIUM_BARS else Size.LARGE


def title_of(quantity: Quantity) -> str:
    """Of a chart."""
    return _HEADINGS.get(quantity, ABOUT[quantity].title)


def column_of(quantity: Quantity, bars: Sequence[Bar]) -> Column:
    """The unit of the axis."""
    found = [bar.estimate for bar in bars if bar.estimate is not None]
    found += [bar.peak for bar in bars if bar.peak is not None]
    return column(quantity, found)


def _of_group(entry: Entry, group: GroupSummary, quantity: Quantity, *, several: bool) -> list[Bar]:
    finished = group.status is RunStatus.FINISHED
    estimate = group.values.get(quantity) if finished else None
    if estimate is None and (finished or quantity is Quantity.SLOWDOWN):
        return []
    peak = PEAKS.get(quantity)
    return [
        Bar(
            entry,
            f"{entry.name} {group.name}" if several else entry.name,
            runs_text(group),
            group.status,
            len(group.runs),
            estimate,
            None if peak is None or not finished else group.values.get(peak),
            entry.tint_of(group),
        )
    ]


def _of_workload(entry: Entry, groups: Sequence[GroupSummary], quantity: Quantity) -> list[Bar]:
    estimate = entry.summary.values.get(quantity)
    statuses = {group.status for group in groups}
    if estimate is None and RunStatus.FINISHED in statuses:
        return []
    peak = PEAKS.get(quantity)
    return [
        Bar(
            entry,
            entry.name,
            ", ".join(map(runs_text, groups)),
            RunStatus.worst(statuses),
            entry.summary.run_count,
            estimate,
            None if peak is None else entry.summary.values.get(peak),
            entry.tint,
        )
    ]
