"""Find runs that no collector records, by their request or by their folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from radt.collector.manifest import Manifest, RunnersEnd, asked_for
from radt.errors import JournalError

log = logging.getLogger(__name__)

#: How often to search the folders of a home.
_LOOK_S = 2.0
#: A run whose folder is older than this and that has not connected never will.
_PATIENCE_S = 10.0


class RunFinder:
    """Finds runs that no collector records, and remembers where it looked. For one thread."""

    def __init__(self) -> None:
        self._looked_s: dict[Path, float] = {}
        #: Folders to skip in further searches, by home.
        self._seen: dict[Path, set[str]] = {}
        self._since_s: dict[Path, float] = {}

    def look(self, homes: Iterable[Path]) -> Iterator[Manifest]:
        """Yield the runs that wait for a collector, each once; the caller skips known ones.

        Raises:
            OSError: This process is out of descriptors or memory; the next call searches again.
        """
        yield from waiting()
        for home in homes:
            now_s = time.monotonic()
            if now_s - self._looked_s.get(home, -_LOOK_S) < _LOOK_S:
                continue
            self._looked_s[home] = now_s
            yield from self._look_through(home / "runs", now_s)

    def _look_through(self, runs: Path, now_s: float) -> Iterator[Manifest]:
        try:
            names = set(os.listdir(runs))  # noqa: PTH208 - for up to 10,000 runs
        except OSError:
            return  # the home does not exist any more or is unreadable
        seen = self._seen.setdefault(runs, set())
        seen &= names
        for name in names - seen:
            folder = runs / name
            since_s = self._since_s.setdefault(folder, now_s)
            if now_s - since_s < _PATIENCE_S:
                continue  # a script writes its manifest first and then connects
            manifest = _read(folder)
            if manifest is not None:
                if manifest.run.has_runner and manifest.alive and RunnersEnd.read(folder) is None:
                    self._since_s[folder] = now_s  # its runner will register it
                    continue
                yield manifest
            del self._since_s[folder]
            seen.add(name)


def waiting() -> Iterator[Manifest]:
    """Yield the runs that have requested a collector.

    Raises:
        OSError: This process is out of descriptors or memory.
    """
    for folder in asked_for():
        if (manifest := _read(folder)) is not None:
            yield manifest


def _read(folder: Path) -> Manifest | None:
    try:
        return Manifest.read(folder)
    except JournalError as error:
        log.error("%s", error)  # noqa: TRY400 - the message suffices
        return None
