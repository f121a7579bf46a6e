"""``radt export`` and ``radt trace``: write a run as Parquet, CSV or a trace file."""

from __future__ import annotations

from pathlib import Path

import click

from radt.cli.options import experiment_of, reading_options
from radt.errors import RunNotFoundError, UsageError
from radt.store.export import ExportFormat, export_run
from radt.store.locate import Places, Readers
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.trace.build import MAX_POINTS, Contents, write_trace
from radt.trace.torch_trace import ClockMap
from radt.units import duration, plural, size


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
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write.  [default: the id of the run, in this folder]",
)
@click.option(
    "-m",
    "--metric",
    "metrics",
    multiple=True,
    help="Metric to write; may be repeated.  [default: all]",
)
@reading_options
def command(
    run: str,
    file_format: str | None,
    output: Path | None,
    metrics: tuple[str, ...],
    places: Places,
) -> None:
    """Write all samples of a RUN at full resolution, with the columns of radt.load().

    RUN is its id or the first characters of it, or an experiment (name or file) of one run.
    """
    with Readers(places) as readers:
        reader, record = _find_run(readers, experiment_of(run, places))
        chosen = ExportFormat.choose(file_format, output)
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


_VIEWER = "https://ui.perfetto.dev"


@click.command("trace")
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write; compressed if it ends in .gz.  [default: the run's id, here]",
)
@click.option("--alone", is_flag=True, help="Leave out the runs that shared the machine.")
@reading_options
def trace(run: str, output: Path | None, alone: bool, places: Places) -> None:
    """Write a RUN (id, or its first characters) as a file for ui.perfetto.dev.

    The file has the run's epochs and spans, its measured and logged values, the other runs of its
    workload, and PyTorch's traces (listener torchprof), all on one clock.
    """
    with Readers(places) as readers:
        reader, record = readers.find_run(run)
        path = output or Path(f"{record.run_id[:12]}.trace.json.gz")
        contents = write_trace(reader, record, path, alone=alone, max_points=MAX_POINTS)
    click.echo(f"{path}  {size(path.stat().st_size)}; open it at {_VIEWER}")
    for line in _lines(contents):
        click.echo(f"  {line}")


def _lines(contents: Contents) -> list[str]:
    """Describe what the file has and what it lacks."""
    runs = plural(contents.runs - 1, "neighbour") if contents.runs > 1 else "no neighbours"
    series = f"{contents.series:,} series of {plural(contents.points, 'value')}"
    lines = [f"{runs}, {plural(contents.markers, 'epoch or span', 'epochs and spans')}, {series}"]
    if contents.shortened:
        lines.append(
            f"{plural(contents.shortened, 'long series', 'long series')} shortened to "
            f"{contents.limit:,} values each, extremes kept; radt export has all"
        )
    if contents.gaps:
        lines.append(
            f"{plural(contents.gaps, 'gap')}: counters are 0 there, the gaps' row says why"
        )
    lines += [
        f"{torch.path.name}: {plural(torch.events, 'event')}, {_placed(torch.clock)}"
        for torch in contents.torch
    ]
    lines += [f"{path} is left out: {reason}" for path, reason in contents.broken.items()]
    lines += [f"{path} needs NVIDIA's own viewer" for path in contents.foreign]
    return lines


def _placed(clock: ClockMap) -> str:
    """Describe how a PyTorch trace was put on the run's clock."""
    if clock.error_ns is None:
        return "placed by the wall clock, because it does not record radt's clock"
    drift = f", drift of {duration(abs(clock.drift_ns) / 1e9)} taken out" if clock.drift_ns else ""
    return f"on the run's clock within {duration(clock.error_ns / 1e9)}{drift}"
