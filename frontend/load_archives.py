"""Load archives from an MLflow server into a store: ``python -m radt.frontend.load_archives``.

A process of its own beside the dashboard: Arrow and what it decodes cost hundreds of megabytes,
which are given back when it ends. It is told in lines of JSON on its standard input, first where
(`Task`'s fields ``tracking_uri`` and ``store``: not in its command line, which all users can read),
then run by run; it answers in lines of JSON (`News`), and ends with its input.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from radt.archive.lean import do_without_pandas
from radt.errors import ArchiveError, RadtError, TrackingError

log = logging.getLogger(__name__)

#: Behind the training processes that may be on this machine.
_NICENESS = 5
_TRIES = 3
_PAUSE_S = 1.0


class NewsKind(StrEnum):
    """What is said of a run."""

    PROGRESS = "progress"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Task:
    """One run to load, by radt's id and MLflow's."""

    run_id: str
    mlflow_run_id: str

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True)
class News:
    """How far a run is.

    ``missing``: the server has no archive of it; ``complete``: no more will come.
    """

    run_id: str
    kind: NewsKind
    done_bytes: int = 0
    total_bytes: int = 0
    complete: bool = False
    missing: bool = False
    message: str = ""
    remedy: str = ""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        """
        Raises:
            ValueError: It is something else.
        """
        try:
            given: dict[str, Any] = json.loads(line)
            return cls(**given | {"kind": NewsKind(given["kind"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{line!r} is no news") from error


class ServerPlace:
    """Artifacts of one run behind the server: a `radt.archive.places.Place`."""

    def __init__(self, api: Any, task: Task, folder: str, say: Any) -> None:
        self._api = api
        self._task = task
        self._folder = folder
        self._say = say
        self.fetched_bytes = 0
        self.total_bytes = 0

    def __str__(self) -> str:
        return f"runs:/{self._task.mlflow_run_id}/{self._folder}"

    def local(self, path: str) -> Path | None:  # noqa: ARG002 - nothing is
        return None

    def fetch(self, path: str, target: Path) -> None:
        """See `radt.archive.places.Place`; a link that breaks is tried again."""
        for left in reversed(range(_TRIES)):
            try:
                self._api.fetch_artifact(self._task.mlflow_run_id, f"{self._folder}/{path}", target)
                break
            except TrackingError as error:
                if not left:
                    raise ArchiveError(error.message, error.remedy) from error
                time.sleep(_PAUSE_S)
            except OSError as error:
                raise ArchiveError(
                    f"{target} cannot be written: {error.strerror or error}",
                    "Free some disk space, or set TMPDIR to a folder with room",
                ) from error
        self.fetched_bytes += target.stat().st_size
        if self.total_bytes:
            self._say(
                News(
                    self._task.run_id,
                    NewsKind.PROGRESS,
                    min(self.fetched_bytes, self.total_bytes),
                    self.total_bytes,
                )
            )

    def below(self, folder: str) -> ServerPlace:
        return ServerPlace(self._api, self._task, f"{self._folder}/{folder}".strip("/"), self._say)

    def archives(self) -> Iterator[str]:
        return iter(())


def load(api: Any, writer: Any, task: Task, say: Any) -> News:
    """Bring what the run's archive has, and the store lacks, into the store.

    Raises:
        RadtError: The server does not answer, the archive is damaged, the store is full …
    """
    from radt.archive.importing import import_archive
    from radt.archive.manifest import ARCHIVE_FOLDER, MANIFEST_FILE
    from radt.archive.read import Archive

    if not api.has_artifact(task.mlflow_run_id, f"{ARCHIVE_FOLDER}/{MANIFEST_FILE}"):
        return News(
            task.run_id,
            NewsKind.FAILED,
            missing=True,
            message="the server has no archive of this run",
            remedy="It comes every 15 minutes and at the run's end; older versions of radt wrote "
            "none",
        )
    place = ServerPlace(api, task, ARCHIVE_FOLDER, say)
    archive = Archive.open(place)
    if archive.manifest.run.run_id != task.run_id:
        raise ArchiveError(
            f"{place} is the archive of another run, {archive.manifest.run.run_id}",
            "Somebody has copied it there",
        )
    place.total_bytes = archive.manifest.size_bytes
    done = import_archive(archive, writer)
    total = archive.manifest.size_bytes
    return News(task.run_id, NewsKind.LOADED, total, total, complete=done.complete)


def _failure(task: Task, message: str, remedy: str) -> News:
    return News(task.run_id, NewsKind.FAILED, message=message, remedy=remedy)


def main() -> int:
    """Returns the exit code."""
    where = json.loads(sys.stdin.readline() or "{}")
    if not where:
        return 0
    os.nice(_NICENESS)
    do_without_pandas()
    from radt.frontend.mlflow_api import MlflowApi
    from radt.store.writer import StoreWriter

    api = MlflowApi(where["tracking_uri"])
    for line in sys.stdin:
        task = Task(**json.loads(line))
        try:
            with StoreWriter(str(where["store"])) as writer:
                _say(load(api, writer, task, _say))
        except RadtError as error:
            _say(_failure(task, error.message, error.remedy or ""))
        # One run's trouble keeps no other waiting.
        except Exception as error:
            log.exception("the archive of run %s", task.run_id)
            _say(_failure(task, f"{type(error).__name__}: {error}", "The terminal says more"))
    return 0


def _say(news: News) -> None:
    sys.stdout.write(news.line())
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
