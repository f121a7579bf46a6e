"""Workload: the runs of one workload on one time axis, their devices, listeners, logs and files.

One route fills the parts of the page for the view (`radt.frontend.pages.parts`).
static/workload.js has the controls, and draws the log.
"""

from __future__ import annotations

import hashlib
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component

from radt import units
from radt.errors import StoreError
from radt.frontend import files
from radt.frontend.charts.layout import elapsed_label as clock
from radt.frontend.charts.stacks import STRIP_PX, strip_figure
from radt.frontend.charts.timeline import LANE_PX, frame_layout, row_px, timeline
from radt.frontend.charts.traces import Figure
from radt.frontend.data.run_facts import slowdowns_of
from radt.frontend.data.source import Source
from radt.frontend.data.spec import Window, XAxis
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
from radt.frontend.pages.parts import asked_scheme, changed, followed, is_drawn, template
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


def layout(source: Source, view: View) -> Component:
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


def register(app: Dash, source: Source) -> None:
    """Register the routes of the page and of the files of runs."""
    files.register(app, source)
    add_json_routes(app.server, source, {DATA_PATH: answer, OFFERED_PATH: offered_answer})


def _chosen(source: Source, view: View) -> str:
    subject = find_subject(source, view)
    return f"{subject.title} of {subject.catalog.experiment}"


PAGE = Page("workload", "Workload", layout, register, _chosen)


def answer(source: Source, asked: Answer) -> Answer | None:
    """Return the parts of the page that changed.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    view, scheme = asked_view(asked), asked_scheme(asked)
    subject = find_subject(source, view)
    reading = read_all(source, subject)
    zoom = view.windows.get(XAxis.BARRIER)
    basis = _basis(source, reading, zoom, scheme)
    is_known = is_drawn(asked, basis)
    parts: dict[str, str | None] = {**_parts(source, reading, view)}
    parts["workload-zoom-text"] = "" if zoom is None else _zoom_text(zoom)
    seen = zoom or reading.whole
    figures: dict[str, Figure | None] = {
        "workload-timeline": None if is_known else timeline(reading.lives, seen, scheme)
    }
    for strip in reading.strips[:MAX_STRIPS]:
        drawn = (None, None) if is_known else _draw_strip(source, reading, strip, zoom, scheme)
        parts[f"legend {strip.key}"], figures[f"plot {strip.key}"] = drawn
        if drawn[1] is not None and not drawn[1]["data"]:
            basis = ""  # it could not be read: read it again with the next request
    return changed(
        asked,
        parts,
        figures,
        basis=basis,
        live=[run.run_id for run in subject.workload.runs if not run.record.status.ended],
        whole=[reading.whole.start, reading.whole.end],
    )


def offered_answer(source: Source, asked: Answer) -> Answer:
    """Return the workloads whose labels contain the words of a search.

    Raises:
        RunNotFoundError, NothingRecordedError, StoreError: As `find_subject`.
    """
    subject = find_subject(source, asked_view(asked))
    return {"choices": offered(subject, str(asked.get("search", "")))}


def _parts(source: Source, reading: WorkloadData, view: View) -> dict[str, str]:
    subject, lives = reading.subject, reading.lives
    runs, origin_ns = subject.workload.runs, subject.origin_ns
    slowed = slowdowns_of(source, subject.catalog, subject.workload_id)
    ledger, tags = ledger_of(source, subject), tags_of(source, subject)
    machines: dict[str, RecordedMachine] = {}
    for run in runs:
        if run.record.host not in machines:
            machines[run.record.host] = machine_of(source, run.record, tags.get(run.run_id, {}))
    devices = devices_of(subject, tags, machines, reading.summaries.values())
    facts = key_figures(reading, ledger, slowed, workload_overhead(source, subject))
    sampled = {run_id for run_id, _ in reading.summaries}
    rows, height_px = rows_of(lives, slowed), row_px(len(lives))
    strips = reading.strips[:MAX_STRIPS]
    macros: Any = template("workload.html")
    parts = {
        "head": macros.head(subject, offered(subject, ""), OFFERED_PATH),
        "facts": template("common.html").facts(facts),
        "notes": macros.notes(notes(subject, tags, slowed)),
        "panels": macros.panels(),
        "origin": "since barrier" if subject.workload.record.barrier_ns else "since start",
        "rows": macros.rows(rows, height_px, LANE_PX),
        "outcomes": macros.outcomes(rows, height_px),
        "strips": macros.strips(strips, reading.several_hosts, len(reading.strips) - len(strips)),
        "devices": macros.devices(
            devices.cards, devices.shown_processors, devices.several_hosts, _MAX_BOXES
        ),
        "ledger": macros.ledger(
            ledger.entries, subject.is_from_mlflow, lambda entry: gap_texts(entry, origin_ns)
        ),
        "log-tabs": macros.log_tabs(runs, chosen_run(subject, view.options.get(LOG_OPTION, ""))),
        "files": macros.files(listed_files(source.address, runs, sampled)),
        "params": macros.params(facts_of(source, subject).tables, runs),
    }
    return {f"workload-{name}": html for name, html in parts.items()}


def _basis(source: Source, reading: WorkloadData, zoom: Window | None, scheme: Scheme) -> str:
    """Return a key that changes when the figures would. Ended runs get no new points."""
    ends = [(run.run_id, run.record.ended_ns) for run in reading.subject.workload.runs]
    strips = [strip.key for strip in reading.strips]
    revision = source.revision() if reading.subject.is_live else ""
    text = repr((ends, strips, zoom, scheme, revision))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _draw_strip(
    source: Source, reading: WorkloadData, strip: Strip, zoom: Window | None, scheme: Scheme
) -> tuple[str, Figure | None]:
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


def _machine(source: Source, subject: ShownWorkload, strip: Strip) -> RecordedMachine:
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


def _zoom_text(window: Window) -> str:
    step_s = (window.end - window.start) / 100
    length = units.duration(window.end - window.start)
    return f"{clock(window.start, step_s)} – {clock(window.end, step_s)} · {length}"
