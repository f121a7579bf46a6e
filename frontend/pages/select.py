"""Select: pick experiments, workloads and runs.

The lists may be long, so the browser draws only the rows in sight (static/select.js) and requests
them through the store ``select-ask``; the rows come back in ``select-answer``. The first answer
comes with the page. Clicked boxes go into ``select-tick``, and the new picks come back in
``select-ticked``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt import units
from radt.errors import RadtError, UsageError
from radt.frontend.data.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog, tint
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.model import STATUS_WORDS
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ID_DIGITS, Pick, PickKind, parse_picks
from radt.frontend.pages.page import Page, in_browser, sentence
from radt.frontend.pages.select_lists import (
    EntryT,
    Listing,
    Lists,
    Pane,
    note,
    read_lists,
    statuses_of,
)
from radt.frontend.search.find import FoundExperiment
from radt.frontend.selection import (
    MAX_RUNS,
    Selection,
    Tick,
    Ticks,
    joint,
    read_selection,
    resolve,
    ticked,
)
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import RunStatus

#: Rows sent with the page, before the browser reports how many fit: enough for a tall screen.
FIRST_ROWS = 60
#: The limit on rows in one answer.
MAX_ROWS = 400
_NS_PER_MS = 1_000_000


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    return html.Section(
        [
            html.H1("Select", className="unseen"),
            html.Div(id="select-root", className="select-root"),
            dcc.Store(id="select-ask"),
            dcc.Store(id="select-answer", data=answer(source, view)),
            dcc.Store(id="select-tick"),
            dcc.Store(id="select-ticked"),
            dcc.Store(id="select-drawn"),
        ],
        className="select",
    )


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page."""
    in_browser(app, "selectDraw", Output("select-drawn", "data"), Input("select-answer", "data"))
    in_browser(
        app,
        "selectFollow",
        Output("select-drawn", "data", allow_duplicate=True),
        Input("view", "data"),
        Input("revision", "data"),
        Input("select-root", "id"),
        prevent_initial_call="initial_duplicate",
    )
    in_browser(
        app,
        "selectTicked",
        Output("select-drawn", "data", allow_duplicate=True),
        Input("select-ticked", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("select-answer", "data"),
        Input("select-ask", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def rows(ask: Mapping[str, Any] | None, view: Mapping[str, Any] | None) -> dict[str, Any]:
        if ask is None or view is None:
            raise PreventUpdate
        try:
            return answer(source, View.from_json(view), ask)
        except RadtError:  # the router shows the error; the rows stay
            raise PreventUpdate from None

    @app.callback(
        Output("select-ticked", "data"),
        Input("select-tick", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def tick(clicks: Mapping[str, Any] | None, view: Mapping[str, Any] | None) -> dict[str, Any]:
        if clicks is None or view is None:
            raise PreventUpdate
        number = {"n": clicks.get("n")}
        try:
            picks = _picks_after(source, clicks, View.from_json(view))
        except UsageError as error:
            return number | {"problem": f"{sentence(error.message)} {error.remedy}."}
        except RadtError as error:
            return number | {"problem": sentence(error.message)}
        # The browser applies them to the view, which may have changed in other ways meanwhile.
        return number | {"picks": [str(pick) for pick in picks]}


def _picks_after(source: Source, clicks: Mapping[str, Any], view: View) -> tuple[Pick, ...]:
    """Return the picks after the clicks; ``all`` in a click names a pane with all its rows."""
    picks = parse_picks(_texts(clicks.get("picks")))
    for step in clicks.get("steps") or ():
        targets = parse_picks(_texts(step.get("picks")))
        if step.get("all") in (Pane.WORKLOADS, Pane.RUNS):
            targets = read_lists(source, view, patient=True).all_picks(Pane(step["all"]))
        picks = ticked(
            picks, targets, lambda name: read_catalog(source, name), on=step.get("on") is True
        )
    return picks


def _texts(values: object) -> list[str]:
    return [text for text in values if isinstance(text, str)] if isinstance(values, list) else []


# -- rows ---------------------------------------------------------------------------------------


def answer(source: Source, view: View, ask: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the page's data for a view.

    ``ask`` has for each pane the ``start`` and ``count`` of the rows in sight, the ``list`` that
    the browser has, and as ``anchor`` the id of the first row in sight, which keeps its place when
    rows are inserted before it. Without it the first rows are returned, without slow columns.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    revision = source.revision()
    lists = read_lists(source, view, patient=ask is not None)
    picks = view.picks or ()
    ticks_of = {
        name: Ticks.of(read_catalog(source, name), picks)
        for name in {pick.experiment for pick in picks}
    }
    ticks = ticks_of.get(lists.catalog.experiment) or Ticks.of(lists.catalog, ())
    focus = lists.focus.record.workload_id[:ID_DIGITS] if lists.focus else ""
    asked = ask or {}

    def experiment_row(match: FoundExperiment) -> dict[str, Any]:
        name = match.summary.name
        own = ticks_of.get(name)
        return {"tick": own.experiment if own else Tick.OFF, "pick": str(Pick(name))}

    def workload_row(workload: WorkloadEntry) -> dict[str, Any]:
        record = workload.record
        return {
            "tick": ticks.workload(workload),
            "pick": str(Pick.workload(record.experiment, record.workload_id)),
            "title": _workload_title(workload),
        }

    def run_row(run: RunEntry) -> dict[str, Any]:
        return {
            "tick": ticks.run(run),
            "pick": str(Pick.run(run.record.experiment, run.run_id)),
            "title": _run_title(run),
            "swatch": _swatch(lists.catalog, run),
        }

    name = lists.catalog.experiment
    panes = {
        Pane.EXPERIMENTS: _pane(lists.experiments, name, experiment_row, asked, Pane.EXPERIMENTS),
        Pane.WORKLOADS: _pane(lists.workloads, focus, workload_row, asked, Pane.WORKLOADS),
        Pane.RUNS: _pane(lists.runs, "", run_row, asked, Pane.RUNS),
    }
    for pane, content in panes.items():
        content["sort"] = view.options.get(pane.sort_option, "")
    if not ticks.is_empty:
        panes[Pane.WORKLOADS]["tick"] = joint(map(ticks.workload, lists.workloads.entries))
        panes[Pane.RUNS]["tick"] = joint(map(ticks.run, lists.runs.entries))
    return {
        "n": asked.get("n", 0),
        "revision": revision,
        "now_ms": time.time_ns() // _NS_PER_MS,
        "query": view.to_query(),
        "search": view.search,
        "count": _count_text(lists, view),
        "problems": [
            {"typed": problem.typed, "cause": problem.cause} for problem in lists.results.problems
        ],
        "statuses": _statuses(lists, view),
        "experiment": name,
        "workload": {"id": focus, "label": lists.focus.record.label} if lists.focus else None,
        "panes": panes,
        "partial": lists.is_partial,
        "params_left_out": lists.params_left_out,
        "basket": _basket(source, view),
    }


def _pane(
    listing: Listing[EntryT],
    focus: str,
    row: Callable[[EntryT], dict[str, Any]],
    asked: Mapping[str, Any],
    pane: Pane,
) -> dict[str, Any]:
    ask = asked.get(pane.value)
    ask = ask if isinstance(ask, Mapping) else {}
    total = len(listing.entries)
    focus_at = listing.places.get(focus, -1)
    start, count, anchor_at = 0, _clipped(ask.get("count"), FIRST_ROWS, MAX_ROWS), -1
    if ask.get("list") == listing.key:
        start = _clipped(ask.get("start"), 0, total)
        before = _clipped(ask.get("anchor_at"), 0, total)
        anchor_at = listing.places.get(str(ask.get("anchor", "")), -1)
        if anchor_at >= 0:
            start += anchor_at - before
    elif focus_at >= 0:
        start = focus_at - count // 2
    start = max(0, min(start, total - count))
    ids = listing.ids[start : start + count]
    entries = listing.entries[start : start + count]
    return {
        "list": listing.key,
        "total": total,
        "start": start,
        "focus": focus_at,
        "anchor_at": anchor_at,
        "columns": [column.to_json() for column in listing.columns],
        "rows": [
            {
                "id": id_,
                "focus": id_ == focus,
                "cells": [column.cell(entry) for column in listing.columns],
                **row(entry),
            }
            for id_, entry in zip(ids, entries, strict=True)
        ],
    }


def _clipped(value: object, default: int, limit: int) -> int:
    return max(0, min(value, limit)) if isinstance(value, int) else default


def _count_text(lists: Lists, view: View) -> str:
    total = lists.results.total_count
    if not (view.search.strip() or statuses_of(view)):
        return units.plural(total, "run")
    return f"{lists.results.run_count:,} of {units.plural(total, 'run')}"


def _statuses(lists: Lists, view: View) -> list[dict[str, Any]]:
    """Return a button for each status that runs have, and for each one that is selected."""
    on, counts = statuses_of(view), lists.results.statuses
    return [
        {"value": s.value, "word": STATUS_WORDS[s], "count": counts.get(s, 0), "on": s in on}
        for s in RunStatus
        if counts.get(s) or s in on
    ]


def _workload_title(workload: WorkloadEntry) -> str:
    parts = [f"workload {workload.record.label}", units.plural(len(workload.runs), "run")]
    return " · ".join([*parts, *workload.hosts, workload.record.workload_id])


def _run_title(run: RunEntry) -> str:
    record = run.record
    parts: Sequence[str] = (
        run.title,
        note(run),
        f"thinned {run.pruned}" if run.pruned else "",
        record.end_reason,
        record.command,
        record.devices,
        record.host,
        record.run_id,
    )
    return " · ".join(filter(None, parts))


def _swatch(catalog: Catalog, run: RunEntry) -> list[str]:
    return [colour(tint(catalog, run.run_id, run), scheme) for scheme in Scheme]


# -- the basket ---------------------------------------------------------------------------------


def _basket(source: Source, view: View) -> dict[str, Any]:
    """Return the picks by experiment, with the number of their runs and notes on hidden ones.

    Raises:
        StoreError: The store cannot be read.
    """
    selection = _selection(source, view)
    picks = view.picks
    if picks is None:  # the dashboard picked whole workloads
        workloads = (unit.workload.record for unit in selection.units)
        picks = tuple(
            Pick.workload(workload.experiment, workload.workload_id) for workload in workloads
        )
    missing = set(selection.missing)
    groups: dict[str, list[dict[str, Any]]] = {}
    for pick in picks:
        catalog = read_catalog(source, pick.experiment)
        entry = _missing_entry(pick) if pick in missing else _entry(pick, catalog)
        groups.setdefault(pick.experiment, []).append({"pick": str(pick), **entry})
    run_count = len(selection.runs)
    return {
        "automatic": selection.automatic,
        "picks": [str(pick) for pick in picks],
        "groups": [{"experiment": name, "entries": entries} for name, entries in groups.items()],
        "runs": units.plural(run_count, "run"),
        "count": run_count + selection.left_out,
        "notes": selection_notes(selection),
    }


def _selection(source: Source, view: View) -> Selection:
    try:
        return read_selection(source, view)
    except NothingRecordedError:
        return resolve(source, view.picks or ())


def selection_notes(selection: Selection) -> list[str]:
    """Return notes on selected runs that a page cannot show."""
    notes = []
    if selection.left_out:
        left_out = units.plural(selection.left_out, "run")
        notes.append(f"{left_out} left out: a chart shows at most {MAX_RUNS}")
    if selection.missing:
        notes.append(f"{units.plural(len(selection.missing), 'pick')} not in this store")
    return notes


def _missing_entry(pick: Pick) -> dict[str, Any]:
    noun = {PickKind.WORKLOAD: "workload", PickKind.RUN: "run"}.get(pick.kind, "experiment")
    return {"label": f"{noun} {pick.id}".strip(), "detail": "not in this store", "missing": True}


def _entry(pick: Pick, catalog: Catalog) -> dict[str, Any]:
    if pick.kind is PickKind.EXPERIMENT:
        return {"label": "everything", "detail": units.plural(len(catalog.runs), "run")}
    if pick.kind is PickKind.RUN:
        return _run_entry(catalog, catalog.runs[catalog.runs_like(pick.id)[0]])
    workload = catalog.workloads_by_id[catalog.workloads_like(pick.id)[0]]
    if len(workload.runs) == 1:
        return _run_entry(catalog, workload.runs[0])
    name = workload.runs[0].workload_name if workload.runs else workload.record.label
    return {"label": name, "detail": units.plural(len(workload.runs), "run")}


def _run_entry(catalog: Catalog, run: RunEntry) -> dict[str, Any]:
    return {"label": run.short, "detail": run.second_name, "swatch": _swatch(catalog, run)}


PAGE = Page("/", "Select", layout, register, lambda _, view: view.search or view.experiment or "")
