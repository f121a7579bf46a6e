"""``radt report EXPERIMENT``: its results as a table, Markdown, HTML, CSV, JSON, and figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from radt.cli.options import experiment_of, reading_options, unknown_experiment
from radt.errors import UsageError
from radt.units import plural, size

if TYPE_CHECKING:
    from radt.analysis.report import Report
    from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
    from radt.analysis.window_spec import WindowSpec
    from radt.render.files import ReportFormat
    from radt.render.report_content import Content
    from radt.store.backend import StoreAddress
    from radt.store.locate import Places, Readers

_FORMATS = ("table", "markdown", "html", "csv", "json")
_FIGURE_FORMATS = ("svg", "png", "pdf")
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
    type=click.Choice(_FORMATS),
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
    help="Draw figures into this folder (needs radt[export] and Chrome or Chromium).",
)
@click.option(
    "--figure-format",
    type=click.Choice(_FIGURE_FORMATS),
    default=_FIGURE_FORMATS[0],
    show_default=True,
    help="Format of the figures.",
)
@click.option(
    "--profiled",
    is_flag=True,
    help="Include workloads with a run under a profiler, which slows all of their runs down.",
)
@reading_options
def command(
    experiment: str,
    window: str,
    names: tuple[str, ...],
    overlap: bool,
    file_format: str | None,
    output: Path | None,
    figures: Path | None,
    figure_format: str,
    profiled: bool,
    places: Places,
) -> None:
    """Report time per epoch, slowdown, throughput, utilisation and energy of an EXPERIMENT.

    EXPERIMENT is its name or its file. "vs solo" compares with the run of the same file, parameters
    and devices that ran alone. n is the number of repeats, ± the 95 % confidence interval of the
    mean. "energy" counts each whole GPU once, including other users; estimates have a tilde.
    """
    from radt.analysis.series_quantities import parse_quantity, series_quantities, with_units
    from radt.analysis.window_spec import WindowSpec
    from radt.render.files import ReportFormat
    from radt.render.report_content import Content
    from radt.store.locate import Readers

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
    store, report = nearest
    for problem in report.series.problems:
        raise problem.error
    _put(Content.of(report, with_units(chosen, report.series)), kind, path)
    if figures is not None:
        _draw(store, report, figures, figure_format, chosen, profiled=profiled)


def _nearest(
    readers: Readers,
    experiment: str,
    window: WindowSpec,
    series: tuple[SeriesQuantity, ...],
    *,
    profiled: bool,
) -> tuple[StoreAddress, Report] | None:
    """Return the report of the nearest store that has any results, and the store."""
    from radt.analysis.report import read_report

    for reader in readers.nearest_first():
        report = read_report(reader, experiment, profiled=profiled, window=window, series=series)
        if report.workloads or report.left_out:
            return reader.address, report
    return None


def _file(output: Path | None, experiment: str, kind: ReportFormat) -> Path | None:
    """Return the file to write, None for the standard output.

    Raises:
        UsageError: The file cannot be written.
    """
    from radt.render.files import check_writable, file_name

    if output is None or output == _STANDARD_OUTPUT:
        return None
    path = output / file_name(experiment, kind) if output.is_dir() else output
    check_writable(path, "--output")
    return path


def _put(content: Content, kind: ReportFormat, path: Path | None) -> None:
    from rich.console import Console

    from radt.render.files import ReportFormat, rendered, write
    from radt.render.report import report_document
    from radt.render.terminal import print_document

    if path is not None:
        write(path, rendered(content, kind))
        click.echo(f"{path}  {plural(len(content.items), 'workload')}, {size(path.stat().st_size)}")
    elif kind is ReportFormat.TABLE:
        print_document(Console(highlight=False), report_document(content))
    else:
        click.echo(rendered(content, kind), nl=False)


def _prepare(folder: Path) -> None:
    """Create the folder of figures, before any work is done for them.

    Raises:
        UsageError: It cannot be created or written to, or Kaleido is not installed.
    """
    from radt.frontend.export.renderer import is_installed

    if not is_installed():
        raise UsageError(
            "Figures need Kaleido, which is not installed",
            'Run `pip install "radt[export]"`, or use --format html, which has charts',
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot create {folder}: {error.strerror or error}",
            "Set another folder with --figures",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"Cannot write to {folder}", "Set another folder with --figures")


def _draw(
    store: StoreAddress,
    report: Report,
    folder: Path,
    figure_format: str,
    chosen: Sequence[AnyQuantity],
    *,
    profiled: bool,
) -> None:
    from radt.frontend.data.report_model import OVERLAP, PROFILED, SEPARATOR, SERIES, WINDOW
    from radt.frontend.data.source import Source
    from radt.frontend.export.report_files import draw
    from radt.frontend.export.request import FileFormat
    from radt.frontend.view import View

    options = {WINDOW: report.window.to_text()}
    options |= {OVERLAP: "1"} if report.window.overlap else {}
    options |= {PROFILED: "1"} if profiled else {}
    if report.series.quantities:
        options[SERIES] = SEPARATOR.join(each.value for each in report.series.quantities)
    view = View(experiment=report.experiment, options=options)
    source = Source(store)
    try:
        for path in draw(source, view, folder, FileFormat(figure_format), chosen):
            click.echo(str(path), err=True)
    finally:
        source.close()
