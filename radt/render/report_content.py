"""The content of a report in any format: workloads, notes, interference, and bar charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from radt.analysis.attempts import NO_COLLOCATION
from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity, Subject
from radt.analysis.report import Report, left_out_text
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity, series_quantities
from radt.analysis.summaries import Encounter, GroupSummary, WorkloadSummary, interference
from radt.model import RunStatus
from radt.render.model import Bar, BarChart, Charts
from radt.render.numbers import ScaledQuantity, describe, error_bar, scaled, with_unit
from radt.units import NO_VALUE, plural

#: Slowdown with full colour: twice the time.
_HOTTEST = 2.0


@dataclass(frozen=True, slots=True)
class Item:
    """A workload of a report with its displayed name and its groups in order."""

    experiment: str
    name: str
    summary: WorkloadSummary
    groups: tuple[GroupSummary, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A group of like runs of a workload; ``is_first``: the first group of the workload."""

    item: Item
    group: GroupSummary
    is_first: bool

    def estimate(self, quantity: AnyQuantity) -> Estimate | None:
        """Return the value of the group, or of the workload that it belongs to."""
        return self.item.summary.estimate(quantity, self.group)


@dataclass(frozen=True, slots=True)
class Content:
    """Reports of one or several experiments, independent of the format.

    Attributes:
        reports: One report for each experiment.
        items: Workloads, in order.
        quantities: Columns of tables, in order.
        is_chosen: The user chose the quantities; otherwise files have all.
    """

    reports: tuple[Report, ...]
    items: tuple[Item, ...]
    quantities: tuple[AnyQuantity, ...]
    is_chosen: bool = False

    @classmethod
    def of(cls, report: Report, chosen: Sequence[AnyQuantity] = ()) -> Content:
        """Return the content of one report: the chosen quantities, or all that were measured."""
        with_host = len({workload.host for workload in report.workloads}) > 1
        return cls(
            (report,),
            tuple(
                Item(
                    report.experiment,
                    workload_name(workload, with_host=with_host),
                    workload,
                    tuple(workload.groups),
                )
                for workload in report.workloads
            ),
            tuple(chosen) or report.quantities,
            bool(chosen),
        )

    @property
    def written(self) -> tuple[AnyQuantity, ...]:
        """Return the quantities of files."""
        return self.quantities if self.is_chosen else (*Quantity, *self.of_series)

    @property
    def of_series(self) -> tuple[SeriesQuantity, ...]:
        """Return the quantities of series."""
        return series_quantities(self.quantities)

    @property
    def title(self) -> str:
        """Return the names of the experiments."""
        return ", ".join(report.experiment for report in self.reports)

    @property
    def window(self) -> str:
        """Return the part of each run that counts, in words."""
        return self.reports[0].window.text if self.reports else ""

    @property
    def lines(self) -> list[Line]:
        """Return the groups of all workloads."""
        return [
            Line(item, group, place == 0)
            for item in self.items
            for place, group in enumerate(with_children(item.groups))
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences on the origin of the numbers and on doubtful measurements."""
        return tuple(dict.fromkeys(self._notes()))

    def _notes(self) -> Iterator[str]:
        for report in self.reports:
            if report.open:
                yield f"{plural(report.open, 'run')} still running or waiting."
            if report.left_out:
                yield f"{left_out_text(report.left_out)}."
        for line in self.lines:
            if line.group.shortage is not None:
                yield f"{line.item.name}, {line.group.status}: {line.group.shortage.text}."
        yield from self._shortfalls()
        for report in self.reports:
            yield from report.footnotes
        for item in self.items:
            for run in item.summary.energy.runs:
                if run.method:
                    yield f"Estimated energy: {run.method}."
        for report in self.reports:
            if text := report.tracker.text:
                yield f"Tracker: {text}."

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


def workload_name(workload: WorkloadSummary, *, with_host: bool) -> str:
    """Return the label of a workload, with its machine if there are several machines."""
    label = workload.label
    if label == NO_VALUE and len(workload.groups) == 1:  # a script that was run by itself
        group = workload.groups[0]
        is_one = len(group.runs) == len(workload.workload_ids) == 1
        label = group.runs[0].run.name if is_one else group.name
    return " ".join(part for part in (label, workload.host if with_host else "") if part)


def with_children(groups: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Return groups, each followed by the runs within its runs."""
    return [each for group in groups for each in (group, *group.children)]


def runs_text(group: GroupSummary) -> str:
    """Return the runs of a group as ``3 × cnn-small``; a run within another as ``↳ lenet``."""
    alike = len({run.name for run in group.runs}) == 1
    count = f"{len(group.runs)} × " if len(group.runs) > 1 and alike else ""
    return f"{'↳ ' if group.is_child else ''}{count}{group.name}"


def reasons_of(group: GroupSummary) -> Sequence[str]:
    """Return why runs of a group did not finish, each known reason once."""
    return tuple(dict.fromkeys(run.run.end_reason for run in group.runs if run.run.end_reason))


def is_shared(quantity: AnyQuantity) -> bool:
    """Return whether a quantity belongs to a workload or its devices, not to like runs."""
    return not isinstance(quantity, SeriesQuantity) and quantity.info.subject is not Subject.RUNS


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The slowdown of one model by its neighbours; ``heat`` goes from 0 to 1 (2× or more)."""

    text: str
    estimate: Estimate
    about: str
    heat: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """Slowdowns of models (rows) by their neighbours (columns)."""

    experiment: str
    title: str
    explanation: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[MatrixCell | None, ...], ...]


def matrices(content: Content) -> Iterator[Matrix]:
    """Yield one matrix for each experiment whose models ran both alone and with others."""
    for report in content.reports:
        shown = [item.summary for item in content.items if item.experiment == report.experiment]
        measured = interference(shown)
        encounters = [*measured.encounters, *measured.mixed]
        if not encounters:
            continue
        with_way = len({encounter.collocation for encounter in encounters}) > 1
        with_host = len({encounter.host for encounter in encounters}) > 1
        rows = dict.fromkeys(_row(encounter, with_host=with_host) for encounter in encounters)
        by_degree = sorted(encounters, key=lambda encounter: (encounter.degree, encounter.is_mixed))
        columns = dict.fromkeys(_column(encounter, with_way=with_way) for encounter in by_degree)
        met: dict[tuple[str, str], list[Encounter]] = {}
        for encounter in encounters:
            place = (_row(encounter, with_host=with_host), _column(encounter, with_way=with_way))
            met.setdefault(place, []).append(encounter)
        of = f" of {report.experiment}" if len(content.reports) > 1 else ""
        yield Matrix(
            report.experiment,
            f"Interference{of}",
            "Time per epoch of the model in the row while the runs of the column shared its "
            "device, relative to the same run alone",
            tuple(rows),
            tuple(columns),
            tuple(tuple(_cell(met.get((row, column))) for column in columns) for row in rows),
        )


def _row(encounter: Encounter, *, with_host: bool) -> str:
    return f"{encounter.model} {encounter.host}" if with_host else encounter.model


def _column(encounter: Encounter, *, with_way: bool) -> str:
    return (
        f"{encounter.neighbours_text}, {encounter.collocation or Way.NAIVE}"
        if with_way
        else encounter.neighbours_text
    )


def _cell(met: Sequence[Encounter] | None) -> MatrixCell | None:
    if not met:
        return None
    about = [
        f"{encounter.workload}: {describe(Quantity.SLOWDOWN, encounter.slowdown)}"
        for encounter in met
    ]
    worst = max((encounter.slowdown for encounter in met), key=lambda estimate: estimate.mean)
    text = with_unit(Quantity.SLOWDOWN, worst)
    if len(met) > 1:  # the same neighbours in several workloads
        least, most = (
            Quantity.SLOWDOWN.info.text(extreme(each.slowdown.mean for each in met))
            for extreme in (min, max)
        )
        text = least if least == most else f"{least} to {most}"
    heat = min(max((worst.mean - 1) / (_HOTTEST - 1), 0.0), 1.0)
    return MatrixCell(text, worst, "; ".join(about), heat)


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
    """How runs share a device, in the order of legends and colours."""

    NAIVE = "naive"
    MPS = "MPS"
    MIG = "MIG"
    MIXED = "mixed"


def way_of(workload: WorkloadSummary) -> Way:
    """Return how the runs of a workload share their device."""
    ways = {_way(run.run.collocation) for group in workload.groups for run in group.runs}
    return ways.pop() if len(ways) == 1 else Way.MIXED


def _way(collocation: str) -> Way:
    if collocation in NO_COLLOCATION:
        return Way.NAIVE
    # 3g.20gb+MPS counts as MIG, as the instance separates it from its neighbours.
    return Way.MPS if collocation.upper().startswith("MPS") else Way.MIG


def charts_of(content: Content) -> Charts:
    """Return a chart for each charted quantity that was measured."""
    skipped = {Quantity.CPU} if _GPU_ACTIVITY & set(content.quantities) else set()
    charted: list[AnyQuantity] = [
        quantity
        for quantity in _CHARTS
        if quantity in content.quantities and quantity not in skipped
    ]
    charts = [
        chart
        for quantity in (
            content.quantities if content.is_chosen else [*charted, *content.of_series]
        )
        if (chart := _chart(content, quantity)) is not None
    ]
    used = {way_of(item.summary) for item in content.items}
    return Charts(charts, [(_style(way), way.value) for way in Way if way in used])


def _style(way: Way) -> str:
    return f"way-{way.name.lower()}"


def _chart(content: Content, quantity: AnyQuantity) -> BarChart | None:
    """Return bars by degree of collocation, then by way of sharing; None without values."""
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
    """Content of a bar: an estimate, or the status of runs without a result."""

    item: Item
    label: str
    runs: str
    status: RunStatus
    run_count: int
    estimate: Estimate | None


def _entries(item: Item, quantity: AnyQuantity) -> Iterator[_Entry]:
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
    title = f"{entry.item.name}  {entry.runs}"
    if estimate is None or not math.isfinite(estimate.mean):
        status = entry.status.value
        return Bar(entry.label, None, status, style, block, f"{title}: {status}")
    factor, reach = axis.scale.factor, error_bar(estimate)
    bounded = reach is not None and reach.above > 0
    return Bar(
        entry.label,
        estimate.mean * factor,
        axis.number(estimate.mean),
        style,
        block,
        f"{title}: {describe(axis.quantity, estimate, entry.run_count)}",
        (estimate.mean - reach.below) * factor if reach is not None and bounded else None,
        (estimate.mean + reach.above) * factor if reach is not None and bounded else None,
        estimate.is_estimated,
    )
