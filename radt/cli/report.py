"""``radt report EXPERIMENT``: what an experiment showed."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from radt.cli.options import home_option
from radt.errors import UsageError
from radt.home import Home
from radt.report.summary import summarise
from radt.report.tables import energy_rules, energy_table, summary_table
from radt.store.reader import StoreReader


@click.command("report")
@click.argument("experiment")
@home_option
def command(experiment: str, home: Path | None) -> None:
    """Print time per epoch, slowdown against solo, throughput and load of an EXPERIMENT.

    The first epoch is warm-up and left out. "vs solo" compares with the run of the same file,
    parameters and devices that ran alone. "energy" is that of whole GPUs, each counted once,
    whoever used them meanwhile; "est." is a run's share by the rule that is printed.
    """
    with StoreReader(Home.resolve(home).store_path) as reader:
        workloads = summarise(reader, experiment)
        known = ", ".join(entry.name for entry in reader.experiments()) or "none yet"
    if not workloads:
        raise UsageError(
            f"no finished run of an experiment {experiment!r}", f"Experiments here: {known}"
        )
    console = Console(highlight=False)
    console.print()
    console.print(summary_table(workloads))
    console.print()
    if (energies := energy_table(workloads)) is not None:
        console.print(energies)
        for rule in energy_rules(workloads):
            console.print(f"  est.: {rule}", style="dim", markup=False)
        console.print()
