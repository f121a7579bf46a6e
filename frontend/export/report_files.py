"""Reports as files: pictures of their figures, and the routes of their downloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flask import Flask, Response, request

from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.errors import RadtError
from radt.frontend.charts.traces import Figure
from radt.frontend.data.report import content_of, read_shown
from radt.frontend.data.report_model import Choices, Entry, Shown, bars_of, charted
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ChartSpec, Level, Pick
from radt.frontend.export import report_figures
from radt.frontend.export.print_layout import PNG_SCALE, order
from radt.frontend.export.render_worker import Order
from radt.frontend.export.renderer import Renderer
from radt.frontend.export.request import Asked, FileFormat, Share, content_disposition, file_name
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from radt.render.files import ReportFormat, rendered
from radt.render.files import file_name as report_file_name
from radt.render.report_content import matrices

#: The limit on workloads with activity and memory over time: those with the most runs.
MAX_TIMELINES = 12
#: The first recorded metric of each list is drawn, the most informative of a device first.
_ACTIVITY = ("gpu.sm.active", "gpu.mig.sm.active", "gpu.utilization", "process.cpu.utilization")
_MEMORY = ("gpu.memory.used", "gpu.mig.memory.used", "process.memory.rss", "process.memory.pss")
#: Quantities side by side for each model (figures 4.3 to 4.10 of the thesis).
_PANELS = (
    (Quantity.TIME_PER_EPOCH,),
    (Quantity.SM_ACTIVE, Quantity.GPU_UTILIZATION, Quantity.CPU),
    (Quantity.GPU_MEMORY_PEAK, Quantity.MEMORY_PEAK),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure to draw, and the words of its file name."""

    words: tuple[str, ...]
    figure: Figure
    width_px: int
    height_px: int


def draw(
    source: Source,
    view: View,
    folder: Path,
    file_format: FileFormat,
    chosen: Collection[AnyQuantity] = (),
) -> Iterator[Path]:
    """Draw all figures of a report; each file is yielded once it is written.

    Args:
        source: The store.
        view: The view, with experiment and options as on the Report page.
        folder: The folder for the files, which replace those of the same name.
        file_format: The files' format.
        chosen: Only figures of these quantities; all without any.

    Raises:
        PictureError: Kaleido or a browser is missing, or fails.
        StoreError: The store cannot be read.
        UsageError: A file cannot be written.
    """
    from radt.store.whole_file import whole_file

    renderer = Renderer()
    try:
        for words, made in orders(source, view, file_format, chosen):
            path = folder / file_name(words, file_format.value)
            picture = renderer.draw(made)
            with whole_file(path) as temporary:
                temporary.write_bytes(picture)
            yield path
    finally:
        renderer.close()


def orders(
    source: Source, view: View, file_format: FileFormat, chosen: Collection[AnyQuantity] = ()
) -> Iterator[tuple[tuple[str, ...], Order]]:
    """Yield the figures to draw, each with the words of its file name."""
    shown = read_shown(source, view)
    choices = Choices.of(view.options)
    name = shown.experiments[0]
    pictures = _single_pictures(shown, choices, chosen) if chosen else _pictures(shown, choices)
    for picture in pictures:
        yield (
            (name, *picture.words),
            Order(
                picture.figure,
                file_format.value,
                picture.width_px,
                picture.height_px,
                PNG_SCALE if file_format is FileFormat.PNG else 1.0,
            ),
        )
    for entry in [] if chosen else _with_most_runs(shown.entries):
        metrics = _metrics(source, entry)
        if not metrics:
            continue
        charts = tuple(ChartSpec(metric, slot, Level.RUN) for slot, metric in enumerate(metrics))
        pick = Pick.workload(entry.experiment, entry.summary.workload_id)
        timeline = View(picks=(pick,), charts=charts)
        asked = Asked(timeline, Share.PICTURE, file_format)
        yield (name, "timeline", entry.name), order(source, asked, read_selection(source, timeline))


def _single_pictures(
    shown: Shown, choices: Choices, quantities: Iterable[AnyQuantity]
) -> Iterator[Picture]:
    known = {quantity: quantity for quantity in shown.quantities}  # with the units of series
    for quantity in quantities:
        if quantity not in known:
            continue
        bars = report_figures.in_order(bars_of(shown, quantity, choices))
        if any(bar.estimate is not None for bar in bars):
            words = quantity.words if isinstance(quantity, SeriesQuantity) else quantity.value
            yield _picture(report_figures.single(known[quantity], bars, shown), words)


def _pictures(shown: Shown, choices: Choices) -> Iterator[Picture]:
    yield from _single_pictures(shown, choices, charted(shown))
    for model, entries in _uniform(shown.entries).items():
        part = replace(shown, entries=tuple(entries))
        panels = []
        for alternatives in _PANELS:
            for chosen in [
                alternative for alternative in alternatives if alternative in shown.quantities
            ][:1]:
                bars = report_figures.in_order(bars_of(part, chosen, choices))
                if any(bar.estimate is not None for bar in bars):
                    panels.append((chosen, bars))
        if len(panels) > 1:
            yield _picture(report_figures.panels(model, panels), "model", model)
    if (total := report_figures.total_time(shown)) is not None:
        yield _picture(total, "total-time")
    for matrix in matrices(content_of(shown, choices)):
        yield _picture(report_figures.heat_map(matrix), "interference")


def _picture(figure: Figure, *words: str) -> Picture:
    layout = figure["layout"]
    return Picture(words, figure, layout["width"], layout["height"])


def _uniform(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return workloads with a single model, by model; only of models that were collocated."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        names = {run.run.name for group in entry.summary.groups for run in group.runs}
        if len(names) == 1:
            groups.setdefault(names.pop(), []).append(entry)
    return {
        model: same
        for model, same in groups.items()
        if len({entry.summary.run_count for entry in same}) > 1
    }


def _with_most_runs(entries: Sequence[Entry]) -> list[Entry]:
    """Return the workloads with the most runs, in the report's order."""
    several = [entry for entry in entries if entry.summary.run_count > 1]
    most = sorted(several, key=lambda entry: -entry.summary.run_count)[:MAX_TIMELINES]
    return [entry for entry in entries if entry in most]


def _metrics(source: Source, entry: Entry) -> list[str]:
    """Return the metrics to draw over time, among those recorded."""
    run_ids = [run.run.run_id for group in entry.summary.groups for run in group.runs]
    available = {series.metric for series in source.reader.series(run_ids)}
    chosen = (
        next((candidate for candidate in some if candidate in available), "")
        for some in (_ACTIVITY, _MEMORY)
    )
    return [metric for metric in chosen if metric]


#: The page's downloads, with the texts of their links.
DOWNLOADS = {
    ReportFormat.HTML: "HTML",
    ReportFormat.MARKDOWN: "Markdown",
    ReportFormat.CSV: "CSV",
    ReportFormat.JSON: "JSON",
}


def path_of(kind: ReportFormat) -> str:
    """Return the path of a file's download."""
    return f"/report/file.{kind.suffix}"


def install(server: Flask, source: Source) -> None:
    """Add the routes to the application."""

    def answering(kind: ReportFormat) -> Callable[[], Response]:
        def answer() -> Response:
            view = View.from_query(request.query_string.decode("ascii", "replace"))
            choices = Choices.of(view.options)
            try:
                shown = read_shown(source, view)
            except RadtError as error:
                return Response(f"{error}\n", 503, content_type="text/plain; charset=utf-8")
            # The page's columns are chosen for reading; data files have all measured quantities.
            chosen = choices.columns is not None
            text = rendered(content_of(shown, choices, with_all=not chosen), kind)
            response = Response(text, content_type=kind.mime)
            name = report_file_name("-".join(shown.experiments[:1]), kind)
            response.headers["Content-Disposition"] = content_disposition(name)
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    for kind in DOWNLOADS:
        server.add_url_rule(path_of(kind), f"report-{kind.suffix}", answering(kind))
