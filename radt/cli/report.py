"""``radt report EXPERIMENT``: its results as a table, Markdown, HTML, CSV, JSON, and figures."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import click

from radt.analysis.report import Report, read_report
from radt.analysis.selection import Omission
from radt.analysis.series_quantities import (
    SeriesQuantity,
    parse_quantity,
    series_quantities,
    with_units,
)
from radt.analysis.window_spec import WindowSpec
from radt.cli.options import experiment_of, print_as, store_options, unknown_experiment
from radt.errors import UsageError
from radt.render.bars import charts_of
from radt.render.files import check_writable, file_name, rendered, write
from radt.render.formats import ReportFormat
from radt.render.markup import bars_file
from radt.render.report import report_document
from radt.render.report_content import Content
from radt.store.locate import Places, Readers
from radt.units import plural, size

_STANDARD_OUTPUT = Path("-")


@click.command("report")
@click.argument("experiment")
@click.option(
    "-w",
    "--window",
    default="",
    metavar="WINDOW",
    help="Part of each run that counts: epoch:2, epoch:2-4, epoch:2-, the name of a phase or span "
    "(train), steady, or all.  [default: all epochs after the first]",
)
@click.option(
    "--quantity",
    "names",
    multiple=True,
    metavar="NAME",
    help="Quantity to show, also of any metric: last(accuracy), p95(latency), total(decoded), "
    "time_to(accuracy>=0.65); may be repeated.  [default: all that were measured]",
)
@click.option("--overlap", is_flag=True, help="Count only while all runs of a workload ran.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice([kind.value for kind in ReportFormat]),
    help="Format of the report.  [default: by the extension of FILE, else table]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write or replace; a folder gets a file.  [default: -, standard output]",
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the bars of each quantity into this folder, as SVG.",
)
@click.option(
    "--profiled",
    is_flag=True,
    help="Include workloads with a run under a profiler, which slows all of their runs down.",
)
@store_options
def command(
    experiment: str,
    window: str,
    names: tuple[str, ...],
    overlap: bool,
    file_format: str | None,
    output: Path | None,
    figures: Path | None,
    profiled: bool,
    places: Places,
) -> None:
    """Report time per epoch, slowdown, throughput, utilisation and energy of an EXPERIMENT.

    EXPERIMENT is its name or its file. "vs solo" compares with the run of the same file, parameters
    and devices that ran alone. n is the number of repeats, ± the 95 % confidence interval of the
    mean. "energy" counts each whole GPU once, including other users; estimates have a tilde.
    """
    chosen = tuple(dict.fromkeys(parse_quantity(name) for name in names))
    series = series_quantities(chosen)
    spec = WindowSpec.parse(window, overlap=overlap)
    kind = ReportFormat.choose(file_format, output)
    experiment = experiment_of(experiment, places)
    path = _file(output, experiment, kind)
    if figures is not None:
        _prepare(figures)
    with Readers(places) as readers:
        nearest = _nearest(readers, experiment, spec, series, profiled=profiled)
    if nearest is None:
        raise unknown_experiment(experiment, places, "a finished run")
    for problem in nearest.series.problems:
        raise problem.error
    content = Content.of(nearest, with_units(chosen, nearest.series))
    if path is None:
        print_as(kind, report_document(content), lambda: rendered(content, kind))
    else:
        write(path, rendered(content, kind))
        click.echo(f"{path}  {plural(len(content.items), 'workload')}, {size(path.stat().st_size)}")
    if figures is not None:
        _draw(content, figures)


def _nearest(
    readers: Readers,
    experiment: str,
    window: WindowSpec,
    series: tuple[SeriesQuantity, ...],
    *,
    profiled: bool,
) -> Report | None:
    """Return the report of the nearest store that has any results."""
    for reader in readers.nearest_first():
        report = read_report(reader, experiment, profiled=profiled, window=window, series=series)
        if report.workloads or report.selection.count(*Omission):
            return report
    return None


def _file(output: Path | None, experiment: str, kind: ReportFormat) -> Path | None:
    """Return the file to write, None for the standard output.

    Raises:
        UsageError: The file cannot be written.
    """
    if output is None or output == _STANDARD_OUTPUT:
        return None
    path = output / file_name((experiment, "report"), kind.suffix) if output.is_dir() else output
    check_writable(path, "--output")
    return path


def _prepare(folder: Path) -> None:
    """Create the folder for figures before any work is done.

    Raises:
        UsageError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot create {folder}: {error.strerror or error}",
            "Set another folder with --figures",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"Cannot write to {folder}", "Set another folder with --figures")


def _draw(content: Content, folder: Path) -> None:
    (experiment,) = content.experiments
    charts = charts_of(content, single=True).charts
    if not charts:
        click.echo("No figure is written: no quantity has a value", err=True)
    used: Counter[Path] = Counter()
    for chart in charts:
        quantity = chart.axis.quantity
        words = quantity.words if isinstance(quantity, SeriesQuantity) else quantity.value
        path = folder / file_name((experiment, words), "svg")
        used[path] += 1
        if used[path] > 1:  # long names are cut
            path = path.with_stem(f"{path.stem}-{used[path]}")
        write(path, bars_file(chart, f"{experiment} · {content.window}"))
        click.echo(str(path), err=True)
