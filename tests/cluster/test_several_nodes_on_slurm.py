"""Runs on two nodes of a real Slurm, which share a folder and a network, and no clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from radt.experiment.source import ExperimentFile
from radt.home import Home
from radt.model import RunStatus, Scope
from radt.parts import from_tag
from radt.store.reader import StoreReader
from radt.tags import CLUSTER_PARTS
from tests.support.privileges import needs_mounts
from tests.support.servers import isolated_slurm_cluster
from tests.support.slurm_isolated import IsolatedSlurm
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = needs_mounts

#: Says when its marker was set, by a clock that all share, and waits to be told to end.
_TRAIN = """\
import json, os, time
from pathlib import Path
import radt

def train(rank, total=1.0):
    here = Path(__file__).parent
    with radt.Run() as run:
        run.log_metric("total", total)
        times_ns = [time.clock_gettime_ns(time.CLOCK_REALTIME)]
        with run.span("mark"):
            pass
        times_ns.append(time.clock_gettime_ns(time.CLOCK_REALTIME))
        said = here / f"said.{rank}.{run.id}"
        said.with_suffix(".new").write_text(json.dumps(times_ns))
        said.with_suffix(".new").rename(said)
        while not (here / "go").exists():
            time.sleep(0.05)

if __name__ == "__main__":
    train(os.environ["RADT_NODE"])
"""
#: The same as a process of torchrun, which first adds up the ranks of all nodes.
_TORCH = """\
import os
import torch
import torch.distributed as dist
from train import train

rank = int(os.environ["RANK"])
assert (os.environ["RADT_NODE"], os.environ["RADT_NODES"]) == (os.environ["GROUP_RANK"], "2")
dist.init_process_group("gloo")
total = torch.tensor(float(1 + rank))
dist.all_reduce(total)
train(rank, total.item())
"""
_HEADER = "Status,Run,Nodes,Devices,Listeners,File,Params\n"
_PLAIN = ",,2,cpu,top@200ms,train.py,\n"
_TORCHRUN = (
    ",,2,cpu,top@200ms,torchrun,--nnodes={Nodes} --node-rank={Node} --nproc-per-node=1 "
    "--rdzv-endpoint={Master} torch_train.py\n"
)
#: The second node's wall clock is 1,000 s ahead, as its monotonic clock is in any case.
_AHEAD = """\
import os, time
if os.environ.get("SLURM_NODEID") == "1":
    def ahead(real=time.time_ns):
        return real() + 1_000_000_000_000
    time.time_ns = ahead
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[IsolatedSlurm]:
    with isolated_slurm_cluster(2, 1, settings={"KillWait": "30"}) as cluster:
        yield cluster


@dataclass
class Study:
    """An experiment of one row on two nodes, in the folder that they share."""

    slurm: IsolatedSlurm
    folder: Path
    followers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "follower.log"

    def start(self, rows: str = "", *options: str) -> subprocess.Popen[bytes]:
        if rows:
            (self.folder / "study.csv").write_text(_HEADER + rows)
        head = self.slurm.entrance("head")
        follower = subprocess.Popen(
            [
                *(*head, sys.executable, "-m", "radt", f"{self.folder}/study.csv"),
                *("--on", "slurm", *options),
            ],
            env={
                **{n: v for n, v in os.environ.items() if not n.startswith("RADT_")},
                **self.slurm.environ,
                "RADT_HOME": str(Path.home() / self.folder.name),
                "RADT_TRACKING_URI": "none",
                "RADT_CLUSTER_POLL_S": "1",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # for torchrun
                "COLUMNS": "80",
            },
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
        )
        self.followers.append(follower)
        return follower

    def ends(self, follower: subprocess.Popen[bytes]) -> bool:
        """Fail with the output if a start has ended; False."""
        assert follower.poll() is None, self.log.read_text()
        return False

    def wait_gone(self) -> None:
        """Wait until nothing of a job is left on any node."""
        wait_until(
            lambda: not any(map(self.slurm.job_processes, self.slurm.nodes)), "the end of all"
        )

    def ended(self, follower: subprocess.Popen[bytes], code: int) -> None:
        """Wait for the end of a start, whose exit code is to be this."""
        with suppress(subprocess.TimeoutExpired):
            follower.wait(TIMEOUT_S)
        queue = self.slurm.ask("squeue").stdout
        assert follower.poll() == code, f"{self.log.read_text()}\n{self.statuses()}\n{queue}"

    @property
    def store(self) -> Path:
        return Home(self.slurm.folder / "head" / "home" / self.folder.name).store_path

    @property
    def reader(self) -> StoreReader:
        return StoreReader(self.store)

    def statuses(self) -> list[str]:
        table = ExperimentFile.read(self.folder / "study.csv").table
        return [row.cells[0].value for row in table.rows]

    def status(self) -> str:
        (status,) = self.statuses()
        return status

    def said(self) -> Mapping[str, Mapping[str, list[int]]]:
        """Of each run, by rank: when its marker was set, by a clock that all share."""
        found: dict[str, dict[str, list[int]]] = {}
        for path in self.folder.glob("said.*.*[!w]"):
            _, rank, run_id = path.name.split(".")
            found.setdefault(run_id, {})[rank] = json.loads(path.read_text())
        return found

    def machines(self) -> set[str]:
        """Whose samples the submit host has."""
        if not self.store.exists():
            return set()
        with self.reader as reader:
            runs = {run.run_id: run for run in reader.runs()}
            return {
                one.node or runs[one.run_id].host
                for one in reader.series(list(runs))
                if one.scope is Scope.HOST
            }

    def trains(self, runs: int = 1) -> bool:
        return [len(parts) for parts in self.said().values()].count(2) >= runs

    def next_run(self, follower: subprocess.Popen[bytes], before: Collection[str]) -> str:
        """Wait for another run than these, in which both nodes train; return its id."""
        found: set[str] = set()

        def is_there() -> bool:
            found.update(run_id for run_id, parts in self.said().items() if len(parts) == 2)
            return found > set(before) or self.ends(follower)

        wait_until(is_there, "both parts of the next run")
        (run_id,) = found - set(before)
        return run_id


@pytest.fixture
def study(slurm: IsolatedSlurm, request: pytest.FixtureRequest) -> Iterator[Study]:
    folder = slurm.shared / str(request.node.name)
    (folder / "ahead").mkdir(parents=True)
    (folder / "ahead" / "sitecustomize.py").write_text(_AHEAD)
    (folder / "train.py").write_text(_TRAIN)
    (folder / "torch_train.py").write_text(_TORCH)
    (folder / "radt.toml").write_text(
        f'[cluster]\nfolder = "{slurm.shared}/radt"\ntime = "20min"\n'
        f'setup = ["export PYTHONPATH={folder}/ahead", "export RADT_CLUSTER_PART_S=1"]\n'
    )
    study = Study(slurm, folder)
    yield study
    for follower in study.followers:
        follower.kill()
        follower.wait()
    slurm.run("scancel", "--quiet", f"--user={os.getuid()}")
    slurm.wait_idle()


@pytest.mark.long
def test_torchrun_on_clocks_that_are_1000_s_apart(study: Study) -> None:
    follower = study.start(_TORCHRUN)
    wait_until(
        lambda: (study.trains() and study.machines() == {"node1", "node2"}) or study.ends(follower),
        "both parts, and samples of both machines",
    )
    (study.folder / "go").touch()
    study.ended(follower, 0)
    assert study.status() == "FINISHED"
    ((run_id, said),) = study.said().items()
    with study.reader as reader:
        (run,) = reader.runs()
        assert (run.run_id, run.status) == (run_id, RunStatus.FINISHED)
        totals = {
            one.entity: one.series_no for one in reader.series([run_id]) if one.metric == "total"
        }
        assert set(totals) == {"", "node2/rank 1"}
        for number in totals.values():
            assert reader.samples(run_id, number).values.tolist() == [3.0]
        (part,) = from_tag(reader.tags(run_id)[CLUSTER_PARTS])
        marks = {m.process: m.start_ns for m in reader.markers([run_id]) if m.name == "mark"}
    assert abs(part.offset_ns + 1000 * 10**9) < 10 * 10**9  # the machines' monotonic clocks
    # What is added to the true time is the same for both, as exactly as the part says.
    first, other = (
        (marks[process] - said[rank][1], marks[process] - said[rank][0])
        for rank, process in (("0", ""), ("1", "node2/rank 1"))
    )
    assert other[0] - first[1] <= part.error_ns
    assert first[0] - other[1] <= part.error_ns


@pytest.mark.long
def test_a_bundle_with_repeats_is_ended_in_every_way_and_goes_on(study: Study) -> None:
    slurm = study.slurm
    job_ids = ("squeue", "--noheader", "--format=%A")
    with (study.folder / "radt.toml").open("a") as toml:
        toml.write('bundle = "2h"\npartition = "scavenge"\n')
    slurm.run("scontrol", "update", "PartitionName=scavenge", "GraceTime=120")
    follower = study.start(_PLAIN * 2, "--repeat", "2")
    runs = [study.next_run(follower, ())]
    # Preempted: submitted again.
    preempting = slurm.run(
        *("sbatch", "--parsable", "--partition=main", "--nodes=2", "--exclusive"),
        *("--output=/dev/null", "--wrap=sleep 1000"),
    ).strip()
    running = (*job_ids, "--states=running")
    wait_until(lambda: slurm.run(*running).split() == [preempting], "the nodes for another job")
    slurm.run("scancel", preempting)
    runs.append(study.next_run(follower, runs))
    # The time limit, for which Slurm looks twice a minute.
    (job,) = slurm.run(*job_ids).split()
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    study.ended(follower, 1)
    assert study.statuses() == ["KILLED 1/2: the job's time limit"] * 2
    slurm.wait_idle()
    study.wait_gone()
    # Cancelled.
    follower = study.start("", "--repeat", "2")
    runs.append(study.next_run(follower, runs))
    slurm.run("scancel", f"--user={os.getuid()}")
    study.ended(follower, 1)
    assert all(text.endswith("the job was cancelled") for text in study.statuses())
    slurm.wait_idle()
    # A node is lost: Slurm queues the job again.
    follower = study.start("", "--repeat", "2")
    runs.append(study.next_run(follower, runs))
    slurm.kill_node("node2")
    slurm.declare_down("node2")
    (job,) = slurm.run(*job_ids).split()
    state = ("squeue", "--noheader", "--format=%T")  # --states=pending has jobs that still end, too
    wait_until(lambda: slurm.run(*state).split() == ["PENDING"], "the job in the queue again")
    slurm.start_node("node2")
    slurm.wait_idle()
    # What Slurm still has to tell the lost node of this job would end its next start there.
    slurm.run("scancel", job)
    study.ended(follower, 1)
    (study.folder / "go").touch()
    study.ended(study.start("", "--repeat", "2"), 0)
    assert study.statuses() == ["FINISHED 2/2"] * 2
    with study.reader as reader:
        found = {run.run_id: run for run in reader.runs()}
        tags = reader.tags_of(list(found))
    finished = [run for run in found.values() if run.status is RunStatus.FINISHED]
    assert sorted(run.workload for run in finished) == ["1", "1", "2", "2"]
    assert {found[run_id].status for run_id in runs} == {RunStatus.KILLED}
    assert all(CLUSTER_PARTS in tags[run.run_id] for run in finished)
    study.wait_gone()
