"""The list at the left: experiment, search, workloads and their runs with tri-state boxes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt import units
from radt.errors import RadtError
from radt.frontend.catalog import (
    STATUS_WORDS,
    Catalog,
    RunEntry,
    WorkloadEntry,
    read_catalog,
    read_experiments,
)
from radt.frontend.dashing import attributes, in_browser, triggers
from radt.frontend.palette import Scheme, colour
from radt.frontend.search import search
from radt.frontend.selection import MAX_RUNS, Level, Selection
from radt.frontend.source import Source
from radt.model import RunStatus

#: Workloads a page of the list: what scrolls well, and renders in a few milliseconds.
PAGE_SIZE = 50
#: Workloads open by themselves as long as the list stays this short.
_OPEN_ROWS = 40
_EXPERIMENTS_SHOWN = 100

Node = dict[str, Any]


def picker(
    source: Source, catalog: Catalog, selection: Selection, chosen: Sequence[str]
) -> Component:
    """The list for an experiment with the chosen runs ticked."""
    page = _page(catalog, catalog.workloads, 1)
    return html.Aside(
        [
            html.Div(
                dmc.Select(
                    id="experiment",
                    data=_experiments(source, catalog.experiment),
                    value=catalog.experiment,
                    searchable=True,
                    allowDeselect=False,
                    limit=_EXPERIMENTS_SHOWN,
                    size="sm",
                    comboboxProps={"shadow": "sm"},
                    **attributes(aria_label="Experiment"),
                ),
                className="field",
            ),
            html.Div(
                dmc.TextInput(
                    id="query",
                    placeholder="Search: words, status:failed, lr:0.1",
                    debounce=250,
                    size="sm",
                    **attributes(aria_label="Search runs"),
                ),
                className="field",
            ),
            html.Div(
                [
                    dmc.Tree(
                        id="runs-tree",
                        data=nodes(page, selection.level, hosts=_shows_hosts(catalog)),
                        checked=_ticked(page, chosen),
                        expanded=_expanded(page, chosen),
                        renderNode={"function": "pickerRow"},
                        checkOnSpace=True,
                        expandOnSpace=False,
                        expandOnClick=True,
                        allowRangeSelection=False,
                        levelOffset=0,
                    ),
                    html.Div(
                        "No run matches.", id="runs-none", className="picker-none", hidden=True
                    ),
                ],
                className="picker-list",
                **attributes(aria_label="Workloads and runs"),
            ),
            html.Div(
                [
                    html.Span(_count_text(catalog, chosen), id="runs-count"),
                    html.Span(className="push"),
                    html.Button("none", id="runs-clear", className="quiet"),
                    dmc.Pagination(
                        id="runs-page",
                        total=_page_count(catalog.workloads),
                        value=1,
                        size="xs",
                        siblings=0,
                        boundaries=1,
                        hideWithOnePage=True,
                    ),
                ],
                className="picker-foot",
            ),
            dcc.Store(id="runs", data={"ids": list(chosen), "auto": selection.run_ids is None}),
        ],
        className="picker",
    )


def nodes(workloads: Sequence[WorkloadEntry], level: Level, *, hosts: bool = False) -> list[Node]:
    """Rows of the list; a workload of one run is a single row. ``hosts`` shows the machines."""
    return [
        _run_node(workload.runs[0], workload.runs[0].record.workload, level, hosts=hosts)
        if len(workload.runs) == 1
        else {
            "value": workload.record.workload_id,
            "label": workload.record.label,
            "nodeProps": {
                "data-title": f"workload {workload.record.label}",
                "data-name": " · ".join(
                    [*(workload.hosts if hosts else ()), units.plural(len(workload.runs), "run")]
                ),
                **_note(
                    workload.status,
                    None,
                    profiled=workload.is_profiled,
                    remote=any(run.remote for run in workload.runs),
                ),
                **(_swatch(workload.ordinal) if level is Level.WORKLOAD else {}),
            },
            "children": [
                _run_node(run, run.record.letter, level, hosts=hosts and len(workload.hosts) > 1)
                for run in workload.runs
            ],
        }
        for workload in workloads
    ]


def _shows_hosts(catalog: Catalog) -> bool:
    """Whether it says something where a run ran."""
    return len(catalog.hosts) > 1


def register(app: Dash, source: Source) -> None:
    """Callbacks of the list."""

    @app.callback(
        Output("runs-tree", "data"),
        Output("runs-tree", "checked"),
        Output("runs-tree", "expanded"),
        Output("runs-none", "hidden"),
        Output("runs-page", "total"),
        Output("runs-page", "value"),
        Output("runs", "data"),
        Input("query", "value"),
        Input("runs-page", "value"),
        Input("revision", "data"),
        Input("level", "value"),
        Input("runs-clear", "n_clicks"),
        State("experiment", "value"),
        State("runs", "data"),
        State("runs-tree", "data"),
        prevent_initial_call=True,
    )
    def refresh(
        text: str | None,
        page_no: int,
        _revision: str,
        level: str,
        _clear: int | None,
        experiment: str,
        runs: dict[str, Any],
        known: list[Node],
    ) -> tuple[Any, ...]:
        try:
            catalog = read_catalog(source, experiment)
            found = search(
                catalog,
                text or "",
                lambda ids: source.remember(("params", experiment), lambda r: r.params_of(ids)),
            )
        except RadtError:  # the router says what is wrong
            raise PreventUpdate from None
        causes = triggers()
        if "query.value" in causes:
            page_no = 1
        pages = _page_count(found)
        page_no = min(page_no, pages)
        page = _page(catalog, found, page_no)
        chosen, runs_out = _choose(catalog, runs, cleared="runs-clear.n_clicks" in causes)
        data = nodes(page, Level(level), hosts=_shows_hosts(catalog))
        same_rows = [node["value"] for node in data] == [node["value"] for node in known]
        # While the user works in the list, news must not undo a click that is on its way here.
        retick = not same_rows or runs_out is not no_update
        return (
            no_update if data == known else data,
            _ticked(page, chosen) if retick else no_update,
            no_update if same_rows else _expanded(page, chosen),
            bool(page),
            pages,
            page_no,
            runs_out,
        )

    in_browser(
        app,
        "choose",
        Output("runs", "data", allow_duplicate=True),
        Input("runs-tree", "checked"),
        State("runs-tree", "data"),
        State("runs", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("runs-count", "children"),
        Input("runs", "data"),
        State("experiment", "value"),
        prevent_initial_call=True,
    )
    def count(runs: dict[str, Any], experiment: str) -> Any:
        try:
            return _count_text(read_catalog(source, experiment), runs["ids"])
        except RadtError:
            raise PreventUpdate from None


def _choose(catalog: Catalog, runs: dict[str, Any], *, cleared: bool) -> tuple[list[str], Any]:
    """The chosen runs, and what the store of the page must become (or that it may stay)."""
    if cleared:
        return [], {"ids": [], "auto": False}
    chosen = list(runs["ids"])
    if runs["auto"]:
        automatic = list(catalog.automatic())
        if set(automatic) != set(chosen):
            return automatic, {"ids": automatic, "auto": True}
    return chosen, no_update


def _experiments(source: Source, current: str) -> list[dict[str, str]]:
    """Experiments, the last active first."""
    options = [
        {"value": e.name, "label": f"{e.name}  ·  {units.plural(e.run_count, 'run')}"}
        for e in read_experiments(source)
    ]
    if current not in {option["value"] for option in options}:
        options.insert(0, {"value": current, "label": current})
    return options


def _page_count(workloads: Sequence[WorkloadEntry]) -> int:
    return max(1, -(-len(workloads) // PAGE_SIZE))


def _page(
    catalog: Catalog, found: Sequence[WorkloadEntry], page_no: int
) -> Sequence[WorkloadEntry]:
    """One page: in the file's order if all fit one page, else the newest first."""
    if len(catalog.workloads) <= PAGE_SIZE:
        return found
    newest = list(reversed(found))
    return newest[(page_no - 1) * PAGE_SIZE : page_no * PAGE_SIZE]


def _ticked(page: Sequence[WorkloadEntry], chosen: Sequence[str]) -> list[str]:
    wanted = set(chosen)
    return [run.run_id for workload in page for run in workload.runs if run.run_id in wanted]


def _expanded(page: Sequence[WorkloadEntry], chosen: Sequence[str]) -> list[str]:
    """Short lists are open, of long ones only what is ticked."""
    wanted = set(chosen)
    short = sum(len(workload.runs) + 1 for workload in page) <= _OPEN_ROWS
    return [
        workload.record.workload_id
        for workload in page
        if short or any(run.run_id in wanted for run in workload.runs)
    ]


def _run_node(run: RunEntry, label: str, level: Level, *, hosts: bool) -> Node:
    record = run.record
    ordinal = run.workload_ordinal if level is Level.WORKLOAD else run.ordinal
    has_swatch = level is Level.RUN or run.alone
    return {
        "value": run.run_id,
        "label": label,
        "nodeProps": {
            "data-title": " · ".join(
                [
                    run.title,
                    *([f"profiled by {run.profiled}"] if run.profiled else []),
                    *([f"thinned {run.pruned}"] if run.pruned else []),
                    record.devices,
                    *([record.host] if record.host else []),
                    record.run_id,
                ]
            ),
            "data-name": " · ".join(filter(None, (record.host if hosts else "", record.name))),
            "data-run": record.run_id,
            "data-reason": record.end_reason,
            **_note(record.status, run, profiled=bool(run.profiled), remote=run.remote is not None),
            **(_swatch(ordinal) if has_swatch else {}),
        },
    }


def _swatch(ordinal: int) -> dict[str, str]:
    return {f"data-{scheme}": colour(ordinal, scheme) for scheme in Scheme}


def _note(
    status: RunStatus, run: RunEntry | None, *, profiled: bool, remote: bool
) -> dict[str, str]:
    """How long a run took; in words what went otherwise, and that it is no measurement or not here.

    What an MLflow server says of a run says little of its length.
    """
    note = "" if status is RunStatus.FINISHED else STATUS_WORDS[status]
    if run is not None and run.record.started_ns is not None and not remote:
        if run.record.ended_ns is not None and status is RunStatus.FINISHED:
            note = units.duration((run.record.ended_ns - run.origin_ns) / 1e9)
        elif status is RunStatus.RUNNING:
            note = units.stopwatch(max(0.0, (time.time_ns() - run.origin_ns) / 1e9))
    if run is not None and run.pruned:
        note = f"{note} · thinned" if note else "thinned"
    if profiled:
        note = f"profiled · {note}" if note else "profiled"
    if remote:
        note = f"{note} · on server" if note else "on server"
    return {"data-note": note, "data-status": status.value}


def _count_text(catalog: Catalog, chosen: Sequence[str]) -> str:
    text = f"{len(chosen):,} of {units.plural(len(catalog.runs), 'run')}"
    return f"{text} · first {MAX_RUNS} shown" if len(chosen) > MAX_RUNS else text
