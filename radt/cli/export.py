"""``radt export RUN``: a run's samples in a file that other programs read."""

from __future__ import annotations

from pathlib import Path

import click

from radt.cli.options import reading_options
from radt.store.export import ExportFormat, export_run
from radt.store.locate import Places, Readers
from radt.units import plural, size


@click.command("export")
@click.argument("run")
@click.option(
    "--format",
    "file_format",
    type=click.Choice([choice.value for choice in ExportFormat]),
    help="[default: what the name of FILE ends with, else parquet]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write.  [default: the run's id, here]",
)
@click.option("-m", "--metric", "metrics", multiple=True, help="Only this metric; may be repeated.")
@reading_options
def command(
    run: str,
    file_format: str | None,
    output: Path | None,
    metrics: tuple[str, ...],
    places: Places,
) -> None:
    """Write all samples of a RUN (id, or its first characters) at full resolution.

    The columns are those of radt.load().
    """
    with Readers(places) as readers:
        reader, record = readers.find_run(run)
        chosen = ExportFormat.choose(file_format, output)
        path = output or Path(f"{record.run_id[:12]}.{chosen.value}")
        count = export_run(reader, record, path, chosen, metrics or None)
    click.echo(f"{path}  {plural(count, 'value')}, {size(path.stat().st_size)}")
