"""``radt report EXPERIMENT``: what an experiment showed."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from radt.cli.options import reading_options
from radt.errors import UsageError
from radt.report.summary import WorkloadSummary, left_out_text, profiled_count, summarise
from radt.report.tables import energy_rules, energy_table, summary_table
from radt.store.locate import Places, Readers


@click.command("report")
@click.argument("experiment")
@click.option(
    "--profiled",
    is_flag=True,
    help="Include workloads with a run under a profiler, which slows all of them down.",
)
@reading_options
def command(experiment: str, profiled: bool, places: Places) -> None:
    """Print time per epoch, slowdown against solo, throughput and load of an EXPERIMENT.

    The first epoch is warm-up and left out. "vs solo" compares with the run of the same file,
    parameters and devices that ran alone. "energy" is that of whole GPUs, each counted once,
    whoever used them meanwhile; "est." is a run's share by the rule that is printed.
    """
    with Readers(places) as readers:
        found = _nearest(readers, experiment, profiled=profiled)
        if found is None:
            known = dict.fromkeys(
                entry.name for reader in readers.nearest_first() for entry in reader.experiments()
            )
            raise UsageError(
                f"no finished run of an experiment {experiment!r} in {places}",
                f"Experiments there: {', '.join(known) or 'none yet'}",
            )
    workloads, left_out = found
    console = Console(highlight=False)
    console.print()
    if workloads:
        console.print(summary_table(workloads))
    if left_out:
        console.print(f"  {left_out_text(left_out)}; --profiled shows them", style="dim")
    console.print()
    if (energies := energy_table(workloads)) is not None:
        console.print(energies)
        for rule in energy_rules(workloads):
            console.print(Padding(Text(f"est.: {rule}", style="dim"), (0, 0, 0, 2)))
        console.print()


def _nearest(
    readers: Readers, experiment: str, *, profiled: bool
) -> tuple[Sequence[WorkloadSummary], int] | None:
    """What the nearest store with anything to report has, and how many runs are left out of it."""
    for reader in readers.nearest_first():
        workloads = summarise(reader, experiment, profiled=profiled)
        left_out = 0 if profiled else profiled_count(reader, experiment)
        if workloads or left_out:
            return workloads, left_out
    return None
