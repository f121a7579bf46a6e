"""``radt import mlflow:URI``: import runs that MLflow has into a store."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from radt.delivery.process import block_pandas
from radt.errors import UsageError
from radt.experiment.columns import did_you_mean
from radt.store.backend import StoreAddress
from radt.store.writer import StoreWriter
from radt.units import plural

PREFIX = "mlflow:"


def import_from_mlflow(uri: str, experiments: Iterable[str], address: StoreAddress) -> int:
    """Import runs and print what came of it.

    Args:
        uri: MLflow's server, database or folder.
        experiments: Names of those to import; all without any.
        address: The store.

    Returns:
        The exit code.

    Raises:
        UsageError: MLflow has no such experiment, or the URI names nothing.
        TrackingError: MLflow does not answer.
        StoreError: The store cannot be written.
    """
    # MLflow takes seconds to import.
    block_pandas()
    from radt.importers.importing import MlflowImport
    from radt.importers.mlflow import MlflowReader

    source = MlflowReader(uri)
    source.connect()
    wanted = tuple(experiments)
    names = sorted(source.experiments()) if wanted else []
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"MLflow at {source.where} has no experiment '{name}'",
                did_you_mean(name, names) or f"It has {', '.join(names) or 'no experiments'}",
            )
    click.echo(f"{source.where} → {address}\n")
    with StoreWriter(address) as writer:
        result = MlflowImport(source, writer, wanted, _print_progress).run()
    for run_id, error in result.failed:
        click.echo(f"{click.style('radt:', fg='red', bold=True)} run {run_id}: {error}", err=True)
    if result.without_archive:
        click.echo(
            f"  {plural(result.without_archive, 'run')} recorded by radt without an archive yet: "
            "archives come every 15 minutes and at the end of a run"
        )
    click.echo(f"  {result}")
    return 1 if result.failed else 0


def _print_progress(done: int, total: int) -> None:
    """Keep one line up to date on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r  {done:,} of {plural(total, 'run')}\x1b[K", nl=False, err=True)
        if done == total:
            click.echo("\r\x1b[K", nl=False, err=True)
