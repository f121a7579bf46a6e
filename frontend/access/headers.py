"""What browsers must not do with the dashboard's pages."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response, request

#: What depends on who asks.
_OWN = ("text/html", "application/json")
_ASSETS, _OK = "/assets/", 200


def policy(script_hashes: Sequence[str]) -> str:
    """The content security policy: everything comes from here, nothing from afar.

    Of inline scripts only those of Dash itself run, known by their hashes. Inline styles have to be
    allowed: Plotly and Mantine set them.
    """
    scripts = " ".join(["'self'", *script_hashes])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
        "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


def harden(response: Response, content_policy: str) -> Response:
    """Add what keeps an answer where it belongs."""
    response.headers["Content-Security-Policy"] = content_policy
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    response.headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
    if response.mimetype in _OWN and "no-store" not in response.headers.get("Cache-Control", ""):
        # What a visitor may see is not for whoever else asks a cache on the way.
        response.headers["Cache-Control"] = "private, no-cache"
    return response


def keep_assets(response: Response) -> Response:
    """Have browsers keep files of ours whose address says when they were changed.

    Dash puts ``?m=`` and the time behind them, but has each asked for again with every page.
    """
    if request.path.startswith(_ASSETS) and "m" in request.args and response.status_code == _OK:
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    return response
