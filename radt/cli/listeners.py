"""``radt listeners``: what can be measured on this machine."""

from __future__ import annotations

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt.listeners import registry
from radt.listeners.api import Availability, Listener


@click.command("listeners")
def command() -> None:
    """List the listeners installed here: whether they work, and what they read.

    Names go into the Listeners column of an experiment file, joined by +, with an interval if it
    shall not be the default: top@500ms+smi.
    """
    console = Console(highlight=False)
    found = registry.load()
    for name, kind in sorted(found.listeners.items()):
        _print_listener(console, name, kind)
    for name, reason in sorted(found.broken.items()):
        console.print(Text.assemble((name, "bold"), "  ", ("cannot be loaded", "red")))
        console.print(Padding(Text(reason, style="dim"), (0, 0, 1, 2)))


def _print_listener(console: Console, name: str, kind: type[Listener]) -> None:
    answer = _probe(kind)
    state = ("available", "green") if answer.available else ("unavailable", "yellow")
    interval = (f"every {kind.default_interval_s:g} s", "dim")
    console.print(Text.assemble((name, "bold"), "  ", state, "  ", interval))
    for line in filter(None, (answer.reason, answer.remedy)):
        console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for metric in kind.metrics():
        table.add_row(
            metric.name, metric.unit, str(metric.scope), Text(metric.description, style="dim")
        )
    console.print(Padding(table, (0, 0, 1, 2)))


def _probe(kind: type[Listener]) -> Availability:
    try:
        return kind.probe()
    except Exception as error:  # noqa: BLE001 - third-party code that breaks its contract
        return Availability(False, f"its probe raised {type(error).__name__}: {error}")
