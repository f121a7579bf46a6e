"""Routes of downloads, and the route that export menus call first.

All of them pass the checks of `radt.frontend.auth`, like every request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from flask import Flask, Response, current_app, request

from radt.errors import RadtError, UsageError
from radt.frontend.addresses import address
from radt.frontend.answers import attached, json_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run.previews import BusyError
from radt.frontend.data.shown import pinned, shown_charts
from radt.frontend.export.request import (
    DATA_PATH,
    VIEW_PATH,
    Asked,
    FileFormat,
    Share,
    Turnstile,
)
from radt.frontend.export.shown import python_code, shown_schema, shown_tables
from radt.frontend.export.tables import full_schema, full_tables, measure, written
from radt.frontend.selection import SelectedRuns, read_selection
from radt.frontend.view import MAX_QUERY, View
from radt.render.files import file_name
from radt.units import plural


def data_file(source: CachedStore, asked: Asked, selection: SelectedRuns) -> Iterator[bytes]:
    """Yield the parts of a file. The first part is made at once, so that errors are raised at once.

    Raises:
        UsageError: The file would be empty or too large.
        StoreError: The store cannot be read.
    """
    view = asked.view
    if asked.of is Share.FULL:
        full = measure(source, selection, metrics_of(view, asked.chart))
        parts = written(full_tables(source.reader, selection, full), full_schema(), asked.format)
    else:
        tables = shown_tables(shown_charts(source, view, selection, asked.chart), view)
        first_table = next(tables, None)
        if first_table is None:
            raise UsageError("the charts show no data", "Select runs that have these metrics")
        parts = written(chain([first_table], tables), shown_schema(), asked.format)
    first = next(parts)
    return chain([first], parts)


def metrics_of(view: View, place: int | None) -> list[str]:
    """Return the metrics of the charts of a view, or of one of them, each once.

    Raises:
        UsageError: There is no such chart, or no chart at all.
    """
    charts = view.charts or ()
    if not charts or (place is not None and place >= len(charts)):
        raise UsageError("this chart does not exist", "Add a chart to the page first")
    wanted = charts if place is None else (charts[place],)
    return list(dict.fromkeys(metric for chart in wanted for metric in chart.metrics))


PREPARE_PATH = "export/prepare"
OPEN_PATH = "export/open"
#: The size limit of a view's file, or of the JSON of a view with an export request.
MAX_BODY_BYTES = MAX_QUERY * 4
_MIME_VIEW = "application/json; charset=utf-8"


def install(server: Flask, source: CachedStore) -> None:
    """Add the routes to the application."""
    routes = _Routes(source)
    for path, method, function in (
        (PREPARE_PATH, "POST", routes.prepare),
        (OPEN_PATH, "POST", routes.open),
        (VIEW_PATH, "GET", routes.view),
        (DATA_PATH, "GET", routes.data),
    ):
        server.add_url_rule(
            f"/{path}", path.replace("/", "-"), _answering(function), methods=[method]
        )


class _Routes:
    """The handlers of the routes."""

    def __init__(self, source: CachedStore) -> None:
        self._source = source
        self._turnstile = Turnstile()

    def prepare(self) -> Response:
        """Answer a menu with the text to copy or the address of the file.

        The answer fixes the dashboard's automatic choices, so that it means the same in future.
        """
        wanted = _body_json()
        share = _share(wanted.get("share"))
        view_text = wanted.get("view")
        view = View.from_json(view_text if isinstance(view_text, Mapping) else {})
        selection = read_selection(self._source, view)
        view = pinned(self._source, view, selection)
        if share is Share.LINK:
            return json_answer({"text": address(_page(wanted.get("page")), view.to_query())})
        if share is Share.VIEW:
            return json_answer({"href": address(VIEW_PATH, view.to_query())})
        place = _place(view, wanted.get("slot"))
        if share is Share.PYTHON:
            return json_answer({"text": python_code(self._source, view, selection, place)})
        asked = _asked(view, share, place, wanted)
        notes = []
        if share is Share.FULL:
            full = measure(self._source, selection, metrics_of(view, place))
            notes.append(f"{full.rows:,} samples are being downloaded")
            notes += _lacking(selection)
        return json_answer({"href": asked.address, "name": _name(asked), "notes": notes})

    def open(self) -> Response:
        """Open a saved view: return its query, and the picks that are not in this store."""
        text = _body_text()
        try:
            current_app.json.loads(text)
        except ValueError as error:
            raise _no_view(str(error)) from error
        view = View.from_file(text)
        missing: list[str] = []
        try:
            missing = [str(pick) for pick in read_selection(self._source, view).missing]
        except RadtError:
            pass  # the opened page shows the error
        return json_answer({"query": view.to_query(), "missing": missing})

    def view(self) -> Response:
        """Return a view as a file."""
        view = View.from_query(_query())
        return attached(view.to_file(), _MIME_VIEW, file_name([*_about(view), "view"], "json"))

    def data(self) -> Response:
        """Return the data of charts, streamed while they are produced."""
        asked = Asked.data(_query(), request.args)
        visit = self._turnstile.enter(request.remote_addr or "")
        try:
            selection = read_selection(self._source, asked.view)
            asked = replace(asked, view=pinned(self._source, asked.view, selection))
            parts = data_file(self._source, asked, selection)
            response = attached(parts, asked.format.mime, _name(asked))
        except BaseException:
            visit.close()
            raise
        # Called when all is sent, and also if the browser disconnected or never read anything.
        response.call_on_close(visit.close)
        return response


def _query() -> str:
    return request.query_string.decode("ascii", "replace")


def _asked(view: View, share: Share, place: int | None, wanted: Mapping[str, Any]) -> Asked:
    given = wanted.get("format")
    if not isinstance(given, str) or given not in list(FileFormat):
        raise UsageError("unknown file type", "Load the page again")
    return Asked(view, share, FileFormat(given), place)


def _place(view: View, slot: object) -> int | None:
    """Return a chart's index in the list of charts, from its slot on the page; None for no slot.

    Raises:
        UsageError: No chart is in this slot.
    """
    if slot is None:
        return None
    for place, chart in enumerate(view.charts or ()):
        if chart.slot == slot:
            return place
    raise UsageError("this chart was removed", "Load the page again")


def _lacking(selection: SelectedRuns) -> list[str]:
    """Return notes on runs that are missing from a file with every sample."""
    if not selection.left_out:
        return []
    return [f"{plural(selection.left_out, 'run')} over the limit, left out"]


def _name(asked: Asked) -> str:
    """Return the file name for the browser."""
    words = _about(asked.view)
    charts = asked.view.charts or ()
    if asked.chart is not None and asked.chart < len(charts):
        words.append(charts[asked.chart].metric)
    words.append("samples" if asked.of is Share.FULL else "shown")
    return file_name(words, asked.format.value)


def _about(view: View) -> list[str]:
    """Return the subject in a file name: the experiment, or the number of experiments."""
    names = list(dict.fromkeys(pick.experiment for pick in view.picks or ()))
    return names if len(names) == 1 else [view.experiment or ""] if not names else ["compared"]


def _share(given: object) -> Share:
    if isinstance(given, str) and given in list(Share):
        return Share(given)
    raise UsageError("unknown menu item", "Load the page again")


def _page(given: object) -> str:
    """Return the path of a page, always one of this site."""
    return given if isinstance(given, str) and given.isalpha() else "compare"


def _body_text() -> str:
    length = request.content_length
    if length is None or length > MAX_BODY_BYTES:
        raise _no_view(f"it is larger than {MAX_BODY_BYTES // 1000} KB")
    try:
        return request.get_data().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_view("it is not text") from error


def _no_view(reason: str) -> UsageError:
    return UsageError(
        f"the file is not a saved view ({reason})",
        "Choose a file that “Save view” wrote",
    )


def _body_json() -> Mapping[str, Any]:
    try:
        body = current_app.json.loads(_body_text())
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise UsageError("the request is not a JSON object", "Load the page again")
    return body


def _answering(function: Callable[[], Response]) -> Callable[[], Response]:
    """Turn errors into answers with cause and remedy."""

    def answer() -> Response:
        try:
            return function()
        except RadtError as error:
            content = {"cause": error.message, "remedy": error.remedy or ""}
            response = json_answer(content, _status(error))
            if isinstance(error, BusyError):
                response.headers["Retry-After"] = "10"
            return response

    return answer


def _status(error: RadtError) -> int:
    if isinstance(error, BusyError):
        return 429
    return 400 if isinstance(error, UsageError) else 503
