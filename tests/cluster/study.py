"""A study of a user on a real Slurm: an experiment in a folder, and radt called on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from radt.experiment.source import ExperimentFile
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.tags import CLUSTER_NODE
from tests.support.slurm import Slurm
from tests.support.waiting import wait_until

#: Says that it runs, and goes on until it may end.
TRAIN = """\
import sys, time
from pathlib import Path
import radt

folder = Path(__file__).parent
with radt.Run() as run:
    for epoch in run.epochs(2):
        run.log_metrics({"loss": 1.0 / (epoch + 1)}, step=epoch)
    print("trains", flush=True)
    (folder / f"started.{run.id}").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    (folder / f"ended.{run.id}").touch()
"""
_SETTINGS = """\
on = "slurm"
[cluster]
folder = "{folder}"
time = "20min"
"""


@dataclass
class Study:
    """An experiment in a folder, and radt called on it."""

    folder: Path
    environ: Mapping[str, str]
    slurm: Slurm
    followers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "study.csv"

    def write(self, workloads: Mapping[str, int], memory: Mapping[str, str] | None = None) -> None:
        """Write a file of workloads with so many rows each; ``memory`` makes other shapes."""
        lines = ["Workload,Status,Run,Devices,Memory,Listeners,File"]
        for label, rows in workloads.items():
            lines += [f"{label},,,cpu,{(memory or {}).get(label, '')},,train.py"] * rows
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start radt in the background."""
        follower = subprocess.Popen(
            [sys.executable, "-m", "radt", *arguments],
            env=self.environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.followers.append(follower)
        return follower

    def radt(self, *arguments: str, code: int = 0) -> str:
        """Run radt to its end and return what it prints."""
        output, _ = (process := self.start(*arguments)).communicate()
        assert process.returncode == code, output
        return output

    def statuses(self) -> list[str]:
        table = ExperimentFile.read(self.file).table
        return [record.cells[1].value for record in table.rows]

    def go(self) -> None:
        """Let all runs end."""
        (self.folder / "go").touch()

    def started(self) -> int:
        return len(list(self.folder.glob("started.*")))

    def queue(self) -> list[str]:
        """All jobs that the cluster has, which have not ended."""
        answer = self.slurm.run("squeue", "--noheader", "--array", "--format=%F_%K %T")
        return answer.splitlines()

    def finished_once(self, workloads: Mapping[str, int]) -> None:
        """Each row has finished once, in the file and in the store, and nothing is left."""
        assert self.statuses() == ["FINISHED"] * sum(workloads.values())
        with StoreReader(Home(Path(self.environ["RADT_HOME"])).store_path) as reader:
            runs = [run for run in reader.runs() if run.status is RunStatus.FINISHED]
            labels = {record.workload_id: record.label for record in reader.workloads()}
            assert Counter(labels[run.workload_id] for run in runs) == Counter(workloads)
            assert {len(reader.ledger([run.run_id])) > 0 for run in runs} == {True}
            tags = reader.tags_of([run.run_id for run in runs])
            for workload_id in labels:
                nodes = {
                    tags[run.run_id][CLUSTER_NODE] for run in runs if run.workload_id == workload_id
                }
                assert len(nodes) <= 1  # all rows of a workload were on one node
        # A job has said that it has ended a little before Slurm says so.
        wait_until(lambda: self.queue() == [], "an empty queue")
        wait_until(lambda: not any(map(self.slurm.job_processes, self.slurm.nodes)), "no process")


@contextmanager
def study_on(slurm: Slurm, tmp_path: Path) -> Iterator[Study]:
    """A study on a cluster, which is empty and idle afterwards."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "radt.toml").write_text(_SETTINGS.format(folder=tmp_path / "shared"))
    environ = {**os.environ, **slurm.environ, "RADT_TRACKING_URI": "none", "COLUMNS": "80"}
    environ["RADT_CLUSTER_POLL_S"] = "1"
    study = Study(folder, environ, slurm)
    try:
        yield study
    finally:
        study.go()
    for follower in study.followers:
        follower.kill()
        follower.wait()
        assert follower.stdout is not None
        follower.stdout.close()
    slurm.run("scancel", "--quiet", f"--user={os.getuid()}")
    wait_until(lambda: study.queue() == [], "an empty queue")
    slurm.wait_idle()
