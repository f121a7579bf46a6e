"""The browser's part of the dashboard as one script and one style sheet.

In ``assets`` each page has files of its own. Asked for one by one, two dozen of them take a browser
as long as all of Dash does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from flask import Flask, Response, request

FOLDER = Path(__file__).parent / "assets"


@dataclass(frozen=True, slots=True)
class Bundle:
    """All assets of one kind, in the order of their names.

    Attributes:
        path: Where it is served.
        mimetype: What it is.
        content: The files, each after its name.
    """

    path: str
    mimetype: str
    content: bytes

    @staticmethod
    def of(suffix: str, mimetype: str, folder: Path = FOLDER) -> Bundle:
        """The bundle of the files with this suffix."""
        parts = [
            f"/* {file.name} */\n{file.read_text(encoding='utf-8').rstrip()}\n"
            for file in sorted(folder.glob(f"*.{suffix}"))
        ]
        return Bundle(f"/assets/radt-all.{suffix}", mimetype, "\n".join(parts).encode())

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]

    @property
    def address(self) -> str:
        """Changes with what is in it, so that browsers may keep what is there for good."""
        return f"{self.path}?m={self.etag}"

    def serve(self, server: Flask) -> None:
        """Answer for it."""
        etag, content, mimetype = self.etag, self.content, self.mimetype

        def answer() -> Response:
            response = Response(content, mimetype=mimetype)
            response.cache_control.no_cache = True
            response.set_etag(etag)
            response.make_conditional(request)
            return response

        server.add_url_rule(self.path, self.path, answer)


SCRIPTS = Bundle.of("js", "text/javascript")
STYLES = Bundle.of("css", "text/css")
