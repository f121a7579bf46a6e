"""``radt report EXPERIMENT``: what an experiment showed, to be read, kept, and worked with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from radt.cli.options import reading_options
from radt.errors import UsageError
from radt.units import plural, size

if TYPE_CHECKING:
    from radt.report.formats.content import Content
    from radt.report.formats.kinds import ReportFormat
    from radt.report.summary import Report
    from radt.report.windows import WindowSpec
    from radt.store.address import StoreAddress
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
    help="What of each run counts: epoch:2, epoch:2-4, epoch:2-, the name of a phase or span "
    "(train), steady, or all.  [default: all epochs after the first]",
)
@click.option("--overlap", is_flag=True, help="Only while all runs of the workload ran.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="[default: what the name of FILE ends with, else table]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write, in the place of what is there; a folder gets one.  [default: -, the "
    "standard output]",
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Draw figures into this folder (takes radt's export set and Chrome or Chromium).",
)
@click.option(
    "--figure-format",
    type=click.Choice(_FIGURE_FORMATS),
    default=_FIGURE_FORMATS[0],
    show_default=True,
    help="Of the figures.",
)
@click.option(
    "--profiled",
    is_flag=True,
    help="Include workloads with a run under a profiler, which slows all of them down.",
)
@reading_options
def command(
    experiment: str,
    window: str,
    overlap: bool,
    file_format: str | None,
    output: Path | None,
    figures: Path | None,
    figure_format: str,
    profiled: bool,
    places: Places,
) -> None:
    """Report what an EXPERIMENT showed: time per epoch, slowdown, throughput, activity, energy.

    "vs solo" compares with the run of the same file, parameters and devices that ran alone. n is
    the number of repeats, ± the 95 % confidence interval of the mean. "energy" is that of whole
    GPUs, each counted once, whoever used them meanwhile; what is estimated has a tilde.
    """
    from radt.report.formats.content import Content
    from radt.report.formats.kinds import ReportFormat
    from radt.report.windows import WindowSpec
    from radt.store.locate import Readers

    spec = WindowSpec.parse(window, overlap=overlap)
    kind = ReportFormat.choose(file_format, output)
    path = _file(output, experiment, kind)
    if figures is not None:
        _prepare(figures)
    with Readers(places) as readers:
        found = _nearest(readers, experiment, spec, profiled=profiled)
        if found is None:
            known = dict.fromkeys(
                entry.name for reader in readers.nearest_first() for entry in reader.experiments()
            )
            raise UsageError(
                f"no finished run of an experiment {experiment!r} in {places}",
                f"Experiments there: {', '.join(known) or 'none yet'}",
            )
    store, report = found
    _put(Content.of(report), kind, path)
    if figures is not None:
        _draw(store, report, figures, figure_format, profiled=profiled)


def _nearest(
    readers: Readers, experiment: str, window: WindowSpec, *, profiled: bool
) -> tuple[StoreAddress, Report] | None:
    """The nearest store with anything to report, and what it has."""
    from radt.report.summary import read_report

    for reader in readers.nearest_first():
        report = read_report(reader, experiment, profiled=profiled, window=window)
        if report.workloads or report.left_out:
            return reader.address, report
    return None


def _file(output: Path | None, experiment: str, kind: ReportFormat) -> Path | None:
    """Where to write, None for the standard output.

    Raises:
        UsageError: Nothing can be written there.
    """
    from radt.report.formats.writing import check_writable, file_name

    if output is None or output == _STANDARD_OUTPUT:
        return None
    path = output / file_name(experiment, kind) if output.is_dir() else output
    check_writable(path, "--output")
    return path


def _put(content: Content, kind: ReportFormat, path: Path | None) -> None:
    from rich.console import Console

    from radt.report.formats.kinds import ReportFormat
    from radt.report.formats.terminal import print_report
    from radt.report.formats.writing import rendered, write

    if path is not None:
        write(path, rendered(content, kind))
        click.echo(f"{path}  {plural(len(content.items), 'workload')}, {size(path.stat().st_size)}")
    elif kind is ReportFormat.TABLE:
        console = Console(highlight=False)
        console.print()
        print_report(console, content)
        console.print()
    else:
        click.echo(rendered(content, kind), nl=False)


def _prepare(folder: Path) -> None:
    """Make the folder, before any work is done for what goes into it.

    Raises:
        UsageError: It cannot be made, nothing can be written into it, or what draws figures is not
            installed.
    """
    from radt.frontend.export.renderer import is_installed

    if not is_installed():
        raise UsageError(
            "figures are drawn by Kaleido, which is not installed here",
            'Run `pip install "radt[export]"`; --format html has charts without it',
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made: {error.strerror or error}", "Give another with --figures"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"files cannot be made in {folder}", "Give another with --figures")


def _draw(
    store: StoreAddress, report: Report, folder: Path, figure_format: str, *, profiled: bool
) -> None:
    from radt.frontend.export.asked import FileFormat
    from radt.frontend.report.choices import OVERLAP, PROFILED, WINDOW
    from radt.frontend.report.pictures import draw
    from radt.frontend.source import Source
    from radt.frontend.view import View

    options = {WINDOW: report.window.to_text()}
    options |= {OVERLAP: "1"} if report.window.overlap else {}
    options |= {PROFILED: "1"} if profiled else {}
    view = View(experiment=report.experiment, options=options)
    source = Source(store)
    try:
        for path in draw(source, view, folder, FileFormat(figure_format)):
            click.echo(str(path), err=True)
    finally:
        source.close()
