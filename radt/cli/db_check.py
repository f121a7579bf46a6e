"""``radt db check``: check the store for inconsistencies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from radt.cli.options import home_option, setting_option
from radt.cli.render import folded, printable
from radt.cli.stores import ChosenStore, all_stores
from radt.errors import TrackingError
from radt.home import Home
from radt.masking import masked
from radt.settings import STORE_URI, TRACKING_URI
from radt.store.check import Counts, Finding, Trouble, check_deep, count
from radt.store.check import check as check_store
from radt.store.reader import StoreReader
from radt.store.spools import check_spools
from radt.units import plural

EXIT_WRONG = 1
#: Findings of one kind that are shown; all are in --json.
_SHOWN = 50


@dataclass
class _Report:
    """One store. ``notes`` say what could not be looked at."""

    store: str
    counts: Counts
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@click.command("check")
@click.option(
    "--deep", is_flag=True, help="Also decode all samples and compare them with their headers."
)
@click.option(
    "--mlflow/--no-mlflow", "with_mlflow", default=True, help="Compare with the runs in MLflow."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@setting_option(TRACKING_URI)
@setting_option(STORE_URI)
@home_option
def check(
    deep: bool,
    with_mlflow: bool,
    as_json: bool,
    tracking_uri: str | None,
    store_uri: str | None,
    home: Path | None,
) -> int:
    """Check the data folder's store and the shared store for inconsistencies.

    Prints the size of each store and one line per finding, with what to do. Exits with 1 if there
    is a finding.
    """
    console = Console(highlight=False)
    uri = Home.resolve(home).tracking_uri(tracking_uri) if with_mlflow else ""
    reports = []
    for store in all_stores(home, store_uri):
        with StoreReader(store.address) as reader:
            report = _Report(str(store.address), count(reader))
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
        click.echo(json.dumps({"stores": [asdict(report) for report in reports]}, indent=2))
    return EXIT_WRONG if any(report.findings for report in reports) else 0


def _findings(
    reader: StoreReader,
    store: ChosenStore,
    report: _Report,
    tracking_uri: str,
    *,
    deep: bool,
) -> Iterator[Finding]:
    yield from check_store(reader)
    if store.home is not None:
        yield from check_spools(reader, store.home)
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
            yield from check_mlflow(reader, tracking_uri, store.home)
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
    for line in folded(head, console, 2):
        console.print(line, soft_wrap=True)


def _print(finding: Finding, console: Console) -> None:
    line = Text.assemble(
        ("✘", "red"), f"  {printable(str(finding))}  ", (printable(finding.remedy), "dim")
    )
    for part in folded(line, console, 3):
        console.print(part, soft_wrap=True)


def _print_end(report: _Report, shown: Counter[Trouble], console: Console) -> None:
    for trouble, number in shown.items():
        if number > _SHOWN:
            console.print(
                Text(f"   … and {number - _SHOWN:,} more of kind {trouble}; --json has all", "dim"),
                soft_wrap=True,
            )
    for note in report.notes:
        for part in folded(Text.assemble(("!", "yellow"), f"  {printable(note)}"), console, 3):
            console.print(part, soft_wrap=True)
    _print_verdict(report.findings, console)


def _print_verdict(findings: Sequence[Finding], console: Console) -> None:
    if findings:
        console.print(Text(plural(len(findings), "finding"), style="bold red"))
    else:
        console.print(Text("no findings", style="bold"))
