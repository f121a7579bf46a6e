"""``radt export``: write the samples of a run as Parquet or CSV, or all of the run as one file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from radt.cli.options import experiment_of, store_options
from radt.errors import RunNotFoundError, UsageError
from radt.store.export import ExportFormat, export_run
from radt.store.locate import Places, Readers
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.units import plural, size


@click.command("export")
@click.argument("run")
@click.option(
    "--format",
    "file_format",
    type=click.Choice([choice.value for choice in ExportFormat]),
    help="Format of the file.  [default: by the extension of FILE, else parquet]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="File to write; - for standard output.  [default: the id of the run, in this folder]",
)
@click.option(
    "-m",
    "--metric",
    "metrics",
    multiple=True,
    help="Metric to write; may be repeated.  [default: all]",
)
@store_options
def command(
    run: str,
    file_format: str | None,
    output: Path | None,
    metrics: tuple[str, ...],
    places: Places,
) -> None:
    """Write all samples of a RUN at full resolution, or all of the run.

    Parquet and CSV have the samples, with the columns of radt.load(). The format radt has
    everything about the run except files the script wrote: radt import and radt.load() read it
    elsewhere.

    RUN is its id or the first characters of it, or an experiment (name or file) of one run.
    """
    chosen = ExportFormat.choose(file_format, output)
    if metrics and chosen is ExportFormat.RADT:
        raise UsageError("a file of format radt has all metrics", "Leave out --metric")
    with Readers(places) as readers:
        reader, record = _find_run(readers, experiment_of(run, places))
        if str(output) == "-":
            with TemporaryDirectory() as folder:
                path = Path(folder) / chosen.value
                export_run(reader, record, path, chosen, metrics or None)
                with path.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
            return
        path = output or Path(f"{record.run_id[:12]}.{chosen.value}")
        count = export_run(reader, record, path, chosen, metrics or None)
    click.echo(f"{path}  {plural(count, 'value')}, {size(path.stat().st_size)}")


def _find_run(readers: Readers, text: str) -> tuple[StoreReader, RunRecord]:
    try:
        return readers.find_run(text)
    except RunNotFoundError:
        for reader in readers.nearest_first():
            runs = reader.runs(experiment=text)
            if len(runs) == 1:
                return reader, runs[0]
            if runs:
                shown = [f"{run.run_id[:12]} ({run.workload} {run.letter})" for run in runs[:5]]
                more = f" and {len(runs) - 5:,} more" if len(runs) > 5 else ""
                raise UsageError(
                    f"Expected one run, got experiment {text!r} with {len(runs):,} runs",
                    f"Name one of them: {', '.join(shown)}{more}",
                ) from None
        raise
