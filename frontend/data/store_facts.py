"""Figures of the store, its running workloads, and its backlog."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, text

from radt.delivery.backlog import MLFLOW, backlogs
from radt.frontend.data.machine import (
    Collector,
    CollectorWatch,
    Devices,
    DevicesWatch,
    ListenerFacts,
    NoCollector,
    Probe,
    read_listeners,
    read_versions,
)
from radt.frontend.data.source import Source
from radt.frontend.data.submissions import Submission, read_submissions
from radt.home import Home
from radt.masking import masked
from radt.model import RunStatus
from radt.settings import STORE_URI, Settings
from radt.store.migrations import latest_version
from radt.store.records import RunRecord

#: The limit on rows of the page: the most recently active machines and runs.
_MOST = 50
#: If nothing is running, the ledger of the runs that ended last is shown.
_LAST_RUNS = 20

_COUNTS = text(
    "SELECT (SELECT COUNT(*) FROM experiment), (SELECT COUNT(*) FROM workload), "
    "(SELECT COUNT(*) FROM run), (SELECT COUNT(*) FROM run WHERE status = :running), "
    "(SELECT MAX(version) FROM schema_version)"
)
_POINTS = text("SELECT COALESCE(SUM(point_count), 0) FROM chunk")
_POSTGRES = text(
    "SELECT current_setting('server_version'), current_user, "
    "(SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'radt' AND c.relkind = 'r')"
)
_SQLITE = text("SELECT sqlite_version()")
_HOSTS = text(
    "SELECT host, COUNT(*), SUM(CASE WHEN status = :running THEN 1 ELSE 0 END), "
    "MAX(COALESCE(ended_ns, started_ns, created_ns)) AS active_ns "
    "FROM run GROUP BY host ORDER BY active_ns DESC LIMIT :most"
)
_RUNNING = text(
    "SELECT run_id, host FROM run WHERE ended_ns IS NULL AND status = :running "
    "ORDER BY created_ns DESC LIMIT :most"
)
#: Only loose chunks: they are the last of their series.
_NEWEST = text(
    "SELECT run_id, MAX(last_ns) FROM chunk WHERE run_id IN :ids AND sealed = 0 GROUP BY run_id"
).bindparams(bindparam("ids", expanding=True))
_LAST = text("SELECT run_id FROM run WHERE ended_ns IS NOT NULL ORDER BY created_ns DESC LIMIT :n")
_LEDGER = text(
    "SELECT listener, MIN(interval_s), COUNT(*), SUM(expected), SUM(received), SUM(missed), "
    "SUM(sampling_ns), MAX(sampling_max_ns), SUM(late_ns), MAX(late_max_ns) "
    "FROM ledger WHERE run_id IN :ids GROUP BY listener ORDER BY listener"
).bindparams(bindparam("ids", expanding=True))


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Figures of a store; ``free_bytes`` of its disk, None if the store is on another machine."""

    where: str
    engine: str
    schema_version: int
    newest_schema: int
    size_bytes: int
    free_bytes: int | None
    experiments: int
    workloads: int
    runs: int
    running: int
    user: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that records into the store; times in ns of its own clock.

    ``newest_ns`` is its newest sample in this store, of running runs; None without any.
    """

    host: str
    runs: int
    running: int
    active_ns: int
    newest_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Samples of one listener over some runs: expected, received, late; times in ns."""

    listener: str
    interval_s: float
    runs: int
    expected: int
    received: int
    missed: int
    sampling_ns: int
    sampling_max_ns: int
    late_ns: int
    late_max_ns: int


@dataclass(frozen=True, slots=True)
class Activity:
    """Running workloads, and sampling: of running runs if ``live``, else of the last ended."""

    running: Sequence[RunRecord] = ()
    running_count: int = 0
    machines: Sequence[Machine] = ()
    sampling: Sequence[Sampling] = ()
    sampled_runs: int = 0
    live: bool = False
    read_ns: int = field(default_factory=time.time_ns)


def read_facts(source: Source) -> StoreFacts:
    """Return the figures of the store.

    Raises:
        StoreError: The store cannot be read.
    """
    path = source.address.path
    with source.reader.snapshot() as connection:
        counts = connection.execute(_COUNTS, {"running": RunStatus.RUNNING.value}).one()
        if path is None:
            version, user, size_bytes = connection.execute(_POSTGRES).one()
            engine, free_bytes = f"Postgres {str(version).split()[0]}", None
        else:
            engine, user = f"SQLite {connection.execute(_SQLITE).scalar_one()}", ""
            size_bytes = 0
            for name in (path, path.with_name(f"{path.name}-wal")):
                with suppress(FileNotFoundError):  # absent while the file is not open
                    size_bytes += name.stat().st_size
            free_bytes = shutil.disk_usage(path.parent).free
    experiments, workloads, runs, running, schema_version = (int(count or 0) for count in counts)
    return StoreFacts(
        str(source.address),
        engine,
        schema_version,
        latest_version(),
        int(size_bytes),
        free_bytes,
        experiments,
        workloads,
        runs,
        running,
        str(user),
    )


def read_points(source: Source) -> int:
    """Count all points, by the header of each chunk.

    Raises:
        StoreError: The store cannot be read.
    """
    with source.reader.snapshot() as connection:
        return int(connection.execute(_POINTS).scalar_one())


def read_activity(source: Source) -> Activity:
    """Return the running workloads and their sampling.

    Raises:
        StoreError: The store cannot be read.
    """
    running = {"running": RunStatus.RUNNING.value, "most": _MOST}
    reader = source.reader
    with reader.snapshot() as connection:
        hosts = connection.execute(_HOSTS, running).all()
        by_host: dict[str, list[str]] = {}
        for run_id, host in connection.execute(_RUNNING, running):
            by_host.setdefault(str(host), []).append(str(run_id))
        live = [run_id for ids in by_host.values() for run_id in ids]
        newest = newest_samples(connection, live)
        ids = live or [str(row[0]) for row in connection.execute(_LAST, {"n": _LAST_RUNS})]
        sampling = connection.execute(_LEDGER, {"ids": ids}).all() if ids else ()
    return Activity(
        running=reader.runs(run_ids=live),
        running_count=sum(int(row[2]) for row in hosts),
        machines=[
            Machine(
                str(host),
                int(runs),
                int(now),
                int(active_ns),
                max(
                    (
                        newest[run_key]
                        for run_key in by_host.get(str(host), ())
                        if run_key in newest
                    ),
                    default=None,
                ),
            )
            for host, runs, now, active_ns in sorted(hosts, key=lambda row: str(row[0]))
        ],
        sampling=[
            Sampling(str(row[0]), float(row[1]), *(int(value) for value in row[2:]))
            for row in sampling
        ],
        sampled_runs=len(ids),
        live=bool(live),
    )


def newest_samples(connection: Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """Return the time of the newest sample of runs that have not ended, in ns."""
    if not run_ids:
        return {}
    return {str(run): int(ns) for run, ns in connection.execute(_NEWEST, {"ids": list(run_ids)})}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Backlog of one destination.

    ``ended`` counts ended runs that are not completely uploaded, ``running`` running ones, which
    are uploaded as they go; ``since_ns`` is the start of the oldest wait or of the problem;
    ``problem`` is empty if the destination works.
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
    """Backlogs of a data folder; ``exists`` if anything was ever recorded in it."""

    folder: Path
    exists: bool
    free_bytes: int | None = None
    waiting: Sequence[Waiting] = ()


def read_backlogs(folder: Path | None) -> Backlogs:
    """Read the backlogs of a data folder, by default of the one in the settings.

    Raises:
        StoreError: Its store cannot be read.
        UsageError: The settings name no usable data folder or database.
    """
    home = Home.resolve(None) if folder is None else Home(folder)
    if not home.store_path.exists():
        return Backlogs(home.path, False)
    uri = Settings.of(Path.cwd())[STORE_URI]
    return Backlogs(
        home.path,
        True,
        shutil.disk_usage(home.path).free,
        [
            Waiting(
                masked(backlog.address),
                "MLflow and archives" if backlog.kind == MLFLOW else "Postgres",
                backlog.ended,
                backlog.running,
                backlog.problem_ns if backlog.problem else backlog.since_ns,
                backlog.problem,
                backlog.reached_ns,
            )
            for backlog in backlogs(home.store_path, uri)
        ],
    )


_NOW_S = 2.0
_SOON_S = 10.0
_RARELY_S = 120.0
#: Clusters are asked so often at most.
_CLUSTER_S = 15.0


#: Probes of the machine, independent of the shown store; one of them starts a process.
_LISTENERS: Probe[Sequence[ListenerFacts]] = Probe("listeners", read_listeners, _RARELY_S)


class System:
    """Probes of one dashboard, started by the first request."""

    def __init__(self, source: Source) -> None:
        path = source.address.path
        folder = None if path is None else path.parent
        watch = CollectorWatch()
        self.facts: Probe[StoreFacts] = Probe("store", lambda: read_facts(source), _NOW_S)
        self.points: Probe[int] = Probe("points", lambda: read_points(source), _SOON_S)
        self.activity: Probe[Activity] = Probe("activity", lambda: read_activity(source), _NOW_S)
        self.backlogs: Probe[Backlogs] = Probe("backlog", lambda: read_backlogs(folder), _NOW_S)
        self.collector: Probe[Collector | NoCollector] = Probe("collector", watch.read, _NOW_S)
        self.devices: Probe[Devices] = Probe("devices", DevicesWatch().read, _NOW_S)
        self.submissions: Probe[Sequence[Submission]] = Probe(
            "cluster", lambda: read_submissions(folder), _CLUSTER_S
        )
        self.listeners = _LISTENERS
        self.versions = read_versions()
        self.imports = source.imports

    def begin(self) -> None:
        """Start all probes, without waiting."""
        probes: tuple[Probe[Any], ...] = (
            *(self.facts, self.points, self.activity, self.backlogs),
            *(self.collector, self.devices, self.listeners, self.submissions),
        )
        for probe in probes:
            probe.look()
