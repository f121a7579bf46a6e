"""What the user chose on the page Report, as the options of a view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from radt.errors import UsageError
from radt.report.quantities import Quantity
from radt.report.windows import DEFAULT_WINDOW, WindowSpec

SORT = "report.sort"
PROFILED = "report.profiled"
COLUMNS = "report.columns"
PICKED = "report.picked"
PAGE = "report.page"
WINDOW = "report.window"
OVERLAP = "report.overlap"

#: The names of what can be sorted by and is no quantity.
BY_ORDER = ""
BY_WORKLOAD = "workload"
BY_NAME = "runs"

#: Of what is measured these columns are hidden until they are asked for.
_ASKED_FOR = frozenset(
    {
        Quantity.MAKESPAN,
        Quantity.SERIAL,
        Quantity.SAMPLES_PER_S_OF_RUN,
        Quantity.MEMORY,
        Quantity.GPU_MEMORY,
        Quantity.GPU_MEMORY_OF_RUN,
        Quantity.ENERGY_PER_SAMPLE,
        Quantity.ENERGY_OF_RUNS,
        Quantity.CARBON_PER_EPOCH,
        Quantity.PCIE_RX,
        Quantity.PCIE_TX,
        Quantity.DISK_READ,
        Quantity.DISK_WRITTEN,
        Quantity.TRACKER_CPU,
    }
)


@dataclass(frozen=True, slots=True)
class Choices:
    """Of the table.

    Attributes:
        sort: A quantity, `BY_WORKLOAD`, `BY_NAME`, or `BY_ORDER` for the order of the experiment.
        is_descending: The largest first.
        profiled: With what a profiler slowed down.
        columns: Which quantities; None for those that say most.
        picked: Only what is picked.
        page: From 0.
        window: What of each run counts.
        window_text: What the user wrote for it.
        window_error: Why it is not what the user wrote; empty if it is.
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

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """What makes no sense is left out."""
        sort = options.get(SORT, "")
        name = sort.removeprefix("-")
        if name not in (BY_WORKLOAD, BY_NAME, *Quantity):
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
        )

    def shown(self, measured: Iterable[Quantity]) -> tuple[Quantity, ...]:
        """The columns of what is measured that are shown."""
        found = tuple(measured)
        if self.columns is not None:
            return tuple(one for one in found if one in self.columns)
        hidden = set(_ASKED_FOR)
        if Quantity.GPU_MEMORY_PEAK in found:
            hidden.add(Quantity.MEMORY_PEAK)
        return tuple(one for one in found if one not in hidden)


def _window(text: str, *, overlap: bool) -> tuple[WindowSpec, str]:
    try:
        return WindowSpec.parse(text, overlap=overlap), ""
    except UsageError as error:
        return WindowSpec(overlap=overlap), str(error)


def _quantities(texts: Iterable[str]) -> tuple[Quantity, ...]:
    return tuple(Quantity(text) for text in texts if text in list(Quantity))
