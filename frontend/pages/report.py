"""Report: the tables of `radt report`, and bars.

Table and charts follow the view and the store. Graphs stand in fixed slots, one per quantity, and
only changed ones are sent, so that nothing flickers while runs end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt.analysis.quantities import Quantity
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.errors import RadtError
from radt.frontend.charts.report_bars import HEIGHT_PX, figure
from radt.frontend.charts.timeseries import BLANK, config
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.report import content_of, read_shown
from radt.frontend.data.report_model import (
    BY_ORDER,
    Choices,
    Shown,
    bars_of,
    charted,
    size_of,
    title_of,
)
from radt.frontend.data.source import Source
from radt.frontend.export import report_files
from radt.frontend.pages import report_table
from radt.frontend.pages.page import Page, attributes, in_browser
from radt.frontend.pages.report_table import matrix
from radt.frontend.selection import latest_experiment
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from radt.render.report_content import matrices

#: Quantities with a chart on the page, in fixed slots.
_SLOTS = tuple(Quantity)


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    experiment = view.experiment or latest_experiment(source)
    choices = Choices.of(view.options)
    return html.Section(
        [
            html.H1("Report", className="unseen"),
            controls(source, experiment, choices),
            html.Div(
                html.Div(className="report-sketch"),
                id="report-table",
                className="report-scroll",
                tabIndex="0",
                role="region",
                **attributes(aria_label="Table of the report"),
            ),
            html.Div(id="report-pages", className="report-pages"),
            html.Div(id="report-matrices", className="report-matrices"),
            html.Div(
                [_slot(quantity) for quantity in _SLOTS],
                id="report-charts",
                className="report-charts",
            ),
            html.Footer(id="report-notes", className="report-notes"),
            dcc.Store(id="report-state"),
            dcc.Store(id="report-drawn"),
            dcc.Store(id="report-done"),
        ],
        className="report",
    )


def _slot(quantity: Quantity) -> Component:
    about = quantity.info
    return html.Section(
        [
            html.Header(
                [
                    html.H2(title_of(quantity)),
                    html.Span(id={"type": "report-unit", "q": quantity.value}, className="unit"),
                    html.P(f"{about.explanation}.", className="why"),
                ]
            ),
            html.Div(
                dcc.Graph(
                    id={"type": "report-chart", "q": quantity.value},
                    figure=BLANK,
                    config=_config(quantity),
                    responsive=True,
                    style={"height": f"{HEIGHT_PX}px"},
                ),
                role="group",
                **attributes(aria_label=f"Bars: {title_of(quantity)}; the table has the numbers"),
            ),
        ],
        id={"type": "report-slot", "q": quantity.value},
        className="report-chart",
        hidden=True,
    )


def _config(quantity: Quantity) -> Any:
    figure_config = config(f"report-{quantity.value}")
    return {**figure_config, "modeBarButtons": [["toImage"]], "doubleClick": False}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page."""
    report_files.install(app.server, source)
    for name, given in (
        *(("experiment", "value"), ("window", "value")),
        *(("picked", "checked"), ("profiled", "checked"), ("overlap", "checked")),
    ):
        in_browser(
            app,
            f"report{name.capitalize()}",
            Output("report-done", "data", allow_duplicate=True),
            Input(f"report-{name}", given),
            prevent_initial_call=True,
        )
    # In the browser: an answer to an older view must not reset a switch.
    in_browser(
        app,
        "reportControls",
        Output("report-experiment", "value"),
        Output("report-picked", "checked"),
        Output("report-profiled", "checked"),
        Output("report-overlap", "checked"),
        Output("report-window", "value"),
        Input("view", "data"),
    )
    in_browser(
        app,
        "reportColumns",
        Output("report-done", "data", allow_duplicate=True),
        Input("report-columns", "value"),
        State("report-state", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("report-state", "data"),
        Output("report-facts", "children"),
        Output("report-table", "children"),
        Output("report-pages", "children"),
        Output("report-links", "children"),
        Output("report-column-list", "children"),
        Output("report-columns", "value"),
        Output("report-experiment", "data"),
        Output("report-picked", "disabled"),
        Output("report-profiled", "disabled"),
        Output("report-window", "error"),
        Output("report-matrices", "children"),
        Output("report-notes", "children"),
        Input("view", "data"),
        Input("revision", "data"),
        State("report-state", "data"),
    )
    def fill(
        address: Mapping[str, Any] | None, revision: str | None, state: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        view, shown = _read(source, address, revision)
        choices = Choices.of(view.options)
        key = [revision, view.to_query()]
        if state is not None and state.get("key") == key:
            raise PreventUpdate
        columns = [item.value for item in shown.columns]
        measured = [item.value for item in shown.quantities]
        named = experiments(source)
        # Sending an open menu again would close it in the browser.
        known = state or {}
        return (
            {"key": key, "columns": columns, "measured": measured, "experiments": named},
            report_table.facts(shown),
            report_table.table_of(shown, choices, view),
            report_table.pages(shown, choices),
            report_table.links(shown, choices, view),
            no_update
            if known.get("measured") == measured
            else [
                dmc.Checkbox(label=item.info.title, value=item.value, size="xs")
                for item in shown.quantities
            ],
            columns,
            no_update if known.get("experiments") == named else named,
            not view.picks,
            not (shown.left_out or choices.profiled),
            choices.window_error or None,
            [matrix(item) for item in matrices(content_of(shown, choices))],
            report_table.notes(shown, choices),
        )

    @app.callback(
        Output({"type": "report-slot", "q": ALL}, "hidden"),
        Output("report-charts", "className"),
        Output({"type": "report-unit", "q": ALL}, "children"),
        Output({"type": "report-chart", "q": ALL}, "figure"),
        Output("report-drawn", "data"),
        Input("view", "data"),
        Input("revision", "data"),
        Input("paper", "data"),
        State("report-drawn", "data"),
    )
    def draw(
        address: Mapping[str, Any] | None,
        revision: str | None,
        paper: str | None,
        drawn: Mapping[str, str] | None,
    ) -> tuple[Any, ...]:
        view, shown = _read(source, address, revision)
        choices = Choices.of(view.options)
        scheme = Scheme(paper) if paper in list(Scheme) else Scheme.LIGHT
        drawable = set(charted(shown))
        known = drawn or {}
        found_bars = {quantity: bars_of(shown, quantity, choices) for quantity in drawable}
        # All charts get the width that the widest needs, so that they form columns.
        size = size_of(max(map(len, found_bars.values()), default=0))
        now: dict[str, str] = {"size": size.value}
        hidden: list[bool] = []
        titles: list[str] = []
        figures: list[Any] = []
        for quantity in _SLOTS:
            bars = found_bars.get(quantity, [])
            is_there = any(bar.estimate is not None for bar in bars)
            hidden.append(not is_there)
            titles.append(report_table.unit(quantity, bars))
            if not is_there:
                figures.append(no_update)
                continue
            made = figure(quantity, bars, scheme, size, in_blocks=choices.sort == BY_ORDER)
            now[quantity] = blake2b(json.dumps(made).encode(), digest_size=8).hexdigest()
            figures.append(no_update if known.get(quantity) == now[quantity] else made)
        if now == known and drawn is not None:
            raise PreventUpdate
        return hidden, f"report-charts {size}", titles, figures, now


def _read(
    source: Source, address: Mapping[str, Any] | None, revision: str | None
) -> tuple[View, Shown]:
    if address is None or not revision:
        raise PreventUpdate
    view = View.from_json(address)
    try:
        return view, read_shown(source, view)
    except RadtError:  # the router shows the error
        raise PreventUpdate from None


PAGE = Page("/report", "Report", layout, register)


#: Suggestions; any value of `radt report --window` may be typed.
_WINDOWS = ("epoch:2", "epoch:2-", "steady", "all", "train")
#: Delay before typed text is applied.
_TYPING_MS = 600


def experiments(source: Source) -> list[str]:
    """Return the names of the experiments to choose from."""
    return [experiment.name for experiment in read_experiments(source)]


def controls(source: Source, experiment: str, choices: Choices) -> Component:
    """Return the row of controls."""
    return html.Div(
        [
            dmc.Select(
                id="report-experiment",
                data=experiments(source),
                value=experiment,
                searchable=True,
                allowDeselect=False,
                limit=200,
                w=240,
                size="xs",
                nothingFoundMessage="No matching experiment",
                **attributes(aria_label="Experiment"),
            ),
            html.P(id="report-facts", className="report-facts", role="status"),
            html.Div(
                [
                    dmc.Autocomplete(
                        id="report-window",
                        data=list(_WINDOWS),
                        value=choices.window_text,
                        placeholder=f"window: {DEFAULT_WINDOW.text}",
                        debounce=_TYPING_MS,
                        clearable=True,
                        w=248,
                        size="xs",
                        **attributes(aria_label="Part of each run that counts"),
                    ),
                    dmc.Switch(
                        id="report-overlap",
                        label="only overlap",
                        checked=choices.window.overlap,
                        size="xs",
                    ),
                    dmc.Switch(
                        id="report-picked",
                        label="only the selection",
                        checked=choices.picked,
                        size="xs",
                    ),
                    dmc.Switch(
                        id="report-profiled",
                        label="with profiled runs",
                        checked=choices.profiled,
                        size="xs",
                    ),
                    dmc.Popover(
                        [
                            # Its wrapper is the button, so it has the attribute for open or closed.
                            dmc.PopoverTarget(
                                html.Span("Columns"),
                                boxWrapperProps={
                                    "component": "button",
                                    "type": "button",
                                    "className": "quiet",
                                },
                            ),
                            dmc.PopoverDropdown(
                                dmc.CheckboxGroup(
                                    dmc.Stack(id="report-column-list", gap=8),
                                    id="report-columns",
                                    label="Columns of the table",
                                    size="xs",
                                ),
                                className="report-columns",
                            ),
                        ],
                        position="bottom-end",
                        trapFocus=True,
                        returnFocus=True,
                    ),
                    html.Span(id="report-links", className="report-links"),
                ],
                className="report-controls",
            ),
        ],
        className="report-head",
    )
