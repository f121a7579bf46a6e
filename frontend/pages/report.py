"""Report: the tables of `radt report`, and bars.

Table and charts follow the view and the store. Graphs stand in fixed slots, one per quantity, and
only changed ones are sent, so that nothing flickers while runs end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from dash import ALL, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.errors import RadtError
from radt.frontend.charts.report_bars import HEIGHT_PX, figure
from radt.frontend.charts.timeseries import BLANK, config
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.report import content_of, read_progress, read_shown, suggestions
from radt.frontend.data.report_model import (
    BY_ORDER,
    MAX_SERIES,
    SEPARATOR,
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
from radt.frontend.pages.json_routes import Answer, add_json_routes
from radt.frontend.pages.page import Page, attributes, choice_field, choices_json, in_browser
from radt.frontend.pages.report_table import matrix
from radt.frontend.selection import latest_experiment
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from radt.render.report_content import matrices

PROGRESS_PATH = "/report/progress"

#: Fixed slots of charts: those for quantities of series, then one for each quantity.
_OF_SERIES = tuple(f"series{number}" for number in range(MAX_SERIES))
_SLOTS = (*_OF_SERIES, *Quantity)


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    experiment = view.experiment or latest_experiment(source)
    choices = Choices.of(view.options)
    suggested = suggestions(source, experiment)
    return html.Section(
        [
            html.H1("Report", className="unseen"),
            controls(source, experiment, choices, suggested),
            html.P(id="report-progress", className="report-progress", role="status"),
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
                [*(_slot(name, "", "") for name in _OF_SERIES), *map(_quantity_slot, Quantity)],
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


def _quantity_slot(quantity: Quantity) -> Component:
    return _slot(quantity.value, title_of(quantity), f"{quantity.info.explanation}.")


def _slot(name: str, title: str, why: str) -> Component:
    """Return a chart's place; one of a quantity of a series gets its title with its bars."""
    titles: Any = {} if title else {"id": {"type": "report-title", "q": name}}
    whys: Any = {} if title else {"id": {"type": "report-why", "q": name}}
    return html.Section(
        [
            html.Header(
                [
                    html.H2(title, **titles),
                    html.Span(id={"type": "report-unit", "q": name}, className="unit"),
                    html.P(why, className="why", **whys),
                ]
            ),
            html.Div(
                dcc.Graph(
                    id={"type": "report-chart", "q": name},
                    figure=BLANK,
                    config=_config(name),
                    responsive=True,
                    style={"height": f"{HEIGHT_PX}px"},
                ),
                role="group",
                **attributes(
                    aria_label=f"Bars: {title or 'as in the title'}; the table has the numbers"
                ),
            ),
        ],
        id={"type": "report-slot", "q": name},
        className="report-chart",
        hidden=True,
    )


def _config(name: str) -> Any:
    figure_config = config(f"report-{name}")
    return {**figure_config, "modeBarButtons": [["toImage"]], "doubleClick": False}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page."""
    report_files.install(app.server, source)
    add_json_routes(app.server, source, {PROGRESS_PATH: progress_answer})
    for name, given in (
        *(("experiment", "data-value"), ("series", "data-value")),
        *(("window", "value"), ("state", "data")),
    ):
        in_browser(
            app,
            f"report{name.capitalize()}",
            Output("report-done", "data", allow_duplicate=True),
            Input(f"report-{name}", given),
            prevent_initial_call=True,
        )
    # In the browser: an answer to an older view must not reset a field.
    in_browser(
        app,
        "reportControls",
        Output("report-experiment", "data-value"),
        Output("report-window", "value"),
        Output("report-series", "data-value"),
        Input("view", "data"),
    )

    @app.callback(
        Output("report-state", "data"),
        Output("report-facts", "children"),
        Output("report-table", "children"),
        Output("report-pages", "children"),
        Output("report-links", "children"),
        Output("report-experiment", "data-choices"),
        Output("report-picked", "disabled"),
        Output("report-profiled", "disabled"),
        Output("report-error", "children"),
        Output("report-series", "data-choices"),
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
        # Those of series are chosen elsewhere.
        columns = [item.value for item in shown.columns if isinstance(item, Quantity)]
        listed = [item for item in shown.quantities if isinstance(item, Quantity)]
        suggested = suggestions(source, shown.experiments[0])
        return (
            {
                "key": key,
                "columns": columns,
                "measured": [[item.value, item.info.title] for item in listed],
            },
            report_table.facts(shown),
            report_table.table_of(shown, choices, view),
            report_table.pages(shown, choices),
            report_table.links(shown, choices, view),
            choices_json(experiments(source)),
            not view.picks,
            not (shown.left_out or choices.profiled),
            " ".join(filter(None, [choices.window_error, _series_error(shown, choices)])),
            choices_json(suggested),
            [matrix(item) for item in matrices(content_of(shown, choices))],
            report_table.notes(shown, choices),
        )

    @app.callback(
        Output({"type": "report-slot", "q": ALL}, "hidden"),
        Output({"type": "report-slot", "q": ALL}, "className"),
        Output("report-charts", "className"),
        Output({"type": "report-unit", "q": ALL}, "children"),
        Output({"type": "report-title", "q": ALL}, "children"),
        Output({"type": "report-why", "q": ALL}, "children"),
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
        known = drawn or {}
        drawable = charted(shown)
        of_series = [each for each in drawable if isinstance(each, SeriesQuantity)]
        in_slots: dict[str, AnyQuantity] = {
            quantity.value: quantity for quantity in drawable if isinstance(quantity, Quantity)
        } | dict(zip(_OF_SERIES, of_series, strict=False))
        found_bars = {
            name: bars_of(shown, quantity, choices) for name, quantity in in_slots.items()
        }
        # All charts get the width that the widest needs, so that they form columns.
        size = size_of(max(map(len, found_bars.values()), default=0))
        now: dict[str, str] = {"size": size.value}
        hidden: list[bool] = []
        classes: list[str] = []
        units: list[str] = []
        figures: list[Any] = []
        for name in _SLOTS:
            quantity = in_slots.get(name)
            bars = found_bars.get(name, [])
            # A single bar says less than its number in the table.
            is_there = len(bars) > 1 and any(bar.estimate is not None for bar in bars)
            hidden.append(not is_there)
            is_one = is_there and len(bars) == 1
            classes.append("report-chart report-one" if is_one else "report-chart")
            if quantity is None:
                units.append("")
            else:
                units.append((report_table.number if is_one else report_table.unit)(quantity, bars))
            if quantity is None or not is_there or is_one:
                if is_one:
                    now[name] = units[-1]
                figures.append(no_update)
                continue
            made = figure(quantity, bars, scheme, size, in_blocks=choices.sort == BY_ORDER)
            # A quantity of a series may take the slot of another one with equal bars.
            content = json.dumps([quantity.value, made]).encode()
            now[name] = blake2b(content, digest_size=8).hexdigest()
            figures.append(no_update if known.get(name) == now[name] else made)
        shown_series = [in_slots.get(name) for name in _OF_SERIES]
        titles = [title_of(each) if each else "" for each in shown_series]
        whys = [f"{each.info.explanation}." if each else "" for each in shown_series]
        if now == known and drawn is not None:
            raise PreventUpdate
        return hidden, classes, f"report-charts {size}", units, titles, whys, figures, now


def progress_answer(source: Source, asked: Answer) -> Answer | None:
    """Return how many workloads of a view's report have been read; None if none is being read.

    Raises:
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    view = asked.get("view")
    progress = read_progress(source, View.from_json(view) if isinstance(view, dict) else View())
    return None if progress is None else {"read": progress[0], "of": progress[1]}


def _series_error(shown: Shown, choices: Choices) -> str:
    """Return why a quantity of a series is not shown; empty if all are."""
    problems = [str(problem.error) for problem in shown.problems]
    return choices.series_error or next(iter(problems), "")


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


def _chosen(source: Source, view: View) -> str:
    return view.experiment or latest_experiment(source)


PAGE = Page("/report", "Report", layout, register, _chosen)


#: Suggestions; any value of `radt report --window` may be typed.
_WINDOWS = ("epoch:2", "epoch:2-", "steady", "all", "train")
_SERIES_EXAMPLES = "last(accuracy), time_to(accuracy>=0.65)"
#: Delay before typed text is applied.
_TYPING_MS = 600


def experiments(source: Source) -> list[str]:
    """Return the names of the experiments to choose from."""
    return [experiment.name for experiment in read_experiments(source)]


def controls(
    source: Source, experiment: str, choices: Choices, suggested: Sequence[str]
) -> Component:
    """Return the row of controls; `suggested` are quantities of series."""
    return html.Div(
        [
            choice_field(
                *("report-experiment", experiments(source), experiment),
                label="Experiment",
                nothing="No matching experiment",
                style="report-experiment",
            ),
            html.P(id="report-facts", className="report-facts", role="status"),
            choice_field(
                *("report-series", suggested, SEPARATOR.join(choices.series_texts)),
                label="Quantities of any metric",
                placeholder=_SERIES_EXAMPLES,
                most=MAX_SERIES,
                style="report-series",
                is_free=True,
            ),
            html.Div(
                [
                    html.Label(
                        [
                            html.Span("Part of each run that counts", className="unseen"),
                            dcc.Input(
                                id="report-window",
                                type="search",
                                list="report-windows",
                                value=choices.window_text,
                                placeholder=f"window: {DEFAULT_WINDOW.text}",
                                debounce=_TYPING_MS / 1000,
                                className="report-window",
                            ),
                            html.Datalist(
                                [html.Option(value=text) for text in _WINDOWS],
                                id="report-windows",
                            ),
                        ]
                    ),
                    _switch("overlap", "only overlap", is_on=choices.window.overlap),
                    _switch("picked", "only the selection", is_on=choices.picked),
                    _switch("profiled", "with profiled runs", is_on=choices.profiled),
                    html.Button(
                        "Columns",
                        id="report-columns",
                        type="button",
                        className="quiet",
                        **attributes(aria_haspopup="dialog", aria_expanded="false"),
                    ),
                    html.Span(id="report-links", className="report-links"),
                ],
                className="report-controls",
            ),
            html.P(id="report-error", className="report-error", role="status"),
        ],
        className="report-head",
    )


def _switch(name: str, text: str, *, is_on: bool) -> Component:
    return html.Button(
        text,
        id=f"report-{name}",
        type="button",
        className="button",
        **attributes(aria_pressed=str(is_on).lower(), data_report_switch=f"report.{name}"),
    )
