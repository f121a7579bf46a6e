"""``radt listeners``: what can be measured on this machine, and by which names."""

from __future__ import annotations

import json

import click
from rich.console import Console

from radt.cli.listener_entries import Entry, all_entries, entry_of
from radt.cli.listener_lines import overview_lines, source_lines
from radt.cli.render import printable
from radt.errors import UsageError
from radt.experiment.cells import did_you_mean
from radt.listeners import registry
from radt.listeners.api import Registry


@click.command("listeners")
@click.argument("name", required=False)
@click.option("-v", "--verbose", is_flag=True, help="Also the series of what does not work here.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def command(name: str | None, verbose: bool, as_json: bool) -> None:
    """List what can be measured here; of one listener or profiler NAME, everything there is to say.

    Names go into the Listeners column of an experiment file, joined by +, with options and with an
    interval if it shall not be the default: top:cores@500ms+smi. The word default stands for the
    listeners of a run that names none.
    """
    found = registry.load()
    entries = all_entries(found) if name is None else [_find(found, name)]
    if as_json:
        document = [entry.document() for entry in entries]
        click.echo(json.dumps(document if name is None else document[0], indent=2))
        return
    console = Console(highlight=False)
    lines = (
        overview_lines(entries, console.width, verbose=verbose)
        if name is None
        else source_lines(entries[0], console.width)
    )
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)


def _find(found: Registry, name: str) -> Entry:
    wanted = name.lower()
    entry = entry_of(found, registry.ALIASES.get(wanted, wanted))
    if entry is None:
        names = (*found.names, *found.broken, *registry.ALIASES)
        remedy = did_you_mean(name, names) or "radt listeners shows what there is"
        raise UsageError(f"there is no listener or profiler {printable(name)!r}", remedy)
    return entry
