"""Compare: pick runs at the left, see their metrics over time at the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import ALL, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt.errors import RadtError
from radt.frontend.catalog import Catalog, read_catalog, read_experiments
from radt.frontend.dashing import in_browser
from radt.frontend.keepers import ListingError, NothingRecordedError
from radt.frontend.metrics import automatic_metrics, quantities
from radt.frontend.pages import board, loads, picker
from radt.frontend.pages.page import Page
from radt.frontend.selection import Aggregate, Level, Selection, Window
from radt.frontend.source import Source


def layout(source: Source, selection: Selection) -> Component:
    """The page for a selection.

    Raises:
        NothingRecordedError: There is no experiment.
        ListingError: It is not known yet what the MLflow server has.
        TrackingError: The server does not answer, and the store has nothing.
        StoreError: The store cannot be read.
    """
    catalog = read_catalog(source, selection.experiment or _latest(source))
    if source.server is not None and not catalog.has_all(selection.run_ids or ()):
        _await_server(source)
    chosen = _chosen(catalog, selection)
    available = quantities(source, tuple(board.shown_runs(catalog, chosen)))
    metrics = automatic_metrics(available) if selection.metrics is None else selection.metrics
    return html.Div(
        [
            picker.picker(source, catalog, selection, chosen),
            board.board(catalog, selection, available, metrics),
            dcc.Store(id="experiment-shown", data=catalog.experiment),
            dcc.Store(id="address"),
            dcc.Store(id="address-done"),
        ],
        className="compare",
    )


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page."""
    picker.register(app, source)
    board.register(app, source)
    loads.register(app, source)

    in_browser(
        app,
        "zoom",
        Output("window", "data"),
        Input({"type": "chart", "metric": ALL}, "relayoutData"),
        State("window", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "reset",
        Output("window", "data", allow_duplicate=True),
        Input("zoom-reset", "n_clicks"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "address",
        Output("address-done", "data"),
        Input("address", "data"),
        prevent_initial_call=True,
    )

    in_browser(
        app,
        "experiment",
        Output("url", "search"),
        Input("experiment", "value"),
        State("experiment-shown", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("address", "data"),
        Input("runs", "data"),
        Input("metrics", "data"),
        Input("level", "value"),
        Input("window", "data"),
        Input({"type": "aggregate", "metric": ALL}, "value"),
        State({"type": "aggregate", "metric": ALL}, "id"),
        State("experiment", "value"),
        prevent_initial_call=True,
    )
    def address(
        runs: dict[str, Any],
        metrics: dict[str, Any],
        level: str,
        window: list[float] | None,
        aggregates: list[str],
        aggregate_ids: list[dict[str, str]],
        experiment: str,
    ) -> str:
        try:
            catalog = read_catalog(source, experiment)
            shown = tuple(board.shown_runs(catalog, runs["ids"]))
            defaults = {q.metric: q.default_aggregate for q in quantities(source, shown)}
        except RadtError:  # the router says what is wrong
            raise PreventUpdate from None
        chosen = {
            identity["metric"]: Aggregate(value)
            for identity, value in zip(aggregate_ids, aggregates, strict=True)
            if value != defaults.get(identity["metric"], Aggregate.MEAN)
        }
        return Selection(
            experiment=experiment,
            run_ids=None if runs["auto"] else catalog.ordered(runs["ids"]),
            metrics=None if metrics["auto"] else tuple(name for name in metrics["slots"] if name),
            level=Level(level),
            window=Window.of(*window) if window else None,
            aggregates=chosen,
        ).to_query()


def _latest(source: Source) -> str:
    """The experiment in which something happened last."""
    experiments = read_experiments(source)
    if not experiments:
        _await_server(source)
        raise NothingRecordedError(source.address)
    return experiments[0].name


def _await_server(source: Source) -> None:
    """What is missing may be in the list of runs that has yet to come.

    Raises:
        ListingError: It is on its way.
        TrackingError: The server does not answer.
    """
    server = source.server
    if server is None or server.listed:
        return
    if server.problem is not None:
        raise server.problem
    raise ListingError(server.where)


def _chosen(catalog: Catalog, selection: Selection) -> Sequence[str]:
    if selection.run_ids is None:
        return catalog.automatic()
    return catalog.resolve(selection.run_ids)


PAGE = Page("/", "Compare", layout, register)
