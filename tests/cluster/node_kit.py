"""Submissions made by hand, and node runners as real processes on nodes that are folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radt import __version__
from radt.cluster.attempt import AttemptView
from radt.cluster.collecting import Collected, Collection
from radt.cluster.engine import Shape
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, JobKey, Submission
from radt.experiment.plan import WorkloadKey
from radt.home import Home
from radt.store.reader import StoreReader
from tests.support.bench import Bench, collector_of
from tests.support.waiting import TIMEOUT_S, wait_until

JOB = JobKey(0, 0)

#: Logs two epochs; between them it says that it is there and waits for a file, if it is told to.
TRAIN = """\
import argparse, os, sys, time, radt
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--wait")
parser.add_argument("--samples", type=int, default=0)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()

def samples():
    from radt.store.reader import StoreReader
    with StoreReader(Path(os.environ["RADT_RUN_DIR"]).parents[1] / "radt.db") as reader:
        top = {one.series_no for one in reader.series([run.id]) if one.listener == "top"}
        counts = reader.point_counts(run.id)
    return max((counts.get(number, 0) for number in top), default=0)

with radt.Run() as run:
    run.set_tag("flavour", "plain")
    for epoch in run.epochs(2, start=0):
        for step in range(50):
            run.log_metric("loss", args.lr / (1 + step), epoch * 50 + step)
        if args.wait and epoch == 0:
            with open(args.wait + ".there", "a") as there:
                there.write("here\\n")
            while not Path(args.wait).exists():
                time.sleep(0.02)
    while args.samples and samples() < args.samples:  # rates need several readings
        time.sleep(0.02)
    run.log_text(f"kept {args.lr}", "notes/notes.txt")
    if args.fail:
        sys.exit(5)
print("done with lr", args.lr)
"""


@dataclass
class Nodes:
    """A user's folder, the shared folder of submissions, and folders that are nodes' disks."""

    bench: Bench
    folder: Path
    disks: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Home:
        """The data folder of the submit host."""
        return Home(self.bench.home)

    @property
    def reader(self) -> StoreReader:
        return StoreReader(self.home.store_path)

    def submit(
        self,
        file: Path,
        *jobs: Sequence[str],
        experiment: str = "study",
        name: str = "20261125-120000-abcd",
        version: str = __version__,
        settings: Mapping[str, str] | None = None,
        shape: Shape | None = None,
        **options: object,
    ) -> Spool:
        """Make a submission of one array, whose jobs have these workloads."""
        keys = tuple(tuple(WorkloadKey(experiment, label) for label in job) for job in jobs)
        submission = Submission(
            *(name, "slurm", os.path.realpath(file), "login", "me", version, sys.executable),
            (JobArray(shape or Shape(), keys),),
            options,
            settings or {},
        )
        return Spool.create(self.folder, submission, file.read_bytes())

    def disk(self, node: str) -> Path:
        path = self.disks / node
        path.mkdir(parents=True, exist_ok=True)
        return path

    def start(
        self, spool: Spool, job: JobKey = JOB, node: str = "node1", **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a node runner; killed at the end of the test if it still runs."""
        variables = {
            **self.bench.env,
            "TMPDIR": str(self.disk(node)),
            "SLURMD_NODENAME": node,
            "SLURM_ARRAY_JOB_ID": "1234",
            "SLURM_ARRAY_TASK_ID": str(job.index),
            "RADT_CLUSTER_BEAT_S": "0.2",
            "RADT_CLUSTER_PART_S": "0.5",
            **env,
        }
        for name in ("RADT_HOME", "RADT_RUNTIME_DIR", "RADT_TRACKING_URI"):
            variables.pop(name, None)
        command = [sys.executable, "-m", "radt.cluster.noderunner", str(spool.path)]
        process = subprocess.Popen(
            [*command, str(job.array), str(job.index)],
            cwd=self.bench.folder,
            env=variables,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, spool: Spool, job: JobKey = JOB, *, code: int = 0, **env: str) -> None:
        """Run a job to its end."""
        assert self.start(spool, job, **env).wait(TIMEOUT_S) == code, self.log(spool, job)

    def log(self, spool: Spool, job: JobKey = JOB) -> str:
        logs = [attempt.output_log for attempt in spool.attempts(job)]
        return "\n".join(log.read_text() for log in logs if log.exists())

    def places(self, node: str = "node1") -> list[Path]:
        """Folders of jobs on a node's disk; bundles are made beside them."""
        every = self.disk(node).iterdir()
        return sorted(one for one in every if not one.name.startswith("radt-bundle-"))

    def processes(self) -> list[int]:
        """Processes of any job that is or was on one of the nodes, runners apart."""
        mark = os.fsencode(self.disks)
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    is_ours = mark in (entry / "environ").read_bytes()
                except OSError:
                    continue
                if is_ours:
                    found.append(int(entry.name))
        return found

    def wait_gone(self) -> None:
        wait_until(lambda: not self.processes(), "nothing of the jobs is left")


def view(spool: Spool, job: JobKey = JOB, number: int | None = None) -> AttemptView:
    """What an attempt says, the newest one unless told."""
    attempts = spool.attempts(job)
    return (attempts[-1] if number is None else attempts[number - 1]).view()


def texts(spool: Spool, job: JobKey = JOB) -> list[str]:
    """The statuses of a job's rows, in the order of their lines."""
    return [row.text for _, row in sorted(view(spool, job).statuses.items())]


def collectors_of(place: Path) -> list[int]:
    """Guardian and worker of a job's folder."""
    return collector_of(place / "run")


def wait_collectors(place: Path) -> list[int]:
    """Guardian and worker, as soon as both are there."""
    wait_until(lambda: len(collectors_of(place)) == 2, "the collector of the job")
    return collectors_of(place)


@contextmanager
def nodes_in(bench: Bench, folder: Path) -> Iterator[Nodes]:
    """Nodes beside a bench; what runs on them is gone afterwards."""
    (folder / "submissions").mkdir()
    nodes = Nodes(bench, folder / "submissions", folder / "disks")
    yield nodes
    for process in nodes.started:
        if process.poll() is None:
            process.kill()
        process.wait()
    nodes.wait_gone()


def collect(spool: Spool, home: Home, **places: Any) -> Collected:
    """Take what is new of a submission, once; see `Collection`."""
    with Collection(spool, home, **places) as collection:
        return collection.collect()
