"""The charts at the right: one card a metric, all on the same time axis."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt import units
from radt.errors import RadtError
from radt.frontend.catalog import STATUS_WORDS, Catalog, RunEntry, read_catalog
from radt.frontend.charts import timeseries
from radt.frontend.charts.chartdata import chart_data
from radt.frontend.charts.elapsed import label as clock
from radt.frontend.charts.quantity import Quantity
from radt.frontend.dashing import attributes, triggers
from radt.frontend.metrics import automatic_metrics, quantities
from radt.frontend.palette import Scheme
from radt.frontend.selection import MAX_METRICS, MAX_RUNS, Aggregate, Level, Selection, Window
from radt.frontend.source import Source
from radt.model import SOFTWARE, RunStatus


def board(
    catalog: Catalog,
    selection: Selection,
    available: Sequence[Quantity],
    metrics: Sequence[str],
) -> Component:
    """The charts of the metrics, and the controls above them."""
    by_metric = {quantity.metric: quantity for quantity in available}
    slots = arranged([None] * MAX_METRICS, metrics)
    window = selection.window
    return html.Section(
        [
            _head(catalog, selection, available, metrics),
            html.Div(id="loads", className="loads", hidden=True, role="status"),
            html.Div(
                [
                    html.Div(
                        card(metric, by_metric.get(metric), selection.aggregates) if metric else [],
                        id={"type": "slot", "index": index},
                        className="slot",
                    )
                    for index, metric in enumerate(slots)
                ],
                id="charts",
                className="charts",
            ),
            dcc.Store(
                id="metrics",
                data={"slots": slots, "auto": selection.metrics is None},
            ),
            dcc.Store(id="window", data=[window.start_s, window.end_s] if window else None),
        ],
        id="board",
        className="board",
        **attributes(data_level=selection.level.value),
    )


def _head(
    catalog: Catalog,
    selection: Selection,
    available: Sequence[Quantity],
    metrics: Sequence[str],
) -> Component:
    controls = [
        html.Span(
            [
                html.Span(id="zoom-text"),
                html.Button("reset", id="zoom-reset", className="quiet"),
            ],
            id="zoom",
            className="zoom",
            hidden=selection.window is None,
        ),
        dmc.SegmentedControl(
            id="level",
            data=[
                {"value": Level.RUN, "label": "Runs"},
                {"value": Level.WORKLOAD, "label": "Workloads"},
            ],
            value=selection.level,
            size="xs",
            transitionDuration=0,
            **attributes(aria_label="One line a"),
        ),
        dmc.Select(
            id="add-metric",
            data=options(available, metrics),
            placeholder="Add a chart",
            searchable=True,
            size="xs",
            w=224,
            maxDropdownHeight=400,
            nothingFoundMessage="No such metric in these runs",
            comboboxProps={"shadow": "sm", "width": 320, "position": "bottom-end"},
            **attributes(aria_label="Add a chart"),
        ),
    ]
    return html.Div(
        [
            html.H1(catalog.experiment),
            html.Span(facts(catalog), id="facts", className="facts"),
            html.Div(controls, className="controls"),
        ],
        className="board-head",
    )


def card(metric: str, quantity: Quantity | None, chosen: Mapping[str, Aggregate]) -> Component:
    """The frame of one chart; the chart itself comes by its callback."""
    default = quantity.default_aggregate if quantity else Aggregate.MEAN
    subtitle = quantity.subtitle if quantity else ""
    return html.Article(
        [
            html.Div(
                [
                    html.H2(metric, title=metric),
                    html.Span("", id={"type": "unit", "metric": metric}, className="unit"),
                    html.Span(subtitle, className="unit subtitle", title=subtitle),
                    *(_explanation(quantity) if quantity else ()),
                    html.Span(className="push"),
                    html.Div(
                        dmc.SegmentedControl(
                            id={"type": "aggregate", "metric": metric},
                            data=[aggregate.value for aggregate in Aggregate],
                            value=chosen.get(metric, default).value,
                            size="xs",
                            transitionDuration=0,
                            **attributes(aria_label=f"Aggregate of {metric}"),
                        ),
                        className="card-aggregate",
                    ),
                    html.Button(
                        "×",
                        id={"type": "remove", "metric": metric},
                        className="quiet",
                        title="Remove this chart",
                        **attributes(aria_label=f"Remove {metric}"),
                    ),
                ],
                className="card-head",
            ),
            html.Div(
                dcc.Graph(
                    id={"type": "chart", "metric": metric},
                    figure=timeseries.BLANK,
                    config=timeseries.config(f"radt {metric}"),
                    style={"height": f"{timeseries.HEIGHT_PX}px"},
                    responsive=True,
                ),
                className="card-body",
            ),
            dcc.Store(id={"type": "stamp", "metric": metric}),
        ],
        className="card",
        **attributes(data_metric=metric),
    )


def _explanation(quantity: Quantity) -> Sequence[Component]:
    """How the values come about, for those who point at it or reach it by the keyboard."""
    text = quantity.explanation
    if not text:
        return ()
    word = html.Span("how", className="how", tabIndex=0, **attributes(aria_label=text))
    return (
        dmc.Tooltip(
            word,
            label=text,
            multiline=True,
            w=320,
            position="bottom-start",
            events={"hover": True, "focus": True, "touch": True},
        ),
    )


def options(available: Sequence[Quantity], taken: Sequence[str]) -> list[dict[str, Any]]:
    """Metrics that have no chart yet, grouped by where they come from."""
    groups: dict[str, list[str]] = {}
    for quantity in available:
        if quantity.metric not in taken:
            title = "logged by the script" if quantity.listener == SOFTWARE else quantity.listener
            groups.setdefault(title, []).append(quantity.metric)
    return [{"group": title, "items": names} for title, names in groups.items()]


def facts(catalog: Catalog) -> str:
    """``3 workloads · 6 runs · 1 failed``."""
    states = Counter(run.record.status for run in catalog.runs.values())
    unusual = [
        f"{states[status]:,} {word}"
        for status, word in STATUS_WORDS.items()
        if states[status] and status is not RunStatus.FINISHED
    ]
    profiled = sum(bool(run.profiled) for run in catalog.runs.values())
    parts = [
        units.plural(len(catalog.workloads), "workload"),
        units.plural(len(catalog.runs), "run"),
        *([units.plural(len(catalog.hosts), "machine")] if len(catalog.hosts) > 1 else []),
        *unusual,
        *([f"{profiled:,} profiled"] if profiled else []),
    ]
    return " · ".join(parts)


def shown_runs(catalog: Catalog, run_ids: Sequence[str]) -> dict[str, RunEntry]:
    """The chosen runs that are drawn, in order: beyond `MAX_RUNS` nobody sees anything."""
    return {run_id: catalog.runs[run_id] for run_id in catalog.ordered(run_ids)[:MAX_RUNS]}


def register(app: Dash, source: Source) -> None:
    """Callbacks of the charts."""
    _register_cards(app, source)
    _register_charts(app, source)
    _register_head(app, source)


def _register_cards(app: Dash, source: Source) -> None:
    @app.callback(
        Output("metrics", "data"),
        Output({"type": "slot", "index": ALL}, "children"),
        Output("add-metric", "data"),
        Output("add-metric", "value"),
        Input("add-metric", "value"),
        Input({"type": "remove", "metric": ALL}, "n_clicks"),
        Input("runs", "data"),
        Input("revision", "data"),
        State("metrics", "data"),
        State("add-metric", "data"),
        State("experiment", "value"),
        prevent_initial_call=True,
    )
    def arrange(
        added: str | None,
        _removed: list[int | None],
        runs: dict[str, Any],
        _revision: str,
        known: dict[str, Any],
        known_options: list[dict[str, Any]],
        experiment: str,
    ) -> tuple[Any, ...]:
        try:
            catalog = read_catalog(source, experiment)
            available = quantities(source, tuple(shown_runs(catalog, runs["ids"])))
        except RadtError:  # the router says what is wrong
            raise PreventUpdate from None
        before: list[str | None] = known["slots"]
        names, automatic = [name for name in before if name], bool(known["auto"])
        trigger = ctx.triggered_id
        if trigger == "add-metric" and added and added not in names:
            names, automatic = [*names, added][:MAX_METRICS], False
        elif isinstance(trigger, dict) and ctx.triggered[0]["value"]:
            names, automatic = [name for name in names if name != trigger["metric"]], False
        elif automatic and available:
            names = list(automatic_metrics(available))
        slots = arranged(before, names)
        now = {"slots": slots, "auto": automatic}
        offered = options(available, names)
        by_metric = {quantity.metric: quantity for quantity in available}
        return (
            no_update if now == known else now,
            [
                no_update if old == new else card(new, by_metric.get(new), {}) if new else []
                for old, new in zip(before, slots, strict=True)
            ],
            no_update if offered == known_options else offered,
            None if added else no_update,
        )


def arranged(before: Sequence[str | None], names: Sequence[str]) -> list[str | None]:
    """Put the metrics into the slots of the page; those that are there stay where they are.

    Whatever a callback writes is drawn anew with all that is in it. So each chart has a place of
    its own, and coming and going charts leave the others alone.
    """
    slots = [name if name in names else None for name in before]
    new = [name for name in names if name not in slots]
    last = max((index for index, name in enumerate(slots) if name), default=-1)
    behind = [index for index in range(last + 1, len(slots)) if slots[index] is None]
    between = [index for index in range(last + 1) if slots[index] is None]
    for name, index in zip(new, (*behind, *between), strict=False):
        slots[index] = name
    return slots


def _register_charts(app: Dash, source: Source) -> None:
    @app.callback(
        Output({"type": "chart", "metric": MATCH}, "figure"),
        Output({"type": "unit", "metric": MATCH}, "children"),
        Output({"type": "stamp", "metric": MATCH}, "data"),
        Input("runs", "data"),
        Input("window", "data"),
        Input("level", "value"),
        Input({"type": "aggregate", "metric": MATCH}, "value"),
        Input("paper", "data"),
        Input("revision", "data"),
        State({"type": "stamp", "metric": MATCH}, "data"),
        State({"type": "chart", "metric": MATCH}, "id"),
        State("experiment", "value"),
    )
    def draw(
        runs: dict[str, Any],
        window: list[float] | None,
        level: str,
        aggregate: str,
        scheme_name: str | None,
        revision: str | None,
        known_stamp: str | None,
        chart_id: dict[str, str],
        experiment: str,
    ) -> tuple[Any, ...]:
        if scheme_name is None or revision is None:
            raise PreventUpdate  # both are on their way and come here next
        scheme = Scheme(scheme_name)
        try:
            catalog = read_catalog(source, experiment)
            shown = shown_runs(catalog, runs["ids"])
            stamp = fingerprint(shown.values(), revision)
            if triggers() == {"revision.data"} and stamp == known_stamp:
                raise PreventUpdate
            data = chart_data(
                source,
                shown,
                chart_id["metric"],
                level=Level(level),
                aggregate=Aggregate(aggregate),
                window=Window.of(*window) if window else None,
            )
        except RadtError as error:
            return timeseries.notice(error.message, scheme), no_update, None
        if data is None:
            text = "the selected runs do not have this metric" if shown else "no run is selected"
            return timeseries.notice(text, scheme), no_update, stamp
        figure = timeseries.figure(data, scheme)
        return figure, figure["layout"]["meta"]["unit"], stamp


def fingerprint(runs: Any, revision: str) -> str:
    """Stays the same as long as a chart of these runs would: ended runs get no new points."""
    state = hashlib.blake2b(digest_size=12)
    for run in runs:
        record = run.record
        live = "" if record.status.ended else revision
        here = "remote" if run.remote else ""
        state.update(f"{record.run_id} {record.status} {record.ended_ns} {live} {here};".encode())
    return state.hexdigest()


def _register_head(app: Dash, source: Source) -> None:
    @app.callback(
        Output("zoom", "hidden"),
        Output("zoom-text", "children"),
        Input("window", "data"),
    )
    def zoomed(window: list[float] | None) -> tuple[bool, str]:
        if not window:
            return True, ""
        step_s = (window[1] - window[0]) / 100
        return False, f"{clock(window[0], step_s)} – {clock(window[1], step_s)} · full resolution"

    @app.callback(
        Output("facts", "children"),
        Output("board", "data-level"),
        Input("revision", "data"),
        Input("level", "value"),
        State("experiment", "value"),
        State("facts", "children"),
        prevent_initial_call=True,
    )
    def head(_: str, level: str, experiment: str, known: str) -> tuple[Any, ...]:
        try:
            text = facts(read_catalog(source, experiment))
        except RadtError:
            raise PreventUpdate from None
        return no_update if text == known else text, level
