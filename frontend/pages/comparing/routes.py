"""Where the Compare page asks: plain requests, beside Dash's own.

A chart asks for itself, when it is seen, and can take its question back; Dash's callbacks would
wait for each other, and mount anew what they write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flask import Flask, Response, request

from radt.errors import RadtError, UsageError
from radt.frontend.charts.chartdata import axes_of, chart_data
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.chosen import choose
from radt.frontend.hiding import hidden_keys
from radt.frontend.pages import states
from radt.frontend.pages.comparing.facts import facts, fingerprint, stamp
from radt.frontend.palette import Scheme
from radt.frontend.source import Source
from radt.frontend.view import View

FACTS_PATH = "/compare/facts"
FIGURE_PATH = "/compare/figure"
#: A view with 500 picks and 64 charts is far smaller.
_MAX_BYTES = 400_000
_NO_NEWS = 204

Answer = Mapping[str, Any]


def install(server: Flask, source: Source) -> None:
    """Add the routes to the application's server."""
    for path, answer in ((FACTS_PATH, facts_answer), (FIGURE_PATH, figure_answer)):
        server.add_url_rule(
            path,
            f"radt{path}",
            _handler(source, answer),
            methods=["POST"],
            provide_automatic_options=False,
        )


def known(source: Source, view: View) -> Answer:
    """What the page is sent with, so that it need not ask at first.

    Raises:
        StoreError, NothingRecordedError, ListingError, TrackingError: As `choose`.
    """
    asked = view.to_json()
    picked = {name: asked[name] for name in ("picks", "experiment") if name in asked}
    revision = source.revision()
    found = facts_answer(source, {"view": picked}) or {}
    return {"picked": picked, "revision": revision, **found}


def facts_answer(source: Source, asked: Answer) -> Answer | None:
    """What is picked; None if that is known already (``stamp`` and ``fingerprint``).

    Raises:
        StoreError: The store cannot be read.
        NothingRecordedError, ListingError, TrackingError: As `choose`.
    """
    view = _view(asked)
    revision = source.revision()
    chosen = choose(source, view)
    content = facts(source, view, chosen)
    found = {
        "stamp": stamp(content),
        "fingerprint": fingerprint(chosen.runs.values(), revision),
    }
    if all(asked.get(name) == value for name, value in found.items()):
        return None
    return {**found, "facts": None if asked.get("stamp") == found["stamp"] else content}


def figure_answer(source: Source, asked: Answer) -> Answer | None:
    """The figure of the one chart of a view; None if the runs are as they were.

    Raises:
        StoreError: The store cannot be read.
        UsageError: There is not one chart.
        NothingRecordedError, ListingError, TrackingError: As `choose`.
    """
    view = _view(asked)
    if not view.charts or len(view.charts) != 1:
        raise UsageError("a figure has one chart", "Reload the page")
    (spec,) = view.charts
    revision = source.revision()
    chosen = choose(source, view)
    now = fingerprint(chosen.runs.values(), revision)
    if asked.get("fingerprint") == now:
        return None
    spec = replace(spec, hidden=spec.hidden + hidden_keys(source, chosen, view, spec.metric))
    data = chart_data(source, chosen, spec, view.board, view.windows.get(spec.x_of(view.board)))
    if data is None:
        text = "The picked runs do not have this metric" if chosen.runs else "No run is picked"
        return {"fingerprint": now, "missing": text}
    scheme = Scheme.DARK if asked.get("scheme") == Scheme.DARK else Scheme.LIGHT
    look = Look(scheme, view.board.monochrome, spec.rows, spec.columns)
    return {
        "fingerprint": now,
        "axes": [str(x) for x in axes_of(source, chosen, spec.metric)],
        "figure": figure(data, look),
    }


def problem(error: RadtError) -> Answer:
    """What went wrong, for the page to say."""
    return {
        "problem": {
            "cause": states.sentence(error.message),
            "remedy": states.sentence(error.remedy) if error.remedy else "",
        }
    }


def _handler(
    source: Source, answer: Callable[[Source, Answer], Answer | None]
) -> Callable[[], Response]:
    def handle() -> Response:
        # Pages of other origins may send forms, but no JSON.
        if not request.is_json or (request.content_length or 0) > _MAX_BYTES:
            return _said(problem(UsageError("this is no question of the page", "Reload it")), 400)
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict):
            return _said(problem(UsageError("this is no question of the page", "Reload it")), 400)
        try:
            found = answer(source, asked)
        except RadtError as error:
            return _said(problem(error))
        return Response(status=_NO_NEWS) if found is None else _said(found)

    return handle


def _said(content: Answer, status: int = 200) -> Response:
    response = Response(
        json.dumps(content, separators=(",", ":")), status, mimetype="application/json"
    )
    response.headers["Cache-Control"] = "no-store"
    return response


def _view(asked: Answer) -> View:
    found = asked.get("view")
    return View.from_json(found) if isinstance(found, dict) else View()
