"""Tables at the foot of the Workload page: ledger, files, parameters, and the log."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from dash import html
from dash.development.base_component import Component

from radt import units
from radt.frontend.charts.layout import elapsed_label as clock
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.run_files import Listing, Place
from radt.frontend.data.workload.run_facts import MAX_GAPS, Entry, Fact, Facts, Ledger, reason_of
from radt.frontend.data.workload.subject import Subject
from radt.frontend.files import artifact_address, trace_address
from radt.frontend.pages.page import attributes
from radt.frontend.pages.workload_parts import name_of, swatch
from radt.frontend.view import View
from radt.masking import masked
from radt.store.records import RunRecord

_PROFILES = "profiles/"
_ARCHIVE = "radt/"
_HTTP = ("http", "https")
_ENDED = "ended"


def ledger_section(ledger: Ledger, subject: Subject) -> list[Component]:
    """Return one line per listener and run, with its gaps."""
    if not ledger.entries:
        text = "No listener recorded samples for these runs."
        if subject.is_from_mlflow:
            text = "These runs were imported from MLflow; radt did not sample them."
        return [html.P(text, className="workload-dim")]
    head = ("listener", "run", "interval, s", "expected", "received", "missed")
    more = ("mean delay, ms", "max delay, ms", "sampling cost, ms", "share of time", "state")
    rows = [row for entry in ledger.entries for row in _ledger_rows(entry, subject)]
    return [
        _table((*head, *more), rows, "workload-ledger-table", "Listeners", numeric=range(2, 10))
    ]


def _ledger_rows(entry: Entry, subject: Subject) -> list[Component]:
    record = entry.record
    state = record.state if not record.reason else f"{record.state}: {record.reason}"
    cells: list[Any] = [
        record.listener,
        [swatch(entry.run.ordinal), name_of(entry.run)],
        units.significant(record.interval_s) if record.interval_s else units.NO_VALUE,
        f"{record.expected:,}",
        f"{record.received:,}",
        f"{record.missed:,}",
        _milliseconds(entry.late_s if record.late_ns else None),
        _milliseconds(record.late_max_ns / 1e9 if record.late_max_ns else None),
        _milliseconds(entry.overhead.mean_s if record.sampling_ns else None),
        units.percent(entry.overhead.share) if record.sampling_ns else units.NO_VALUE,
        state,
    ]
    bad = attributes(data_bad="yes") if record.missed or record.state == "failed" else {}
    rows: list[Component] = [html.Tr([html.Td(cell) for cell in cells], **bad)]
    if entry.gaps:
        texts = [_gap_text(entry, place, subject) for place in range(len(entry.gaps))][:MAX_GAPS]
        if len(entry.gaps) > MAX_GAPS:
            texts.append(f"{len(entry.gaps) - MAX_GAPS:,} more gaps")
        rows.append(
            html.Tr(
                [html.Td(), html.Td([html.Div(text) for text in texts], colSpan=10)],
                className="workload-gaps",
            )
        )
    return rows


def _milliseconds(seconds: float | None) -> str:
    return units.NO_VALUE if seconds is None else units.significant(seconds * 1e3)


def _gap_text(entry: Entry, place: int, subject: Subject) -> str:
    gap = entry.gaps[place]
    start_s = (gap.start_ns - subject.origin_ns) / 1e9
    end_s = (gap.end_ns - subject.origin_ns) / 1e9
    which = "" if gap.series_no < 0 else " of one series"
    return (
        f"gap{which} {clock(start_s)} – {clock(end_s)} "
        f"({units.duration(end_s - start_s)}): {gap.reason.value}, {reason_of(gap)}"
        if gap.detail
        else f"gap{which} {clock(start_s)} – {clock(end_s)} "
        f"({units.duration(end_s - start_s)}): {gap.reason.value}"
    )


def files_section(
    subject: Subject, listings: dict[str, Listing], *, has_samples: set[str]
) -> list[Component]:
    """Return the artifacts of each run (profiles first), its trace, and its MLflow page."""
    body: list[Component] = []
    for run in subject.workload.runs:
        listing = listings.get(run.run_id, Listing())
        items = [
            html.Li(
                [
                    html.A(
                        _text(file.path),
                        href=artifact_address(run.run_id, file.path),
                        download="",
                        className="workload-file",
                    ),
                    html.Span(units.size(file.size_bytes), className="workload-number"),
                ],
                **attributes(data_place=file.place.value),
            )
            for file in sorted(listing.files, key=lambda file: _rank(file.path))
        ]
        where = files_place(run.record, listing)
        body.append(
            html.Div(
                [
                    html.Div(
                        [
                            swatch(run.ordinal),
                            html.Strong(name_of(run)),
                            html.Span(run.name, className="workload-name"),
                            html.Span(className="push"),
                            *_mlflow_link(mlflow_address(run)),
                            *([trace_link(run.run_id)] if run.run_id in has_samples else []),
                        ],
                        className="workload-files-head",
                    ),
                    *([html.P(where, className="workload-dim")] if where else []),
                    *([html.Ul(items)] if items else []),
                    *(
                        [html.P(f"{listing.left_out:,} more files", className="workload-dim")]
                        if listing.left_out
                        else []
                    ),
                ],
                className="workload-files",
            )
        )
    hint = html.P(
        "A trace is one file with the epochs, spans, samples and PyTorch profile of a run and its "
        "neighbours on one clock. Open it at ui.perfetto.dev, which reads it in the browser; "
        "nothing is uploaded.",
        className="workload-dim",
    )
    return [html.Div(body, className="workload-files-grid"), hint]


def _mlflow_link(url: str) -> list[Component]:
    link = html.A("in MLflow", href=url, target="_blank", rel="noreferrer noopener")
    return [link] if url else []


def trace_link(run_id: str) -> Component:
    """Return a link to a run's trace."""
    return html.A(
        "Perfetto trace",
        href=trace_address(run_id),
        download="",
        title="Created on request. Open it at ui.perfetto.dev, which reads it in the browser; "
        "nothing is uploaded.",
    )


def mlflow_address(run: RunEntry) -> str:
    """Return the address of the run's page in MLflow; "" unless MLflow is a server."""
    experiment = run.workload.mlflow_experiment_id
    parts = urlsplit(run.record.tracking_uri)
    if parts.scheme not in _HTTP or not run.record.mlflow_run_id or not experiment:
        return ""
    base = masked(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()).rstrip("/")
    path = (
        f"experiments/{quote(experiment, safe='')}/runs/{quote(run.record.mlflow_run_id, safe='')}"
    )
    return f"{base}/#/{path}"


def files_place(run: RunRecord, listing: Listing) -> str:
    """Return the location of a run's files, unless it is the run's own folder on this machine."""
    if any(file.place is Place.DELIVERED for file in listing.files):
        return "from MLflow's artifacts in the data folder"
    if any(file.place is Place.REMOTE for file in listing.files):
        return f"from MLflow at {masked(run.tracking_uri)}"
    if listing.files:
        return ""
    if run.is_from_mlflow:
        return f"the artifacts of this run are in MLflow at {masked(run.tracking_uri)}"
    if run.mlflow_run_id:
        return f"not on this machine; the files are in MLflow at {masked(run.tracking_uri)}"
    if not run.spool:
        return "no files recorded"
    if run.host == platform.node():
        return f"no files: {run.spool} is gone or empty"
    return f"no files on this machine; they are in {run.spool} on {run.host}"


def _rank(path: str) -> tuple[int, str]:
    """Return a sort key: profiles first, the run's archive last."""
    return (0 if path.startswith(_PROFILES) else 2 if path.startswith(_ARCHIVE) else 1), path


def facts_section(facts: Facts, subject: Subject) -> list[Component]:
    """Return parameters, totals, commands and tags of the runs, with differing values first."""
    heads = [
        html.Span([swatch(run.ordinal), name_of(run)], title=run.title)
        for run in subject.workload.runs
    ]
    parts = [("Parameters", facts.params), ("Execution", facts.about), ("Tags", facts.tags)]
    if facts.totals:
        parts.insert(1, ("Totals", facts.totals))
    return [
        html.Div(
            [html.H3(title), *_facts_table(title, table, heads)], className="workload-facts-part"
        )
        for title, table in parts
    ]


def _facts_table(title: str, table: Sequence[Fact], heads: Sequence[Component]) -> list[Component]:
    if not table:
        return [html.P("None recorded.", className="workload-dim")]
    differing = [fact for fact in table if fact.differs]
    same = [fact for fact in table if not fact.differs]
    body: list[Component] = []
    if differing:
        rows = [
            html.Tr([html.Th(_text(fact.name), scope="row"), *map(_value, fact.values)])
            for fact in differing
        ]
        body.append(_table(("differs", *heads), rows, "workload-values", f"{title} that differ"))
    if same:
        rows = [
            html.Tr([html.Th(_text(fact.name), scope="row"), _value(fact.values[0])])
            for fact in same
        ]
        words = ("same", "for all runs") if len(heads) > 1 else ("name", "value")
        body.append(_table(words, rows, "workload-values", f"{title} of all"))
    return body


def _value(text: str | None) -> Component:
    return html.Td(units.NO_VALUE if text is None else _text(text))


def _text(text: str) -> str:
    """Return a name that JSON can encode. File names may contain bytes that are not text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _table(
    heads: Sequence[str | Component],
    rows: Sequence[Component],
    name: str,
    title: str,
    numeric: range = range(0),
) -> Component:
    columns = [
        html.Th(head, scope="col", className="workload-right" if place in numeric else None)
        for place, head in enumerate(heads)
    ]
    return html.Div(
        html.Table(
            [html.Thead(html.Tr(columns)), html.Tbody(list(rows))],
            className=f"workload-table {name}",
        ),
        className="workload-scroll",
        tabIndex=0,
        role="region",
        **attributes(aria_label=f"{title}, scrolls sideways"),
    )


#: The view's option with the letter of the run whose log is open.
OPTION = "workload.log"


def log_panel(subject: Subject, view: View) -> Component:
    """Return a choice of runs, and the log of the chosen one (``static/run_log.js``)."""
    chosen = chosen_run(subject, view.options.get(OPTION, ""))
    if chosen is None:
        return html.P("No runs yet.", className="workload-dim")
    tabs = [
        html.Button(
            [swatch(run.ordinal), name_of(run)],
            type="button",
            **attributes(data_run=run.run_id, aria_pressed=str(run is chosen).lower()),
        )
        for run in subject.workload.runs
    ]
    group = attributes(aria_label="Log of run")
    return html.Div(
        [
            html.Div(
                [
                    html.Div(
                        tabs, id="workload-log-tabs", className="levels", role="group", **group
                    ),
                    html.Span(className="push"),
                    html.Span(id="run-log-note", className="workload-dim"),
                    html.Div(id="run-log-tools", className="run-tools"),
                ],
                className="workload-log-head",
            ),
            html.Div(id="run-log-found"),
            html.Pre(
                id="run-log",
                className="workload-log",
                tabIndex=0,
                role="log",
                **attributes(aria_label="Log", aria_live="off"),
            ),
        ]
    )


def chosen_run(subject: Subject, wanted: str) -> RunEntry | None:
    """Return the run whose log was open; else the first that failed, else the first."""
    runs = subject.workload.runs
    for run in runs:
        if wanted and run.run_id.startswith(wanted):
            return run
    for run in runs:
        if run.record.end_reason or run.record.exit_code:
            return run
    return runs[0] if runs else None
