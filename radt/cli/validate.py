"""``radt validate``: check an experiment file and show its plan."""

from __future__ import annotations

from pathlib import Path

import click

from radt import settings
from radt.cli.options import setting_option
from radt.cli.start_plan import show_plan
from radt.cluster.opened import executor_of
from radt.experiment.lock import ExperimentLock
from radt.runner.options import StartOptions
from radt.settings import Settings
from radt.units import plural


@click.command("validate")
@click.argument("file", type=click.Path(path_type=str))
@click.option("--rerun", is_flag=True, help="Plan for `radt FILE --rerun`.")
@click.option("-d", "--devices", default="", help="Override the Devices column, e.g. with cpu.")
@setting_option(settings.ON)
def command(file: str, rerun: bool, devices: str, on: str | None) -> None:
    """Check an experiment FILE and print what a start would do.

    Nothing is started, submitted or written. Every problem is shown at once, with its line and
    column; the exit code is 2 if there are any. With --on, the cluster is asked about every job.
    """
    values = Settings.of(Path(file).absolute().parent, {settings.ON: on})
    options = StartOptions.of(values, rerun=rerun, devices=devices)
    source = show_plan(Path(file), options, executor_of(values)).source
    if source is not None and source.added:
        click.echo(f"\n  A start adds {plural(source.added, 'row')} to {source.shown}.")
    holder = ExperimentLock(file).holder()
    if holder is not None:
        click.echo(
            f"\n  {holder} is running this file. The next start has to wait until it has ended."
        )
