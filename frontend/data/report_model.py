"""Data of the Report page: choices, workloads, bars. Nothing here reads a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.report import Report
from radt.analysis.series_quantities import (
    AnyQuantity,
    SeriesProblem,
    SeriesQuantity,
    parse_series_quantity,
)
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.errors import UsageError
from radt.frontend.data.spec import Pick
from radt.model import RunStatus
from radt.render.numbers import ScaledQuantity, scaled
from radt.render.report_content import is_shared, runs_text, workload_name
from radt.run_name import letter_order

SORT = "report.sort"
PROFILED = "report.profiled"
COLUMNS = "report.columns"
PICKED = "report.picked"
PAGE = "report.page"
WINDOW = "report.window"
OVERLAP = "report.overlap"
SERIES = "report.series"
#: Between quantities of series in an address; their metrics may have commas.
SEPARATOR = ";"
#: The limit on charts of quantities of series on one page.
MAX_SERIES = 8

#: Sort keys that are not quantities.
BY_ORDER = ""
BY_WORKLOAD = "workload"
BY_NAME = "runs"

#: Measured columns that are hidden by default.
_ASKED_FOR = frozenset(
    {
        Quantity.MAKESPAN,
        Quantity.SERIAL,
        Quantity.SAMPLES_PER_S_OF_RUN,
        Quantity.MEMORY,
        Quantity.MEMORY_OF_ALL,
        Quantity.PSS,
        Quantity.GPU_MEMORY,
        Quantity.GPU_MEMORY_OF_RUN,
        Quantity.ENERGY_PER_SAMPLE,
        Quantity.ENERGY_OF_RUNS,
        Quantity.CARBON_PER_EPOCH,
        Quantity.PCIE_RX,
        Quantity.PCIE_TX,
        Quantity.DISK_READ,
        Quantity.DISK_WRITTEN,
        Quantity.CPU_TIME,
        Quantity.RSS_PEAK,
        Quantity.IO_READ,
        Quantity.IO_WRITTEN,
        Quantity.TRACKER_CPU,
    }
)


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices for the table.

    Attributes:
        sort: A quantity, `BY_WORKLOAD`, `BY_NAME`, or `BY_ORDER` for the order of the experiment.
        is_descending: Whether the largest comes first.
        profiled: Whether runs slowed down by a profiler are included.
        columns: The shown quantities; None for the most informative ones.
        picked: Whether only picked workloads and runs are shown.
        page: The page of the table, from 0.
        window: The part of each run that counts.
        window_text: The window as the user typed it.
        window_error: Why the typed window is invalid; empty if it is valid.
        series: Quantities of series, shown besides the columns.
        series_texts: What the user typed for them.
        series_error: Why one of these is invalid; empty if all are valid.
    """

    sort: str = BY_ORDER
    is_descending: bool = False
    profiled: bool = False
    columns: tuple[Quantity, ...] | None = None
    picked: bool = False
    page: int = 0
    window: WindowSpec = DEFAULT_WINDOW
    window_text: str = ""
    window_error: str = ""
    series: tuple[SeriesQuantity, ...] = ()
    series_texts: tuple[str, ...] = ()
    series_error: str = ""

    @property
    def sort_quantity(self) -> AnyQuantity | None:
        """The quantity to sort by; None for other orders."""
        return next((each for each in (*Quantity, *self.series) if each.value == self.sort), None)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Return valid choices; invalid ones are ignored."""
        sort = options.get(SORT, "")
        name = sort.removeprefix("-")
        texts = tuple(filter(None, map(str.strip, options.get(SERIES, "").split(SEPARATOR))))
        series, series_error = _series(texts)
        if name not in (BY_WORKLOAD, BY_NAME, *Quantity, *(each.value for each in series)):
            sort = name = BY_ORDER
        columns = options.get(COLUMNS)
        page = options.get(PAGE, "")
        window, error = _window(options.get(WINDOW, ""), overlap=options.get(OVERLAP) == "1")
        return cls(
            sort=name,
            is_descending=sort.startswith("-"),
            profiled=options.get(PROFILED) == "1",
            columns=None if columns is None else _quantities(columns.split(",")),
            picked=options.get(PICKED) == "1",
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 0,
            window=window,
            window_text=options.get(WINDOW, ""),
            window_error=error,
            series=series,
            series_texts=texts,
            series_error=series_error,
        )

    def shown(self, measured: Iterable[AnyQuantity]) -> tuple[AnyQuantity, ...]:
        """Return the shown columns of measured quantities; those of series are all shown."""
        available = tuple(measured)
        if self.columns is not None:
            return tuple(
                quantity
                for quantity in available
                if quantity in self.columns or isinstance(quantity, SeriesQuantity)
            )
        hidden = set(_ASKED_FOR)
        if Quantity.GPU_MEMORY_PEAK in available:
            hidden.add(Quantity.MEMORY_PEAK)
        return tuple(quantity for quantity in available if quantity not in hidden)


def _window(text: str, *, overlap: bool) -> tuple[WindowSpec, str]:
    try:
        return WindowSpec.parse(text, overlap=overlap), ""
    except UsageError as error:
        return WindowSpec(overlap=overlap), str(error)


def _series(texts: Iterable[str]) -> tuple[tuple[SeriesQuantity, ...], str]:
    """Return the valid ones of typed quantities of series, and the first error."""
    found: list[SeriesQuantity] = []
    problem = ""
    for text in texts:
        try:
            found.append(parse_series_quantity(text))
        except UsageError as error:
            problem = problem or str(error)
    return tuple(dict.fromkeys(found)), problem


def _quantities(texts: Iterable[str]) -> tuple[Quantity, ...]:
    return tuple(Quantity(text) for text in texts if text in list(Quantity))


#: The limit on bars in one chart; the table has the rest.
MAX_BARS = 60
#: Up to these numbers of bars, three charts or two stand side by side.
_SMALL_BARS, _MEDIUM_BARS = 6, 20

#: Quantities drawn into the chart of another quantity.
PEAKS = {
    Quantity.MEMORY: Quantity.MEMORY_PEAK,
    Quantity.GPU_MEMORY: Quantity.GPU_MEMORY_PEAK,
}


def peak_of(quantity: AnyQuantity) -> Quantity | None:
    """Return the quantity drawn into the chart of another one, if any."""
    return PEAKS.get(quantity) if isinstance(quantity, Quantity) else None


class Size(StrEnum):
    """Width of charts."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


_HEADINGS = {
    Quantity.TIME_PER_EPOCH: "Time per epoch",
    Quantity.SLOWDOWN: "Slowdown vs solo",
    Quantity.MAKESPAN: "Makespan",
    Quantity.SERIAL: "Serial time",
    Quantity.SPEED_UP: "Speed-up over serial execution",
    Quantity.SAMPLES_PER_S: "Samples per second",
    Quantity.SAMPLES_PER_S_OF_RUN: "Samples per second per run",
    Quantity.DATA_WAIT: "Data wait",
    Quantity.CPU: "CPU",
    Quantity.CPU_OF_ALL: "CPU of all runs and services",
    Quantity.MEMORY: "RSS",
    Quantity.MEMORY_OF_ALL: "RSS of all runs and services",
    Quantity.MEMORY_PEAK: "RSS, peak",
    Quantity.SM_ACTIVE: "GPU: SM active",
    Quantity.GPU_UTILIZATION: "GPU: utilization",
    Quantity.GPU_MEMORY_PEAK: "GPU memory, peak",
    Quantity.GPU_MEMORY_OF_RUN: "GPU memory per run, peak",
    Quantity.ENERGY: "GPU energy",
    Quantity.ENERGY_PER_EPOCH: "Energy per epoch",
    Quantity.ENERGY_PER_SAMPLE: "Energy per sample",
    Quantity.ENERGY_OF_RUNS: "Energy of runs, estimated",
    Quantity.CARBON: "Carbon",
    Quantity.CARBON_PER_EPOCH: "Carbon per epoch",
    Quantity.DISK_READ: "Disk read",
    Quantity.DISK_WRITTEN: "Disk written",
    Quantity.CPU_TIME: "CPU time, counted by the kernel",
    Quantity.RSS_PEAK: "Peak RSS of the largest process",
    Quantity.IO_READ: "Read by system calls",
    Quantity.IO_WRITTEN: "Written by system calls",
    Quantity.TRACKER_CPU: "Tracker CPU",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar; without ``estimate``, the word for how the runs ended.

    ``tint`` is its colour's index: that of its first run on all pages.
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
        """Number of runs that share the hardware."""
        return self.entry.summary.run_count


def charted(shown: Shown) -> tuple[AnyQuantity, ...]:
    """Return the quantities that have a chart of their own."""
    drawn_elsewhere: set[AnyQuantity] = {
        peak for mean, peak in PEAKS.items() if mean in shown.quantities
    }
    return tuple(quantity for quantity in shown.quantities if quantity not in drawn_elsewhere)


def bars_of(shown: Shown, quantity: AnyQuantity, choices: Choices) -> list[Bar]:
    """Return the bars, in the table's order, or by degree of collocation if no order was chosen.

    Workloads beyond the first `MAX_BARS` bars are left out.
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
    """Return the width of a chart with this many bars."""
    if bar_count <= _SMALL_BARS:
        return Size.SMALL
    return Size.MEDIUM if bar_count <= _MEDIUM_BARS else Size.LARGE


def title_of(quantity: AnyQuantity) -> str:
    """Return the title of a quantity's chart."""
    if isinstance(quantity, SeriesQuantity):
        return quantity.value
    return _HEADINGS.get(quantity, quantity.info.title)


def column_of(quantity: AnyQuantity, bars: Sequence[Bar]) -> ScaledQuantity:
    """Return the column of a quantity, which has the unit of the axis."""
    estimates = [bar.estimate for bar in bars if bar.estimate is not None]
    estimates += [bar.peak for bar in bars if bar.peak is not None]
    return scaled(quantity, estimates)


def _of_group(
    entry: Entry, group: GroupSummary, quantity: AnyQuantity, *, several: bool
) -> list[Bar]:
    finished = group.status is RunStatus.FINISHED
    estimate = group.values.get(quantity) if finished else None
    if estimate is None and (finished or quantity is Quantity.SLOWDOWN):
        return []
    peak = peak_of(quantity)
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


def _of_workload(entry: Entry, groups: Sequence[GroupSummary], quantity: AnyQuantity) -> list[Bar]:
    estimate = entry.summary.estimate(quantity, entry.summary.groups[0])
    statuses = {group.status for group in groups}
    if estimate is None and RunStatus.FINISHED in statuses:
        return []
    peak = peak_of(quantity)
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload in a report.

    Attributes:
        experiment: Its experiment.
        summary: Its numbers.
        tints: The colour indices of its runs, by run id.
        prefix: The experiment's name if there are several.
        with_host: Whether the name needs the machine to be unambiguous.
    """

    experiment: str
    summary: WorkloadSummary
    tints: Mapping[str, int]
    prefix: str = ""
    with_host: bool = False

    @property
    def name(self) -> str:
        """The workload's label, with experiment and machine where they are needed."""
        name = workload_name(self.summary, with_host=self.with_host)
        return f"{self.prefix} {name}" if self.prefix else name

    @property
    def tint(self) -> int:
        """The colour index of its first run."""
        runs = [row.run for group in self.summary.groups for row in group.runs]
        first = min(runs, key=lambda run: letter_order(run.letter))
        return self.tints.get(first.run_id, 0)

    def tint_of(self, group: GroupSummary) -> int:
        """Return the colour index of equal runs: that of the first of them."""
        return self.tints.get(group.runs[0].run.run_id, 0)

    @property
    def pick(self) -> Pick:
        return Pick.workload(self.experiment, self.summary.workload_id)


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of the page.

    Attributes:
        experiments: The reported experiments.
        reports: Their whole reports.
        entries: The workloads, in the chosen order.
        quantities: Quantities measured for any of them.
        columns: The quantities shown in the table.
        left_out: The number of runs that a profiler slowed down.
        open: The number of runs that are running or waiting.
        window: The part of each run that counts.
        problems: Why quantities of series have no values.
    """

    experiments: tuple[str, ...]
    reports: tuple[Report, ...]
    entries: tuple[Entry, ...]
    quantities: tuple[AnyQuantity, ...]
    columns: tuple[AnyQuantity, ...]
    left_out: int
    open: int
    window: str
    problems: tuple[SeriesProblem, ...] = ()

    @property
    def run_count(self) -> int:
        return sum(entry.summary.run_count for entry in self.entries)


def sorted_groups(entry: Entry, choices: Choices) -> Sequence[GroupSummary]:
    """Return the groups of a workload, sorted by the same column."""
    groups = list(entry.summary.groups)
    quantity = choices.sort_quantity
    if quantity is None:
        return groups

    def key(group: GroupSummary) -> tuple[bool, float]:
        estimate = entry.summary.estimate(quantity, group)
        if estimate is None:
            return True, 0.0
        return False, -estimate.mean if choices.is_descending else estimate.mean

    return sorted(groups, key=key)
