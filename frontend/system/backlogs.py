"""What has not left this machine yet although it should have, as `radt status` says it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.home import Home
from radt.masking import masked
from radt.replication.backlog import backlog as database_backlog
from radt.settings import STORE_URI, Settings
from radt.store.reader import StoreReader
from radt.tracking.backlog import backlog as mlflow_backlog


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place that runs are brought to.

    ``ended`` runs that have ended and are not complete there, ``running`` ones that come as they
    go, ``since_ns`` since when the oldest waits or the problem is there; ``problem`` is empty if it
    works.
    """

    place: str
    kind: str
    ended: int
    running: int
    since_ns: int | None
    problem: str
    reached_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Backlogs:
    """Of one data folder; ``exists`` tells whether anything was ever recorded in it."""

    folder: Path
    exists: bool
    free_bytes: int | None = None
    waiting: Sequence[Waiting] = ()


def read_backlogs(folder: Path | None) -> Backlogs:
    """Of a data folder; of that of the settings without one.

    Raises:
        StoreError: Its store cannot be read.
        UsageError: The settings name none, or no database that can be used.
    """
    home = Home.resolve(None) if folder is None else Home(folder)
    if not home.store_path.exists():
        return Backlogs(home.path, False)
    with StoreReader(home.store_path) as reader:
        to_mlflow = mlflow_backlog(reader)
    uri = Settings.of(Path.cwd())[STORE_URI]
    to_databases = database_backlog(home.store_path, uri)
    return Backlogs(
        home.path,
        True,
        shutil.disk_usage(home.path).free,
        [
            *(
                Waiting(
                    masked(one.label),
                    "Postgres",
                    one.ended,
                    one.running,
                    one.problem_ns if one.problem else one.since_ns,
                    one.problem,
                    one.reached_ns,
                )
                for one in to_databases
            ),
            *(
                Waiting(
                    one.tracking_uri,
                    "MLflow and archives",
                    one.ended,
                    one.running,
                    one.since_ns if one.problem is None else one.problem.since_ns,
                    "" if one.problem is None else one.problem.text,
                )
                for one in to_mlflow
            ),
        ],
    )
