"""Addresses of the dashboard, for links, files and redirects.

They are relative, so the dashboard works below any path at which a proxy serves it, whether or not
the dashboard knows that path. All pages are directly below the root, so an address that is right on
one page is right on every page. static/core.js has the same function.
"""

from __future__ import annotations

from urllib.parse import quote

from flask import request


def address(path: str = "", query: str = "") -> str:
    """Return the address of a path for pages, ``./run?id=1f2e``; without a path, that of Runs."""
    return f"./{path}?{query}" if query else f"./{path}"


def from_request(path: str = "", query: str = "") -> str:
    """Return the address of a path for the answer to a request: ``.././compare``."""
    return "../" * (request.path.count("/") - 1) + address(path, query)


def own_path(path: str) -> str:
    """Return a path of this dashboard, whatever characters it has.

    Each segment is quoted and none is empty or a dot segment, so that it leads neither to another
    site nor to what a proxy serves beside the dashboard.
    """
    segments = (part for part in path.split("/") if part not in ("", ".", ".."))
    return "/".join(quote(part, safe="") for part in segments)
