"""``radt validate``: check an experiment file and show its plan."""

from __future__ import annotations

from pathlib import Path

import click

from radt import settings
from radt.cli.cluster_plan import show_cluster_plan
from radt.cli.options import setting_option
from radt.cli.render import render_plan
from radt.cluster.settings import ClusterSettings
from radt.devices.machine import Machine
from radt.experiment.lock import ExperimentLock
from radt.experiment.source import open_source
from radt.listeners import registry
from radt.runner.pending import experiment_options
from radt.settings import Settings
from radt.units import plural


@click.command("validate")
@click.argument("file", type=click.Path(path_type=str))
@click.option("--rerun", is_flag=True, help="Plan for `radt FILE --rerun`.")
@click.option("-d", "--devices", default="", help="Override the Devices column, such as cpu.")
@setting_option(settings.ON)
def command(file: str, rerun: bool, devices: str, on: str | None) -> None:
    """Check an experiment FILE and print what a start would do.

    Nothing is started, submitted or written. Every problem is shown at once, with its line and
    column; the exit code is 2 if there is one. With --on, the cluster is asked about every job.
    """
    values = Settings.of(Path(file).absolute().parent, {settings.ON: on})
    source = open_source(file)
    cluster = ClusterSettings.chosen(values)
    if cluster is None:
        plan = source.plan(Machine.detect(), registry.load(), devices)
        render_plan(plan, rerun=rerun, repeat=source.repeat)
    else:
        options = experiment_options(values, rerun=rerun)
        show_cluster_plan(source, cluster, options, devices=devices, home=values[settings.HOME])
    if source.added:
        click.echo(f"\n  A start adds {plural(source.added, 'row')} to {source.shown}.")
    holder = ExperimentLock(file).holder()
    if holder is not None:
        click.echo(f"\n  It is being run by {holder}; the next start comes after that.")
