"""A store in SQLite and in Postgres, with runs that have everything a run can have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy import Connection, text

from radt.home import Home
from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.backend import Dialect, StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter
from tests.support.postgres import Postgres
from tests.support.servers import database_of, run_sql

S = 1_000_000_000
DAY_S = 86_400
POINTS = 9000
GAUGE, COUNTER, LOSS, FEW = range(4)


@pytest.fixture(
    params=[Dialect.SQLITE, pytest.param(Dialect.POSTGRES, marks=pytest.mark.long)], ids=str
)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return Dialect(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "radt-data").create()


@pytest.fixture
def store(dialect: Dialect, home: Home, request: pytest.FixtureRequest) -> StoreAddress:
    if dialect is Dialect.SQLITE:
        return StoreAddress.of(home.store_path)
    return StoreAddress.of(request.getfixturevalue("database"))


@pytest.fixture
def writer(store: StoreAddress) -> Iterator[StoreWriter]:
    with StoreWriter(store) as writer:
        yield writer


@pytest.fixture
def reader(writer: StoreWriter) -> Iterator[StoreReader]:
    with StoreReader(writer.address) as reader:
        yield reader


@pytest.fixture
def execute(writer: StoreWriter) -> Callable[..., None]:
    """A statement that no part of radt would make."""

    def execute(statement: str, **row: object) -> None:
        with writer.rewriting("") as connection:
            connection.execute(text(statement), row)

    return execute


@pytest.fixture
def put_run(writer: StoreWriter) -> Callable[..., str]:
    """A run of 9000 seconds that ended so many days ago and was delivered."""

    def put(
        run_id: str = "0" * 32, *, days_ago: float = 100, points: int = POINTS, **fields: object
    ) -> str:
        ended = time.time_ns() - round(days_ago * DAY_S * S)
        start = ended - points * S
        record: dict[str, object] = {
            "workload_id": f"w-{run_id}",
            "experiment": "digits",
            "workload": "1",
            "letter": "a",
            "name": "cnn",
            "created_ns": start - S,
            "started_ns": start,
            "ended_ns": ended,
            "status": RunStatus.FINISHED,
            "listeners": "smi",
        }
        run = RunRecord(run_id, **(record | fields))  # type: ignore[arg-type]
        with writer.transaction():
            writer.put_workload(
                WorkloadRecord(run.workload_id, run.experiment, "1", run.created_ns)
            )
            writer.put_run(run)
            writer.put_params(run_id, {"File": "train.py", "Params": "--lr '0.1'"})
            writer.put_tags(run_id, {"radt.workload": "1"})
            put_points(writer, run_id, start, points)
            put_rest(writer, run_id, start, points)
        writer.seal(run_id)
        writer.mark_run_delivered(run_id)
        return run_id

    return put


def put_points(writer: StoreWriter, run_id: str, start: int, points: int) -> None:
    """A gauge with a NaN and a spike, a counter that began again once, and losses with steps; the
    two first share their times."""
    random = np.random.default_rng(7)
    kinds = SeriesKind
    writer.add_series(
        [
            SeriesRecord(
                run_id, GAUGE, "smi", "gpu.power", "W", Scope.GPU, kinds.GAUGE, "gpu0", 1.0
            ),
            SeriesRecord(
                run_id, COUNTER, "smi", "gpu.energy", "J", Scope.GPU, kinds.COUNTER, "gpu0", 1.0
            ),
            SeriesRecord(run_id, LOSS, "run", "loss", "1", Scope.RUN, kinds.GAUGE),
            SeriesRecord(run_id, FEW, "run", "accuracy", "1", Scope.RUN, kinds.GAUGE),
        ]
    )
    numbers = np.arange(points)
    times = start + numbers * S + random.integers(0, 1000, points)
    power = 200 + random.normal(0, 5, points)
    power[points // 3], power[points // 2] = np.nan, 900.0
    energy = np.cumsum(np.nan_to_num(power).round(3))
    energy[points // 4 :] -= energy[points // 4] - 1.0
    for first in range(0, points, 2500):
        part = slice(first, first + 2500)
        writer.append(
            run_id,
            [
                SeriesBatch(GAUGE, Samples(times[part], power[part])),
                SeriesBatch(COUNTER, Samples(times[part], energy[part])),
                SeriesBatch(LOSS, Samples(times[part], 1 / (1 + numbers[part]), numbers[part])),
            ],
        )
    writer.append(run_id, [SeriesBatch(FEW, Samples(times[-3:], np.array([0.1, 0.5, 0.9])))])


def put_rest(writer: StoreWriter, run_id: str, start: int, points: int) -> None:
    """Three epochs, the ledger, a gap."""
    third = points // 3
    writer.put_markers(
        [
            MarkerRecord(
                run_id,
                number,
                MarkerKind.EPOCH,
                "epoch",
                start + number * third * S,
                start + (number + 1) * third * S,
                number,
            )
            for number in range(3)
        ]
    )
    writer.put_ledger(LedgerRecord(run_id, "smi", 1.0, points + 2, points, 2, 1000, "ended"))
    writer.put_gaps([GapRecord(run_id, "smi", GAUGE, start + S, start + 2 * S, MissingReason.LOST)])


def rows(connection: Connection, statement: str, **row: object) -> list[tuple[object, ...]]:
    return [tuple(found) for found in connection.execute(text(statement), row)]


@pytest.fixture(scope="session")
def mlflow_template(postgres: Postgres) -> Iterator[str]:
    """Name of a database with MLflow's tables in it."""
    with database_of(postgres) as uri:
        client = MlflowClient(uri.replace("://", "+psycopg2://"))
        client.search_experiments()
        client._tracking_client.store.engine.dispose()
        yield uri.rsplit("/", 1)[1]


@pytest.fixture
def mlflow_database(postgres: Postgres, mlflow_template: str) -> Iterator[str]:
    """URI of a database that MLflow is in."""
    name = f"{mlflow_template}_copy"
    run_sql(postgres, f"CREATE DATABASE {name} TEMPLATE {mlflow_template}")
    yield postgres.uri(name)
    run_sql(postgres, f"DROP DATABASE {name} WITH (FORCE)")
