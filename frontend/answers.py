"""Answers to requests. None is kept by caches, as a store changes and visitors differ."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from flask import Response

from radt.render.files import UNSAFE

CSV_MIME = "text/csv; charset=utf-8"


def json_answer(content: Any, status: int = 200) -> Response:
    """Return an answer with JSON; ``bytes`` are JSON already."""
    body = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":"))
    return _uncached(Response(body, status, mimetype="application/json"))


def text_answer(text: str, status: int) -> Response:
    """Return an answer with a sentence in plain text."""
    return _uncached(Response(f"{text}\n", status, mimetype="text/plain"))


def attached(content: str | bytes | Iterator[bytes], mime: str, name: str) -> Response:
    """Return an answer that browsers save as a file."""
    response = _uncached(Response(content, content_type=mime))
    response.headers["Content-Disposition"] = content_disposition(name)
    return response


def content_disposition(name: str) -> str:
    """Return the header with which a browser saves a file under a name (RFC 6266)."""
    text = name.encode("utf-8", "replace").decode("utf-8")
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    plain = UNSAFE.sub("-", plain)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(text, safe='')}"


def _uncached(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response
