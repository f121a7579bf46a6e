"""What radt tells a training script's user when something of radt does not work: once each."""

from __future__ import annotations

import sys

_told: set[str] = set()


def warn_once(text: str) -> None:
    """Write a line to standard error, the first time that it is asked to. Never raises."""
    if text in _told:
        return
    _told.add(text)
    try:
        sys.stderr.write(f"radt: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # no standard error, a broken pipe, or closed: nobody listens
