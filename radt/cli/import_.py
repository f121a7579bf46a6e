"""``radt import SOURCE…``: import runs from archives, MLflow and files of other trackers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import click

from radt.cli import print_error
from radt.cli.options import setting_option
from radt.delivery.archive.read import Archive, Imported, find_archives, import_archive
from radt.delivery.process import block_packages
from radt.errors import ArchiveError, RadtError, UsageError, cut
from radt.experiment.columns import did_you_mean
from radt.home import Home
from radt.importers.files import FileSource
from radt.importers.importing import Import, ImportResult
from radt.settings import HOME, TRACKING_URI
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.units import plural, size


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "--experiment",
    "experiments",
    metavar="NAME",
    multiple=True,
    help="Import only this experiment from mlflow:URI; repeatable.",
)
@click.option(
    "--to",
    "target",
    metavar="URI",
    help="Postgres database to fill.  [default: radt.db in the data folder]",
)
@setting_option(HOME)
@setting_option(TRACKING_URI)
def command(
    sources: tuple[str, ...],
    experiments: tuple[str, ...],
    target: str | None,
    home: str | None,
    tracking_uri: str | None,
) -> int:
    """Import runs from archives, MLflow and the files of other trackers.

    A SOURCE is a file RUN.radt of radt export, a folder or s3://bucket/prefix with one or more
    archives, a run in MLflow (its id, or runs:/ID), mlflow:URI for all runs of an MLflow server
    (http://…), database (sqlite:///FILE, postgresql://…) or folder, tensorboard:DIR for event
    files, wandb:DIR for folders of W&B, or csv:FILE_OR_DIR.
    Importing again adds only new data.
    """
    data = Home.resolve(home)
    mlflow = data.tracking_uri(tracking_uri)
    address = StoreAddress.of(target) if target else StoreAddress.of(data.store_path)
    uris = [source.removeprefix(PREFIX) for source in sources if source.startswith(PREFIX)]
    files = [s for s in sources if ":" in s and s.partition(":")[0] in _FILES]
    places = [place for place in sources if not place.startswith(PREFIX) and place not in files]
    if experiments and not uris:
        raise UsageError("--experiment needs a source mlflow:URI", "Add mlflow:URI")
    if (uris or files) and address.path is not None:
        data.create()
    codes = [import_from_mlflow(uri or mlflow, experiments, address) for uri in uris]
    codes += [_import_files(source, address) for source in files]
    if places:
        codes.append(_import_archives(places, data, mlflow, address))
    return max(codes)


def _import_archives(places: list[str], data: Home, mlflow: str, address: StoreAddress) -> int:
    """Import archives, print a line for each, and return the exit code."""
    archives = [archive for place in places for archive in find_archives(_spelled(place), mlflow)]
    failures: list[RadtError] = []
    if address.path is not None:
        data.create()
    with StoreWriter(address) as writer:
        total = size(sum(archive.size_bytes for archive in archives))
        click.echo(f"{plural(len(archives), 'archive')}, {total} → {address}\n")
        for archive in archives:
            try:
                imported = import_archive(archive, writer)
            except ArchiveError as error:
                failures.append(error)
                click.echo(f"  {archive}  {click.style('✘ not imported', fg='red')}")
            else:
                _print_line(imported)
    return _finish(address, archives, failures)


def _spelled(place: str) -> str | Path:
    """Return a path if a folder of this name exists, whatever the name looks like."""
    path = Path(place)
    return path if path.is_dir() else place


def _print_line(imported: Imported) -> None:
    run = imported.run
    label = f"{run.workload} {run.letter}".strip()
    name = f"{run.experiment} {label} {run.name}".strip()
    click.echo(f"  {run.run_id[:12]}  {cut(name, 32):<32}  {_what(imported)}")


def _what(imported: Imported) -> str:
    more = "" if imported.is_complete else "; the archive is not complete yet, import it again"
    if imported.is_new:
        return f"{plural(imported.points, 'value')}{more}"
    if imported.points:
        return f"added {imported.points:,} of {plural(imported.total_points, 'value')}{more}"
    return click.style(f"already imported{more}", dim=True)


def _finish(address: StoreAddress, archives: list[Archive], failures: list[RadtError]) -> int:
    click.echo()
    for error in failures:
        print_error(error)
    if failures:
        click.echo(f"{len(failures)} of {plural(len(archives), 'archive')} not imported", err=True)
        return 1
    with StoreReader(address) as reader:
        experiments = len(reader.experiments())
    click.echo(f"  radt dashboard  {plural(experiments, 'experiment')} to compare in the browser")
    return 0


PREFIX = "mlflow:"


#: Modules of `radt.importers` that read a tracker's files; two need the tracker's own package.
_FILES = {"csv": "csv_logs", "tensorboard": "tensorboard", "wandb": "wandb"}


def import_from_mlflow(uri: str, experiments: Iterable[str], address: StoreAddress) -> int:
    """Import runs of all or some experiments, print the result, and return the exit code.

    Raises:
        UsageError: MLflow has no such experiment, or the URI is not an MLflow URI.
        TrackingError: MLflow does not answer.
        StoreError: The store cannot be written.
    """
    # Importing MLflow takes seconds.
    block_packages("pandas")
    from radt.importers.mlflow import MlflowSource
    from radt.importers.mlflow_import import MlflowImport

    wanted = tuple(experiments)
    source = MlflowSource(uri, wanted)
    source.connect()
    names = sorted(source.experiments()) if wanted else []
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"MLflow at {source.where} has no experiment '{name}'",
                did_you_mean(name, names) or f"It has {', '.join(names) or 'no experiments'}",
            )
    click.echo(f"{source.where} → {address}\n")
    with StoreWriter(address) as writer:
        result = MlflowImport(source, writer, _print_progress).run()
    return _print_result(result)


def _import_files(given: str, address: StoreAddress) -> int:
    """Import runs from files of another tracker, print the result, and return the exit code.

    Raises:
        UsageError: There are no such files, or their reader is not installed.
        StoreError: The store cannot be written.
    """
    kind, _, place = given.partition(":")
    if not place:
        raise UsageError(f"{given} names no folder", f"Give {kind}:FOLDER")
    if not Path(place).exists():
        raise UsageError(f"{place} does not exist", f"Give {kind}:FOLDER")
    source = _file_source(kind, Path(place))
    click.echo(f"{given} → {address}\n")
    with StoreWriter(address) as writer:
        result = Import(source, writer, _print_progress).run()
    return _print_result(result)


def _file_source(kind: str, place: Path) -> FileSource:
    try:
        module = import_module(f"radt.importers.{_FILES[kind]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != kind:
            raise
        raise UsageError(
            f"reading {kind} logs requires the package {kind} ({error})",
            f"Run `pip install {kind}`, or `pip install 'radt[import]'`",
        ) from error
    source: FileSource = module.source(place)
    return source


def _print_result(result: ImportResult) -> int:
    for where, error in result.failed:
        click.echo(f"{click.style('radt:', fg='red', bold=True)} {where}: {error}", err=True)
    for problem in result.damaged:
        click.echo(f"{click.style('radt:', fg='yellow', bold=True)} {problem}", err=True)
    for name in result.left_out:
        click.echo(f"  not imported: {name}", err=True)
    if result.without_archive:
        click.echo(
            f"  {plural(result.without_archive, 'run')} recorded by radt without an archive yet: "
            "radt writes archives every 15 minutes and at the end of a run"
        )
    click.echo(f"  {result}")
    return 1 if result.failed or result.damaged else 0


def _print_progress(done: int, total: int) -> None:
    """Keep one line up to date on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r  {done:,} of {plural(total, 'run')}\x1b[K", nl=False, err=True)
        if done == total:
            click.echo("\r\x1b[K", nl=False, err=True)
