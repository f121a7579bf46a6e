"""The ends of the runs' logs, one at a time, read anew while the run goes on."""

from __future__ import annotations

from dataclasses import dataclass

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from radt import units
from radt.errors import RunNotFoundError
from radt.frontend.catalog import RunEntry
from radt.frontend.dashing import attributes
from radt.frontend.files import log_address, open_log
from radt.frontend.foreign.mlflow_run import is_of_mlflow_alone
from radt.frontend.pages.workload_parts import name_of, swatch
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.frontend.workload.spool import TAIL_LINES, Tail, tail_of
from radt.frontend.workload.subject import Subject
from radt.masking import masked

#: Which run's log is open, by letter, in the view's options.
OPTION = "workload.log"


@dataclass(frozen=True, slots=True)
class ShownLog:
    """What the page says of a log. ``stamp`` changes with it."""

    text: str
    note: str
    stamp: str
    is_here: bool


def log_panel(source: Source, subject: Subject, view: View) -> Component:
    """A choice of runs, the end of the chosen log, and a link to all of it."""
    chosen = chosen_run(subject, view.options.get(OPTION, ""))
    if chosen is None:
        return html.P("There is no run yet.", className="workload-dim")
    shown = read_log(source, chosen)
    tabs = html.Div(
        dmc.SegmentedControl(
            id="workload-log-tabs",
            data=[
                {
                    "value": run.run_id,
                    "label": html.Span(
                        [swatch(run.ordinal), name_of(run)], className="workload-tab"
                    ),
                }
                for run in subject.workload.runs
            ],
            value=chosen.run_id,
            size="xs",
            transitionDuration=0,
            **attributes(aria_label="Log of run"),
        ),
        className="workload-tabs",
    )
    return html.Div(
        [
            html.Div(
                [
                    tabs,
                    html.Span(className="push"),
                    html.Span(shown.note, id="workload-log-note", className="workload-dim"),
                    html.A(
                        "whole log",
                        id="workload-log-all",
                        href=log_address(chosen.run_id),
                        download="",
                        hidden=not shown.is_here,
                    ),
                ],
                className="workload-log-head",
            ),
            html.Pre(
                shown.text,
                id="workload-log",
                className="workload-log",
                tabIndex=0,
                role="log",
                **attributes(aria_label="End of the log"),
            ),
        ]
    )


def chosen_run(subject: Subject, wanted: str) -> RunEntry | None:
    """The run whose log was open; else the first that ended badly, else the first."""
    runs = subject.workload.runs
    for run in runs:
        if wanted and run.run_id.startswith(wanted):
            return run
    for run in runs:
        if run.record.end_reason or run.record.exit_code:
            return run
    return runs[0] if runs else None


def read_log(source: Source, run: RunEntry) -> ShownLog:
    """The end of a run's log, or where it is."""
    record = run.record
    try:
        with open_log(record, source.address) as file:
            tail = tail_of(file)
    except RunNotFoundError:
        return ShownLog("", _elsewhere(run), "", is_here=False)
    except OSError as error:
        note = f"the log cannot be read: {error.strerror}"
        return ShownLog("", note, "", is_here=False)
    note = _note(tail, is_live=not record.status.ended)
    stamp = f"{tail.size_bytes} {hash(tail.lines)}"
    text = tail.text or ("" if tail.size_bytes else "(nothing printed)")
    return ShownLog(text, note, stamp, is_here=True)


def _note(tail: Tail, *, is_live: bool) -> str:
    parts = [f"last {TAIL_LINES} lines" if tail.is_cut else "all lines"]
    parts.append(units.size(tail.size_bytes))
    if is_live:
        parts.append("follows")
    return " · ".join(parts)


def _elsewhere(run: RunEntry) -> str:
    record = run.record
    if is_of_mlflow_alone(record):
        return "MLflow does not keep what runs print"
    if run.remote is not None or record.mlflow_run_id:
        where = f"MLflow at {masked(record.tracking_uri)}" if record.tracking_uri else "MLflow"
        return f"not on this machine: output.log of run {record.mlflow_run_id} in {where}"
    if record.host and record.spool:
        return f"not on this machine: {record.spool}/output.log on {record.host}"
    return "no log is recorded"
