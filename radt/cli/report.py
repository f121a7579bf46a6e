"""``radt report EXPERIMENT``: what an experiment showed."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from radt.cli.options import home_option
from radt.errors import UsageError
from radt.home import Home
from radt.report.summary import left_out_text, profiled_count, summarise
from radt.report.tables import energy_rules, energy_table, summary_table
from radt.store.reader import StoreReader


@click.command("report")
@click.argument("experiment")
@click.option(
    "--profiled",
    is_flag=True,
    help="Include workloads with a run under a profiler, which slows all of them down.",
)
@home_option
def command(experiment: str, profiled: bool, home: Path | None) -> None:
    """Print time per epoch, slowdown against solo, throughput and load of an EXPERIMENT.

    The first epoch is warm-up and left out. "vs solo" compares with the run of the same file,
    parameters and devices that ran alone. "energy" is that of whole GPUs, each counted once,
    whoever used them meanwhile; "est." is a run's share by the rule that is printed.
    """
    with StoreReader(Home.resolve(home).store_path) as reader:
        workloads = summarise(reader, experiment, profiled=profiled)
        left_out = 0 if profiled else profiled_count(reader, experiment)
        known = ", ".join(entry.name for entry in reader.experiments()) or "none yet"
    if not workloads and not left_out:
        raise UsageError(
            f"no finished run of an experiment {experiment!r}", f"Experiments here: {known}"
        )
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
