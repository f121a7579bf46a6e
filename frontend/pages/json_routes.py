"""Routes that answer a page's requests with JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, Response, request

from radt.errors import RadtError, UsageError
from radt.frontend.answers import json_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.pages.page import sentence
from radt.frontend.view import View

Answer = Mapping[str, Any]
#: Maximum size of a request; a view with 500 picks and 64 charts is far smaller.
_MAX_BYTES = 400_000
_UNCHANGED = 204


def add_json_routes(
    server: Flask,
    source: CachedStore,
    routes: Mapping[str, Callable[[CachedStore, Answer], Answer | None]],
) -> None:
    """Add routes to a server, by path. An answer of None says that nothing changed."""
    for path, answer in routes.items():
        server.add_url_rule(
            f"/{path}",
            f"radt-{path}",
            _handler(source, answer),
            methods=["POST"],
            provide_automatic_options=False,
        )


def problem(error: RadtError) -> Answer:
    """Return an error for the page to show."""
    return {
        "problem": {
            "cause": sentence(error.message),
            "remedy": sentence(error.remedy) if error.remedy else "",
        }
    }


def asked_view(asked: Answer) -> View:
    """Return the view of a request."""
    view = asked.get("view")
    return View.from_json(view) if isinstance(view, dict) else View()


def _handler(
    source: CachedStore, answer: Callable[[CachedStore, Answer], Answer | None]
) -> Callable[[], Response]:
    bad_request = problem(UsageError("expected a request of this page", "Reload the page"))

    def handle() -> Response:
        # Pages of other origins can send forms, but not JSON.
        if not request.is_json or (request.content_length or 0) > _MAX_BYTES:
            return json_answer(bad_request, 400)
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict):
            return json_answer(bad_request, 400)
        try:
            content = answer(source, asked)
        except RadtError as error:
            return json_answer(problem(error))
        return Response(status=_UNCHANGED) if content is None else json_answer(content)

    return handle
