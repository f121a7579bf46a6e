"""Workload: the runs of one workload on one time axis, their devices, listeners, logs and files.

One route fills the parts of the page for the view (`radt.frontend.pages.parts`).
static/workload.js has the controls, and draws the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from dash import Dash, html
from dash.development.base_component import Component

from radt import units
from radt.errors import StoreError
from radt.frontend import files
from radt.frontend.charts.layout import elapsed_label as clock
from radt.frontend.charts.stacks import STRIP_PX, strip_figure
from radt.frontend.charts.timeline import LANE_PX, frame_layout, row_px, timeline
from radt.frontend.charts.traces import Figure
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run_facts import slowdowns_of
from radt.frontend.data.run_files import list_artifacts
from radt.frontend.data.spec import AxisRange, XAxis
from radt.frontend.data.workload.devices import devices_of
from radt.frontend.data.workload.model import Strip
from radt.frontend.data.workload.run_facts import (
    RecordedMachine,
    facts_of,
    gaps_of,
    ledger_of,
    machine_of,
    machine_on,
    tags_of,
    workload_overhead,
)
from radt.frontend.data.workload.stacks import stack_data
from radt.frontend.data.workload.strips import MAX_STRIPS, WorkloadData, read_all
from radt.frontend.data.workload.subject import ShownWorkload, find_subject, offered
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page
from radt.frontend.pages.parts import Section, asked_scheme, changed, followed, template
from radt.frontend.pages.workload_texts import (
    chosen_run,
    gap_texts,
    key_figures,
    listed_files,
    notes,
    rows_of,
)
from radt.frontend.theme import INKS, Scheme
from radt.frontend.view import View

DATA_PATH, OFFERED_PATH = "workload/data", "workload/offered"
#: The view's option with the beginning of the id of the run whose log is open.
LOG_OPTION = "workload.log"
#: Above this number of cores, their numbers are listed without a box for each.
_MAX_BOXES = 256


def layout(source: CachedStore, view: View) -> Component:
    """Return the page, whose parts `DATA_PATH` fills.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    find_subject(source, view)
    return html.Section(
        [
            html.Div(id="workload-head", className="workload-head"),
            html.Dl(id="workload-facts", className="workload-facts"),
            html.Div(id="workload-notes"),
            html.Div(id="workload-panels"),
        ],
        className="workload",
        **followed(DATA_PATH),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page and of the files of runs."""
    files.register(app, source)
    add_json_routes(app.server, source, {DATA_PATH: answer, OFFERED_PATH: offered_answer})


def _chosen(source: CachedStore, view: View) -> str:
    subject = find_subject(source, view)
    return f"{subject.title} of {subject.catalog.experiment}"


PAGE = Page("workload", "Workload", layout, register, _chosen)


def answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the parts of the page that changed.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    view = asked_view(asked)
    revision = source.revision()  # before all reads: no section may be older than its basis
    subject = find_subject(source, view)
    runs = subject.workload.runs
    shown = hash(subject.workload)  # with the revisions of its runs
    reading = read_all(source, subject)
    sections = [
        *_sections(source, reading, view, shown, revision),
        *_figures(source, reading, view.windows.get(XAxis.BARRIER), asked_scheme(asked), shown),
    ]
    return changed(
        asked,
        {},
        sections=sections,
        live=[run.run_id for run in runs if not run.record.status.ended],
        whole=[reading.whole.start, reading.whole.end],
    )


def offered_answer(source: CachedStore, asked: Answer) -> Answer:
    """Return the workloads whose labels contain the words of a search.

    Raises:
        RunNotFoundError, NothingRecordedError, StoreError: As `find_subject`.
    """
    subject = find_subject(source, asked_view(asked))
    return {"choices": offered(subject, str(asked.get("search", "")))}


def _sections(
    source: CachedStore, reading: WorkloadData, view: View, shown: int, revision: str
) -> Iterator[Section]:
    """Yield the parts. Those that also depend on other runs are made for each ``revision``."""
    subject, runs = reading.subject, reading.subject.workload.runs
    macros: Any = template("workload.html")

    def part(name: str, basis: object, make: Callable[[], str]) -> Section:
        return Section((f"workload-{name}",), basis, lambda: (make(),))

    yield part(
        "head",
        (shown, revision, subject.automatic),
        lambda: macros.head(subject, offered(subject, ""), OFFERED_PATH),
    )
    yield part("panels", "", macros.panels)
    origin = "since barrier" if subject.workload.record.barrier_ns else "since start"
    yield part("origin", origin, lambda: origin)
    yield Section(
        ("workload-facts", "workload-notes", "workload-rows", "workload-outcomes"),
        (shown, revision),
        lambda: _comparison(source, reading),
    )
    left_out = max(0, len(reading.strips) - MAX_STRIPS)
    yield part(
        "strips",
        shown,
        lambda: macros.strips(reading.strips[:MAX_STRIPS], reading.several_hosts, left_out),
    )
    yield part("devices", shown, lambda: _devices(source, reading))
    yield part("ledger", shown, lambda: _ledger(source, subject))
    chosen = chosen_run(subject, view.options.get(LOG_OPTION, ""))
    yield part("log-tabs", (shown, chosen and chosen.run_id), lambda: macros.log_tabs(runs, chosen))
    # Nothing tells whether a file has changed, so files are listed for each request.
    listings = [list_artifacts(run.record, source.address) for run in runs]
    sampled = {run_id for run_id, _ in reading.summaries}
    yield part(
        "files",
        (shown, listings),
        lambda: macros.files(listed_files(runs, listings, sampled)),
    )
    yield part("params", shown, lambda: macros.params(facts_of(source, subject).tables, runs))


def _comparison(source: CachedStore, reading: WorkloadData) -> tuple[str, ...]:
    """Return the parts for which the runs are compared with others of the experiment."""
    subject, lives = reading.subject, reading.lives
    slowed = slowdowns_of(source, subject.catalog, subject.workload_id)
    ledger, overhead = ledger_of(source, subject), workload_overhead(source, subject)
    rows, height_px = rows_of(lives, slowed), row_px(len(lives))
    macros: Any = template("workload.html")
    return (
        template("common.html").facts(key_figures(reading, ledger, slowed, overhead)),
        macros.notes(notes(subject, tags_of(source, subject), slowed)),
        macros.rows(rows, height_px, LANE_PX),
        macros.outcomes(rows, height_px),
    )


def _devices(source: CachedStore, reading: WorkloadData) -> str:
    subject, tags = reading.subject, tags_of(source, reading.subject)
    machines: dict[str, RecordedMachine] = {}
    for run in subject.workload.runs:
        if run.record.host not in machines:
            machines[run.record.host] = machine_of(source, run.record, tags.get(run.run_id, {}))
    used = devices_of(subject, tags, machines, reading.summaries.values())
    macros: Any = template("workload.html")
    html = macros.devices(used.cards, used.shown_processors, used.several_hosts, _MAX_BOXES)
    return cast("str", html)


def _ledger(source: CachedStore, subject: ShownWorkload) -> str:
    ledger, origin_ns = ledger_of(source, subject), subject.origin_ns
    macros: Any = template("workload.html")
    html = macros.ledger(
        ledger.entries, subject.is_from_mlflow, lambda entry: gap_texts(entry, origin_ns)
    )
    return cast("str", html)


def _figures(
    source: CachedStore, reading: WorkloadData, zoom: AxisRange | None, scheme: Scheme, shown: int
) -> Iterator[Section]:
    """Yield what is drawn over time, with the legends."""
    basis = (shown, zoom, scheme)
    yield Section(
        ("workload-zoom-text", "workload-timeline"),
        basis,
        lambda: (
            "" if zoom is None else _zoom_text(zoom),
            timeline(reading.lives, zoom or reading.whole, scheme),
        ),
    )
    for strip in reading.strips[:MAX_STRIPS]:
        names = (f"legend {strip.key}", f"plot {strip.key}")
        yield Section(names, basis, partial(_draw_strip, source, reading, strip, zoom, scheme))


def _draw_strip(
    source: CachedStore, reading: WorkloadData, strip: Strip, zoom: AxisRange | None, scheme: Scheme
) -> tuple[str, Figure]:
    """Return the legend and the figure of a strip: an error alone if its samples are damaged."""
    subject = reading.subject
    cores = _machine(source, subject, strip).logical_cores
    macros: Any = template("workload.html")
    try:
        data = stack_data(
            *(source, subject, strip, gaps_of(source, subject.run_ids)),
            window=zoom or reading.whole,
            zoomed=zoom is not None,
            cores=cores,
        )
    except StoreError as error:
        layout = frame_layout(INKS[scheme], zoom or reading.whole, STRIP_PX)
        return macros.legend([], [error.message]), {"data": [], "layout": layout}
    drawn = strip_figure(data, scheme, cores)
    return macros.legend(drawn.readings, drawn.notes), drawn.figure


def _machine(source: CachedStore, subject: ShownWorkload, strip: Strip) -> RecordedMachine:
    tags = tags_of(source, subject)
    for run in subject.workload.runs:
        own = tags.get(run.run_id, {})
        if run.record.host == strip.host:
            facts = machine_of(source, run.record, own)
        else:
            facts = machine_on(source, run.record, own, strip.host)
        if facts.logical_cores is not None:
            return facts
    return RecordedMachine(host=strip.host)


def _zoom_text(window: AxisRange) -> str:
    step_s = (window.end - window.start) / 100
    length = units.duration(window.end - window.start)
    return f"{clock(window.start, step_s)} – {clock(window.end, step_s)} · {length}"
