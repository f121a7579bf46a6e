"""Reports as documents.

The first table shows whether collocation pays off; those below explain it. Values of a workload's
devices have one row per workload, values of its runs one per group of like runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from radt import units
from radt.analysis.quantities import Quantity, Reading, joules
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary, WorkloadSummary
from radt.model import RunStatus
from radt.render.model import (
    Block,
    Cell,
    Column,
    Document,
    Note,
    Notes,
    Role,
    Row,
    Scope,
    Table,
    Tone,
)
from radt.render.numbers import INTERVAL_NOTE, ScaledQuantity, describe, scaled, with_unit
from radt.render.report_content import (
    Content,
    Line,
    Matrix,
    charts_of,
    is_shared,
    matrices,
    reasons_of,
    runs_text,
    with_children,
    workload_name,
)

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
        blocks += map(_interference, matrices(content))
    blocks.append(Notes([Note(text, Tone.DIM) for text in _notes(content)]))
    facts = []
    if content.items:
        services = sum(
            len(group.runs)
            for item in content.items
            for group in item.summary.groups
            if group.is_service
        )
        facts = [
            units.plural(len(content.items), "workload"),
            units.plural(sum(item.summary.run_count for item in content.items), "run"),
            *([units.plural(services, "service")] if services else ()),
            f"window: {content.window}",
        ]
    return Document(content.title, facts, blocks)


def summary_table(workloads: Sequence[WorkloadSummary]) -> Table:
    """Return the table at the end of an experiment; repeats and energy only if available."""
    lines = [
        (workload, group, place == 0)
        for workload in workloads
        for place, group in enumerate(with_children(workload.groups))
    ]
    with_repeats = any(group.repeats > 1 for _, group, _ in lines)
    quantities = [*_SUMMARY]
    if any(workload.energy.gpus_j is not None for workload in workloads):
        quantities.append(Quantity.ENERGY)
    columns = [*_keys(workloads), Column("runs", role=Role.LEAD, is_number=False)]
    # A group knows its newest runs: with repeats, one duration would stand beside means of all.
    columns += [Column("n", role=Role.LEAD)] if with_repeats else [Column("took")]
    columns += [Column(quantity.info.title, scope=_scope(quantity)) for quantity in quantities]
    rows = []
    for workload, group, is_first in lines:
        cells = [*_key_cells(workloads, workload, is_first=is_first), Cell(runs_text(group))]
        duration = units.duration(_mean_duration_s(group))
        cells += [Cell(_repeats(group) if with_repeats else duration)]
        for quantity in _SUMMARY:
            cells.append(Cell(quantity.info.text(group.mean(quantity))))
        if group.status is not RunStatus.FINISHED:
            cells[-len(_SUMMARY)] = _status_cell(group)
        if len(quantities) > len(_SUMMARY):
            cells.append(Cell(joules(workload.energy.gpus_j) if is_first else ""))
        rows.append(Row(cells, is_first))
    return Table(columns, rows)


def _mean_duration_s(group: GroupSummary) -> float | None:
    """Return how long the runs of a group took on average; None if none has ended."""
    taken_s = [
        (run.run.ended_ns - run.run.started_ns) / 1e9
        for run in group.runs
        if run.run.started_ns is not None and run.run.ended_ns is not None
    ]
    return fmean(taken_s) if taken_s else None


def epochs_hint(workloads: Sequence[WorkloadSummary]) -> str:
    """Return how scripts come to a time per epoch; empty where all that finished have one."""
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
    columns = [
        *_keys(workloads),
        Column("run", role=Role.LEAD, is_number=False),
        Column("energy, est."),
        Column("of its GPUs"),
    ]
    rows = []
    for workload in workloads:
        energy = workload.energy
        shares = [(f"{run.letter}  {run.name}".strip(), run.estimated_j) for run in energy.runs]
        if energy.rest_j is not None:
            shares.append(("idle and others", energy.rest_j))
        for place, (name, amount_j) in enumerate(shares):
            share = amount_j / energy.gpus_j if energy.gpus_j else None
            cells = [Cell(name), Cell(joules(amount_j)), Cell(units.percent(share))]
            keys = _key_cells(workloads, workload, is_first=place == 0)
            rows.append(Row([*keys, *cells], place == 0))
    return Table(columns, rows)


def _keys(workloads: Sequence[WorkloadSummary]) -> list[Column]:
    titles = ["workload", "machine"] if _several_hosts(workloads) else ["workload"]
    return [Column(title, role=Role.KEY, scope=Scope.GROUP, is_number=False) for title in titles]


def _key_cells(
    workloads: Sequence[WorkloadSummary], workload: WorkloadSummary, *, is_first: bool
) -> list[Cell]:
    texts = [workload_name(workload, with_host=False)]
    texts += [workload.host] if _several_hosts(workloads) else []
    return [Cell(text if is_first else "") for text in texts]


def _several_hosts(workloads: Sequence[WorkloadSummary]) -> bool:
    return len({workload.host for workload in workloads}) > 1


def _is_total(quantity: AnyQuantity) -> bool:
    return quantity.info.reading is Reading.TOTAL


def _scope(quantity: AnyQuantity) -> Scope:
    return Scope.GROUP if is_shared(quantity) else Scope.ROW


def _repeats(group: GroupSummary) -> str:
    return str(group.repeats) if group.status is RunStatus.FINISHED else units.NO_VALUE


def _status_cell(group: GroupSummary) -> Cell:
    tone = Tone.BAD if group.status in _BAD else Tone.NORMAL
    return Cell(group.status.value, explanation="; ".join(reasons_of(group)), tone=tone)


def _tables(content: Content) -> list[Table]:
    """Return the tables of a report; none without workloads."""
    if not content.items:
        return []
    if content.is_chosen:
        return [_table(content, "", content.lines, content.quantities)]
    # The table of energies has the shares of the runs, and the unassigned rest.
    shown = [quantity for quantity in content.quantities if quantity is not Quantity.ENERGY_OF_RUNS]
    essential: list[AnyQuantity] = [quantity for quantity in ESSENTIAL if quantity in shown]
    essential += content.of_series
    rest = [quantity for quantity in shown if quantity not in essential]
    tables = [_table(content, "", content.lines, essential)]
    for title, quantities in (
        (_OF_WORKLOADS, [quantity for quantity in rest if is_shared(quantity)]),
        (
            _OF_RUNS,
            [quantity for quantity in rest if not (is_shared(quantity) or _is_total(quantity))],
        ),
        (_TOTALS, [quantity for quantity in rest if _is_total(quantity)]),
    ):
        lines: list[Line] = []
        for line in content.lines:
            if any(line.estimate(quantity) is not None for quantity in quantities):
                is_first = not lines or lines[-1].item is not line.item
                lines.append(replace(line, is_first=is_first))
        if quantities:
            tables.append(_table(content, title, lines, quantities))
    return tables


def _table(
    content: Content, title: str, lines: Sequence[Line], quantities: Sequence[AnyQuantity]
) -> Table:
    """Return a table of some quantities; the first, without a title, has the statuses."""
    workloads = [item.summary for item in content.items]
    columns = _keys(workloads)
    columns.append(Column("runs", role=Role.LEAD, is_number=False))
    columns += [Column("n", role=Role.LEAD, scope=scope, explanation="repeats") for scope in Scope]
    with_result = not title and all(is_shared(quantity) for quantity in quantities[:1])
    columns += [Column("result")] if with_result else []
    axes = [_axis(lines, quantity) for quantity in quantities]
    columns += [
        Column(
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
            *_key_cells(workloads, line.item.summary, is_first=line.is_first),
            Cell(f"{runs_text(line.group)}{ended}"),
            Cell(_repeats(line.group)),
            Cell(_count(line, quantities) if line.is_first else ""),
        ]
        values = [_value_cell(line, axis, with_interval=not title) for axis in axes]
        if with_result:
            values.insert(0, Cell(units.NO_VALUE))
        if not title and status is not RunStatus.FINISHED:
            values[0] = _status_cell(line.group)
        rows.append(Row([*cells, *values], line.is_first))
    return Table(columns, rows, title)


def _count(line: Line, quantities: Sequence[AnyQuantity]) -> str:
    """Return the number of repeats behind a workload's values; the largest if they differ."""
    counts = [
        estimate.count
        for quantity in quantities
        if is_shared(quantity) and (estimate := line.estimate(quantity)) is not None
    ]
    return str(max(counts)) if counts else units.NO_VALUE


def _has_value(line: Line, quantity: AnyQuantity) -> bool:
    """Return whether a row shows a quantity: a workload's is in its first row only."""
    return line.is_first or not is_shared(quantity)


def _axis(lines: Sequence[Line], quantity: AnyQuantity) -> ScaledQuantity:
    estimates = [line.estimate(quantity) for line in lines if _has_value(line, quantity)]
    return scaled(quantity, [estimate for estimate in estimates if estimate is not None])


def _value_cell(line: Line, axis: ScaledQuantity, *, with_interval: bool) -> Cell:
    if not _has_value(line, axis.quantity):
        return Cell()
    estimate = line.estimate(axis.quantity)
    if estimate is None:
        return Cell(units.NO_VALUE, tone=Tone.DIM)
    return Cell(
        with_unit(axis.quantity, estimate, brief=not with_interval),
        axis.number_text(estimate),
        axis.spread(estimate),
        describe(axis.quantity, estimate, len(line.group.runs)),
    )


def _interference(matrix: Matrix) -> Table:
    columns = [Column("", role=Role.KEY, is_number=False)]
    columns += [Column(name) for name in matrix.columns]
    rows = [
        Row(
            [
                Cell(name),
                *(
                    Cell(units.NO_VALUE, tone=Tone.DIM)
                    if cell is None
                    else Cell(cell.text, explanation=cell.about, heat=cell.heat)
                    for cell in cells
                ),
            ]
        )
        for name, cells in zip(matrix.rows, matrix.cells, strict=True)
    ]
    return Table(columns, rows, matrix.title, f"{matrix.explanation}.")


def _notes(content: Content) -> Iterator[str]:
    if any(
        estimate.interval is not None
        for line in content.lines
        for quantity in content.quantities
        if (estimate := line.estimate(quantity)) is not None
    ):
        yield INTERVAL_NOTE
    yield from content.notes
    if any(report.left_out for report in content.reports):
        yield "Run with --profiled to include them."
