"""Find scripts' runs that no collector has taken up, by request files or folders."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from radt.collector.manifest import Manifest, asked_for
from radt.errors import JournalError

log = logging.getLogger(__name__)

#: How often to search the folders of a home.
_LOOK_S = 2.0
#: Time for a script to register its run after the folder appears.
_PATIENCE_S = 10.0


class Found:
    """State of earlier searches. Not thread-safe."""

    def __init__(self) -> None:
        self._looked_s: dict[Path, float] = {}
        #: Folders to skip in further searches, by home.
        self._seen: dict[Path, set[str]] = {}
        self._since_s: dict[Path, float] = {}

    def look(self, homes: Iterable[Path]) -> Iterator[Manifest]:
        """Yield the runs that wait for a collector, each once; the caller knows its own runs."""
        for folder in asked_for():
            if (manifest := _read(folder)) is not None:
                yield manifest
        for home in homes:
            now_s = time.monotonic()
            if now_s - self._looked_s.get(home, -_LOOK_S) < _LOOK_S:
                continue
            self._looked_s[home] = now_s
            yield from self._look_through(home / "runs", now_s)

    def _look_through(self, runs: Path, now_s: float) -> Iterator[Manifest]:
        try:
            names = set(os.listdir(runs))  # noqa: PTH208 - of ten thousand runs
        except OSError:
            return  # the home is gone or unreadable
        seen = self._seen.setdefault(runs, set())
        seen &= names
        for name in names - seen:
            folder = runs / name
            since_s = self._since_s.setdefault(folder, now_s)
            if now_s - since_s < _PATIENCE_S:
                continue  # a script writes its request first and registers then
            del self._since_s[folder]
            seen.add(name)
            if (manifest := _read(folder)) is not None:
                yield manifest


def _read(folder: Path) -> Manifest | None:
    try:
        return Manifest.read(folder)
    except JournalError as error:
        log.error("%s", error)  # noqa: TRY400 - the message says it all
        return None
