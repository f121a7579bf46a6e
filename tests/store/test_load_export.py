"""Samples as a DataFrame and as files."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from radt.cli.export import command
from radt.errors import RunNotFoundError, UsageError
from radt.load import load
from radt.model import NO_STEP, Scope, SeriesKind
from radt.store import export as exporting
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter

START_NS = 1_790_000_000_123_456_789
COLUMNS = [
    *("time", "elapsed_s", "metric", "value", "unit"),
    *("scope", "entity", "listener", "step"),
    *("kind", "estimated", "method", "wraps_at"),
]


@pytest.fixture
def home(writer: StoreWriter, run_id: str) -> Path:
    """Four points of a script, the second without step, and a long series of hardware."""
    writer.update_run(run_id, started_ns=START_NS)
    values = np.array([0.1, math.nan, math.inf, -0.0])
    times = START_NS + np.array([0, 1, 1_500_000_000, 2**40])
    loss = Samples(times, values, np.array([1, NO_STEP, -5, 2**62]))
    seconds = np.arange(5000, dtype=np.int64) * 1_000_000_000
    power = Samples(START_NS + seconds, np.sin(seconds))
    writer.append(run_id, [SeriesBatch(0, loss), SeriesBatch(1, power)])
    return writer.path.parent


def test_load_is_tidy_and_exact(home: Path, run_id: str) -> None:
    frame = load(run_id[:6], home=home)
    assert list(frame.columns) == COLUMNS
    assert str(frame["time"].dtype) == "datetime64[ns, UTC]"
    assert str(frame["step"].dtype) == "Int64"
    assert len(frame) == 5004
    loss = frame[frame["metric"] == "loss"]
    expected = [START_NS, START_NS + 1, START_NS + 1_500_000_000, START_NS + 2**40]
    assert loss["time"].astype("int64").tolist() == expected
    assert loss["elapsed_s"].tolist() == [0.0, 1e-9, 1.5, 2**40 / 1e9]
    assert repr(loss["value"].tolist()) == "[0.1, nan, inf, -0.0]"
    assert loss["step"].isna().tolist() == [False, True, False, False]
    assert loss["step"].dropna().tolist() == [1, -5, 2**62]
    power = frame[frame["metric"] == "gpu.power"]
    assert power["step"].isna().all()
    assert power["elapsed_s"].tolist() == list(range(5000))
    labels = power[["unit", "scope", "entity", "listener"]].drop_duplicates()
    assert labels.to_numpy().tolist() == [["W", "gpu", "gpu0", "smi"]]


def test_load_says_how_a_series_came_about(home: Path, run_id: str, writer: StoreWriter) -> None:
    fields = {"method": "RAPL, of all", "estimated": True, "wraps_at": 262_143.3}
    energy = SeriesRecord(
        *(run_id, 9, "rapl", "cpu.energy", "J", Scope.HOST, SeriesKind.COUNTER), **fields
    )
    writer.add_series([energy])
    samples = Samples(np.array([START_NS, START_NS + 10**9]), np.array([1.0, 91.0]))
    writer.append(run_id, [SeriesBatch(9, samples)])
    frame = load(run_id, home=home, metrics=["cpu.energy", "gpu.power"])
    columns = ["kind", "estimated", "method", "wraps_at"]
    found = {metric: part[columns] for metric, part in frame.groupby("metric", observed=True)}
    assert found["cpu.energy"].drop_duplicates().to_numpy().tolist() == [
        ["counter", True, "RAPL, of all", 262_143.3]
    ]
    power = found["gpu.power"].drop_duplicates()
    assert power[["kind", "estimated", "method"]].to_numpy().tolist() == [["gauge", False, ""]]
    assert power["wraps_at"].isna().all()
    assert str(frame["wraps_at"].dtype) == "Float64"
    rates = load(run_id, home=home, metrics=["cpu.energy", "gpu.power"], rates=True)
    power = rates[rates["metric"] == "cpu.energy"]
    assert power[["value", "unit", "kind"]].to_numpy().tolist() == [[90.0, "W", "gauge"]]
    assert len(rates) == len(frame) - 1


def test_load_takes_several_runs_and_some_metrics(
    home: Path, run_id: str, writer: StoreWriter, run_record: Callable[..., RunRecord]
) -> None:
    writer.put_run(run_record("feed" * 8, mlflow_run_id="cafe" * 8))
    with StoreReader(writer.path) as reader:
        (series, _) = reader.series([run_id])
    writer.add_series([type(series)("feed" * 8, 0, "run", "loss", "1", series.scope, series.kind)])
    created_ns = run_record().created_ns
    one = Samples(np.array([created_ns + 2_000_000_000]), np.array([1.0]), np.array([0]))
    writer.append("feed" * 8, [SeriesBatch(0, one)])
    frame = load(["cafe", run_id], home=str(home), metrics="loss")
    assert list(frame.columns) == ["run_id", *COLUMNS]
    assert frame["run_id"].tolist() == ["feed" * 8] + [run_id] * 4
    assert frame["elapsed_s"].tolist()[0] == 2.0, "a run that never started counts from its making"
    assert set(frame["metric"]) == {"loss"}


def test_load_says_what_is_wrong(home: Path, run_id: str, writer: StoreWriter) -> None:
    with pytest.raises(UsageError, match=r"no metric 'gpu\.powr'.*Did you mean 'gpu\.power'"):
        load(run_id, home=home, metrics=["loss", "gpu.powr"])
    with pytest.raises(UsageError, match=r"no metric 'zzz'.*Available: gpu\.power, loss"):
        load(run_id, home=home, metrics=["zzz"])
    with pytest.raises(RunNotFoundError, match="no run matches"):
        load("ffffffff", home=home)


def test_a_run_without_samples_is_an_empty_frame(
    writer: StoreWriter, run_record: Callable[..., RunRecord]
) -> None:
    writer.put_run(run_record("beef" * 8))
    frame = load("beef", home=writer.path.parent)
    assert (len(frame), list(frame.columns)) == (0, COLUMNS)
    assert str(frame["time"].dtype) == "datetime64[ns, UTC]"
    assert str(frame["step"].dtype) == "Int64"


def test_importing_load_costs_no_pandas() -> None:
    code = "import sys, radt.load; print({'pandas', 'numpy', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout == "set()\n"


def export(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_parquet_gives_the_same_frame_back(
    home: Path, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_BLOCK_POINTS", 1000)
    target = tmp_path / "out.parquet"
    output = export(run_id[:8], "--home", home, "-o", target)
    assert "5,004 values" in output
    pd.testing.assert_frame_equal(pd.read_parquet(target), load(run_id, home=home))
    metadata = pq.read_metadata(target)
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert max(groups) < 2000, "a long series is never in memory as a whole"
    values = pq.read_table(target)["value"]
    assert values.null_count == 0, "NaN is a value, not missing"


def test_a_file_has_the_permissions_of_the_user_s_umask(
    home: Path, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads create files meanwhile: the umask must not change."""
    target = tmp_path / "out.parquet"
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)
            export(run_id[:8], "--home", home, "-o", target)
        assert target.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_csv_gives_the_same_values_back(home: Path, run_id: str, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    export(run_id[:8], "--home", home, "-o", target)
    frame = pd.read_csv(
        target, dtype={"step": "Int64"}, keep_default_na=False, na_values={"step": ""}
    )
    expected = load(run_id, home=home)
    assert list(frame.columns) == COLUMNS
    assert frame["value"].astype("float64").equals(expected["value"])
    assert frame["step"].equals(expected["step"])
    assert pd.to_datetime(frame["time"], format="ISO8601").equals(expected["time"])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [([], "0123456789ab.parquet"), (["--format", "csv"], "0123456789ab.csv")],
)
def test_the_default_file_is_named_after_the_run(
    home: Path,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name in export(run_id, "--home", home, "-m", "loss", *arguments)
    assert (tmp_path / name).stat().st_size > 0


def test_a_failed_export_leaves_the_old_file(
    home: Path, run_id: str, tmp_path: Path, writer: StoreWriter
) -> None:
    target = tmp_path / "exports" / "out.csv"
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(UsageError, match="no metric 'none'"):
        export(run_id, "--home", home, "-o", target, "-m", "none")
    with writer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE chunk SET checksum = checksum + 1 WHERE series_no = 1")
    with pytest.raises(Exception, match="damaged"):
        export(run_id, "--home", home, "-o", target)
    assert target.read_text() == "old"
    assert [path.name for path in target.parent.iterdir()] == ["out.csv"]
    with pytest.raises(UsageError, match=r"cannot be written: No such file.*-o"):
        export(run_id, "--home", home, "-o", tmp_path / "no" / "out.csv")
