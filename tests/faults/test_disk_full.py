"""The disk of the data folder is full: training goes on, the loss is counted and said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from radt.model import SOFTWARE, RunStatus
from radt.store.records import LedgerRecord
from tests.support.bench import Bench, has_store, wait_until
from tests.support.disk import SmallDisk
from tests.support.power import check_store

#: Trains until it is told to stop; says with its last words how many values it logged. Only in a
#: hurry it logs more than MLflow takes on a slow machine.
TRAINS = """\
import mmap, os, struct, sys, time
import radt
with open(sys.argv[1], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
with radt.Run() as run:
    step = 0
    while not os.path.exists(sys.argv[2]):
        for _ in range(100):
            run.log_metric("loss", step / 7, step=step)
            step += 1
        struct.pack_into("@q", count, 0, step)
        time.sleep(0.005 if os.path.exists(sys.argv[3]) else 0.25)
print("trained", step)
"""


class Trained:
    """A run whose data folder and experiment file lie on a small disk."""

    def __init__(self, bench: Bench, disk: SmallDisk, folder: Path) -> None:
        self.bench = bench
        self.disk = disk
        self.counter = folder / "count"
        self.counter.write_bytes(bytes(8))
        self.stop = folder / "stop"
        self.hurry = folder / "hurry"
        script = folder / "train.py"
        script.write_text(TRAINS, encoding="utf-8")
        bench.env["RADT_FLUSH_S"] = "0.1"
        self.path = bench.experiment(
            "Workload,Status,Run,Devices,Listeners,File,Params\n"
            f"1,,,cpu,top@200ms,{script},{self.counter} {self.stop} {self.hurry}\n"
        )

    @property
    def logged(self) -> int:
        return int.from_bytes(self.counter.read_bytes(), "little")

    def log_more_than_the_journal_holds(self) -> None:
        """Return when the script has done so: training goes on."""
        already = self.logged
        self.hurry.touch()
        wait_until(lambda: self.logged > already + 60_000, "training goes on")
        self.hurry.unlink()

    def recorded(self, metric: str) -> int:
        (run,) = self.bench.reader.runs()
        found = self.bench.reader.summary([run.run_id])
        return sum(one.count for one in found if one.series.metric == metric)


@pytest.fixture
def trained(bench: Bench, small_disk: SmallDisk, tmp_path: Path) -> Trained:
    """The user's folder is on the small disk, with the experiment file and the data folder."""
    bench.folder = small_disk.path
    return Trained(bench, small_disk, tmp_path)


@pytest.mark.mlflow
def test_a_disk_that_fills_up_while_a_run_goes_on(trained: Trained) -> None:
    bench, disk = trained.bench, trained.disk
    runner = bench.start(trained.path.name)
    wait_until(lambda: has_store(bench.home), "the store is there")
    wait_until(lambda: bench.reader.runs() and trained.recorded("loss") > 0, "it is recorded")
    before = trained.path.read_bytes()
    disk.fill()
    wait_until(lambda: "no room left" in bench.shown("status", trained.path.name), "it is said")
    trained.log_more_than_the_journal_holds()
    assert runner.poll() is None
    assert trained.path.read_bytes() == before
    disk.clear()
    disk.resize(256 * 2**20)  # a slow machine trains longer: more values for MLflow's database
    recorded = trained.recorded("loss")
    wait_until(lambda: trained.recorded("loss") > recorded + 500, "recording resumes")
    wait_until(lambda: "no room left" not in bench.shown("status", trained.path.name), "as is this")
    trained.stop.touch()
    output, _ = runner.communicate(timeout=180)
    assert runner.returncode == 0, output
    assert "training continues, but there is no room left for the store" in output
    assert "recording continues; `radt report` counts lost samples" in output
    assert "not everything that the script logs is recorded" in output
    (row,) = bench.rows(trained.path)
    assert row["Status"] == "FINISHED"

    (run,) = bench.reader.runs()
    ledger = {one.listener: one for one in bench.reader.ledger([run.run_id])}
    lost = ledger[SOFTWARE]
    assert lost.expected == trained.logged, "every value is accounted for"
    assert lost.received == trained.recorded("loss")
    assert lost.missed > 0
    assert f"{lost.missed:,} missed" in output
    assert ledger["top"].received == trained.recorded("system.load")
    # A busy machine may have been too late for some; none was lost for want of room.
    details = [gap.detail for gap in bench.reader.gaps([run.run_id]) if gap.listener == "top"]
    assert not [detail for detail in details if "store" in detail], (
        "what is sampled waits in memory"
    )
    markers = [one.name for one in bench.reader.markers([run.run_id])]
    assert "journal records dropped" in markers
    assert "store unavailable" in markers
    log = Path(bench.env["RADT_RUNTIME_DIR"], "collector.log").read_text()
    assert "no room left" in log
    assert "records that the script could not write" in log
    bench.wait_delivered()  # MLflow's database was on the same disk
    check_store(bench.home / "radt.db")


@pytest.mark.long
def test_a_run_that_ends_on_a_full_disk(trained: Trained) -> None:
    bench, disk = trained.bench, trained.disk
    runner = bench.start(trained.path.name)
    wait_until(lambda: has_store(bench.home), "the store is there")
    wait_until(lambda: bench.reader.runs() and trained.recorded("loss") > 0, "it is recorded")
    before = trained.path.read_bytes()
    disk.fill()
    trained.log_more_than_the_journal_holds()
    trained.stop.touch()
    output, _ = runner.communicate(timeout=180)
    assert runner.returncode == 1, "its status could not be written"
    assert "1 run FINISHED" in output
    assert "will retry at the next status change" in " ".join(output.split())
    assert trained.path.read_bytes() == before, "and the file is whole"
    disk.clear()
    (run,) = bench.reader.runs()

    def lost() -> list[LedgerRecord]:
        rows = bench.reader.ledger([run.run_id])
        return [one for one in rows if one.listener == SOFTWARE and one.expected == trained.logged]

    wait_until(lost, "the collector goes on trying, until every value is accounted for")
    assert lost()[0].received == trained.recorded("loss")
    assert bench.reader.run(run.run_id).status is RunStatus.FINISHED
    check_store(bench.home / "radt.db")


def test_a_start_on_a_full_disk_is_refused_with_the_reason(trained: Trained) -> None:
    before = trained.path.read_bytes()
    trained.disk.fill()
    done = trained.bench.radt(trained.path.name, code=None)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"Free space on the disk of {trained.disk.path}" in " ".join(done.stderr.split())
    assert trained.path.read_bytes() == before
    assert trained.logged == 0
    trained.disk.clear()
    trained.stop.touch()
    trained.bench.radt(trained.path.name)
    assert trained.bench.rows(trained.path)[0]["Status"] == "FINISHED"


ALONE = """\
import radt
with radt.Run() as run:
    for step in range(100_000):
        run.log_metric("loss", step, step=step)
print("trained")
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("full", ["data folder", "runtime folder"])
def test_a_script_by_itself_on_a_full_disk_trains(
    bench: Bench, small_disk: SmallDisk, full: str
) -> None:
    variable = "RADT_HOME" if full == "data folder" else "RADT_RUNTIME_DIR"
    folder = small_disk.path / "folder"
    folder.mkdir(mode=0o700)
    bench.env[variable] = str(folder)
    small_disk.fill()
    script = bench.script("alone.py", ALONE)
    done = subprocess.run(
        [sys.executable, script],
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == "trained\n"
    assert "Traceback" not in done.stderr
    assert "Free space" in done.stderr
    assert "Training goes on" in done.stderr


def test_a_full_runtime_folder_stops_no_training_and_the_remedy_is_said(
    bench: Bench, small_disk: SmallDisk
) -> None:
    folder = small_disk.path / "folder"
    folder.mkdir(mode=0o700)
    bench.env["RADT_RUNTIME_DIR"] = str(folder)
    small_disk.fill()
    bench.script("alone.py", ALONE)
    path = bench.experiment("Workload,Status,Run,Devices,File\n1,,,cpu,alone.py\n")
    done = bench.radt(path.name)
    assert "Free space there, or set RADT_RUNTIME_DIR" in " ".join(done.stdout.split())
    assert done.stderr == ""
    assert [row["Status"] for row in bench.rows(path)] == ["FINISHED"]
