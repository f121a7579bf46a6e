"""Serve scripts and styles as one file each (and one script in the head), and compress answers."""

from __future__ import annotations

import gzip
import hashlib
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from dash import Dash
from flask import Flask, Response, request

from radt.frontend.addresses import address
from radt.render.markup import resource

FOLDER = Path(__file__).parent / "static"
#: Loaded separately, before anything is drawn.
_IN_HEAD = FOLDER / "scheme.js"


_INDENTATION = re.compile(r"^\s+", re.MULTILINE)
#: Comments that are whole lines.
_COMMENTS = re.compile(r"^/\*(?:(?!\*/).)*\*/\n", re.MULTILINE | re.DOTALL)


def stripped(text: str) -> str:
    """Return a script or style sheet without indentation, empty lines and comments."""
    return _COMMENTS.sub("", _INDENTATION.sub("", text))


@dataclass(frozen=True, slots=True)
class Bundle:
    """All static files of one kind, without comments: ``core`` first, the others sorted by name.

    Attributes:
        path: Its path.
        mimetype: The media type.
        content: Of the files.
    """

    path: str
    mimetype: str
    content: bytes

    @staticmethod
    def of(suffix: str, mimetype: str, folder: Path = FOLDER, more: str = "") -> Bundle:
        """Return the bundle of the files with this suffix, without the script in the head.

        ``more`` is appended.
        """
        files = sorted(
            folder.glob(f"*.{suffix}"), key=lambda file: (file.stem != "core", file.name)
        )
        texts = [file.read_text(encoding="utf-8") for file in files if file != _IN_HEAD]
        content = stripped("\n".join([*texts, more]))
        return Bundle(f"static/radt-all.{suffix}", mimetype, content.encode())

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]

    @property
    def address(self) -> str:
        """The bundle's address, with a hash of its content, so that browsers cache it forever."""
        return address(self.path, f"m={self.etag}")

    def serve(self, server: Flask) -> None:
        """Add the route of the bundle to a server."""
        etag, content, mimetype = self.etag, self.content, self.mimetype

        def answer() -> Response:
            response = Response(content, mimetype=mimetype)
            response.cache_control.no_cache = True
            response.set_etag(etag)
            response.make_conditional(request)
            return response

        server.add_url_rule(f"/{self.path}", self.path, answer)


SCHEME = Bundle("static/scheme.js", "text/javascript", _IN_HEAD.read_bytes())
SCRIPTS = Bundle.of("js", "text/javascript")
STYLES = Bundle.of("css", "text/css", more=resource("bars.css"))
#: Plotly with 2D charts only. Pages with charts load it (``static/core.js``).
PLOTLY = Bundle(
    "static/plotly-cartesian.min.js",
    "text/javascript",
    (Path(__file__).parent / "vendor" / "plotly-cartesian.min.js").read_bytes(),
)


#: Paths of files that are the same for all visitors.
STATIC = ("/static/", "/_dash-component-suites/")
_MIMETYPES = ("text/javascript", "application/javascript", "text/css")
_MIMETYPES_OF_ANSWERS = ("application/json", "text/html")
#: Smaller answers are mostly headers, so compression would gain little.
_MIN_BYTES = 2048
#: Compression level for dynamic answers: a fifth of the default's time, and 10 % more bytes.
_QUICK = 1


class Compressed:
    """Compresses answers. Those that are the same for all visitors are cached. Thread-safe.

    Clients on this machine get compressed answers, too: they may be at the other end of an SSH
    tunnel. The size of an answer tells other sites nothing ("BREACH"): no answer holds a constant
    secret, and `radt.frontend.security` refuses their requests.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def install(self, app: Dash) -> None:
        """Compress the answers of an application."""
        app.server.after_request(self.compress)

    def compress(self, response: Response) -> Response:
        """Compress the answer if the browser accepts that."""
        is_static = request.path.startswith(STATIC)
        if response.mimetype not in (_MIMETYPES if is_static else _MIMETYPES_OF_ANSWERS):
            return response
        response.vary.add("Accept-Encoding")
        if (
            response.status_code != 200
            or response.is_streamed
            or request.method == "HEAD"
            or request.accept_encodings["gzip"] <= 0
        ):
            return response
        content = response.get_data()
        if len(content) < _MIN_BYTES:
            return response
        response.set_data(self._form(content) if is_static else gzip.compress(content, _QUICK))
        response.headers["Content-Encoding"] = "gzip"
        if etag := response.headers.get("ETag"):
            response.headers["ETag"] = f"W/{etag.removeprefix('W/')}"
        return response

    def _form(self, content: bytes) -> bytes:
        # Keyed by content, as any number of addresses lead to one file.
        key = hashlib.sha256(content).digest()
        with self._lock:  # only one of simultaneous requests compresses it
            if key not in self._known:
                self._known[key] = gzip.compress(content, mtime=0)
            return self._known[key]
