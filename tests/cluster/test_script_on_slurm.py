"""Batch scripts on a real Slurm whose nodes cannot run radt, and shapes that it does not have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.experiment.source import ExperimentFile
from tests.support.servers import slurm_cluster
from tests.support.slurm import Slurm
from tests.support.waiting import wait_until

JOBS = 4
_ROWS = "Workload,Status,Run,Devices,Listeners,File\n"
_SITE = 'on = "slurm"\n[cluster]\nfolder = "{folder}/shared"\ntime = "20min"\nsetup = {setup}\n'


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster(2, 0) as cluster:
        yield cluster


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path) -> Iterator[Path]:
    """Four workloads of a script that ends at once."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    rows = "".join(f"w{number},,,cpu,none,train.py\n" for number in range(JOBS))
    (tmp_path / "study.csv").write_text(_ROWS + rows)
    yield tmp_path
    slurm.run("scancel", "--quiet", f"--user={os.getuid()}")
    slurm.wait_idle()


def radt(folder: Path, slurm: Slurm, *arguments: str, codes: tuple[int, ...] = (0, 1)) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "radt", *arguments],
        env={**os.environ, **slurm.environ, "RADT_TRACKING_URI": "none", "COLUMNS": "80"}
        | {"RADT_CLUSTER_POLL_S": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout + done.stderr


def setup(folder: Path, *lines: str) -> None:
    (folder / "radt.toml").write_text(_SITE.format(folder=folder, setup=list(lines)))


def statuses(folder: Path) -> list[str]:
    table = ExperimentFile.read(folder / "study.csv").table
    return [record.cells[1].value for record in table.rows]


@pytest.mark.long
def test_nodes_that_cannot_be_set_up_fail_two_jobs_and_hold_the_rest(
    folder: Path, slurm: Slurm
) -> None:
    setup(folder, "false  # as a module that is not there")

    shown = " ".join(radt(folder, slurm, "study.csv").split())

    assert "two jobs could not begin: setup failed (false # as a module that is" in shown

    def settled() -> bool:
        radt(folder, slurm, "status", "study.csv")
        return slurm.run("squeue", "--noheader") == ""

    wait_until(settled, "an empty queue")
    setup(folder)  # mended
    radt(folder, slurm, "study.csv")
    ends = statuses(folder)
    failed = [text for text in ends if text.startswith("FAILED: setup failed (false")]
    assert len(failed) <= 2 and ends.count("FINISHED") == JOBS - len(failed)


def test_a_shape_that_no_node_has(folder: Path, slurm: Slurm) -> None:
    setup(folder)
    (folder / "study.csv").write_text(
        "Workload,Devices,Cpus,Memory,File\n"
        "fits,cpu,8,,train.py\ncpus,cpu,9,,train.py\nmemory,cpu,,1TB,train.py\ngpu,0,,,train.py\n"
    )

    for arguments in (("validate", "study.csv"), ("study.csv", "--dry-run"), ("study.csv",)):
        shown = " ".join(radt(folder, slurm, *arguments, codes=(2,)).split())
        assert shown.startswith("study.csv: 3 problems, nothing was started line 3 workload cpus,")
        for line in ("line 4 workload memory, no GPU, 1 TB", "line 5 workload gpu, 1 GPU"):
            assert line in shown
        assert "`sinfo -o '%P %N %c" in shown  # how to see what there is
    assert slurm.run("squeue", "--noheader") == "" and not (folder / "shared").exists()


def test_what_would_be_submitted(folder: Path, slurm: Slurm) -> None:
    setup(folder)

    shown = " ".join(radt(folder, slurm, "validate", "study.csv", codes=(0,)).split())

    assert "1 array, 4 jobs" in shown and "slurm: to start at 20" in shown
    assert slurm.run("squeue", "--noheader") == "" and not (folder / "shared").exists()
