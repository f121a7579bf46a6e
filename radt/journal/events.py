"""The events file: what is said rarely, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from radt.journal.format import EVENTS_FILE, EventKind


class EventLog:
    """Appends lines; each is there as a whole or not at all. Not thread-safe."""

    def __init__(self, folder: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(f"{folder}/{EVENTS_FILE}", flags, 0o600)
        self._torn = False

    def append(self, kind: EventKind, fields: Mapping[str, Any]) -> None:
        """Write one event.

        Raises:
            OSError: It could not be written, and was not.
        """
        # ASCII with escapes: any text survives, lone surrogates of odd file names included.
        line = json.dumps({"event": kind} | dict(fields), separators=(",", ":")).encode("ascii")
        # After a line that a full disk has cut, a line end of its own: the reader skips the rest.
        data = (b"\n" if self._torn else b"") + line + b"\n"
        before = os.fstat(self._descriptor).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            if written:
                self._take_back(before)
            raise
        self._torn = False

    def _take_back(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError:
            self._torn = True

    def close(self) -> None:
        os.close(self._descriptor)
