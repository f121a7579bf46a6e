"""System: stores, pending uploads, running workloads, clusters, listeners and devices.

Each card is read by itself, in the background, and only while the page is open (`system.probes`); a
probe that does not answer does not affect the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import plotly.utils
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from flask import current_app

from radt.frontend.auth import Guard
from radt.frontend.data.machine import Collector
from radt.frontend.data.source import Source
from radt.frontend.data.store_facts import System
from radt.frontend.pages import system_cluster, system_machine, system_store
from radt.frontend.pages.page import Page, in_browser
from radt.frontend.view import View

INTERVAL_MS = 3000
#: How long an opened page waits in total for probes that answer quickly.
_FIRST_WAIT_S = 0.4

#: The key of the probes in the application's configuration.
_KEY = "system"

#: Cards in order, with their titles.
_MAIN = {
    "running": "Running now",
    "cluster": "Cluster",
    "devices": "This machine",
    "sampling": "Sampling",
    "backlog": "Pending uploads",
    "machines": "Machines",
    "listeners": "Listeners",
}
_SIDE = {"store": "Store", "collector": "Collector", "about": "Versions and access"}
_TITLES = _MAIN | _SIDE


def _cards(system: System, view: View) -> Mapping[str, list[Component]]:
    """Return the current content of each card."""
    collector = system.collector.look().value
    live = collector.live if isinstance(collector, Collector) else {}
    activity = system.activity.look()
    cards = {
        "running": system_store.running_card(activity, live, view),
        "cluster": system_cluster.cluster_card(system.submissions.look()),
        "store": [
            *system_store.store_card(system.facts.look(), system.points.look()),
            *system_store.import_lines(system.imports.news() if system.imports else None),
        ],
        "collector": system_machine.collector_card(system.collector.look()),
        "backlog": system_store.backlog_card(system.backlogs.look()),
        "sampling": system_store.sampling_card(activity),
        "machines": system_store.machines_card(activity),
        "devices": system_machine.devices_card(system.devices.look()),
        "listeners": system_machine.listeners_card(system.listeners.look()),
        "about": system_machine.about_card(system.versions, Guard.of(current_app)),
    }
    return {name: cards[name] for name in _TITLES}


def _layout(system: System, view: View) -> Component:
    system.begin()
    for probe in (system.facts, system.activity, system.collector, system.devices):
        probe.look(_FIRST_WAIT_S / 4)
    cards = _cards(system, view)
    return html.Section(
        [
            html.H1("System", className="system-title"),
            dcc.Interval(id="system-interval", interval=INTERVAL_MS),
            dcc.Store(id="system-tick"),
            dcc.Store(id="system-known", data=_digests(cards)),
            html.Div(
                [_column(_MAIN, cards, "system-main"), _column(_SIDE, cards, "system-side")],
                className="system-cards",
            ),
        ],
        className="system",
    )


def _column(
    titles: Mapping[str, str], cards: Mapping[str, list[Component]], name: str
) -> Component:
    return html.Div(
        [
            html.Section(
                [
                    html.H2(title),
                    html.Div(cards[card], id=f"system-{card}", className="system-body"),
                ],
                className="system-card",
                id=f"system-card-{card}",
            )
            for card, title in titles.items()
        ],
        className=name,
    )


def _digests(cards: Mapping[str, list[Component]]) -> dict[str, str]:
    return {name: _digest(content) for name, content in cards.items()}


def _digest(content: list[Component]) -> str:
    text = json.dumps(content, cls=plotly.utils.PlotlyJSONEncoder)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def layout(source: Source, view: View) -> Component:  # noqa: ARG001 - as all pages
    """Return the page for a view, with problems of the store."""
    system: System = current_app.config[_KEY]
    return _layout(system, view)


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page."""
    system = System(source)
    app.server.config[_KEY] = system
    in_browser(app, "tick", Output("system-tick", "data"), Input("system-interval", "n_intervals"))

    @app.callback(
        *(Output(f"system-{name}", "children") for name in _TITLES),
        Output("system-known", "data"),
        Input("system-tick", "data"),
        State("system-known", "data"),
        State("view", "data"),
    )
    def follow(tick: int | None, known: dict[str, str] | None, view: Any) -> tuple[Any, ...]:
        if tick is None:
            raise PreventUpdate
        cards = _cards(system, View.from_json(view or {}))
        digests = _digests(cards)
        if digests == known:
            raise PreventUpdate
        known = known or {}
        return (
            *(
                no_update if digests[name] == known.get(name) else content
                for name, content in cards.items()
            ),
            digests,
        )


PAGE = Page("/system", "System", layout, register, lambda *_: "")
