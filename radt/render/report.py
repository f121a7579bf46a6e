"""Reports as documents.

The first table shows whether collocation pays off; those below explain it. Values of a workload's
devices have one row per workload, values of its runs one per group of like runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from radt import units
from radt.analysis.quantities import Quantity
from radt.analysis.selection import Omission
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import WorkloadSummary
from radt.model import RunStatus
from radt.render.bars import charts_of
from radt.render.interference import matrices
from radt.render.model import (
    Block,
    Cell,
    ColumnHead,
    Document,
    Note,
    Notes,
    Role,
    Row,
    Scope,
    Table,
    Tone,
)
from radt.render.numbers import ScaledQuantity, describe, scaled, with_unit
from radt.render.report_content import (
    Content,
    Item,
    Line,
    is_shared,
    items_of,
    lines_of,
    reasons_of,
    runs_text,
)
from radt.usage import KERNEL

#: Quantities of the first table, the most important first.
ESSENTIAL = (
    Quantity.TIME_PER_EPOCH,
    Quantity.SLOWDOWN,
    Quantity.SAMPLES_PER_S,
    Quantity.SPEED_UP,
    Quantity.MAKESPAN,
    Quantity.SERIAL,
    Quantity.SM_ACTIVE,
    Quantity.GPU_UTILIZATION,
    Quantity.ENERGY,
)
#: Columns that fit into 80 characters for the runs of an experiment that just ended.
_SUMMARY = (Quantity.TIME_PER_EPOCH, Quantity.SLOWDOWN, Quantity.SAMPLES_PER_S, Quantity.CPU)
_OF_WORKLOADS = "Workloads and their devices"
_OF_RUNS = "Processes of the runs"
_TOTALS = "Totals of the runs by the kernel; read and written in system calls"
_BAD = frozenset({RunStatus.FAILED, RunStatus.KILLED, RunStatus.OOM, RunStatus.TIMEOUT})


def report_document(content: Content) -> Document:
    """Return a report: tables, charts, interference, and notes."""
    tables = _tables(content)
    blocks: list[Block] = [*tables[:1], charts_of(content), *tables[1:]]
    if not content.is_chosen:
        blocks.append(energy_table([item.summary for item in content.items]))
        blocks += matrices(content).values()
    notes = [content.interval_note, *content.notes]
    if any(report.selection.count(Omission.PROFILED) for report in content.reports):
        notes.append("Run with --profiled to include them.")
    blocks.append(Notes([Note(text, Tone.DIM) for text in notes if text]))
    return Document(", ".join(content.experiments), content.facts, blocks)


def summary_table(workloads: Sequence[WorkloadSummary]) -> Table:
    """Return the table at the end of an experiment; repeats and energy only if available."""
    items = list(items_of(workloads))
    lines = lines_of(items)
    with_repeats = any(line.group.repeats > 1 for line in lines)
    quantities = [*_SUMMARY]
    if any(workload.energy.gpus_j is not None for workload in workloads):
        quantities.append(Quantity.ENERGY)
    # A group knows only its newest runs, so with repeats one duration would stand beside means of
    # all.
    count = ColumnHead("n", role=Role.LEAD) if with_repeats else ColumnHead("took")
    columns = [*_keys(items), ColumnHead("runs", role=Role.LEAD, is_number=False), count]
    columns += [ColumnHead(quantity.info.title, scope=_scope(quantity)) for quantity in quantities]
    rows = []
    for line in lines:
        taken = [run.run.lasted_s() for run in line.group.runs]
        known_s = [taken_s for taken_s in taken if taken_s is not None]
        duration = units.duration(fmean(known_s) if known_s else None)
        cells = [Cell(runs_text(line.group)), Cell(_repeats(line) if with_repeats else duration)]
        values = [
            Cell(with_unit(quantity, line.estimate(quantity), brief=True) * line.shows(quantity))
            for quantity in quantities
        ]
        rows.append(
            Row([*_key_cells(items, line), *cells, *_with_status(values, line)], line.is_first)
        )
    return Table(columns, rows)


def epochs_hint(workloads: Sequence[WorkloadSummary]) -> str:
    """Return how scripts get a time per epoch; empty if all finished runs have one."""
    finished = [
        group
        for workload in workloads
        for group in workload.trained
        if group.status is RunStatus.FINISHED
    ]
    if all(group.children or group.mean(Quantity.TIME_PER_EPOCH) is not None for group in finished):
        return ""
    return "`for epoch in run.epochs(N):` in `with radt.Run() as run:` adds time/epoch"


def energy_table(workloads: Sequence[WorkloadSummary]) -> Table:
    """Return the share of each run in the energy of its GPUs; no rows without data."""
    items = list(items_of(workloads))
    columns = [
        *_keys(items),
        ColumnHead("run", role=Role.LEAD, is_number=False),
        ColumnHead("energy, est."),
        ColumnHead("of its GPUs"),
    ]
    rows = []
    for item in items:
        energy = item.summary.energy
        shares = [(f"{run.letter}  {run.name}".strip(), run.estimated_j) for run in energy.runs]
        if energy.rest_j is not None:
            shares.append(("idle and others", energy.rest_j))
        for place, (name, amount_j) in enumerate(shares):
            share = amount_j / energy.gpus_j if energy.gpus_j else None
            cells = [Cell(name), Cell(units.in_unit(amount_j, "J")), Cell(units.percent(share))]
            keys = _key_cells(items, Line(item, item.groups[0], place == 0))
            rows.append(Row([*keys, *cells], place == 0))
    return Table(columns, rows)


def _keys(items: Sequence[Item]) -> list[ColumnHead]:
    titles = ["workload", "machine"] if any(item.host for item in items) else ["workload"]
    return [
        ColumnHead(title, role=Role.KEY, scope=Scope.GROUP, is_number=False) for title in titles
    ]


def _key_cells(items: Sequence[Item], line: Line) -> list[Cell]:
    texts = [line.item.label, line.item.host]
    return [Cell(text * line.is_first) for text in texts[: len(_keys(items))]]


def _scope(quantity: AnyQuantity) -> Scope:
    return Scope.GROUP if is_shared(quantity) else Scope.ROW


def _repeats(line: Line) -> str:
    return str(line.group.repeats) if line.group.status is RunStatus.FINISHED else units.NO_VALUE


def _with_status(cells: Sequence[Cell], line: Line) -> list[Cell]:
    """Return cells of which the first has the status of runs that did not finish."""
    status = line.group.status
    if status is RunStatus.FINISHED:
        return [*cells]
    tone = Tone.BAD if status in _BAD else Tone.NORMAL
    return [
        Cell(status.value, explanation="; ".join(reasons_of(line.group)), tone=tone),
        *cells[1:],
    ]


def _tables(content: Content) -> list[Table]:
    """Return the tables of a report; none without workloads."""
    if not content.items:
        return []
    if content.is_chosen:
        return [_with_results(content, content.quantities)]
    # The table of energies already has the shares of the runs, and the unassigned rest.
    shown = [quantity for quantity in content.quantities if quantity is not Quantity.ENERGY_OF_RUNS]
    essential: list[AnyQuantity] = [quantity for quantity in ESSENTIAL if quantity in shown]
    essential += content.of_series
    rest = [quantity for quantity in shown if quantity not in essential]
    of_runs = [quantity for quantity in rest if not is_shared(quantity)]
    tables = [_with_results(content, essential)]
    for title, quantities in (
        (_OF_WORKLOADS, [quantity for quantity in rest if is_shared(quantity)]),
        (_OF_RUNS, [quantity for quantity in of_runs if quantity.info.listener != KERNEL]),
        (_TOTALS, [quantity for quantity in of_runs if quantity.info.listener == KERNEL]),
    ):
        lines: list[Line] = []
        for line in content.lines:
            if any(line.estimate(quantity) is not None for quantity in quantities):
                is_first = not lines or lines[-1].item is not line.item
                lines.append(replace(line, is_first=is_first))
        if quantities:
            tables.append(values_table(content, lines, quantities, title))
    return tables


def _with_results(content: Content, quantities: Sequence[AnyQuantity]) -> Table:
    """Return a table whose first column of values has the statuses of runs without a result."""
    table = values_table(content, content.lines, quantities)
    columns, start = [*table.columns], len(table.columns) - len(quantities)
    with_column = all(is_shared(quantity) for quantity in quantities[:1])
    if with_column:
        columns.insert(start, ColumnHead("result"))
    rows = []
    for line, row in zip(content.lines, table.rows, strict=True):
        values = [Cell(units.NO_VALUE)] * with_column + [*row.cells[start:]]
        rows.append(Row([*row.cells[:start], *_with_status(values, line)], row.is_first))
    return Table(columns, rows)


def values_table(
    content: Content, lines: Sequence[Line], quantities: Sequence[AnyQuantity], title: str = ""
) -> Table:
    """Return a table with a column for each of some quantities.

    With a title, the table has no intervals on a terminal and no other place for statuses.
    """
    columns = _keys(content.items)
    columns.append(ColumnHead("runs", role=Role.LEAD, is_number=False))
    columns += [
        ColumnHead("n", role=Role.LEAD, scope=scope, explanation="repeats") for scope in Scope
    ]
    axes = [_axis(lines, quantity) for quantity in quantities]
    columns += [
        ColumnHead(
            axis.title,
            axis.unit,
            scope=_scope(axis.quantity),
            explanation=axis.quantity.info.explanation,
        )
        for axis in axes
    ]
    rows = []
    for line in lines:
        status = line.group.status
        ended = "" if status is RunStatus.FINISHED or not title else f" {status}"
        cells = [
            *_key_cells(content.items, line),
            Cell(f"{runs_text(line.group)}{ended}"),
            Cell(_repeats(line)),
            Cell(_count(line, quantities) if line.is_first else ""),
            *(_value_cell(line, axis, with_interval=not title) for axis in axes),
        ]
        rows.append(Row(cells, line.is_first))
    return Table(columns, rows, title)


def _count(line: Line, quantities: Sequence[AnyQuantity]) -> str:
    """Return the number of repeats behind a workload's values; the largest if they differ."""
    counts = [
        estimate.count
        for quantity in quantities
        if is_shared(quantity) and (estimate := line.estimate(quantity)) is not None
    ]
    return str(max(counts)) if counts else units.NO_VALUE


def _axis(lines: Sequence[Line], quantity: AnyQuantity) -> ScaledQuantity:
    estimates = [line.estimate(quantity) for line in lines if line.shows(quantity)]
    return scaled(quantity, [estimate for estimate in estimates if estimate is not None])


def _value_cell(line: Line, axis: ScaledQuantity, *, with_interval: bool) -> Cell:
    if not line.shows(axis.quantity):
        return Cell()
    estimate = line.estimate(axis.quantity)
    if estimate is None:
        why = line.item.summary.why_missing(axis.quantity, line.group)
        return Cell(units.NO_VALUE, tone=Tone.DIM, explanation=why)
    return Cell(
        with_unit(axis.quantity, estimate, brief=not with_interval),
        axis.number_text(estimate),
        axis.spread(estimate),
        describe(axis.quantity, estimate, len(line.group.runs)),
    )
