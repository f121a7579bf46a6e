"""Nothing that a page needs comes from another machine."""

from __future__ import annotations

import os
from pathlib import Path

#: What Zensical's plug-in ``offline`` takes from a CDN, and what is here in its place.
SHIM = "https://unpkg.com/iframe-worker/shim"
OWN_SHIM = Path("assets") / "worker.js"


def localise(site: Path) -> None:
    """Have the pages take from the site what they would fetch."""
    for path in site.rglob("*.html"):
        own = os.path.relpath(site / OWN_SHIM, path.parent)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(SHIM, own), encoding="utf-8")
