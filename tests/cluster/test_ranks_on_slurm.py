"""Tasks of srun on a real Slurm, without radt's runner: one training, several, and jobs of jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.tags import LAUNCHED_BY
from tests.support.servers import slurm_cluster
from tests.support.slurm import Slurm
from tests.support.waiting import wait_until

_TRAIN = """\
import os, radt, sys
rank = os.environ["SLURM_PROCID"]
with radt.Run(listeners="none") as run:
    run.log_metric("loss", float(rank))
    if "MASTER_ADDR" in os.environ:  # rank 0 goes on when rank 1 is there
        open("meet.pipe", "r" if int(rank) else "w").close()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster(1, 0) as cluster:
        yield cluster


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RADT_TRACKING_URI", "none")
    monkeypatch.setenv("RADT_QUIET", "1")
    return Home(Path(os.environ["RADT_HOME"]))


def test_ranks_of_one_training_are_one_run(
    slurm: Slurm, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text(_TRAIN, encoding="utf-8")
    os.mkfifo("meet.pipe")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    slurm.run("srun", "-n2", sys.executable, "train.py")
    with StoreReader(home.store_path) as reader:
        (run,) = reader.runs()
        assert run.status is RunStatus.FINISHED
        assert {series.entity for series in reader.series([run.run_id])} >= {"", "rank 1"}


@pytest.mark.long
def test_tasks_of_a_step_are_runs_of_one_workload(slurm: Slurm, home: Home) -> None:
    Path("train.py").write_text(_TRAIN, encoding="utf-8")
    slurm.run("srun", "-n3", sys.executable, "train.py")
    with StoreReader(home.store_path) as reader:
        runs = sorted(reader.runs(), key=lambda run: run.letter)
        assert [run.name for run in runs] == [f"train rank {rank}" for rank in range(3)]
        assert [run.letter for run in runs] == ["a", "b", "c"]
        assert len({run.workload_id for run in runs}) == 1
        assert runs[0].workload.startswith("srun ") and runs[0].workload.endswith(".0")


_SUBMIT = """\
import os, radt, subprocess
with radt.Run("submits", listeners="none"):
    if os.environ["SLURM_PROCID"] == "1":
        subprocess.run(["sbatch", "--output=job.out", "job.sh"], check=True)
"""


@pytest.mark.long
def test_a_batch_job_that_a_task_submits_is_a_run_of_its_own(slurm: Slurm, home: Home) -> None:
    Path("submit.py").write_text(_SUBMIT, encoding="utf-8")
    Path("train.py").write_text(_TRAIN, encoding="utf-8")
    # sbatch hands on the variables of the step and of the run.
    Path("job.sh").write_text(
        f"#!/bin/sh\nuntil [ -e go ]; do sleep 0.1; done\n{sys.executable} train.py\n"
    )
    slurm.run("srun", "-n2", sys.executable, "submit.py")
    Path("go").touch()

    def job() -> list[str]:
        with StoreReader(home.store_path) as reader:
            return [
                run.run_id for run in reader.runs() if run.ended_ns and run.experiment == "train"
            ]

    wait_until(lambda: len(job()) == 1, "the job's run")
    with StoreReader(home.store_path) as reader:
        run = reader.run(job()[0])
        (launcher,) = (run for run in reader.runs() if run.name == "submits rank 1")
        assert (run.name, run.workload, run.status) == ("train #1", "", RunStatus.FINISHED)
        assert reader.tags(run.run_id)[LAUNCHED_BY] == launcher.run_id


@pytest.mark.long
def test_a_step_and_a_batch_script_end_with_their_program(slurm: Slurm, home: Home) -> None:
    """Slurm kills the collector with them, so scripts wait for their uploads."""
    ask = "from radt.lifetime import waits_here; print(waits_here().name)"
    Path("job.sh").write_text(f'#!/bin/bash\n"{sys.executable}" -c "{ask}"\ntrue\n')
    assert slurm.run("srun", sys.executable, "-c", ask).split() == ["TRY"]
    slurm.run("sbatch", "--wait", "--output=job.txt", "job.sh")
    assert Path("job.txt").read_text().split() == ["TRY"]


@pytest.mark.long
def test_a_job_whose_node_cannot_upload_is_told_so_and_does_not_fail(
    slurm: Slurm, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text(_TRAIN, encoding="utf-8")
    Path("one.csv").write_text("Experiment,Workload,Devices,File\nx,1,cpu,train.py\n")
    monkeypatch.setenv("RADT_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("RADT_COLLECTOR_DELIVERY_S", "1")
    for index, command in enumerate(("train.py", "-m radt one.csv")):
        Path("job.sh").write_text(f"#!/bin/sh\n{sys.executable} {command}\n")
        slurm.run("sbatch", "--wait", f"--output={index}.txt", "job.sh")
        assert "some data is only in" in " ".join(Path(f"{index}.txt").read_text().split())
