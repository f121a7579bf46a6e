"""Compare: charts of the selection, on linked axes.

The server sends the frame and the facts of the selected runs. The browser draws the rest
(static/compare*.js) and requests figures by plain HTTP instead of Dash's callbacks: each visible
chart has its own request, which it can cancel, and elements stay mounted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component

from radt import units
from radt.analysis.names import differing_params
from radt.errors import UsageError
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, Stroke, Tints
from radt.frontend.data.chart_data import axes_of, chart_data, natural_x
from radt.frontend.data.lines import WIDTH_PX, params_of
from radt.frontend.data.metrics import quantities, sections
from radt.frontend.data.model import MetricInfo
from radt.frontend.data.shown import as_seen, view_charts
from radt.frontend.data.spec import ID_DIGITS, MAX_CHARTS, Pick, XAxis
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, attributes, chart_share_menu, share_menu
from radt.frontend.pages.parts import asked_scheme, followed
from radt.frontend.selection import SelectedRuns, Unit, read_selection, selection_notes
from radt.frontend.theme import DASHES, Scheme, colour
from radt.frontend.view import View
from radt.model import SOFTWARE, STATUS_WORDS, RunStatus
from radt.render.labels import apart

FACTS_PATH = "compare/facts"
FIGURE_PATH = "compare/figure"
_MAX_PX = 10_000


def layout(source: CachedStore, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    return html.Section(
        [
            html.Aside(id="compare-list", className="compare-list"),
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(id="compare-tools", className="compare-tools"),
                            share_menu(),
                        ],
                        className="compare-bar",
                    ),
                    html.Div(id="compare-notes", className="compare-notes", role="status"),
                    html.Div(
                        [_slot(slot) for slot in range(MAX_CHARTS)],
                        id="charts",
                        className="charts",
                    ),
                    html.Details(
                        [html.Summary("Images, tables and texts"), html.Div(id="compare-media")],
                        id="compare-media-panel",
                        className="compare-media",
                    ),
                    html.Div(id="compare-sections", className="compare-sections"),
                    html.Div(id="compare-zoom", className="compare-zoom", hidden=True),
                    html.Div(id="compare-empty", className="compare-empty", hidden=True),
                ],
                className="board",
            ),
            html.Div(id="compare-status", className="unseen", **attributes(aria_live="polite")),
        ],
        id="compare",
        className="compare",
        **followed(FACTS_PATH),
        **attributes(data_known=json.dumps(known(source, view))),
    )


def _slot(slot: int) -> Component:
    """Return the placeholder of a chart, which the browser fills and shows."""
    return html.Article(
        [html.Div(className="card-chart"), chart_share_menu(slot)],
        className="card",
        hidden=True,
        **attributes(data_slot=str(slot)),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page."""
    add_json_routes(app.server, source, {FACTS_PATH: facts_answer, FIGURE_PATH: figure_answer})


# -- routes -------------------------------------------------------------------------------------


def known(source: CachedStore, view: View) -> Answer:
    """Return the facts that are sent with the page, to save a request.

    Raises:
        StoreError, NothingRecordedError: As `read_selection`.
    """
    asked = view.to_json()
    picked = {name: asked[name] for name in ("picks", "experiment") if name in asked}
    revision = source.revision()
    facts_ = facts_answer(source, {"view": picked}) or {}
    return {"picked": picked, "revision": revision, **facts_}


def facts_answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the facts of the selection; None if the browser has them (``stamp``, ``fingerprint``).

    Raises:
        StoreError: The store cannot be read.
        NothingRecordedError: As `read_selection`.
    """
    view = asked_view(asked)
    revision = source.revision()
    selection = read_selection(source, view)
    content = facts(source, view, selection)
    versions = {
        "stamp": stamp(content),
        "fingerprint": fingerprint(selection.runs.values(), revision),
    }
    if all(asked.get(name) == value for name, value in versions.items()):
        return None
    return {**versions, "facts": None if asked.get("stamp") == versions["stamp"] else content}


def figure_answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the figure of the view's chart; None if no run changed since ``fingerprint``.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The view does not have exactly one chart.
        NothingRecordedError: As `read_selection`.
    """
    view = asked_view(asked)
    if not view.charts or len(view.charts) != 1:
        raise UsageError("expected a view with one chart", "Reload the page")
    (spec,) = view.charts
    revision = source.revision()
    selection = read_selection(source, view)
    now = fingerprint(selection.runs.values(), revision)
    if asked.get("fingerprint") == now:
        return None
    spec = as_seen(source, view, selection, spec)
    window = view.windows.get(spec.zoom_of(view.board))
    width_px = _pixels(asked, "width_px") or WIDTH_PX
    small = asked.get("small") is True
    data = chart_data(source, selection, spec, view.board, window, width_px, with_ticks=not small)
    if data is None:
        text = "The selected runs do not have this metric"
        return {"fingerprint": now, "missing": text if selection.runs else "No run is selected"}
    look = Look(
        asked_scheme(asked),
        view.board.monochrome,
        spec.rows,
        spec.columns,
        paper=asked.get("paper") is True,
        small=small,
        shown_px=_pixels(asked, "height_px"),
        width_px=_pixels(asked, "width_px"),
    )
    return {
        "fingerprint": now,
        "axes": [str(x) for x in axes_of(source, selection, spec.metric)],
        "figure": figure(data, look),
    }


def _chosen(source: CachedStore, view: View) -> str:
    selection = read_selection(source, view)
    if len(selection.runs) == 1:
        return next(iter(selection.runs.values())).short
    return f"{units.plural(len(selection.runs), 'run')} of {', '.join(selection.experiments)}"


def _pixels(asked: Answer, name: str) -> int:
    """Return a size of the chart in the browser, 0 if unknown."""
    size_px = asked.get(name)
    return size_px if type(size_px) is int and 0 < size_px <= _MAX_PX else 0


PAGE = Page("compare", "Compare", layout, register, _chosen)


# -- facts: the page's data about the selected runs, besides their charts ------------------------
#
# Plain dictionaries. static/compare.js draws the lists of runs and metrics and the controls from
# them, so that a click there does not wait for the server.

_LOGGED = "logged by the script"


def facts(source: CachedStore, view: View, selection: SelectedRuns) -> dict[str, Any]:
    """Return the facts of a view and its selection.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = selection.runs
    available = quantities(source, tuple(runs))
    params = params_of(source, tuple(runs))
    return {
        "names": list(selection.experiments),
        "text": _summary(selection),
        "notes": selection_notes(selection),
        "automatic": selection.automatic,
        "live": any(not run.record.status.ended for run in runs.values()),
        "units": _units(selection, Tints(source, runs.values())),
        "metrics": [
            _metric(quantity, natural_x(source, selection, quantity.metric))
            for quantity in available
        ],
        "sections": sections(available),
        "params": differing_params([params.get(run_id, {}) for run_id in runs]),
        "charts": [spec.to_json() for spec in view_charts(source, view, selection)],
    }


def fingerprint(runs: Iterable[RunEntry], revision: str) -> str:
    """Return a hash that changes when a chart of these runs may.

    An ended run has its own revision, so that other runs do not change the hash: late points,
    pruning and renaming raise it. Its title also depends on other runs.
    """
    state = hashlib.blake2b(digest_size=12)
    for run in runs:
        version = run.revision if run.record.status.ended else revision
        state.update(f"{run.run_id} {version} {run.title!r};".encode())
    return state.hexdigest()


def stamp(content: Mapping[str, Any]) -> str:
    """Return a hash of the content."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _summary(selection: SelectedRuns) -> str:
    """Return a line such as ``3 workloads · 6 runs · 1 failed``."""
    states = Counter(run.record.status for run in selection.runs.values())
    unusual = [
        f"{states[status]:,} {word}"
        for status, word in STATUS_WORDS.items()
        if states[status] and status is not RunStatus.FINISHED
    ]
    hosts = {run.record.host for run in selection.runs.values() if run.record.host}
    profiled = sum(bool(run.profiled) for run in selection.runs.values())
    workloads = [unit for unit in selection.units if unit.collocated]
    return " · ".join(
        [
            *([units.plural(len(workloads), "workload")] if workloads else []),
            units.plural(len(selection.runs), "run"),
            *([units.plural(len(hosts), "machine")] if len(hosts) > 1 else []),
            *unusual,
            *([f"{profiled:,} profiled"] if profiled else []),
        ]
    )


def _units(selection: SelectedRuns, tints: Tints) -> list[dict[str, Any]]:
    names = apart([unit.runs[0].workload_name for unit in selection.units])
    return [_unit(unit, name, tints) for unit, name in zip(selection.units, names, strict=True)]


def _unit(unit: Unit, name: str, tints: Tints) -> dict[str, Any]:
    """Return a workload of the list. ``name`` is the part that differs from the other names."""
    record = unit.workload.record
    first = unit.runs[0]
    return {
        "pick": str(Pick.workload(record.experiment, record.workload_id)),
        "key": f"w{record.workload_id[:ID_DIGITS]}",
        "whole": unit.whole,
        "collocated": unit.collocated,
        "name": name,
        "title": f"workload {first.workload_name}",
        "note": units.plural(len(unit.runs), "run"),
        **_look(tints.workload(first)),
        "runs": [_run(run, tints) for run in unit.runs],
    }


def _run(run: RunEntry, tints: Tints) -> dict[str, Any]:
    record = run.record
    details = [
        run.title,
        STATUS_WORDS[record.status],
        *([f"profiled by {run.profiled}"] if run.profiled else []),
        *([f"thinned {run.pruned}"] if run.pruned else []),
        record.devices,
        record.host,
        record.end_reason,
    ]
    return {
        "pick": str(Pick.run(record.experiment, record.run_id)),
        "key": f"r{record.run_id[:ID_DIGITS]}",
        "id": record.run_id,
        "short": run.short,
        "letter": "" if run.alone else record.letter,
        "name": run.second_name,
        "title": " · ".join(filter(None, details)),
        "status": record.status.value,
        "note": _note(run),
        **_look(tints.run(run)),
    }


def _note(run: RunEntry) -> str:
    """Return a finished run's duration, else its status, and why it is not comparable."""
    record = run.record
    words = ["profiled"] if run.profiled else []
    if record.status is RunStatus.RUNNING and record.started_ns is not None:
        words.append(units.stopwatch(record.lasted_s(time.time_ns()) or 0.0))
    elif record.status is RunStatus.FINISHED and record.ended_ns is not None:
        words.append(units.duration(record.lasted_s()))
    else:
        words.append(STATUS_WORDS[record.status])
    words += ["thinned"] if run.pruned else []
    return " · ".join(words)


def _look(stroke: Stroke) -> dict[str, str]:
    """Return the colour of each scheme, and the dashes."""
    colours = {str(scheme): colour(stroke.hue, scheme) for scheme in Scheme}
    return {**colours, "stroke": DASHES[stroke.dash % len(DASHES)]}


def _metric(quantity: MetricInfo, x: XAxis) -> dict[str, Any]:
    return {
        "metric": quantity.metric,
        "group": _LOGGED if quantity.listener == SOFTWARE else quantity.listener,
        "unit": quantity.drawn_unit,
        "subtitle": quantity.subtitle,
        "how": quantity.explanation,
        "x": x.value,
        "aggregate": str(quantity.default_aggregate),
    }
