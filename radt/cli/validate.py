"""``radt validate``: check an experiment file and show its plan."""

from __future__ import annotations

import click

from radt.cli.render import render_plan
from radt.experiment.devices import Machine
from radt.experiment.lock import ExperimentLock
from radt.experiment.source import open_source
from radt.listeners import registry
from radt.units import plural


@click.command("validate")
@click.argument("file", type=click.Path(path_type=str))
@click.option("--rerun", is_flag=True, help="Plan for `radt FILE --rerun`.")
@click.option("-d", "--devices", default="", help="Override the Devices column, such as cpu.")
def command(file: str, rerun: bool, devices: str) -> None:
    """Check an experiment FILE and print what a start would do.

    Nothing is started and nothing written. Every problem is shown at once, with its line and
    column; the exit code is 2 if there is one.
    """
    source = open_source(file)
    plan = source.plan(Machine.detect(), registry.load(), devices)
    render_plan(plan, rerun=rerun, repeat=source.repeat)
    if source.added:
        click.echo(f"\n  A start adds {plural(source.added, 'row')} to {source.shown}.")
    holder = ExperimentLock(file).holder()
    if holder is not None:
        click.echo(f"\n  It is being run by {holder}; the next start comes after that.")
