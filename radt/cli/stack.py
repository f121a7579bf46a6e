"""``radt stack``: the servers of a team, or of one machine, without containers."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from radt.home import Home
from radt.masking import masked

if TYPE_CHECKING:
    from radt.stack.stack import Stack

_WATCH_S = 2.0
#: Variables whose values are shown as they are.
_HARMLESS = ("RADT_STORE_URI", "_URI", "_URL", "_REGION", "_USERNAME", "_KEY_ID")


@click.group("stack", no_args_is_help=True)
def command() -> None:
    """Postgres, an S3 server and MLflow on this machine, of what is installed.

    \b
    radt stack up        start what does not run; data and passwords are kept in a folder
    radt stack status    what runs
    radt stack env       the variables that scripts and radt need: eval "$(radt stack env)"
    radt stack down      stop it

    All of it listens on this machine only. Servers for several machines: compose.yaml, which
    radt init-stack writes.
    """


dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where its data are.  [default: stack in the data folder]",
)


@command.command("up")
@dir_option
@click.option("--auth/--no-auth", default=None, help="MLflow asks for a password.")
@click.option("--dashboard/--no-dashboard", default=None, help="Serve the dashboard, too.")
@click.option("--mlflow-port", type=click.IntRange(1, 65535), help="MLflow's port.")
@click.option("--dashboard-port", type=click.IntRange(1, 65535), help="The dashboard's port.")
@click.option(
    "--foreground",
    is_flag=True,
    help="Stay, start again what was killed, and stop all of it at Ctrl-C or SIGTERM.",
)
def up(
    folder: Path | None,
    auth: bool | None,
    dashboard: bool | None,
    mlflow_port: int | None,
    dashboard_port: int | None,
    foreground: bool,
) -> None:
    """Start what does not run. Options are remembered."""
    stack = _stack(folder)
    options = stack.options
    ports = {"mlflow": mlflow_port, "dashboard": dashboard_port}
    options = replace(
        options,
        auth=options.auth if auth is None else auth,
        dashboard=options.dashboard if dashboard is None else dashboard,
        ports={**options.ports, **{name: port for name, port in ports.items() if port}},
    )
    stop = threading.Event()
    if foreground:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
    try:
        _show(stack, stack.up(options))
        if foreground:
            _watch(stack, stop)
    finally:
        if foreground:
            stack.down()


@command.command("down")
@dir_option
def down(folder: Path | None) -> None:
    """Stop it; data and passwords stay."""
    stack = _stack(folder)
    ended = stack.down()
    click.echo(f"stopped: {', '.join(ended)}" if ended else f"nothing of {stack.folder} runs")


@command.command("status")
@dir_option
def status(folder: Path | None) -> int:
    """What runs; the exit code is 1 unless all of it does."""
    from radt.runner.console import shown_path

    stack = _stack(folder)
    states = stack.states()
    if not states:
        click.echo(f"There is no stack in {stack.folder}: radt stack up makes one")
    for one in states:
        how = "answers" if one.answers else "does not answer" if one.pid else "does not run"
        more = [f"process {one.pid}"] if one.pid else []
        if not one.answers:
            more.append(shown_path(one.log))
        click.echo(f"{one.name:10} port {one.port:<6} {how:16} {' '.join(more)}".rstrip())
    return 0 if states and all(one.answers for one in states) else 1


@command.command("env")
@dir_option
def env(folder: Path | None) -> int:
    """Print the variables that scripts and radt need, with passwords, for a shell."""
    from radt.errors import StackError
    from radt.stack.secrets_file import read_values
    from radt.stack.stack import CLIENT_FILE

    file = _stack(folder).folder / CLIENT_FILE
    try:
        values = read_values(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StackError(f"{file} is not there", "radt stack up makes it") from None
    for name, value in values.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    return 0


@command.command("prepare", hidden=True)
def prepare() -> None:
    """Roles, database, schema and bucket; run by compose.yaml before the other services."""
    from radt.stack.prepare import prepare_from_environment

    prepare_from_environment()
    click.echo("roles, database, schema and bucket are there")


def _stack(folder: Path | None) -> Stack:
    from radt.stack.stack import Stack

    return Stack(folder or Home.resolve().path / "stack", lambda line: click.echo(line, err=True))


def _show(stack: Stack, environ: dict[str, str]) -> None:
    from radt.stack.stack import CLIENT_FILE

    click.echo(f"\nThe stack of {stack.folder} runs. Its clients are told:\n")
    for name, value in environ.items():
        shown = masked(value) if name.endswith(_HARMLESS) else "***"
        click.echo(f"  {name}={shown}")
    if url := stack.dashboard_url(with_token=sys.stdout.isatty()):
        click.echo(f"\nThe dashboard: {url}")
    where = "" if _is_usual(stack) else f" --dir {shlex.quote(str(stack.folder))}"
    click.echo(
        f'\nWith passwords: eval "$(radt stack env{where})", or {stack.folder / CLIENT_FILE}\n'
        f"radt stack down{where} stops it."
    )


def _is_usual(stack: Stack) -> bool:
    return stack.folder == Home.resolve().path / "stack"


def _watch(stack: Stack, stop: threading.Event) -> None:
    from radt.errors import StackError

    click.echo("Ctrl-C stops it.")
    while not stop.wait(_WATCH_S):
        if dead := stack.dead():
            click.echo(f"{', '.join(dead)} ended and is started again", err=True)
            try:
                stack.up()
            except StackError as error:
                click.echo(f"{error}; it is tried again", err=True)
