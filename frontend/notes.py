"""Routes for notes on runs, and for saved views.

They are the only routes that change the store. `radt.frontend.security` refuses requests of other
sites. In addition, these accept only JSON, and require a token if several people visit
(`Access.may_write`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from dash import Dash
from flask import Response, current_app, jsonify, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from radt.delivery.notes import send_notes
from radt.errors import RadtError, RunNotFoundError, UsageError
from radt.frontend.addresses import from_request, own_path
from radt.frontend.auth import Guard
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.pages.page import sentence
from radt.settings import DASHBOARD_WRITE_TOKEN
from radt.store.notes import Edit, edit_notes, read_notes
from radt.store.records import SavedView
from radt.store.writer import StoreWriter

#: The header with the token of a visitor who may write.
TOKEN_HEADER = "X-Radt-Write-Token"  # noqa: S105 - name of a header
_MAX_NAME, _MAX_ADDRESS, _MAX_RUNS = 100, 60_000, 1000
#: Maximum number of tags in a request, and of characters in all of them.
_MAX_TAGS, _MAX_TAG_CHARS = 100, 50_000
_BAD, _FORBIDDEN, _NOT_FOUND, _TOO_LARGE, _AWAY = 400, 403, 404, 413, 503


def install(app: Dash, source: CachedStore) -> None:
    """Add the routes to the application."""

    def show_notes(run_id: str) -> Response:
        notes = read_notes(source.reader, run_id)
        return jsonify(asdict(notes) | {"may_write": _may_write(source)})

    def change_notes() -> Response:
        asked = _asked(source)
        runs = asked.pop("runs", None)
        if not isinstance(runs, list) or not 0 < len(runs) <= _MAX_RUNS:
            raise UsageError(f"Expected 1 to {_MAX_RUNS} runs in a request")
        run_ids, edit = list(map(str, runs)), _edit(asked)
        with StoreWriter(source.address) as writer:
            edit_notes(writer, run_ids, edit)
        send_notes(source.address, run_ids)
        return jsonify({})

    def show_views() -> Response:
        views = [[view.name, view.address] for view in source.reader.saved_views()]
        return jsonify({"views": views, "may_write": _may_write(source)})

    def change_views() -> Response:
        asked = _asked(source)
        name, address = str(asked.get("name", "")).strip(), asked.get("address")
        if not 0 < len(name) <= _MAX_NAME:
            raise UsageError(f"Expected a name of 1 to {_MAX_NAME} characters, got {len(name)}")
        with StoreWriter(source.address) as writer:
            if address is None:
                writer.forget_view(name)
            else:
                writer.save_view(SavedView(name, _own(str(address)), time.time_ns()))
        return jsonify({})

    def open_view(name: str) -> BaseResponse:
        for view in source.reader.saved_views():
            if view.name == name:
                return redirect(from_request(_own(view.address)), 303)
        raise RunNotFoundError(f"there is no saved view {name[:_MAX_NAME]!r} in {source.address}")

    for path, method, answer in (
        ("notes/<run_id>", "GET", show_notes),
        ("notes", "POST", change_notes),
        ("views", "GET", show_views),
        ("views", "POST", change_views),
        ("view/<path:name>", "GET", open_view),
    ):
        app.server.add_url_rule(
            f"/{path}", f"{method} {path}", _answering(answer), methods=[method]
        )


class _ForbiddenError(UsageError):
    """The visitor may not change the store."""


class _TooLargeError(UsageError):
    """A request would change too much at once."""


def _may_write(source: CachedStore) -> bool:
    guard = Guard.of(current_app)
    given = request.headers.get(TOKEN_HEADER, "")
    is_own = source.address.path is not None
    return guard is not None and guard.access.may_write(given, is_own=is_own)


def _asked(source: CachedStore) -> dict[str, Any]:
    """Return a visitor's request to change the store.

    Raises:
        UsageError: It is not JSON, or the visitor may not change the store.
    """
    if not _may_write(source):
        raise _ForbiddenError(
            "notes and saved views can be changed with a token only",
            f"Enter what {DASHBOARD_WRITE_TOKEN.label} is where the dashboard was started",
        )
    # Pages of other sites can send forms, but not JSON.
    asked = request.get_json(silent=True) if request.is_json else None
    if not isinstance(asked, dict):
        raise UsageError("the request is not a JSON object", "Load the page again")
    return asked


def _edit(asked: dict[str, Any]) -> Edit:
    """Return the change that a request asks for."""
    kinds = {"name": str, "text": str, "starred": bool, "archived": bool, "tags": dict}
    for key, value in asked.items():
        if not isinstance(value, kinds.get(key, ())):
            raise UsageError(f"Expected one of {', '.join(kinds)}, got {key[:_MAX_NAME]!r}")
    tags = asked.get("tags", {})
    if not all(isinstance(value, str) for value in tags.values()):
        raise UsageError("Expected texts as values of tags")
    chars = sum(len(key) + len(value) for key, value in tags.items())
    if len(tags) > _MAX_TAGS or chars > _MAX_TAG_CHARS:
        raise _TooLargeError(
            f"Expected at most {_MAX_TAGS} tags with {_MAX_TAG_CHARS:,} characters in a request, "
            f"got {len(tags):,} with {chars:,}"
        )
    return Edit(**asked)


def _own(address: str) -> str:
    """Return the path and query of a page of this dashboard, which cannot lead to another site."""
    path, _, query = address.partition("?")
    if len(address) > _MAX_ADDRESS or not address.isprintable():  # browsers ignore tabs in it
        raise UsageError(f"Expected an address of at most {_MAX_ADDRESS:,} printable characters")
    return own_path(unquote(path)) + (f"?{query}" if query else "")


def _answering(answer: Callable[..., BaseResponse]) -> Callable[..., BaseResponse]:
    """Turn errors into answers with cause and remedy, and keep answers out of caches."""

    def handle(**values: str) -> BaseResponse:
        try:
            response = answer(**values)
        except RadtError as error:
            response = jsonify(
                cause=sentence(error.message), remedy=sentence(error.remedy) if error.remedy else ""
            )
            response.status_code = _status(error)
        response.headers["Cache-Control"] = "no-store"
        return response

    return handle


def _status(error: RadtError) -> int:
    if isinstance(error, RunNotFoundError):
        return _NOT_FOUND
    if isinstance(error, _ForbiddenError):
        return _FORBIDDEN
    if isinstance(error, _TooLargeError):
        return _TOO_LARGE
    return _BAD if isinstance(error, UsageError) else _AWAY
