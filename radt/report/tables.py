"""The summary as a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from radt import units
from radt.model import RunStatus
from radt.report.summary import WorkloadSummary


def summary_table(workloads: Sequence[WorkloadSummary]) -> Table:
    """One line for each kind of run of each workload; energy and repeats only if there are any.

    Where runs came to no end, the column of times says how they ended.
    """
    with_repeats = any(group.repeats > 1 for workload in workloads for group in workload.groups)
    with_energy = any(workload.energy_j is not None for workload in workloads)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  workload", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("runs", no_wrap=True, overflow="ellipsis", max_width=18)
    if with_repeats:
        table.add_column("repeats", justify="right", no_wrap=True)
    for title in ("time/epoch", "vs solo", "samples/s", "cpu"):
        table.add_column(title, justify="right", no_wrap=True)
    if with_energy:
        table.add_column("energy", justify="right", no_wrap=True)
    for workload in workloads:
        for position, group in enumerate(workload.groups):
            first = position == 0
            alike = len({run.run.name for run in group.runs}) == 1
            count = f"{len(group.runs)} × " if len(group.runs) > 1 and alike else ""
            finished = group.status is RunStatus.FINISHED
            cells: list[Text | str] = [
                Text(f"  {workload.label if first else ''}", style="bold"),
                Text(f"{count}{group.name}"),
                *([str(group.repeats) if finished else units.NO_VALUE] if with_repeats else []),
                units.duration(group.time_per_epoch_s) if finished else str(group.status),
                units.factor(group.slowdown),
                units.NO_VALUE
                if group.samples_per_s is None
                else units.significant(group.samples_per_s),
                units.percent(group.cpu_cores),
            ]
            if with_energy:
                cells.append(
                    f"{units.significant(workload.energy_j)} J"
                    if first and workload.energy_j is not None
                    else units.NO_VALUE
                )
            table.add_row(*cells)
    return table
