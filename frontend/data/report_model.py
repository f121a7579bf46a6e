"""Data of the Report page: choices, and the resulting content. Nothing here reads a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from radt.analysis.quantities import Quantity
from radt.analysis.selection import Reason, Selection
from radt.analysis.series_quantities import (
    AnyQuantity,
    SeriesProblem,
    SeriesQuantity,
    parse_series_quantity,
)
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.errors import UsageError
from radt.render.report_content import Content, Item
from radt.run_name import letter_order

SORT = "report.sort"
PROFILED = "report.profiled"
COLUMNS = "report.columns"
PICKED = "report.picked"
PAGE = "report.page"
WINDOW = "report.window"
OVERLAP = "report.overlap"
SERIES = "report.series"
#: Separates quantities of series in an address, as their metrics may contain commas.
SEPARATOR = ";"
#: Maximum number of charts of quantities of series on one page.
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
    """Return the valid quantities among typed ones, and the first error."""
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


@dataclass(frozen=True, slots=True)
class Shown(Content):
    """Content of the page. Its ``quantities`` are those measured for any workload.

    Attributes:
        columns: The quantities shown in the table.
        tints: The colour indices of runs, by run id, the same on all pages.
        problems: Why quantities of series have no values.
    """

    columns: tuple[AnyQuantity, ...] = ()
    tints: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[SeriesProblem, ...] = ()

    @property
    def in_columns(self) -> Shown:
        """Return the content of the shown columns."""
        return replace(self, quantities=self.columns)

    @property
    def selections(self) -> list[Selection]:
        """The selections of the experiments: which runs count."""
        return [report.selection for report in self.reports]

    def count(self, *reasons: Reason) -> int:
        """Return the number of runs that do not count for these reasons."""
        return sum(selection.count(*reasons) for selection in self.selections)

    def tint(self, item: Item, group: GroupSummary | None = None) -> int:
        """Return the colour index of like runs, or of a workload: that of the first run."""
        groups = item.groups if group is None else [group]
        runs = [run.run for each in groups for run in each.runs]
        first = runs[0] if group else min(runs, key=lambda run: letter_order(run.letter))
        return self.tints.get(first.run_id, 0)


def sorted_groups(workload: WorkloadSummary, choices: Choices) -> tuple[GroupSummary, ...]:
    """Return the groups of a workload, sorted by the same column."""
    quantity = choices.sort_quantity
    if quantity is None:
        return tuple(workload.groups)

    def key(group: GroupSummary) -> tuple[bool, float]:
        estimate = workload.estimate(quantity, group)
        if estimate is None:
            return True, 0.0
        return False, -estimate.mean if choices.is_descending else estimate.mean

    return tuple(sorted(workload.groups, key=key))
