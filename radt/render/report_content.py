"""The content of a report in any format: workloads, values and notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity, Subject
from radt.analysis.report import Report
from radt.analysis.selection import NO_COLLOCATION, counts_text
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity, series_quantities
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.model import RunStatus
from radt.render.numbers import INTERVAL_NOTE
from radt.units import NO_VALUE, listed, plural

#: Maximum number of reasons for missing values, and of workloads named for each.
_MAX_GAPS, _MAX_NAMES = 4, 6


@dataclass(frozen=True, slots=True)
class Item:
    """A workload of a report.

    Attributes:
        experiment: Its experiment.
        label: Its displayed label.
        summary: Its numbers.
        groups: Its like runs, in order.
        host: Its machine if there are several machines; else empty.
    """

    experiment: str
    label: str
    summary: WorkloadSummary
    groups: tuple[GroupSummary, ...]
    host: str = ""

    @property
    def name(self) -> str:
        """Return its label, with its machine if there are several."""
        return f"{self.label} {self.host}".rstrip()


@dataclass(frozen=True, slots=True)
class Line:
    """A group of like runs of a workload. ``is_first``: the first group of the workload."""

    item: Item
    group: GroupSummary
    is_first: bool

    def estimate(self, quantity: AnyQuantity) -> Estimate | None:
        """Return the value of the group, or of the workload that it belongs to."""
        return self.item.summary.estimate(quantity, self.group)

    def shows(self, quantity: AnyQuantity) -> bool:
        """Return True if its row has a cell: the value of a workload is only in its first row."""
        return self.is_first or not is_shared(quantity)


@dataclass(frozen=True, slots=True)
class Content:
    """Reports of one or several experiments, independent of the format.

    Attributes:
        reports: One report for each experiment.
        items: Workloads, in order.
        quantities: Columns of tables, in order.
        is_chosen: The user chose the quantities; otherwise CSV and JSON contain all.
    """

    reports: tuple[Report, ...]
    items: tuple[Item, ...]
    quantities: tuple[AnyQuantity, ...]
    is_chosen: bool = False

    @classmethod
    def of(cls, report: Report, chosen: Sequence[AnyQuantity] = ()) -> Content:
        """Return the content of one report: the chosen quantities, or all that were measured."""
        items = tuple(items_of(report.workloads, report.experiment))
        return cls((report,), items, tuple(chosen) or report.quantities, bool(chosen))

    @property
    def written(self) -> tuple[AnyQuantity, ...]:
        """Return the quantities that CSV and JSON contain."""
        return self.quantities if self.is_chosen else (*Quantity, *self.of_series)

    @property
    def of_series(self) -> tuple[SeriesQuantity, ...]:
        """Return the quantities of series."""
        return series_quantities(self.quantities)

    @property
    def experiments(self) -> list[str]:
        """Return the names of the experiments."""
        return [report.experiment for report in self.reports]

    @property
    def window(self) -> str:
        """Return the part of each run that counts, in words."""
        return self.reports[0].window.text if self.reports else ""

    @property
    def lines(self) -> list[Line]:
        """Return the groups of all workloads."""
        return lines_of(self.items)

    @property
    def facts(self) -> list[str]:
        """Return the numbers of workloads and runs, and which part of each run counts."""
        total = sum(len(report.workloads) for report in self.reports)
        counts = counts_text([report.selection for report in self.reports])
        if not total:
            return [counts]
        of = f"{len(self.items):,} of " if len(self.items) < total else ""
        return [of + plural(total, "workload"), counts, f"window: {self.window}"]

    def values(
        self, item: Item, group: GroupSummary | None = None
    ) -> dict[AnyQuantity, Estimate | None]:
        """Return the values of like runs, or those of the whole workload; None where missing."""
        return {
            quantity: item.summary.estimate(quantity, group)
            for quantity in self.written
            if is_shared(quantity) is (group is None)
        }

    @property
    def interval_note(self) -> str:
        """Return the meaning of ±; empty if no value has an interval."""
        estimates = (line.estimate(each) for line in self.lines for each in self.quantities)
        return INTERVAL_NOTE if any(each and each.interval for each in estimates) else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences on the origin of the numbers and on doubtful measurements."""
        return tuple(dict.fromkeys(self._notes()))

    def _notes(self) -> Iterator[str]:
        for line in self.lines:
            if line.group.shortage is not None:
                yield f"{line.item.name}, {line.group.status}: {line.group.shortage.text}."
        yield from self._shortfalls()
        yield from self._gaps()
        for report in self.reports:
            yield from report.footnotes
        for item in self.items:
            for run in item.summary.energy.runs:
                if run.method:
                    yield f"Estimated energy: {run.method}."
        for report in self.reports:
            if text := report.tracker.text:
                yield f"Tracker: {text}."

    def _gaps(self) -> Iterator[str]:
        """Yield why readings of finished runs are missing, one sentence per reason."""
        lacking: dict[str, dict[str, dict[str, None]]] = {}
        for line in self.lines:
            for quantity in self.quantities:
                is_read = isinstance(quantity, Quantity) and quantity.info.metrics
                if (
                    not is_read
                    or line.group.is_child
                    or line.group.status is not RunStatus.FINISHED
                ):
                    continue
                if line.estimate(quantity) is None and line.shows(quantity):
                    why = line.item.summary.why_missing(quantity, line.group)
                    names = lacking.setdefault(why, {})
                    names.setdefault(quantity.info.title, {})[line.item.name] = None
        for why, quantities in list(lacking.items())[:_MAX_GAPS]:
            workloads = dict.fromkeys(name for names in quantities.values() for name in names)
            yield f"No {', '.join(quantities)} of {listed(list(workloads), _MAX_NAMES)}: {why}."

    def _shortfalls(self) -> Iterator[str]:
        """Yield the conditions of ``time_to`` that some runs never met."""
        for quantity in self.of_series:
            for line in self.lines:
                reached = line.group.reached.get(quantity)
                if reached is not None and not reached.is_all:
                    several = len(line.item.groups) > 1
                    name = f"{line.item.name}, {line.group.name}" if several else line.item.name
                    rest = "; the value is their mean" if reached.count else ""
                    yield f"{name}: {reached.text} reached {quantity.condition}{rest}."


def items_of(workloads: Sequence[WorkloadSummary], experiment: str = "") -> Iterator[Item]:
    """Yield the workloads of a report."""
    with_host = len({workload.host for workload in workloads}) > 1
    for workload in workloads:
        host = workload.host if with_host else ""
        yield Item(experiment, _label(workload), workload, tuple(workload.groups), host)


def _label(workload: WorkloadSummary) -> str:
    if workload.label != NO_VALUE or len(workload.groups) > 1:
        return workload.label
    group = workload.groups[0]  # a script run on its own
    is_one = len(group.runs) == len(workload.workload_ids) == 1
    return group.runs[0].run.name if is_one else group.name


def lines_of(items: Iterable[Item]) -> list[Line]:
    """Return the groups of workloads, each followed by its child runs."""
    return [
        Line(item, group, place == 0)
        for item in items
        for place, group in enumerate(with_children(item.groups))
    ]


def with_children(groups: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Return groups, each followed by its child runs."""
    return [each for group in groups for each in (group, *group.children)]


def runs_text(group: GroupSummary) -> str:
    """Return the runs of a group as ``3 × cnn-small``; a child run as ``↳ lenet``."""
    alike = len({run.name for run in group.runs}) == 1
    count = f"{len(group.runs)} × " if len(group.runs) > 1 and alike else ""
    return f"{'↳ ' if group.is_child else ''}{count}{group.name}"


def reasons_of(group: GroupSummary) -> Sequence[str]:
    """Return why runs of a group did not finish, each known reason once."""
    return tuple(dict.fromkeys(run.run.end_reason for run in group.runs if run.run.end_reason))


def is_shared(quantity: AnyQuantity) -> bool:
    """Return whether a quantity belongs to a workload or its devices, not to like runs."""
    return quantity.info.subject is not Subject.RUNS


class SharingMode(StrEnum):
    """How runs share a device, in the order of legends and colours."""

    NAIVE = "naive"
    MPS = "MPS"
    MIG = "MIG"
    MIXED = "mixed"

    @property
    def style(self) -> str:
        """Return the class of its colour."""
        return f"way-{self.name.lower()}"

    @property
    def place(self) -> int:
        """Return its position in legends."""
        return list(SharingMode).index(self)


def way_of(workload: WorkloadSummary) -> SharingMode:
    """Return how the runs of a workload share their device."""
    ways = {_way(run.run.collocation) for group in workload.groups for run in group.runs}
    return ways.pop() if len(ways) == 1 else SharingMode.MIXED


def _way(collocation: str) -> SharingMode:
    if collocation in NO_COLLOCATION:
        return SharingMode.NAIVE
    # 3g.20gb+MPS counts as MIG, as the instance separates it from its neighbours.
    return SharingMode.MPS if collocation.upper().startswith("MPS") else SharingMode.MIG
