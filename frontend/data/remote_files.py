"""Artifacts that only MLflow has: of runs of other machines, in S3 or at its server.

Only the server or database in this dashboard's own settings is contacted, never one that only the
store names (`MlflowLocation.of`). Files that are viewed are copied into a temporary folder until
the dashboard ends.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from radt import units
from radt.delivery.archive.locations import MlflowLocation
from radt.errors import ArchiveError, RunNotFoundError
from radt.store.records import RunRecord

#: A listing is refreshed after this time.
_LISTED_S = 60.0
_MAX_FILES = 20_000
#: Larger files are not fetched.
_MAX_BYTES = 1_000_000_000
#: Maximum size of all fetched files. The oldest are removed.
_CACHED_BYTES = 2_000_000_000


@dataclass
class _Run:
    """Known artifacts of a run, or the ``problem`` for which they could not be listed."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    problem: ArchiveError | None = None
    listed_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Held during a download, which may take minutes; the list can be read meanwhile.
    fetching: threading.Lock = field(default_factory=threading.Lock)


class RemoteFiles:
    """The artifacts of runs on the MLflow server of the settings. Thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._fetched: OrderedDict[tuple[str, str, int], Path] = OrderedDict()
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def is_there(self, record: RunRecord) -> bool:
        """Return True if MLflow may be asked for the run's artifacts."""
        return MlflowLocation.of(record) is not None

    def sizes(self, record: RunRecord) -> Mapping[str, int]:
        """Return the sizes in bytes of a run's artifacts; nothing if MLflow may not be asked.

        Raises:
            ArchiveError: MLflow cannot be reached, or the run is gone there.
        """
        location = MlflowLocation.of(record)
        if location is None:
            return {}
        with self._lock:
            run = self._runs.setdefault(record.run_id, _Run())
        with run.lock:
            if not run.listed_at or time.monotonic() - run.listed_at > _LISTED_S:
                try:
                    run.sizes, run.problem = location.files(_MAX_FILES), None
                except ArchiveError as error:
                    run.problem = error
                run.listed_at = time.monotonic()
            if run.problem is not None:
                raise run.problem
            return run.sizes

    def open(self, record: RunRecord, path: str) -> BinaryIO:
        """Open a copy of an artifact, which the caller closes.

        Raises:
            RunNotFoundError: MLflow does not have the file, or it is too large to be copied.
            ArchiveError: MLflow cannot be reached.
        """
        location = MlflowLocation.of(record)
        size = self.sizes(record).get(path)  # only listed paths are ever requested
        if location is None or size is None:
            raise RunNotFoundError(f"MLflow has no file {path[:200]!r} of the run")
        if size > _MAX_BYTES:
            raise RunNotFoundError(
                f"the file has {units.size(size)}, too much to copy", "Download it from MLflow"
            )
        key = (record.run_id, path, size)
        with self._runs[record.run_id].fetching:
            with self._lock:
                if key in self._fetched:
                    return self._fetched[key].open("rb")
            target = self._place()
            location.fetch(path, target)
            file = target.open("rb")
        with self._lock:
            self._fetched[key] = target
            self._forget_oldest()
        return file

    def close(self) -> None:
        """Remove all copies."""
        with self._lock:
            self._fetched.clear()
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def _place(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="radt-dashboard-")
            self._count += 1
            return Path(self._folder.name) / str(self._count)

    def _forget_oldest(self) -> None:
        total = sum(path.stat().st_size for path in self._fetched.values())
        while total > _CACHED_BYTES and len(self._fetched) > 1:
            _, oldest = self._fetched.popitem(last=False)
            with suppress(OSError):
                total -= oldest.stat().st_size
                oldest.unlink()  # readers with an open file can continue
