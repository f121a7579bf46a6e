"""``radt sync``: upload pending data to MLflow and Postgres."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from radt import settings, units
from radt.cli.options import setting_option
from radt.collector.recovery import Recovered
from radt.delivery.backlog import compare_again
from radt.delivery.problems import MLFLOW, POSTGRES
from radt.home import Home
from radt.masking import masked, unmasked
from radt.runner.console import RunConsole
from radt.runner.delivering import (
    EXIT_LEFT,
    INDENT,
    RECORD_S,
    PendingUploads,
    follow,
    report_line,
    store_leftovers,
)
from radt.settings import Setting, Settings
from radt.store.reader import StoreReader
from radt.store.spools import kept, losses

#: An upload with a problem is given up for now after this many seconds without progress.
_PATIENCE_S = 8.0


@click.command("sync")
@setting_option(settings.HOME)
@setting_option(settings.STORE_URI)
@setting_option(settings.TRACKING_URI)
@click.option(
    "--all", "everything", is_flag=True, help="Compare every run with its copy in Postgres again."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this time, even if a server never responds; then list what is left.",
)
def command(
    home: str | None,
    store_uri: str | None,
    tracking_uri: str | None,
    everything: bool,
    timeout_s: float,
) -> int:
    """Upload pending data to MLflow and Postgres.

    First reads unread journals into the store: those of scripts whose collector did not answer or
    was killed with them, and those left by a restart of the machine. The collector uploads: you can
    interrupt the wait with Ctrl-C. With --tracking-uri, uploads only the runs of that MLflow
    server. The store keeps no passwords of tracking URIs, so the current ones are used. Exits with
    1 if anything is left, including a journal. Lists runs that lost values to damaged journals,
    until you remove the folder "damaged" of the run.
    """
    deadline_s = time.monotonic() + timeout_s
    given: dict[Setting[Any], str | None] = {
        settings.HOME: home,
        settings.STORE_URI: store_uri,
        settings.TRACKING_URI: tracking_uri,
    }
    values = Settings.of(Path.cwd(), given)
    place = Home(values[settings.HOME])
    mlflow = place.tracking_uri(values[settings.TRACKING_URI])
    postgres = place.store_uri(store_uri or values[settings.STORE_URI], tracking_uri=mlflow)
    console = Console(highlight=False)
    console.print()
    with RunConsole(console) as output:
        drained = store_leftovers(place, min(deadline_s, time.monotonic() + RECORD_S))
        _print_drained(drained, output)
        _print_losses(place, drained, output)
        if everything and postgres:
            compare_again(place.store_path, postgres)
        waiting = _tracking_uris(place.store_path, mlflow, only=bool(tracking_uri))
        if not waiting and mlflow:
            _say(output, "✔", "green", MLFLOW, "up to date", place=masked(mlflow))
        elif not waiting:
            _say(output, "–", "dim", MLFLOW, "tracking-uri is none", "dim")
        delivery = PendingUploads(place.store_path, waiting, postgres)
        done = follow(delivery, output, lambda: deadline_s, _PATIENCE_S)
        if not postgres:
            text = "no database set (--store-uri); samples stay on this machine"
            _say(output, "–", "dim", POSTGRES, text, "dim")
        output.say("")
    return 0 if done and not drained.left else EXIT_LEFT


def _tracking_uris(store: Path, current: str, *, only: bool) -> list[str]:
    """Return the MLflow addresses of pending uploads, with the password of the current one."""
    with closing(StoreReader(store)) as reader:
        uris = list(dict.fromkeys(workload.tracking_uri for workload in reader.workloads()))
        waiting = [
            uri
            for uri in uris
            if uri and (reader.runs_to_deliver(uri) or reader.workloads_to_deliver(uri))
        ]
    known = [unmasked(uri, [current]) for uri in waiting]
    return [uri for uri in known if not only or uri == current]


def _say(output: RunConsole, *line: str, place: str = "") -> None:
    """Print a `report_line`."""
    output.say(report_line(*line, place=place), indent=INDENT)


def _print_drained(drained: Recovered, output: RunConsole) -> None:
    parts = []
    if drained.ended:
        parts.append(f"{units.plural(len(drained.ended), 'run')} ended that no process had ended")
    if drained.points:
        parts.append(f"{units.plural(drained.points, 'value')} from journals")
    text = ", ".join(parts) or ("nothing new" if drained.left else "journals are empty")
    _say(output, "✔", "green", "store", text)
    for run_id, why in drained.failed.items():
        _say(output, "✘", "red", "journal", f"{run_id[:12]}: {why}")
    for run_id in drained.unknown:
        text = f"{run_id[:12]}: not in the store; its journal is kept"
        _say(output, "!", "yellow", "journal", text)
    for host, run_ids in drained.elsewhere.items():
        text = (
            f"{units.plural(len(run_ids), 'run')} of {host} may still be running; if not, run "
            f"`radt sync` on a machine or in a container with this hostname"
        )
        _say(output, "!", "yellow", "journal", text)
    for run_id in drained.waiting:
        text = (
            f"{run_id[:12]}: held by a collector that does not store it; is that process stopped?"
        )
        _say(output, "✘", "red", "journal", text)


def _print_losses(home: Home, drained: Recovered, output: RunConsole) -> None:
    """Print the runs that have just lost values or have damaged files."""
    runs = {*drained.ended, *drained.drained, *kept(home)}
    with closing(StoreReader(home.store_path)) as reader:
        for run_id, lost in losses(reader, home).items():
            if run_id in runs:
                _say(output, "!", "yellow", "journal", f"{run_id[:12]}: {lost}")
