"""Values and steps at the edges: one rule each in stores, MLflow, exports and archives."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import radt
from radt.delivery.archive.read import find_archive, import_archive
from radt.model import NO_STEP
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.delivery.postgres.conftest import wait_same
from tests.run.conftest import Alone
from tests.support.command import called
from tests.support.waiting import wait_until

BIGGEST = 1.7976931348623157e308
SCRIPT = """\
import math
import numpy as np
import radt

values = [
    (0.5, 7), (True, np.int64(8)), (np.bool_(False), 9.0), (np.float32(0.1), np.uint8(10)),
    (np.int64(-7), np.array(11)), (math.nan, 12), (math.inf, 13), (-math.inf, 14), (-0.0, 15),
    (5e-324, 1 - 2**63), (1.7976931348623157e308, 2**63 - 1), (0.1, None),
]
with radt.Run(listeners="none") as run:
    for value, step in values:
        run.log_metric("odd", value, step=step)
    refused = 0
    for step in (True, np.bool_(True), 2**63, -(2**63), 0.5, math.nan, "1"):
        try:
            run.log_metric("odd", 1.0, step=step)
        except (TypeError, ValueError, radt.errors.UsageError):
            refused += 1
    print(run.id, refused)
"""
#: As the documentation has it: doubles, bit for bit; a number as a step, or none.
EXPECTED = [
    (0.5, 7), (1.0, 8), (0.0, 9), (0.10000000149011612, 10), (-7.0, 11), (math.nan, 12),
    (math.inf, 13), (-math.inf, 14), (-0.0, 15), (5e-324, 1 - 2**63), (BIGGEST, 2**63 - 1),
    (0.1, None),
]  # fmt: skip


def exactly(points: Iterable[tuple[float, int | None]]) -> list[tuple[str, int | None]]:
    """Points with all bits of their values, but for those of NaN."""
    return [
        ("nan" if math.isnan(value) else value.hex(), None if step is None else int(step))
        for value, step in points
    ]


def stored(reader: StoreReader, run_id: str) -> list[tuple[float, int | None]]:
    (series,) = [one for one in reader.series([run_id]) if one.metric == "odd"]
    samples = reader.samples(run_id, series.series_no)
    assert samples.steps is not None
    steps = [None if step == NO_STEP else step for step in samples.steps.tolist()]
    return list(zip(samples.values.tolist(), steps, strict=True))


def export(alone: Alone, run_id: str, name: str) -> Path:
    done = called(alone.folder, alone.env, "export", run_id, "-m", "odd", "-o", name)
    assert done.returncode == 0, done.stderr
    return alone.folder / name


@pytest.mark.mlflow
def test_values_and_totals_are_the_same_everywhere(
    archives: None, alone: Alone, database: str, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient

    alone.env |= {"RADT_STORE_URI": database, "RADT_REPLICATION_S": "0.2"}
    out, _ = alone.run(SCRIPT)
    run_id, refused = out.split()
    assert refused == "7"
    wanted = exactly(EXPECTED)
    assert exactly(stored(alone.reader, run_id)) == wanted

    (run,) = alone.reader.runs()
    wait_until(lambda: not alone.reader.runs_to_deliver(run.tracking_uri), "MLflow has the run")
    (run,) = alone.reader.runs()
    wait_same(alone.home / "radt.db", database)
    with StoreReader(database) as copy:
        assert exactly(stored(copy, run_id)) == wanted

    rows = list(csv.DictReader(export(alone, run_id, "odd.csv").open()))
    texts = [(row["value"], row["step"]) for row in rows]
    values = [(float(value), int(step) if step else None) for value, step in texts]
    assert exactly(values) == wanted
    table = pq.read_table(export(alone, run_id, "odd.parquet"))
    columns = (table.column(name).to_pylist() for name in ("value", "step"))
    assert exactly(zip(*columns, strict=True)) == wanted

    # MLflow has no infinities; a value without a step is numbered, as the twelfth of its series.
    history = MlflowClient(run.tracking_uri).get_metric_history(str(run.mlflow_run_id), "odd")
    theirs = [
        (max(-BIGGEST, min(BIGGEST, value)) if math.isinf(value) else value + 0.0, step)
        for value, step in EXPECTED[:-1]
    ]
    found = sorted(exactly((point.value + 0.0, point.step) for point in history), key=repr)
    assert found == sorted(exactly([*theirs, (0.1, len(EXPECTED) - 1)]), key=repr)

    (samples,) = alone.home.glob("artifacts/**/radt/samples.parquet")
    archived = radt.load(samples.parent, metrics=["odd"])
    steps = [None if pd.isna(step) else int(step) for step in archived["step"]]
    assert exactly(zip(archived["value"].tolist(), steps, strict=True)) == wanted

    totals = radt.totals(run_id, home=alone.home)
    assert totals["cpu_time_s"] > 0
    assert radt.totals(samples.parent) == totals
    assert radt.totals(run_id, home=tmp_path / "nothing", store_uri=database) == totals
    other = tmp_path / "other" / "radt.db"
    with StoreWriter(other) as writer:
        import_archive(find_archive(samples.parent), writer)
    assert radt.totals(run_id, home=other.parent) == totals
    with StoreReader(other) as reader:
        assert exactly(stored(reader, run_id)) == wanted
