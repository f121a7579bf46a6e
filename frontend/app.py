"""The application: its frame, its pages, and the polling that keeps them up to date.

A page is a module in ``pages`` with a `Page`; add it to `PAGES`. The user's choices are one
`radt.frontend.view.View`, kept in the browser's store ``view``: controls change it, charts and
tables follow it, and the address holds the same view. The server keeps no state per visitor, so the
number of browsers is not limited.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from flask import Response

from radt.errors import RadtError
from radt.frontend import notes
from radt.frontend.addresses import address, from_request
from radt.frontend.auth import DashboardAccess, Guard
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.export import routes as export
from radt.frontend.pages import (
    advice,
    compare,
    explore,
    report,
    run,
    runs,
    system,
    timeline,
    workload,
)
from radt.frontend.pages.page import Page, attributes, error_page, outage
from radt.frontend.pages.parts import template
from radt.frontend.static_files import PLOTLY, SCHEME, SCRIPTS, STYLES, Compressed
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.units import plural

PAGES: tuple[Page, ...] = (
    *(runs.PAGE, compare.PAGE, explore.PAGE, run.PAGE, workload.PAGE),
    *(timeline.PAGE, report.PAGE, advice.PAGE, system.PAGE),
)

#: Polling intervals of a page, while runs are running and otherwise.
LIVE_INTERVAL_MS = 1000
IDLE_INTERVAL_MS = 3000


#: Dash's own template plus the language, which screen readers need, and the colour scheme.
_INDEX = """<!DOCTYPE html>
<html lang="en">
    <head>
        {%metas%}
        <title>{%title%}</title>
        <link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'
            viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='3' fill='%234263eb'/%3E%3Cpath
            d='M3 12V7m3.3 5V4m3.4 8V9M13 12V5' stroke='%23fff' stroke-width='2'/%3E%3C/svg%3E">
        <script src="SCHEME"></script>
        {%css%}
    </head>
    <body>
        {%app_entry%}
        <footer>
            {%config%}
            {%scripts%}
            {%renderer%}
        </footer>
    </body>
</html>""".replace("SCHEME", SCHEME.address)


#: Dash's tables, and what only those of its components need that are loaded later.
_UNUSED_SCRIPT = re.compile(r'<script src="[^"]*/(?:dash_table/|deps/polyfill@)[^"]*"></script>')


class _Application(Dash):
    """Serves its frame for the addresses of pages only."""

    def index(self, path: str = "") -> Any:
        if any(page.path == path for page in PAGES):
            frame: Any = super().index  # Dash does not declare its type
            return _UNUSED_SCRIPT.sub("", frame())
        macros: Any = template("alone.html")
        return Response(macros.missing(path, from_request()), 404)


def create_app(source: CachedStore, access: DashboardAccess) -> Dash:
    """Return the dashboard over one store (``.server`` is its WSGI application)."""
    app = _Application(
        "radt",
        include_assets_files=False,
        external_scripts=[{"src": SCRIPTS.address, "data-plotly": PLOTLY.address}],
        external_stylesheets=[STYLES.address],
        title="radt",
        update_title="",
        serve_locally=True,
        compress=False,
        suppress_callback_exceptions=True,
        add_log_handler=False,
        index_string=_INDEX,
    )
    # Relative, as all addresses are; the constructor takes only absolute ones.
    app.init_app(requests_pathname_prefix=address())
    Guard(access).install(app)
    Compressed().install(app)
    for bundle in (SCHEME, SCRIPTS, STYLES, PLOTLY):
        bundle.serve(app.server)
    # Built on each visit, as a store may have appeared since.
    app.layout = lambda: _frame(source)
    _register_pulse(app, source)
    _register_router(app, source)
    _register_address(app, source)
    export.install(app.server, source)
    notes.install(app, source)
    for page in PAGES:
        page.register(app, source)
    return app


def _frame(source: CachedStore) -> Component:
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="pulse", interval=LIVE_INTERVAL_MS),
            dcc.Store(id="tick"),
            dcc.Store(id="revision"),
            dcc.Store(id="trouble"),
            dcc.Store(id="away", data=""),
            dcc.Store(id="view"),
            dcc.Store(id="address"),
            dcc.Store(id="address-done"),
            dcc.Store(id="title"),
            dcc.Store(id="attempt"),
            html.Header(
                [
                    html.A("radt", href=address(), className="wordmark"),
                    html.Nav(
                        [
                            dcc.Link(
                                page.title,
                                href=address(page.path),
                                id={"type": "nav", "page": page.path},
                            )
                            for page in PAGES
                        ],
                        **attributes(aria_label="Pages"),
                    ),
                    html.Span(className="push"),
                    html.Button(
                        "Views",
                        type="button",
                        className="quiet",
                        id="views-button",
                        **attributes(aria_haspopup="dialog"),
                    ),
                    _where(source),
                    html.Span("", id="live", className="live", role="status"),
                    html.Button(
                        "◐",
                        type="button",
                        className="quiet scheme",
                        id="scheme",
                        title="Light or dark",
                        **attributes(aria_label="Light or dark"),
                    ),
                ],
                className="bar",
            ),
            html.Div(id="outage", className="outage", role="alert", hidden=True),
            html.Main(id="content"),
        ]
    )


def _in_browser(app: Dash, function: str, *arguments: object, **options: object) -> None:
    """Register a callback that runs ``window.dash_clientside.radt.FUNCTION`` (static/core.js)."""
    register: Any = app.clientside_callback
    register(ClientsideFunction("radt", function), *arguments, **options)


def _where(source: CachedStore) -> Component:
    """Return the store's name for the header, ``radt-data/radt.db``; the tooltip is its address."""
    stores, titles = [_short(str(source.address))], [str(source.address)]
    if source.imports is not None:
        stores.append(_short(source.imports.where))
        titles.append(f"runs imported from MLflow at {source.imports.where}")
    return html.Span(
        " and ".join(stores), className="where", title=f"Shows {', and '.join(titles)}"
    )


def _short(where: str) -> str:
    """Shorten a file to its folder and name, a database to its server and name."""
    if "://" not in where:
        return "/".join(PurePath(where).parts[-2:])
    return where.partition("://")[2].rpartition("@")[2].partition("?")[0]


def _register_pulse(app: Dash, source: CachedStore) -> None:
    """Poll the store's revision. Every other callback depends on ``revision``."""
    _in_browser(app, "tick", Output("tick", "data"), Input("pulse", "n_intervals"))

    @app.callback(
        Output("revision", "data"),
        Output("live", "children"),
        Output("live", "data-live"),
        Output("pulse", "interval"),
        Output("outage", "children"),
        Output("outage", "hidden"),
        Output("away", "data"),
        Input("tick", "data"),
        State("revision", "data"),
        State("pulse", "interval"),
        State("away", "data"),
    )
    def pulse(_: int | None, known: str | None, interval_ms: int, away: str) -> tuple[Any, ...]:
        revision, problem = source.revision(), source.outage
        if revision == known and away == str(problem or ""):
            raise PreventUpdate
        try:
            running = source.remember("running", _count_running)
        except RadtError:  # the router shows the error
            running = 0
        wanted_ms = LIVE_INTERVAL_MS if running else IDLE_INTERVAL_MS
        text, is_live = plural(running, "run") + " live" if running else "idle", bool(running)
        if problem is not None and not running:
            text = "not connected"
        return (
            no_update if revision == known else revision,
            text,
            "yes" if is_live else "no",
            no_update if wanted_ms == interval_ms else wanted_ms,
            [] if problem is None else outage(problem),
            problem is None,
            str(problem or ""),
        )


def _count_running(reader: StoreReader) -> int:
    return len(reader.runs(status=RunStatus.RUNNING))


def _register_router(app: Dash, source: CachedStore) -> None:
    _in_browser(
        app,
        "retry",
        Output("attempt", "data"),
        Input("revision", "data"),
        State("trouble", "data"),
        State("attempt", "data"),
    )

    @app.callback(
        Output("content", "children"),
        Output("trouble", "data"),
        Output("view", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("attempt", "data"),
        State("view", "data"),
    )
    def show(
        pathname: str | None, search: str | None, _: int | None, known: dict[str, Any] | None
    ) -> tuple[Any, ...]:
        page = _page(pathname)
        triggers = [trigger["prop_id"] for trigger in ctx.triggered]
        again = triggers == ["attempt.data"] and known is not None
        # The component ``url`` does not notice changes that the page makes itself.
        view = View.from_json(known) if again and known else View.from_query(search)
        revision = source.revision()
        try:
            content = [*_problems(view), page.layout(source, view)]
            trouble = None
        except RadtError as error:
            content, trouble = [error_page(error, source.address)], revision
        return content, trouble, no_update if again else view.to_json()


def _problems(view: View) -> list[Component]:
    """Return a note on the parts of the address that are ignored, if there are any."""
    if not view.problems:
        return []
    return [html.P(". ".join(view.problems), className="address-problems", role="status")]


def _page(pathname: str | None) -> Page:
    """Return the page of an address; only its end is known if a proxy serves it below a path."""
    path = (pathname or "").rpartition("/")[2]
    return next((page for page in PAGES if page.path == path), PAGES[0])


def _register_address(app: Dash, source: CachedStore) -> None:
    """Keep the address, the tab's title and the links to other pages in step with the view."""

    @app.callback(
        Output("address", "data"),
        Output("title", "data"),
        Input("view", "data"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def address(view_data: dict[str, Any] | None, pathname: str | None) -> tuple[str, str]:
        if view_data is None:
            raise PreventUpdate
        view = View.from_json(view_data)
        return view.to_query(), _page(pathname).tab_title(source, view)

    _in_browser(
        app,
        "title",
        Output("address-done", "data", allow_duplicate=True),
        Input("title", "data"),
        prevent_initial_call=True,
    )

    _in_browser(
        app,
        "address",
        Output({"type": "nav", "page": ALL}, "href"),
        Input("address", "data"),
        State({"type": "nav", "page": ALL}, "id"),
        prevent_initial_call=True,
    )
    _in_browser(app, "current", Output("address-done", "data"), Input("url", "pathname"))
    _in_browser(
        app,
        "follow",
        Output("address-done", "data", allow_duplicate=True),
        Input("view", "data"),
        Input("revision", "data"),
        Input("content", "children"),
        prevent_initial_call=True,
    )
