"""MLflow databases as MLflow's own client makes them, and dashboards over them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from radt.frontend.foreign.places import beside_of
from radt.frontend.source import Source
from radt.store.address import StoreAddress

BEGAN_MS = 1_780_000_000_000
HOSTILE = "<img src=x onerror=document.title='broken'>"


@dataclass
class Study:
    """An experiment of somebody who uses MLflow alone."""

    uri: str
    name: str = "study"
    client: MlflowClient = field(init=False)
    experiment_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.client = MlflowClient(self.uri)
        self.experiment_id = self.client.create_experiment(self.name)

    def run(
        self,
        name: str,
        status: str = "FINISHED",
        *,
        parent: str = "",
        start_ms: int = BEGAN_MS,
        took_ms: int = 60_000,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        **metrics: Sequence[float],
    ) -> str:
        """A run with a point a second of each metric; RUNNING leaves it open."""
        tagged = {"mlflow.source.name": "/home/me/train.py", "mlflow.user": "me", **(tags or {})}
        if parent:
            tagged["mlflow.parentRunId"] = parent
        run_id = str(self.client.create_run(self.experiment_id, start_ms, tagged, name).info.run_id)
        given = [Param(key, value) for key, value in (params or {}).items()]
        if given:
            self.client.log_batch(run_id, params=given)
        for key, values in metrics.items():
            self.log(run_id, key, values, start_ms)
        if status != "RUNNING":
            self.client.set_terminated(run_id, status, start_ms + took_ms)
        return run_id

    def log(
        self,
        run_id: str,
        key: str,
        values: Sequence[float],
        start_ms: int = BEGAN_MS,
        first_step: int = 0,
        step_ms: int = 1000,
    ) -> None:
        """Points of a metric, one after the other."""
        points = [
            Metric(key, value, start_ms + place * step_ms, first_step + place)
            for place, value in enumerate(values)
        ]
        for at in range(0, len(points), 1000):
            self.client.log_batch(run_id, metrics=points[at : at + 1000])


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with nothing in it; to make one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow-template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_file(mlflow_template: Path, tmp_path: Path) -> Path:
    """An MLflow database of the test's own, alone in its folder."""
    path = tmp_path / "of mlflow" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(mlflow_template, path)
    return path


@pytest.fixture
def study(mlflow_file: Path) -> Study:
    """An experiment in it."""
    return Study(f"sqlite:///{mlflow_file}")


OpenSource = Callable[..., Source]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenSource]:
    """Opens what a dashboard shows: a store, as a rule one that is not there, and MLflow's runs."""
    sources: list[Source] = []

    def open_it(uri: str, store: StoreAddress | Path | str | None = None) -> Source:
        address = StoreAddress.of(store or tmp_path / "none" / "radt.db")
        sources.append(Source(address, None, beside_of(address, uri)))
        return sources[-1]

    yield open_it
    for source in sources:
        source.close()


def add_points(path: Path, run_id: str, key: str, values: Sequence[float]) -> None:
    """Many points of a run, a millisecond apart, as MLflow's client would log them in minutes."""
    rows = [(key, value, BEGAN_MS + at, at, run_id) for at, value in enumerate(values)]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid) "
            "VALUES (?, ?, ?, ?, 0, ?)",
            rows,
        )
        connection.execute(
            "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
            "VALUES (?, ?, ?, ?, 0, ?)",
            rows[-1],
        )


def refreshed(source: Source) -> str:
    """The revision, without waiting until it is time to ask for it."""
    source._hold_until = source._ask_at = 0.0
    return source.revision()
