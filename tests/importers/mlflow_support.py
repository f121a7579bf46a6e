"""Experiments as MLflow's own client makes them, and what the store has of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from sqlalchemy import text

from radt.importers.importing import ImportResult
from radt.importers.mlflow import MlflowSource
from radt.importers.mlflow_import import MlflowImport
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter

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


Store = StoreAddress | Path | str


def import_all(uri: str, store: Store, *experiments: str) -> ImportResult:
    """Import once, as a process does that has just started."""
    source = MlflowSource(uri, experiments)
    source.connect()
    with StoreWriter(store) as writer:
        return MlflowImport(source, writer).run()


def contents(store: Store) -> dict[str, object]:
    """Everything that was imported, but for when; NaN as None."""
    with StoreReader(store) as reader:
        runs = reader.runs()
        ids = [run.run_id for run in runs]
        return {
            "runs": {run.run_id: run for run in runs},
            "workloads": {one.workload_id: one for one in reader.workloads()},
            "params": reader.params_of(ids),
            "tags": reader.tags_of(ids),
            "points": {run_id: history(reader, run_id) for run_id in ids},
        }


def history(reader: StoreReader, run_id: str) -> dict[str, list[tuple[object, ...]]]:
    """All points of a run by metric and entity: time in ms, value as text, step (0 for none)."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for series in reader.series([run_id]):
        samples = reader.samples(run_id, series.series_no)
        steps = [0] * len(samples) if samples.steps is None else samples.steps.tolist()
        found[f"{series.metric} {series.entity}".strip()] = [
            (time_ns // 1_000_000, repr(value), step)
            for time_ns, value, step in zip(
                samples.times_ns.tolist(), samples.values.tolist(), steps, strict=True
            )
        ]
    return found


def mlflow_history(client: MlflowClient, run_id: str) -> dict[str, list[tuple[object, ...]]]:
    """The same, as MLflow's client reads it."""
    keys = client.get_run(run_id).data.metrics
    return {
        key: [
            (one.timestamp, repr(one.value), one.step)
            for one in client.get_metric_history(run_id, key)
        ]
        for key in keys
    }


def revisions(store: Store) -> list[tuple[object, ...]]:
    """Revisions and rows of all tables: they change with every write."""
    tables = ("experiment", "workload", "run", "series", "chunk", "param", "tag")
    with StoreReader(store) as reader, reader.snapshot() as connection:
        counts = [
            (name, connection.execute(text(f"SELECT COUNT(*) FROM {name}")).scalar_one())
            for name in tables
        ]
        rows = connection.execute(text("SELECT run_id, revision FROM run ORDER BY run_id")).all()
        more = connection.execute(
            text("SELECT workload_id, revision FROM workload ORDER BY workload_id")
        ).all()
    return [*counts, *map(tuple, rows), *map(tuple, more)]
