"""Write what radt tells a training script's user: its run, and once each what does not work."""

from __future__ import annotations

import sys

_told: set[str] = set()


def warn_once(text: str) -> None:
    """Write a line to standard error, the first time that it is asked to. Never raises."""
    if text not in _told:
        _told.add(text)
        say(text)


def say(text: str) -> None:
    """Write a line to standard error. Never raises."""
    try:
        sys.stderr.write(f"radt: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # no standard error, a broken pipe, or closed: nobody listens
