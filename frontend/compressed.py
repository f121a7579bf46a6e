"""Scripts and style sheets go over a network compressed: 7 MB become 2.

Only files that are the same for everybody are, once each. What has a visitor's data in it is not:
its compressed size could tell of it (BREACH, https://breachattack.com).
"""

from __future__ import annotations

import gzip
import hashlib
import ipaddress
import threading

from dash import Dash
from flask import Response, request

_STATIC = ("/assets/", "/_dash-component-suites/")
_MIMETYPES = ("text/javascript", "application/javascript", "text/css")
#: Of smaller ones the head is most.
_MIN_BYTES = 2048


class Compressed:
    """The compressed forms, by what they are of. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def install(self, app: Dash) -> None:
        """Stand behind the application."""
        app.server.after_request(self.compress)

    def compress(self, response: Response) -> Response:
        """An answer as the browser takes it; others as they are."""
        if not (request.path.startswith(_STATIC) and response.mimetype in _MIMETYPES):
            return response
        response.vary.add("Accept-Encoding")
        if (
            response.status_code != 200
            or request.method != "GET"
            or request.accept_encodings["gzip"] <= 0
            or _is_here(request.remote_addr)
        ):
            return response
        content = response.get_data()
        if len(content) < _MIN_BYTES:
            return response
        response.set_data(self._form(content))
        response.headers["Content-Encoding"] = "gzip"
        if etag := response.headers.get("ETag"):
            response.headers["ETag"] = f"W/{etag.removeprefix('W/')}"
        return response

    def _form(self, content: bytes) -> bytes:
        # By content: there are any number of addresses of one file.
        key = hashlib.sha256(content).digest()
        with self._lock:  # two that ask at once need not both compress it
            if key not in self._known:
                self._known[key] = gzip.compress(content, mtime=0)
            return self._known[key]


def _is_here(address: str | None) -> bool:
    """Within one machine compressing takes longer than sending."""
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False
