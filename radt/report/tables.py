"""The summary as a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from radt import units
from radt.model import RunStatus
from radt.report.quantities import ABOUT, Quantity, joules
from radt.report.summary import WorkloadSummary

#: What fits into 80 columns; the dashboard has the rest.
_COLUMNS = (Quantity.TIME_PER_EPOCH, Quantity.SLOWDOWN, Quantity.SAMPLES_PER_S, Quantity.CPU)
_NAME_CHARS = 18
_PARAMS_CHARS = 34


def summary_table(workloads: Sequence[WorkloadSummary]) -> Table:
    """One line for each kind of run of each workload; energy and repeats only if there are any.

    The machine is named where there are several.

    Where runs came to no end, the column of times says how they ended.
    """
    with_repeats = any(group.repeats > 1 for workload in workloads for group in workload.groups)
    with_hosts = _several_hosts(workloads)
    with_energy = any(workload.energy.gpus_j is not None for workload in workloads)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  workload", no_wrap=True, overflow="ellipsis", max_width=16)
    if with_hosts:
        table.add_column("machine", no_wrap=True, overflow="ellipsis", max_width=16)
    # Parameters are told in full, if need be on several lines.
    told = any(
        run.name != run.run.name
        for workload in workloads
        for group in workload.groups
        for run in group.runs
    )
    if told:
        table.add_column("runs", overflow="fold", max_width=_PARAMS_CHARS)
    else:
        table.add_column("runs", no_wrap=True, overflow="ellipsis", max_width=_NAME_CHARS)
    if with_repeats:
        table.add_column("repeats", justify="right", no_wrap=True)
    for quantity in _COLUMNS:
        table.add_column(ABOUT[quantity].title, justify="right", no_wrap=True)
    if with_energy:
        table.add_column("energy", justify="right", no_wrap=True)
    for workload in workloads:
        for position, group in enumerate(workload.groups):
            first = position == 0
            alike = len({run.name for run in group.runs}) == 1
            count = f"{len(group.runs)} × " if len(group.runs) > 1 and alike else ""
            finished = group.status is RunStatus.FINISHED
            cells: list[Text | str] = [
                Text(f"  {workload.label if first else ''}", style="bold"),
                *([Text(workload.host if first else "")] if with_hosts else []),
                Text(f"{count}{group.name}"),
                *([str(group.repeats) if finished else units.NO_VALUE] if with_repeats else []),
                *(ABOUT[quantity].text(group.mean(quantity)) for quantity in _COLUMNS),
            ]
            if not finished:
                cells[-len(_COLUMNS)] = str(group.status)
            if with_energy:
                cells.append(joules(workload.energy.gpus_j if first else None))
            table.add_row(*cells)
    return table


def energy_table(workloads: Sequence[WorkloadSummary]) -> Table | None:
    """What is estimated for each run of what its GPUs used; None where nothing is."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  workload", no_wrap=True, overflow="ellipsis", max_width=16)
    with_hosts = _several_hosts(workloads)
    if with_hosts:
        table.add_column("machine", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("energy, est.", justify="right", no_wrap=True)
    table.add_column("of its GPUs", justify="right", no_wrap=True)
    for workload in workloads:
        energy = workload.energy
        rows = [(f"{run.letter}  {run.name}".strip(), run.estimated_j) for run in energy.runs]
        if energy.rest_j is not None:
            rows.append(("idle and others", energy.rest_j))
        for position, (name, amount_j) in enumerate(rows):
            share = amount_j / energy.gpus_j if energy.gpus_j else None
            label = Text(f"  {workload.label if position == 0 else ''}", style="bold")
            machine = [Text(workload.host if position == 0 else "")] if with_hosts else []
            table.add_row(label, *machine, Text(name), joules(amount_j), units.percent(share))
    return table if table.row_count else None


def energy_rules(workloads: Sequence[WorkloadSummary]) -> Sequence[str]:
    """By which rules `energy_table` apportions."""
    rules = (run.method for workload in workloads for run in workload.energy.runs if run.method)
    return tuple(dict.fromkeys(rules))


def _several_hosts(workloads: Sequence[WorkloadSummary]) -> bool:
    return len({workload.host for workload in workloads}) > 1
