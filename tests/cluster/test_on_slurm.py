"""Experiments on a real Slurm of three nodes, as a user runs them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run as MlflowRun
from mlflow.tracking import MlflowClient

from radt.errors import StoreError
from radt.experiment.lock import ExperimentLock
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.tags import CLUSTER_NODE, WORKLOAD_ID
from tests.cluster.study import Study, study_on
from tests.support.mlflow_server import MlflowServer
from tests.support.servers import slurm_cluster
from tests.support.slurm import MEMORY_CGROUPS, Slurm
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster(3, 2) as cluster:
        yield cluster


@pytest.fixture
def study(slurm: Slurm, tmp_path: Path) -> Iterator[Study]:
    with study_on(slurm, tmp_path) as study:
        yield study


@dataclass
class Runs:
    """The runs of one study in three places, counted by status."""

    tracking_uri: str
    database: str
    home: Home

    def here(self) -> Mapping[str, int]:
        return self._in(self.home.store_path)

    def in_postgres(self) -> Mapping[str, int]:
        return self._in(self.database)

    def _in(self, store: Path | str) -> Mapping[str, int]:
        try:
            with StoreReader(store) as reader:
                return Counter(str(run.status) for run in reader.runs())
        except StoreError:
            return {}  # not there yet

    def of_mlflow(self) -> list[MlflowRun]:
        """Those of workloads, too."""
        with StoreReader(self.home.store_path) as reader:
            ids = {run.workload_id for run in reader.runs()}
        client = MlflowClient(self.tracking_uri)
        experiment = client.get_experiment_by_name("study")
        found = client.search_runs([experiment.experiment_id]) if experiment is not None else []
        return [run for run in found if run.data.tags.get(WORKLOAD_ID) in ids]

    def in_mlflow(self) -> Mapping[str, int]:
        return Counter(run.info.status for run in self.of_mlflow())

    def postgres_has_all(self) -> bool:
        """Whether it has each point that is here; of a run that was killed it may have more."""
        with StoreReader(self.database) as there, StoreReader(self.home.store_path) as here:
            return all(
                there.point_counts(run.run_id).get(number, 0) == count
                or (
                    run.status is RunStatus.KILLED
                    and there.point_counts(run.run_id).get(number, 0) > count
                )
                for run in here.runs()
                for number, count in here.point_counts(run.run_id).items()
            )


#: Waits without using a CPU, long enough for samples.
WAITS = "import threading\nthreading.Event().wait(1.0)\n"
AUTO = "Experiment,Workload,Status,Run,Devices,Listeners,File,Params\n"


def test_rows_of_auto_share_a_job_if_their_kind_was_measured(study: Study) -> None:
    (study.folder / "waits.py").write_text(WAITS)
    rows = [f"{{}},auto,,,cpu,top@50ms,waits.py,--seed {number}\n" for number in range(3)]
    study.file.write_text(AUTO + rows[0].format("first"))
    study.radt("study.csv")
    study.file.write_text(AUTO + "".join(row.format("second") for row in rows))
    assert "auto-1" in study.radt("validate", "study.csv")
    output = study.radt("study.csv")
    assert re.search(r"1/1  auto-1 +3 runs +✔", output), output
    with StoreReader(Home(Path(study.environ["RADT_HOME"])).store_path) as reader:
        alone, *together = reader.runs()
        assert alone.workload == "auto row 1"
        assert [run.workload for run in together] == ["auto-1"] * 3
        tags = reader.tags(together[0].run_id)
    assert re.fullmatch(r".* s predicted, .* s one after the other", tags["radt.grouped_by"])


WORKLOADS = {"solo": 1, "pair": 2, "three": 3, "big": 1}
MEMORY = {"big": "2G"}


def test_workloads_run_on_the_nodes_and_are_reported_here(study: Study) -> None:
    study.write(WORKLOADS, MEMORY)
    follower = study.start("study.csv")
    wait_until(lambda: study.started() == 7, "all rows to run at once")
    assert len({job.partition("_")[0] for job in study.queue()}) == 2  # an array a shape
    wait_until(
        lambda: all(re.fullmatch(r"RUNNING: node\d", text) for text in study.statuses()),
        "statuses with nodes",
    )
    shown = study.radt("status", "study.csv")
    assert "4 jobs run on" in shown
    document = json.loads(study.radt("status", "study.csv", "--json"))
    assert len(document["submission"]["running"]) == 4
    study.go()
    output, _ = follower.communicate()
    assert follower.returncode == 0, output
    for label in WORKLOADS:
        assert re.search(rf"\d/4  {label} +\d runs? +✔", output)
    assert re.search(r"4  pair .*✔.* skew \d", output), output  # as on one machine
    assert "7 runs FINISHED" in output
    study.finished_once(WORKLOADS)
    assert "7 rows done" in study.radt("study.csv")  # nothing is left to submit


@pytest.mark.long
def test_a_submitter_that_is_killed_again_and_again(study: Study) -> None:
    study.write(WORKLOADS, MEMORY)
    study.go()
    chance = random.Random(3)
    for _ in range(4):
        follower = study.start("study.csv")
        try:
            follower.communicate(timeout=chance.uniform(0.5, 6.0))
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.communicate()
    study.radt("study.csv")
    study.finished_once(WORKLOADS)
    assert len(list(study.folder.glob("ended.*"))) == 7


@pytest.mark.long
def test_what_runs_and_waits_is_shown_as_the_cluster_has_it_and_stop_cancels_it(
    study: Study,
) -> None:
    workloads = {f"w{number}": 1 for number in range(4)}
    study.write(workloads, dict.fromkeys(workloads, "15G"))  # one fits on a node
    follower = study.start("study.csv")
    wait_until(lambda: study.started() == 3, "three rows to run")
    home = study.environ["RADT_HOME"]

    def found() -> dict[str, Any]:
        (file,) = json.loads(study.radt("status", "--json"))["files"]
        return dict(file["submission"]) | {"holder": file["holder"]}

    def has_all() -> bool:
        seen = found()
        return (len(seen["running"]), len(seen["waiting"])) == (3, 1)

    wait_until(has_all, "jobs as they are")
    seen = found()
    jobs = [*seen["running"], *seen["waiting"]]
    assert {job["nodes"] for job in seen["running"]} == {"node1", "node2", "node3"}
    assert sorted(job["label"] for job in jobs) == list(workloads)
    assert {job["reason"] for job in seen["waiting"]} <= {"Resources", "Priority"}
    assert {job["job_id"] for job in jobs} == {line.split()[0] for line in study.queue()}
    assert all(job["attempt"] == 1 for job in seen["running"])
    assert seen["holder"]["pid"] == follower.pid
    assert "3 jobs run on 3 nodes, 1 queued" in seen["headline"]
    shown = study.radt("status")
    assert seen["id"] in shown
    assert "3 jobs run on 3 nodes" in shown
    follower.send_signal(signal.SIGINT)
    output, _ = follower.communicate()
    assert "the jobs continue" in output
    assert follower.returncode == 130
    assert len(study.queue()) == 4
    refusal = study.radt("study.csv", "--on", "local", code=2)
    assert "was submitted to slurm" in refusal
    refusal = study.radt("study.csv", "--home", "another", code=2)
    assert f"--home {home}" in " ".join(refusal.split())
    study.environ = {**study.environ, "RADT_HOME": str(study.folder / "another")}
    study.radt("stop", "study.csv")  # from wherever
    assert not (study.folder / "another").exists()
    study.environ = {**study.environ, "RADT_HOME": home}
    assert set(study.statuses()) == {"KILLED: stopped by the user"}
    wait_until(lambda: study.queue() == [], "an empty queue")
    assert len(list(study.folder.glob("ended.*"))) == 0
    study.go()
    study.radt("study.csv")  # resumes
    study.finished_once(workloads)
    assert "no open submissions" in study.radt("status")


@pytest.mark.long
def test_a_rerun_beside_running_jobs_runs_again_what_has_failed(study: Study) -> None:
    study.write({"solo": 1, "other": 1})
    train = (study.folder / "train.py").read_text()
    fails = "import os\nif os.environ['RADT_WORKLOAD'] == 'other': raise SystemExit(3)\n"
    (study.folder / "train.py").write_text(fails + train)
    follower = study.start("study.csv")
    wait_until(lambda: study.statuses()[1].startswith("FAILED"), "the failure")
    wait_until(lambda: study.started() == 1, "the other row to run")
    follower.send_signal(signal.SIGINT)
    follower.communicate()
    (study.folder / "train.py").write_text(train.replace('"go"', '"go on"'))
    again = study.start("study.csv", "--rerun")
    lock = ExperimentLock(study.file)
    wait_until(lambda: lock.holder() is not None, "who follows")
    attached = study.start("attach", "study.csv")
    assert attached.stdout is not None
    assert "this only looks" in attached.stdout.readline()
    study.go()
    # It goes on with what is submitted next.
    lines = iter(attached.stdout.readline, "")
    assert any("other on node" in line and "trains" in line for line in lines)
    (study.folder / "go on").touch()
    seen, _ = attached.communicate()
    assert attached.returncode == 0, seen
    assert re.search(r"1/1  other +1 run +✔", seen), seen
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert "failed rows run again when they have ended" in output
    study.finished_once({"solo": 1, "other": 1})


@pytest.mark.long
def test_one_task_is_cancelled_and_runs_with_the_next_start(study: Study) -> None:
    study.write({"solo": 1, "pair": 2})
    follower = study.start("study.csv")
    wait_until(lambda: study.started() == 3, "the rows to run")
    task = next(line.split()[0] for line in study.queue() if line.split()[0].endswith("_0"))
    study.slurm.run("scancel", task)
    # Its own last word may come first: it cannot tell a cancellation from a preemption.
    cancelled = "KILLED: the job was cancelled"
    wait_until(lambda: study.statuses()[0] == cancelled, "the status of the task")
    study.go()
    output, _ = follower.communicate()
    assert follower.returncode == 1, output
    assert study.statuses()[1:] == ["FINISHED"] * 2
    study.radt("study.csv")
    study.finished_once({"solo": 1, "pair": 2})


@pytest.mark.long
def test_nodes_that_reach_the_servers_record_there_themselves(
    study: Study, database: str, mlflow_server: MlflowServer
) -> None:
    toml = study.folder / "radt.toml"
    toml.write_text(toml.read_text() + 'record = "direct"\n')
    servers = {"RADT_TRACKING_URI": mlflow_server.uri, "RADT_STORE_URI": database}
    quick = {"RADT_REPLICATION_S": "0.3", "RADT_CLUSTER_PART_S": "1"}
    study.environ = {**study.environ, **servers, **quick}
    study.write({"pair": 2})
    follower = study.start("study.csv")
    wait_until(lambda: study.started() == 2, "the rows to run")
    shown = Runs(mlflow_server.uri, database, Home(Path(study.environ["RADT_HOME"])))
    wait_until(lambda: shown.in_postgres() == {"RUNNING": 2}, "runs in Postgres, while they run")
    wait_until(lambda: shown.in_mlflow() == {"RUNNING": 3}, "runs and their workload in MLflow")
    wait_until(lambda: shown.here() == {"RUNNING": 2}, "a part of each")
    wait_until(lambda: study.statuses()[0].startswith("RUNNING: "), "its node")
    node = study.statuses()[0].removeprefix("RUNNING: ")
    (task,) = (line.split()[0] for line in study.queue())
    study.slurm.kill_node(node)  # with what it would have told the servers
    try:
        study.slurm.declare_down(node)
        wait_until(lambda: study.queue() == [f"{task} PENDING"], "the job in the queue again")
        study.slurm.start_now(task)
        study.go()
        output, _ = follower.communicate()
        assert follower.returncode == 0, output
    finally:
        study.slurm.start_node(node)
    study.finished_once({"pair": 2})
    both = {"FINISHED": 2, "KILLED": 2}
    assert shown.here() == both
    wait_until(lambda: shown.in_postgres() == both, "the ends in Postgres")
    wait_until(lambda: shown.in_mlflow() == {"FINISHED": 3, "KILLED": 3}, "the ends in MLflow")
    wait_until(shown.postgres_has_all, "what is here in Postgres")
    client = MlflowClient(mlflow_server.uri)
    files = [file for run in shown.of_mlflow() for file in client.list_artifacts(run.info.run_id)]
    assert sum(file.path == "output.log" for file in files) == 2  # of those that have finished


@pytest.mark.long
def test_a_detached_follower_is_attached_to_and_all_workloads_run_on_one_node(
    study: Study,
) -> None:
    # Two of these fit on no node together: without the setting each would have a node of its own.
    study.write({"w0": 1, "w1": 1}, {"w0": "9GB", "w1": "9GB"})
    toml = study.folder / "radt.toml"
    toml.write_text(toml.read_text() + "same-node = true\n")
    assert "runs in the background" in study.radt("study.csv", "--detach")
    wait_until(lambda: study.started() == 1, "the first row to run")
    attached = study.start("attach", "study.csv")
    assert attached.stdout is not None
    assert "this only looks" in attached.stdout.readline()
    study.go()
    output, _ = attached.communicate()
    assert attached.returncode == 0, output
    wait_until(lambda: study.statuses() == ["FINISHED"] * 2, "the statuses")
    study.finished_once({"w0": 1, "w1": 1})
    with StoreReader(Home(Path(study.environ["RADT_HOME"])).store_path) as reader:
        tags = reader.tags_of([run.run_id for run in reader.runs()])
    assert len({found[CLUSTER_NODE] for found in tags.values()}) == 1


@pytest.mark.long
def test_a_slurmd_that_is_killed_alone(study: Study) -> None:
    study.environ = {**study.environ, "RADT_CLUSTER_BEAT_S": "1"}
    study.write({"solo": 1})
    follower = study.start("study.csv")
    wait_until(lambda: study.started() == 1, "the row to run")
    wait_until(lambda: study.statuses()[0].startswith("RUNNING: "), "its node")
    node = study.statuses()[0].removeprefix("RUNNING: ")
    (task,) = (line.split()[0] for line in study.queue())
    study.slurm.kill_slurmd(node)
    try:
        study.slurm.declare_down(node)
        wait_until(lambda: study.queue() == [f"{task} PENDING"], "the job in the queue again")
        assert study.slurm.job_processes(node)  # nobody has told the first attempt
        study.slurm.start_now(task)
        wait_until(lambda: study.started() == 2, "the second attempt")
        study.go()
        output, _ = follower.communicate()
        assert follower.returncode == 0, output
        wait_until(lambda: not study.slurm.job_processes(node), "the end of the first attempt")
    finally:
        study.slurm.start_node(node)
    study.finished_once({"solo": 1})
    with StoreReader(Home(Path(study.environ["RADT_HOME"])).store_path) as reader:
        (run,) = (run for run in reader.runs() if run.status is RunStatus.FINISHED)
        assert reader.tags(run.run_id)[CLUSTER_NODE] != node


#: The row that is called so takes a gigabyte when it is told to, before it trains.
_EATS = """\
import os, time
from pathlib import Path
import radt

if os.environ["RADT_WORKLOAD"] == "eats":
    with radt.Run() as run:
        run.log_metric("loss", 0.5)
        while not Path(__file__).with_name("eat").exists():
            time.sleep(0.05)
        eaten = b"x" * (1 << 30)
        time.sleep(1000)
"""


def _has_loss(study: Study) -> bool:
    """Whether the submit host has a part of the run with what it has logged."""
    store = Home(Path(study.environ["RADT_HOME"])).store_path
    if not store.exists():
        return False
    with StoreReader(store) as reader:
        series = reader.series([run.run_id for run in reader.runs()])
    return "loss" in {one.metric for one in series}


#: Without cgroups slurmd looks each second what a job takes.
_MEMORY_LIMITS = {
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "task=1",
    "JobAcctGatherParams": "OverMemoryKill",
}


@pytest.mark.long
def test_a_job_that_takes_more_memory_than_it_may(tmp_path: Path) -> None:
    with (
        slurm_cluster(1, 0, settings=_MEMORY_LIMITS) as slurm,
        study_on(slurm, tmp_path) as study,
    ):
        # Its node says nothing, for which a follower waits as long as a file may come late.
        quick = {"RADT_CLUSTER_PART_S": "1", "RADT_CLUSTER_LATE_S": "5"}
        study.environ = {**study.environ, **quick}
        (study.folder / "train.py").write_text(_EATS)
        study.write({"eats": 1}, {"eats": "1GB"})
        follower = study.start("study.csv")
        wait_until(lambda: _has_loss(study), "a part of the run")
        (study.folder / "eat").touch()
        output, _ = follower.communicate()
        assert follower.returncode == 1, output
        assert study.statuses() == ["OOM: the job's memory"]
        with StoreReader(Home(Path(study.environ["RADT_HOME"])).store_path) as reader:
            (run,) = reader.runs()
            assert run.status.ended
            assert {one.metric for one in reader.series([run.run_id])} >= {"loss"}
        assert study.queue() == [] and not slurm.job_processes("node1")


@pytest.mark.long
@pytest.mark.skipif(
    not os.access(MEMORY_CGROUPS, os.W_OK), reason="needs root and cgroups (v1) of memory"
)
def test_a_row_that_the_kernel_kills_for_its_jobs_memory_harms_no_other(tmp_path: Path) -> None:
    with (
        slurm_cluster(1, 0, settings={"TaskPlugin": "task/cgroup"}) as slurm,
        study_on(slurm, tmp_path) as study,
    ):
        study.environ = {**study.environ, "RADT_CLUSTER_PART_S": "1"}
        toml, train = study.folder / "radt.toml", study.folder / "train.py"
        toml.write_text(toml.read_text() + 'bundle = "1h"\n')
        train.write_text(_EATS + train.read_text())
        study.write({"eats": 1, "next": 1, "other": 1}, {"eats": "1GB", "next": "1GB"})
        follower = study.start("study.csv")
        wait_until(lambda: _has_loss(study), "a part of the run")
        wait_until(lambda: study.started() == 1, "the other job to run beside it")
        assert len(study.queue()) == 2
        (study.folder / "eat").touch()
        wait_until(lambda: study.started() == 2, "the next row of the bundle to run")
        study.go()
        output, _ = follower.communicate()
        assert follower.returncode == 1, output
        killed = "OOM: host memory: killed by the kernel"
        assert study.statuses() == [killed, "FINISHED", "FINISHED"]
        log = slurm.folder / "node1" / "slurmd.log"
        wait_until(lambda: "Detected 1 oom-kill event(s)" in log.read_text(), "Slurm's word")
        with StoreReader(Home(Path(study.environ["RADT_HOME"])).store_path) as reader:
            (run,) = (run for run in reader.runs() if run.status is RunStatus.OOM)
            assert {one.metric for one in reader.series([run.run_id])} >= {"loss"}


@pytest.mark.long
def test_a_controller_that_is_killed_right_after_a_submission(tmp_path: Path) -> None:
    """What it has not saved by then it forgets, and gives its numbers to others: on its own."""
    with slurm_cluster(2, 0) as slurm, study_on(slurm, tmp_path) as study:
        study.write({"solo": 1, "pair": 2})
        follower = study.start("study.csv")
        wait_until(study.queue, "a submission")
        slurm.kill_controller()
        slurm.start_controller()
        study.go()

        def has_ended() -> bool:
            """Release what Slurm holds after an interrupted launch, as an administrator does."""
            for line in slurm.run("squeue", "--noheader", "--array", "--format=%i %r").splitlines():
                job, _, reason = line.partition(" ")
                if "held" in reason.lower():
                    slurm.run("scontrol", "release", job)
            return follower.poll() is not None

        wait_until(has_ended, "the follower ends")
        output, _ = follower.communicate()
        assert follower.returncode == 0, output
        study.finished_once({"solo": 1, "pair": 2})


def test_no_slurm_here(study: Study) -> None:
    study.write({"solo": 1})
    study.environ = {**study.environ, "PATH": str(study.folder)}
    before = study.file.read_text()
    output = study.radt("study.csv", code=1)
    assert len(output.strip().splitlines()) <= 3, output
    assert study.file.read_text() == before
    assert not (study.folder.parent / "shared" / "submissions").exists()


def test_a_folder_that_cannot_be_written(study: Study) -> None:
    study.write({"solo": 1})
    (study.folder.parent / "shared").write_text("a file in its place")
    output = study.radt("study.csv", code=1)
    assert "Set folder in [cluster]" in output
    assert study.queue() == []
