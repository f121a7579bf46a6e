"""System: the results of ``radt doctor``, ``radt devices`` and ``radt status``, and access.

Each card is read separately, in the background, and only while the page is open. A card that does
not answer does not affect the others.
"""

from __future__ import annotations

import logging
import platform
import time
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from dash import Dash, html
from dash.development.base_component import Component
from flask import current_app

from radt.frontend.addresses import address
from radt.frontend.auth import LOGOUT_PATH, Guard
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.probe import COMMAND_LATE_S, Probe, ProbeResult, ask_radt, need_linux
from radt.frontend.imports import ImportNews
from radt.frontend.pages.json_routes import Answer, add_json_routes
from radt.frontend.pages.page import Page
from radt.frontend.pages.parts import changed, followed, template
from radt.frontend.view import View

_LOG = logging.getLogger(__name__)

DATA_PATH = "system/data"
INTERVAL_S = 1.0
_DEVICES_S, _CLUSTER_S, _CHECKS_S = 2.0, 15.0, 30.0
#: How long the first answer waits for fast probes.
_FIRST_WAIT_S = 0.1
#: Distributions whose versions matter in questions and bug reports.
_PACKAGES = ("radt", "dash", "plotly", "numpy", "SQLAlchemy", "mlflow")
_CARDS = ("cluster", "devices", "checks", "imports", "access")


def layout(source: CachedStore, view: View) -> Component:  # noqa: ARG001 - same signature on all pages
    """Return the page, whose cards `DATA_PATH` fills."""
    cards = [html.Div(id=f"system-{name}") for name in _CARDS]
    return html.Section(
        [html.H1("System", className="system-title"), html.Div(cards, className="system-cards")],
        className="system",
        **followed(DATA_PATH, every_s=INTERVAL_S),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the route of the page."""
    probes = _probes(source)

    def answer(_: CachedStore, asked: Answer) -> Answer | None:
        for probe in probes.values():
            probe.look()
        read = {name: probe.look(_FIRST_WAIT_S) for name, probe in probes.items()}
        return changed(asked, _cards(read, source.imports.news() if source.imports else None))

    add_json_routes(app.server, source, {DATA_PATH: answer})


def _probes(source: CachedStore) -> dict[str, Probe[Any]]:
    path, late_s = source.address.path, COMMAND_LATE_S
    home = () if path is None else ("--home", str(path.parent))
    return {
        "devices": Probe("devices", _devices, _DEVICES_S),
        "checks": Probe(
            "checks", lambda: ask_radt("doctor", *home)["checks"], _CHECKS_S, COMMAND_LATE_S
        ),
        "cluster": Probe("cluster", lambda: _submissions(*home), _CLUSTER_S, late_s),
    }


def _cards(read: dict[str, ProbeResult[Any]], news: ImportNews | None) -> dict[str, str]:
    cards = {name: _card(name, reading) for name, reading in read.items()}
    cards["access"] = _card("access", versions(), Guard.of(current_app), address(LOGOUT_PATH))
    if news is not None:
        cards["imports"] = _card("imports", news, _clock(news.complete_ns))
    return {f"system-{name}": html for name, html in cards.items()}


def _card(name: str, *what: Any) -> str:
    macros: Any = template("system.html")
    try:
        card = getattr(macros, name)(*what)
    except Exception as error:  # noqa: BLE001 - logged; the other cards are shown
        _LOG.exception("drawing the card %s failed", name)
        card = macros.broken(name, f"drawing this failed: {type(error).__name__}")
    return cast("str", card)


def _devices() -> Any:
    """Return what ``radt devices`` shows.

    Raises:
        RadtError: This is not Linux.
    """
    need_linux()
    from radt.collocation.overview import MachineOverview

    return MachineOverview.read()


def _submissions(*options: str) -> Any:
    return ask_radt("status", *options)


def versions() -> list[tuple[str, str]]:
    """Return names and versions of the installed packages."""
    found = [("Python", platform.python_version()), (platform.system(), platform.release())]
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:  # a source tree on PYTHONPATH, or an extra
            continue
    return found


def _clock(time_ns: int | None) -> str:
    """Return a time in this machine's time zone, with the date unless it is today."""
    if time_ns is None:
        return ""
    at = datetime.fromtimestamp(time_ns / 1e9).astimezone()
    today = datetime.fromtimestamp(time.time()).astimezone().date()
    return f"{at:%H:%M}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}"


PAGE = Page("system", "System", layout, register, lambda *_: "")
