"""``radt db``: upgrade the store, check it for inconsistencies, and manage its readers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import click
from rich.console import Console
from rich.text import Text

from radt.cli.options import (
    data_folder,
    exclusive_store_options,
    json_option,
    print_json,
    setting_option,
)
from radt.cli.render import print_folded
from radt.errors import TrackingError, UsageError
from radt.home import Home
from radt.masking import masked
from radt.render.model import printable
from radt.settings import TRACKING_URI
from radt.store.backend import StoreAddress
from radt.store.check import Counts, Defect, Trouble, check_deep, count
from radt.store.check import check as check_store
from radt.store.locate import Places
from radt.store.reader import StoreReader
from radt.store.spools import check_spools, losses
from radt.units import plural

EXIT_WRONG = 1
#: Number of findings of one kind that are shown; --json has all.
_SHOWN = 50


@dataclass
class _Report:
    """One store. ``notes`` say what could not be checked, and which values were lost."""

    store: str
    counts: Counts
    findings: list[Defect] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@click.command("check")
@click.option(
    "--deep", is_flag=True, help="Also decode all samples and compare them with their headers."
)
@click.option(
    "--mlflow/--no-mlflow", "with_mlflow", default=True, help="Compare with the runs in MLflow."
)
@json_option
@setting_option(TRACKING_URI)
@exclusive_store_options
def check(
    deep: bool,
    with_mlflow: bool,
    as_json: bool,
    tracking_uri: str | None,
    places: Places,
) -> int:
    """Check the data folder's store and the shared store for inconsistencies.

    Prints the size of each store and one line per finding, with its remedy. Also lists runs that
    have lost logged values, which does not count as a finding. Exits with 1 if there is a finding.
    """
    console = Console(highlight=False)
    home = data_folder(places.stores[0]) or Home.resolve()
    uri = home.tracking_uri(tracking_uri) if with_mlflow else ""
    if with_mlflow and not uri:
        raise UsageError(
            "--mlflow compares with MLflow, and tracking-uri is none",
            "Name MLflow's address with --tracking-uri",
        )
    reports = []
    for store in places.existing:
        with StoreReader(store) as reader:
            report = _Report(str(store), count(reader))
            reports.append(report)
            shown: Counter[Trouble] = Counter()
            if not as_json:
                _print_counts(report, console)
            for finding in _findings(reader, store, report, uri, deep=deep):
                report.findings.append(finding)
                shown[finding.trouble] += 1
                if not as_json and shown[finding.trouble] <= _SHOWN:
                    _print(finding, console)
            if not as_json:
                _print_end(report, shown, console)
    if as_json:
        print_json("check", {"stores": [asdict(report) for report in reports]})
    return EXIT_WRONG if any(report.findings for report in reports) else 0


def _findings(
    reader: StoreReader,
    store: StoreAddress,
    report: _Report,
    tracking_uri: str,
    *,
    deep: bool,
) -> Iterator[Defect]:
    home = data_folder(store)
    report.notes += [f"run {run}: {lost}" for run, lost in losses(reader, home).items()]
    yield from check_store(reader)
    if home is not None:
        yield from check_spools(reader, home)
    if deep:
        with Console(stderr=True).status("0 points decoded", spinner="line") as status:
            yield from check_deep(
                reader,
                lambda points: status.update(
                    f"{points:,} of {report.counts.points:,} points decoded"
                ),
            )
    if tracking_uri:
        from radt.cli.db_mlflow import check_mlflow

        try:
            yield from check_mlflow(reader, tracking_uri, home)
        except TrackingError as error:
            report.notes.append(masked(str(error)))


def _print_counts(report: _Report, console: Console) -> None:
    counts = report.counts
    parts = [
        plural(counts.experiments, "experiment"),
        plural(counts.runs, "run"),
        f"{counts.series:,} series",
        plural(counts.points, "point"),
        plural(counts.chunks, "chunk"),
        plural(counts.markers, "marker"),
    ]
    if counts.pruned_runs:
        parts.append(f"{plural(counts.pruned_runs, 'run')} pruned")
    head = Text.assemble((printable(report.store), "bold"), " · ", ", ".join(parts))
    print_folded(head, console, 2)


def _print(finding: Defect, console: Console) -> None:
    line = Text.assemble(
        ("✘", "red"), f"  {printable(str(finding))}  ", (printable(finding.remedy), "dim")
    )
    print_folded(line, console, 3)


def _print_end(report: _Report, shown: Counter[Trouble], console: Console) -> None:
    for trouble, number in shown.items():
        if number > _SHOWN:
            console.print(
                Text(f"   … and {number - _SHOWN:,} more of kind {trouble}; --json has all", "dim"),
                soft_wrap=True,
            )
    if len(report.notes) > _SHOWN:
        text = f"   {len(report.notes):,} notes, of which the last are shown; --json has all"
        console.print(Text(text, "dim"), soft_wrap=True)
    for note in report.notes[-_SHOWN:]:
        print_folded(Text.assemble(("!", "yellow"), f"  {printable(note)}"), console, 3)
    if report.findings:
        console.print(Text(plural(len(report.findings), "finding"), style="bold red"))
    else:
        console.print(Text("no findings", style="bold"))


_PASSWORD_BYTES = 24


@click.group("db")
def command() -> None:
    """Upgrade and check the store, and manage who can read it."""


command.add_command(check)


@command.command("upgrade")
@click.option(
    "--public-views",
    is_flag=True,
    help="Also create the fe_* views in schema public, replacing existing ones.",
)
@exclusive_store_options
def upgrade(public_views: bool, places: Places) -> None:
    """Upgrade the schema of the data folder's store and of the shared store.

    An empty Postgres database becomes a store. Older versions of radt cannot use an upgraded
    store.
    """
    from radt.store.admin import ViewSource
    from radt.store.admin import upgrade as upgrade_store

    console = Console(highlight=False)
    for store in places.existing:
        done = upgrade_store(store, public_views=public_views)
        if done.before == 0:
            text = f"set up, schema version {done.after}"
        elif done.before == done.after:
            text = f"schema version {done.after}, nothing to do"
        else:
            text = f"schema version {done.before} → {done.after}"
        console.print(Text(f"{store}  {text}"), soft_wrap=True)
        if done.source is not None:
            where = "in schemas radt and public" if public_views else "in schema radt"
            what = f"views fe_* {where} read {done.source}"
            if done.source is ViewSource.CHUNKS:
                what += ": MLflow's tables are not in this database"
            console.print(Text(f"  {what}", "dim"), soft_wrap=True)


@command.command("grant-reader")
@click.argument("name")
@click.option(
    "--password-variable",
    metavar="VARIABLE",
    help="Take the password from this environment variable.",
)
@click.option("--ask", is_flag=True, help="Prompt for the password.")
@click.option("--new-password", is_flag=True, help="Set a new password for an existing role.")
@exclusive_store_options
def grant_reader(
    name: str,
    password_variable: str | None,
    ask: bool,
    new_password: bool,
    places: Places,
) -> None:
    """Give the role NAME read access to the shared store, creating the role if needed.

    For the dashboard and for SQL. Without --ask or --password-variable a new role gets a random
    password, which is shown once.
    """
    import secrets

    from radt.store.admin import grant_reader as grant
    from radt.store.admin import has_role

    address = _shared(places)
    password: str | None = None
    generated = False
    if password_variable is not None:
        password = os.environ.get(password_variable)
        if not password:
            raise UsageError(f"the variable {password_variable} is not set", "Set it, or use --ask")
    elif ask:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    elif new_password or not has_role(address, name):
        password, generated = secrets.token_urlsafe(_PASSWORD_BYTES), True
    done = grant(address, name, password)
    console = Console(highlight=False)
    role = f"role {name} {'created' if done.created else 'exists'}"
    tables = "" if done.mlflow_schema is None else " and MLflow's tables"
    console.print(Text(f"{role}, reads schema radt{tables} of {address}"), soft_wrap=True)
    console.print(Text(f"  RADT_STORE_URI={done.uri}", "dim"), soft_wrap=True)
    if generated:
        console.print(Text.assemble("  PGPASSWORD=", (str(password), "bold")), soft_wrap=True)
        console.print(Text("  shown only once; store it in ~/.pgpass", "dim"), soft_wrap=True)


@command.command("revoke-reader")
@click.argument("name")
@exclusive_store_options
def revoke_reader(name: str, places: Places) -> None:
    """Revoke NAME's access to the shared store; drop the role if radt created it."""
    from radt.store.admin import revoke_reader as revoke

    address = _shared(places)
    removed = revoke(address, name)
    what = "dropped" if removed else "access revoked; radt did not create the role and keeps it"
    click.echo(f"role {name}: {what}")


def _shared(places: Places) -> StoreAddress:
    """Return the Postgres store from the option or the settings."""
    shared = places.shared or Places.of().shared
    if shared is None:
        raise UsageError(
            f"Expected a Postgres store, got the file {places}",
            "Give a Postgres database with --store-uri, RADT_STORE_URI or store-uri in radt.toml",
        )
    return shared
