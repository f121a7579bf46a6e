"""experiments/overhead: its file is valid, a tiny variant runs, and its table tells the truth."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "overhead"


#: At the end of the script: a run of a second may be over before anybody has looked at it.
_UNTIL_SEEN = """
import os, sys
from radt.store.reader import StoreReader

def is_seen():
    run_id = os.environ["RADT_RUN_ID"]
    with StoreReader("radt-data/radt.db") as reader:
        counts = reader.point_counts(run_id)
        top = [one for one in reader.series([run_id]) if one.listener == "top"]
        return any(counts.get(one.series_no) for one in top)

while "--untracked" not in sys.argv and not is_seen():
    time.sleep(0.05)
"""


@pytest.mark.long
def test_a_tiny_variant_runs(bench: Bench) -> None:
    shutil.copy(FOLDER / "table.py", bench.folder)
    bench.script("train.py", (FOLDER / "train.py").read_text("utf-8") + _UNTIL_SEEN)
    rows = [line.rstrip() for line in (FOLDER / "experiment.csv").read_text("utf-8").splitlines()]
    short = "--epochs 2 --steps 3"
    header = next(line for line in rows if line.startswith("Experiment"))
    chosen = [line for line in rows if ", untracked," in line or ", default  ," in line]
    assert len(chosen) == 2
    file = bench.experiment("\n".join([header, *(f"{line} {short}" for line in chosen), ""]))
    bench.radt("experiment.csv", "--quiet")
    assert [row["Status"] for row in bench.rows(file)] == ["FINISHED", "FINISHED"]
    table = _table(bench.folder, bench.env)
    assert [line.split("|")[1].strip() for line in table[2:]] == ["untracked", "default"]
    cells = [cell.strip() for cell in table[3].split("|")]
    assert cells[2] == "1"
    assert float(cells[4]) > 0  # against untracked
    assert int(cells[7].replace(",", "")) > 0  # values of listeners
    assert [cell.strip() for cell in table[2].split("|")][7] == "0"


def test_table_pairs_repeats(tmp_path: Path) -> None:
    """Repeats drift together: what is the same in each pair has no interval to speak of."""
    with StoreWriter(tmp_path / "radt.db") as writer:
        for number, drift in enumerate((1.0, 2.0, 4.0)):
            _plant(writer, "untracked", number, drift)
            _plant(writer, "default", number, drift * 1.02)
        _plant(writer, "none", 0, 1.0)
    table = _table(tmp_path, {"RADT_HOME": str(tmp_path), "PATH": ""})
    cells = {line.split("|")[1].strip(): line.split("|")[2:5] for line in table[2:]}
    assert [cell.strip() for cell in cells["default"]] == ["3", "2.380", "1.020 (1.020 to 1.020)"]
    # A repeat has no partner: the means are all there is.
    assert [cell.strip() for cell in cells["none"]] == ["1", "1.000", "0.429"]


def _plant(writer: StoreWriter, workload: str, repeat: int, seconds: float) -> None:
    run_id = f"{workload}-{repeat}"
    created_ns = 1_780_000_000_000_000_000 + repeat
    writer.put_workload(WorkloadRecord(run_id, "overhead", workload, created_ns))
    writer.put_run(
        RunRecord(
            *(run_id, run_id, "overhead", workload, "a", "cnn", created_ns, RunStatus.FINISHED),
            ended_ns=created_ns + 1,
        )
    )
    times, steps = np.array([created_ns, created_ns + 1]), np.array([2, 3])
    for number, metric in enumerate(("epoch_s", "epoch_cpu_s")):
        writer.add_series(
            [SeriesRecord(run_id, number, SOFTWARE, metric, "", Scope.RUN, SeriesKind.GAUGE)]
        )
        samples = Samples(times, np.array([seconds, seconds]), steps)
        writer.append(run_id, [SeriesBatch(number, samples)])


def _table(folder: Path, env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "table.py")],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
