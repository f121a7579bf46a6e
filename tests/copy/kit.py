"""Runs that are hard to keep, and everything that is in a store, to be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
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

START_NS = 1_790_000_000_123_456_789
SECOND_NS = 1_000_000_000
RUN_ID = "0123456789abcdef0123456789abcdef"
#: NaN with a payload, and one with its sign bit set.
ODD_NANS = np.array([0x7FF8_0000_DEAD_BEEF, 0xFFF8_0000_0000_0001], np.uint64).view(np.float64)
HOSTILE = "naïve 'quoted' \"double\"\nline, 100 % `tick` 精度 \\ \u2028"


def make_run(writer: StoreWriter, spool: Path, run_id: str = RUN_ID, **fields: Any) -> RunRecord:
    """A run of one script's series and two of hardware, without points."""
    defaults: dict[str, Any] = {
        "workload_id": "workload1",
        "experiment": "digits",
        "workload": "1",
        "letter": "a",
        "name": "cnn",
        "created_ns": START_NS - SECOND_NS,
        "status": RunStatus.RUNNING,
        "started_ns": START_NS,
        "listeners": "smi+top",
        "command": "python train.py --name 'Zoë'",
        "host": "machine",
        "spool": str(spool),
        "tracking_uri": "sqlite:////data/mlflow.db",
        "mlflow_run_id": "feed" * 8,
    }
    run = RunRecord(run_id, **(defaults | fields))
    writer.put_workload(
        WorkloadRecord(
            run.workload_id,
            run.experiment,
            run.workload,
            run.created_ns,
            RunStatus.RUNNING,
            run.tracking_uri,
            barrier_ns=START_NS,
            start_skew_ns=1234,
        )
    )
    writer.put_run(run)
    gpu = (Scope.GPU, SeriesKind.GAUGE, "gpu0", 1.0, "NVML")
    energy = (Scope.HOST, SeriesKind.COUNTER, "", 1.0, "RAPL, of all")
    writer.add_series(
        [
            SeriesRecord(run_id, 0, "run", "loss", "1", Scope.RUN, SeriesKind.GAUGE),
            SeriesRecord(run_id, 1, "smi", "gpu.power", "W", *gpu),
            SeriesRecord(run_id, 2, "smi", "gpu.sm", "1", *gpu, estimated=True),
            SeriesRecord(run_id, 7, "rapl", "cpu.energy", "J", *energy, wraps_at=262_143.3),
        ]
    )
    return run


def add_points(
    writer: StoreWriter,
    series_no: int,
    values: Sequence[float] | np.ndarray,
    *,
    first_ns: int = START_NS,
    interval_ns: int = SECOND_NS,
    steps: np.ndarray | None = None,
    run_id: str = RUN_ID,
) -> None:
    times = first_ns + np.arange(len(values), dtype=np.int64) * interval_ns
    samples = Samples(times, np.asarray(values, np.float64), steps)
    writer.append(run_id, [SeriesBatch(series_no, samples)])


def add_rows(writer: StoreWriter, run_id: str = RUN_ID, *, closed: bool = False) -> None:
    """Markers (one of them open unless ``closed``), ledger, gaps, params, tags."""
    end_ns = START_NS + 99 * SECOND_NS
    writer.put_markers(
        [
            MarkerRecord(run_id, 0, MarkerKind.PHASE, "set-up", START_NS - 5, START_NS),
            MarkerRecord(
                *(run_id, 1, MarkerKind.EPOCH, "epoch", START_NS, end_ns if closed else None),
                step=0,
            ),
            MarkerRecord(
                *(run_id, 2, MarkerKind.EVENT, HOSTILE, START_NS + 1, None, None, "rank 1", HOSTILE)
            ),
        ]
    )
    writer.put_ledger(LedgerRecord(run_id, "smi", 1.0, 100, 90, 10, 5, "running", HOSTILE, 1, 2, 3))
    writer.put_gaps(
        [
            GapRecord(run_id, "smi", -1, START_NS, end_ns, MissingReason.LOST, HOSTILE),
            GapRecord(run_id, "smi", 2, START_NS, end_ns, MissingReason.UNSUPPORTED),
        ]
    )
    writer.put_params(run_id, {"lr": "0.1", HOSTILE: HOSTILE, "empty": ""})
    writer.put_tags(run_id, {"radt.git.commit": "abc", HOSTILE: ""})


def fill(writer: StoreWriter, run_id: str = RUN_ID, count: int = 10_000) -> None:
    """Points that are hard to keep: every kind of float, steps, times that go back."""
    odd = [0.1, math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, 1.7976931348623157e308]
    values = np.concatenate([np.array(odd), ODD_NANS])
    steps = np.array([0, -(2**63), 5, -5, 2**62, -(2**63), 1, 1, 1, 0])
    add_points(writer, 0, values, steps=steps, run_id=run_id)
    add_points(writer, 0, [1.0, 2.0], first_ns=START_NS - 3600 * SECOND_NS, run_id=run_id)
    add_points(writer, 1, np.sin(np.arange(float(count))), interval_ns=77_000_001, run_id=run_id)
    add_points(writer, 2, np.cos(np.arange(float(count))), interval_ns=77_000_001, run_id=run_id)
    add_points(writer, 7, np.arange(3.0), run_id=run_id)


def end(writer: StoreWriter, run_id: str = RUN_ID, **fields: Any) -> None:
    assert writer.end_run(run_id, RunStatus.FAILED, START_NS + 100 * SECOND_NS, 3, "exit code 3")
    writer.end_workload("workload1")
    writer.seal(run_id)


def contents(writer: StoreWriter) -> dict[str, Any]:
    """Everything in a store, comparable; floats as the integers with their bits."""
    with StoreReader(writer.address) as reader:
        runs = reader.runs()
        ids = [run.run_id for run in runs]
        found: dict[str, Any] = {
            "experiments": [(one.name, one.run_count) for one in reader.experiments()],
            "workloads": reader.workloads(),
            "runs": runs,
            "series": reader.series(ids),
            "markers": reader.markers(ids),
            "ledger": reader.ledger(ids),
            "gaps": reader.gaps(ids),
            "params": reader.params_of(ids),
            "tags": reader.tags_of(ids),
            "summary": [
                (one.count, one.minimum, one.maximum, one.first_ns, one.last_ns)
                for one in reader.summary(ids)
            ],
        }
        for series in found["series"]:
            count = reader.point_counts(series.run_id).get(series.series_no, 0)
            samples = reader.points_after(series.run_id, series.series_no, 0, count + 1)
            found[f"{series.run_id} {series.series_no}"] = (
                samples.times_ns.tolist(),
                samples.values.view(np.int64).tolist(),
                None if samples.steps is None else samples.steps.tolist(),
            )
    return found
