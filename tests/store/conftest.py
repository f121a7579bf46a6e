"""A store with one run and two series: one of a script, one of hardware.

Tests of a module with ``DATABASES = BOTH`` have it in SQLite and in Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radt.model import Scope, SeriesKind
from radt.store.backend import Dialect, StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter

RUN_ID = "0123456789abcdef0123456789abcdef"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dialect" in metafunc.fixturenames:
        metafunc.parametrize(
            "dialect",
            getattr(metafunc.module, "DATABASES", (Dialect.SQLITE,)),
            indirect=True,
            ids=str,
        )


@pytest.fixture
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return Dialect(request.param)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """In a folder whose name would break a careless URI."""
    return tmp_path / "da?ta #1 %20 é" / "radt.db"


@pytest.fixture
def store(dialect: Dialect, store_path: Path, request: pytest.FixtureRequest) -> StoreAddress:
    """Where the store is to be; nothing is there."""
    if dialect is Dialect.SQLITE:
        return StoreAddress.of(store_path)
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
def run_record() -> Callable[..., RunRecord]:
    def make(run_id: str = RUN_ID, **fields: object) -> RunRecord:
        defaults = {
            "workload_id": "workload1",
            "experiment": "digits",
            "workload": "1",
            "letter": "a",
            "name": "cnn",
            "created_ns": 1_790_000_000_000_000_000,
        }
        return RunRecord(run_id, **(defaults | fields))  # type: ignore[arg-type]

    return make


@pytest.fixture
def run_id(writer: StoreWriter, run_record: Callable[..., RunRecord]) -> str:
    run = run_record()
    writer.put_workload(WorkloadRecord(run.workload_id, run.experiment, "1", run.created_ns))
    writer.put_run(run)
    writer.add_series(
        [
            SeriesRecord(RUN_ID, 0, "run", "loss", "1", Scope.RUN, SeriesKind.GAUGE),
            SeriesRecord(
                RUN_ID, 1, "smi", "gpu.power", "W", Scope.GPU, SeriesKind.GAUGE, "gpu0", 1.0
            ),
        ]
    )
    return RUN_ID
