"""A job on its node: real node runners, real trainings, submissions made by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from radt.cluster.attempt import PREEMPTED, TIME_LIMIT, AttemptStart
from radt.cluster.collecting import Collection
from radt.cluster.node import NodeStop, ScratchFolder
from radt.cluster.noderunner import NodeRunner, _exit_code
from radt.cluster.spool import MOST_ATTEMPTS
from radt.cluster.submission import JobKey
from radt.collector.client import CollectorClient
from radt.collocation.busy import BusyPolicy
from radt.devices.hardware import read_hardware
from radt.experiment.status import RowStatus
from radt.home import Home
from radt.lifetime import Wait
from radt.model import SOFTWARE, RunStatus
from radt.runner.options import StartOptions, SyncPoint
from radt.store.reader import StoreReader
from radt.tags import (
    CLUSTER_ATTEMPT,
    CLUSTER_HARDWARE,
    CLUSTER_JOB_ID,
    CLUSTER_NODE,
    CLUSTER_SUPERSEDED,
)
from tests.cluster.node_kit import (
    JOB,
    TRAIN,
    Nodes,
    collect,
    collectors_of,
    nodes_in,
    texts,
    view,
    wait_collectors,
)
from tests.support.bench import bench_in, stop_collectors
from tests.support.disk import SmallDisk
from tests.support.waiting import TIMEOUT_S, stands_still, wait_until

HEADER = "Experiment,Workload,Name,Status,Run,Devices,Listeners,File,Params\n"
WAITS = HEADER + "study,1,alone,,,cpu,top@100ms,train.py,--wait go\n"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with bench_in(tmp_path, columns=100, with_mlflow=False) as bench:
        bench.script("train.py", TRAIN)
        with nodes_in(bench, tmp_path) as made:
            yield made


def is_training(nodes: Nodes, times: int = 1, wait: str = "go") -> bool:
    there = nodes.bench.folder / f"{wait}.there"
    return there.exists() and len(there.read_text().splitlines()) >= times


def let_go(nodes: Nodes, wait: str = "go") -> None:
    (nodes.bench.folder / wait).touch()


def facts(home: Home) -> dict[tuple[str, str], dict[str, Any]]:
    """What a store says of runs, apart from what is another one in each start."""
    found = {}
    with StoreReader(home.store_path) as reader:
        for run in reader.runs():
            series = reader.series([run.run_id])
            tags = reader.tags(run.run_id)
            artifacts = home.run_dir(run.run_id).artifacts
            found[run.workload, run.letter] = {
                "row": (run.name, run.status, run.end_reason, run.exit_code, run.devices),
                "command": run.command,
                "params": reader.params(run.run_id),
                "tags": {
                    key: value
                    for key, value in tags.items()
                    if not key.startswith(
                        ("radt.cluster.", "radt.tracker.", "radt.runner", "radt.start")
                    )
                },
                "series": {(one.listener, one.metric, one.unit, one.entity) for one in series},
                "logged": {
                    one.metric: (points.values.tolist(), points.steps.tolist())
                    for one in series
                    if one.listener == SOFTWARE
                    for points in [reader.points_after(run.run_id, one.series_no, 0, 10_000)]
                    if points.steps is not None
                },
                "markers": [
                    (marker.kind, marker.name, marker.step, marker.end_ns is None)
                    for marker in reader.markers([run.run_id])
                ],
                "artifacts": {
                    str(file.relative_to(artifacts)): file.read_bytes()
                    for file in sorted(artifacts.rglob("*"))
                    if file.is_file()
                },
                "output": home.run_dir(run.run_id).output_log.read_text(),
            }
    return found


def test_a_job_records_what_a_start_on_one_machine_does(nodes: Nodes, tmp_path: Path) -> None:
    file = nodes.bench.experiment(
        HEADER
        + "study,1,left,,,cpu,top@50ms,train.py,--samples 4 --lr 0.5\n"
        + "study,1,right,,,cpu,top@50ms,train.py,--samples 4 --lr 0.25\n"
        + "study,other job,,,,cpu,top@50ms,missing.py,\n"
        + "study,2,bad,,,cpu,top@50ms,train.py,--samples 4 --fail\n"
    )
    spool = nodes.submit(file, ["1", "2"], ["other job"])
    nodes.run(spool, code=1)
    collected = collect(spool, nodes.home)
    assert not collected.problems
    assert len(collected.runs) == 3

    local = nodes.bench.experiment(
        "".join(line for line in file.read_text().splitlines(True) if "missing" not in line),
        "local.csv",
    )
    nodes.bench.radt("local.csv", "--home", str(tmp_path / "local"), code=1)
    here, there = facts(nodes.home), facts(Home(tmp_path / "local"))
    assert here.keys() == there.keys()
    for run, what in here.items():
        for name, fact in what.items():
            assert fact == there[run][name], (run, name)

    rows = nodes.bench.rows(local)
    assert texts(spool) == [row["Status"] for row in rows]
    assert texts(spool) == ["FINISHED", "FINISHED", "FAILED: exit code 5"]
    word = view(spool)
    assert (word.ended, word.reason) == (True, "")
    assert word.kept == {row.run_id for row in word.statuses.values()} == set(collected.runs)
    with nodes.reader as reader:
        for run in reader.runs():
            tags = reader.tags(run.run_id)
            assert tags[CLUSTER_NODE] == "node1"
            assert tags[CLUSTER_HARDWARE] == read_hardware().kind
            assert (tags[CLUSTER_JOB_ID], tags[CLUSTER_ATTEMPT]) == ("1234_0", "1")
            assert run.spool == str(nodes.home.run_dir(run.run_id).path)
    assert "done with lr 0.5" in nodes.log(spool)

    # Nothing is left of it: not on the node, and in the shared folder four files.
    nodes.wait_gone()
    assert nodes.places() == []
    files = [path for path in spool.attempts(JOB)[0].path.rglob("*") if path.is_file()]
    assert len(files) <= 4, files
    assert not collect(spool, nodes.home).runs

    # The next start of the job, after a node failure that came too late, has nothing to do.
    nodes.run(spool, code=1)
    assert len(spool.attempts(JOB)) == 1


def test_repeats_go_on_where_a_killed_attempt_was(nodes: Nodes) -> None:
    file = nodes.bench.experiment(
        HEADER
        + "study,1,quick,,,cpu,top@100ms,train.py,\n"
        + "study,2,slow,,,cpu,top@100ms,train.py,--wait go\n"
    )
    spool = nodes.submit(file, ["1", "2"], repeat=2)
    runner = nodes.start(spool)
    wait_until(lambda: is_training(nodes), "the second workload trains")
    # Its first repeat is in the shared folder; what is said of it then is.
    wait_until(lambda: view(spool).statuses[2].text == "FINISHED 1/2", "the first one is said")
    with Collection(spool, nodes.home) as collection:

        def both_are_here() -> bool:
            collection.collect()
            with nodes.reader as reader:
                return sum(bool(reader.point_counts(run.run_id)) for run in reader.runs()) == 2

        wait_until(both_are_here, "both are here, with points")
        runner.kill()
        runner.wait()
        nodes.wait_gone()
        let_go(nodes)
        nodes.run(spool)
        assert texts(spool) == ["FINISHED 2/2"] * 2
        collection.collect()
        # The run of the killed attempt that was cut off counts no more; the finished one does.
        with nodes.reader as reader:
            runs = {run.run_id: run for run in reader.runs()}
            tags = reader.tags_of(list(runs))
            finished = [run for run in runs.values() if run.status is RunStatus.FINISHED]
            (killed,) = (run for run in runs.values() if run.status is RunStatus.KILLED)
            assert len(finished) == 4
            assert len({tags[run.run_id]["radt.series"] for run in finished}) == 2
        assert killed.end_reason == "superseded by attempt 2"
        assert tags[killed.run_id][CLUSTER_SUPERSEDED] == "2"
        assert reader.point_counts(killed.run_id)
        assert not collection.collect().runs
    assert nodes.places() == []


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGUSR1, TIME_LIMIT), (signal.SIGTERM, PREEMPTED)]
)
def test_signals_end_runs_as_ctrl_c_does(nodes: Nodes, number: signal.Signals, reason: str) -> None:
    file = nodes.bench.experiment(WAITS + "study,2,later,,,cpu,top@100ms,train.py,\n")
    spool = nodes.submit(file, ["1", "2"])
    runner = nodes.start(spool)
    wait_until(lambda: is_training(nodes), "it trains")
    runner.send_signal(number)
    runner.send_signal(number)  # Slurm and the batch script may both say it
    assert runner.wait(TIMEOUT_S) == 1
    assert texts(spool) == [f"KILLED: {reason}"]
    assert (view(spool).ended, view(spool).reason) == (True, reason)
    collect(spool, nodes.home)
    with nodes.reader as reader:
        (run,) = reader.runs()
        assert (run.status, run.end_reason) == (RunStatus.KILLED, reason)
        (loss,) = (one for one in reader.series([run.run_id]) if one.metric == "loss")
        assert reader.point_counts(run.run_id)[loss.series_no] == 50
        assert reader.workload(run.workload_id).status is RunStatus.KILLED
    assert "KeyboardInterrupt" in nodes.home.run_dir(run.run_id).output_log.read_text()
    nodes.wait_gone()
    # Submitted again, it runs both.
    let_go(nodes)
    nodes.run(spool)
    assert texts(spool) == ["FINISHED", "FINISHED"]


def test_of_two_runners_of_one_job_the_newer_one_goes_on(nodes: Nodes) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    both = [nodes.start(spool, node="node1"), nodes.start(spool, node="node2")]
    wait_until(lambda: any(runner.poll() is not None for runner in both), "one has ended")
    (loser,) = (runner for runner in both if runner.poll() is not None)
    assert loser.returncode == 1
    wait_until(lambda: view(spool).statuses, "the other one runs")
    said = view(spool, number=1)
    let_go(nodes)
    (winner,) = (runner for runner in both if runner is not loser)
    assert winner.wait(TIMEOUT_S) == 0
    assert view(spool, number=1) == said, "who is superseded writes nothing more"
    assert not said.ended
    collect(spool, nodes.home)
    assert texts(spool) == ["FINISHED"]
    with nodes.reader as reader:
        runs = reader.runs()
    assert [run.status for run in runs].count(RunStatus.FINISHED) == 1
    assert all(run.status in (RunStatus.FINISHED, RunStatus.KILLED) for run in runs)


@pytest.mark.long
def test_two_jobs_on_a_node_share_nothing(nodes: Nodes) -> None:
    file = nodes.bench.experiment(WAITS + WAITS.splitlines()[1].replace(",1,", ",2,") + "\n")
    spool = nodes.submit(file, ["1"], ["2"])
    jobs = [JobKey(0, 0), JobKey(0, 1)]
    runners = [nodes.start(spool, job) for job in jobs]
    wait_until(lambda: is_training(nodes, 2), "both train")
    places = nodes.places()
    assert [place.name[-5:] for place in places] == ["0-0.1", "0-1.1"]
    first, second = (set(wait_collectors(place)) for place in places)
    assert not first & second
    # The end of one leaves the other's alone.
    os.kill(runners[0].pid, signal.SIGTERM)
    assert runners[0].wait(TIMEOUT_S) == 1
    assert set(collectors_of(places[1])) == second
    let_go(nodes)
    assert runners[1].wait(TIMEOUT_S) == 0
    assert nodes.places() == []


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("killed", [[1], [0, 1]], ids=["worker", "both"])
def test_a_collector_that_is_killed_loses_nothing(nodes: Nodes, killed: list[int]) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    runner = nodes.start(spool)
    wait_until(lambda: is_training(nodes), "it trains")
    collectors = wait_collectors(nodes.places()[0])
    for number in killed:
        os.kill(collectors[number], signal.SIGKILL)
    let_go(nodes)
    assert runner.wait(TIMEOUT_S) == 0
    collect(spool, nodes.home)
    with nodes.reader as reader:
        (run,) = reader.runs()
        assert run.status is RunStatus.FINISHED
        (loss,) = (one for one in reader.series([run.run_id]) if one.metric == "loss")
        assert reader.point_counts(run.run_id)[loss.series_no] == 100
    nodes.wait_gone()
    assert nodes.places() == []


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("at", ["start", "training"])
def test_nothing_of_a_job_outlives_its_killed_runner(nodes: Nodes, at: str) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    runner = nodes.start(spool)
    if at == "start":
        wait_until(nodes.places, "its folder is there")
    else:
        wait_until(lambda: is_training(nodes), "it trains")
    runner.kill()
    runner.wait()
    nodes.wait_gone()
    with Collection(spool, nodes.home) as collection:
        collection.collect()
        lost = collection.end_lost(JOB, "its node failed")
    if at == "training" and lost:
        with nodes.reader as reader:
            (run,) = reader.runs()
        assert (run.status, run.end_reason) == (RunStatus.KILLED, "its node failed")


def test_a_shared_folder_that_is_away_costs_nothing(nodes: Nodes) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    runner = nodes.start(spool)
    wait_until(lambda: is_training(nodes), "it trains")
    wait_until(lambda: view(spool).statuses, "it says so")
    away = spool.path.with_name("away")
    spool.path.rename(away)
    let_go(nodes)
    (place,) = nodes.places()
    done = "done with lr"
    wait_until(lambda: done in (place / "output.log").read_text(), "training has gone on")
    assert runner.poll() is None
    assert not spool.path.exists(), "nothing is made where it was"
    away.rename(spool.path)
    assert runner.wait(TIMEOUT_S) == 0
    assert texts(spool) == ["FINISHED"]
    assert done in nodes.log(spool)
    collect(spool, nodes.home)
    with nodes.reader as reader:
        assert [run.status for run in reader.runs()] == [RunStatus.FINISHED]
    assert nodes.places() == []


@pytest.mark.long
def test_a_full_shared_folder_gets_the_rest_when_there_is_room(
    nodes: Nodes,
    small_disk: SmallDisk,
) -> None:
    nodes.folder = small_disk.path
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    runner = nodes.start(spool)
    wait_until(lambda: is_training(nodes), "it trains")
    wait_until(lambda: view(spool).statuses, "it says so")
    small_disk.fill()
    let_go(nodes)
    (place,) = nodes.places()
    wait_until(lambda: "done" in (place / "output.log").read_text(), "training has gone on")
    small_disk.clear()
    assert runner.wait(TIMEOUT_S) == 0
    assert texts(spool) == ["FINISHED"]
    collect(spool, nodes.home)
    with nodes.reader as reader:
        assert [run.status for run in reader.runs()] == [RunStatus.FINISHED]


@pytest.mark.long
def test_folders_of_runners_that_were_killed_while_they_made_them_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, empty, living = (
        tmp_path / f".radt-job-20261125-120000-abcd-0-{number}.1.{pid}"
        for number, pid in enumerate((gone.pid, gone.pid, os.getpid()))
    )
    for folder in (dead / "run", empty, living, tmp_path / ".radt-job-of-a-person.txt"):
        folder.mkdir(parents=True)
    with ScratchFolder.made("20261125-120000-abcd-0-7.1") as place:
        assert not dead.exists() and not empty.exists()
        assert living.exists()
        (place.path / "kept").symlink_to("/no such folder/of a full disk")
        with pytest.raises(OSError, match="No such file"):
            place.keep()
    assert place.path.exists()
    with ScratchFolder.made("20261125-120000-abcd-0-8.1") as other:
        assert not place.path.exists(), "it could not be marked to stay"
    assert not other.path.exists()


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("is_marked", [True, False])
def test_what_cannot_be_sent_stays_on_the_node_and_is_named(nodes: Nodes, is_marked: bool) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    runner = nodes.start(spool, RADT_CLUSTER_PATIENCE_S="1")
    wait_until(lambda: is_training(nodes), "it trains")
    wait_until(lambda: view(spool).statuses, "it says so")
    runs = spool.attempts(JOB)[0].path / "runs"
    wait_until(runs.exists, "it sends")
    # Its thread would make the folder again in between.
    runner.send_signal(signal.SIGSTOP)
    wait_until(lambda: stands_still(runner.pid), "it stands still")
    runs.rename(runs.with_name("away"))
    runs.write_text("in the way")
    runner.send_signal(signal.SIGCONT)
    (place,) = nodes.places()
    if not is_marked:  # as on a full disk
        (place / "kept").symlink_to("/no such folder/kept")
    let_go(nodes)
    assert runner.wait(TIMEOUT_S) == 1
    word = view(spool)
    assert word.ended
    assert is_marked != ("until the next job there (No such file" in word.reason)
    assert str(place) in word.reason
    assert texts(spool) == [f"KILLED: {word.reason}"], "its samples are not there: it runs again"
    assert (place / "home" / "radt.db").exists()


@pytest.fixture
def with_mlflow(tmp_path: Path, archives: None) -> Iterator[Nodes]:
    with bench_in(tmp_path, columns=100) as bench:
        bench.script("train.py", TRAIN)
        with nodes_in(bench, tmp_path) as made:
            yield made
        stop_collectors(Path(bench.env["RADT_RUNTIME_DIR"]))


def mlflow_has_it(nodes: Nodes) -> None:
    runs = nodes.bench.mlflow_runs("study").values()
    (one,) = (run for run in runs if "radt.letter" in run.data.tags)
    assert one.info.status == "FINISHED"
    assert one.data.metrics["loss"] == pytest.approx(0.1 / 50)
    files = {file.path for file in nodes.bench.mlflow.list_artifacts(one.info.run_id)}
    assert {"output.log", "notes", "radt"} <= files


def test_the_submit_host_brings_runs_to_mlflow(with_mlflow: Nodes) -> None:
    nodes = with_mlflow
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    let_go(nodes)
    nodes.run(spool)
    uri = nodes.home.default_tracking_uri
    with CollectorClient(timeout_s=TIMEOUT_S, patience_s=60.0).reach() as client:
        collected = collect(spool, nodes.home, tracking_uri=uri, client=client)
        assert not collected.problems
        nodes.bench.wait_delivered()
    mlflow_has_it(nodes)


# What runs nothing ------------------------------------------------------------------------------


def refused(nodes: Nodes, **submission: Any) -> tuple[int, str]:
    """The exit code and the reason of a job that does not begin."""
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"], **submission)
    code = NodeRunner(spool, JOB, NodeStop()).run()
    word = view(spool)
    assert word.ended
    assert word.statuses == {}
    return code, word.reason


def test_another_version_holds_the_rest(nodes: Nodes) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"], ["1"], ["1"], version="0.0.1")
    for index in range(2):
        assert not spool.held
        assert NodeRunner(spool, JobKey(0, index), NodeStop()).run() == 1
        assert "radt 0.0.1 submitted the job" in view(spool, JobKey(0, index)).reason
    assert spool.held.startswith("two jobs could not begin: the interpreter")
    assert NodeRunner(spool, JobKey(0, 2), NodeStop()).run() == 1
    assert view(spool, JobKey(0, 2)).reason == spool.held
    spool.release()
    assert not spool.held


def test_a_folder_that_the_node_does_not_see_is_named(nodes: Nodes) -> None:
    file = nodes.bench.experiment(WAITS)
    spool = nodes.submit(file, ["1"])
    nodes.bench.folder.rename(nodes.bench.folder.with_name("gone"))
    try:
        assert NodeRunner(spool, JOB, NodeStop()).run() == 1
        assert f"{file.parent}, the folder of the experiment file" in view(spool).reason
    finally:
        nodes.bench.folder.with_name("gone").rename(nodes.bench.folder)


def test_a_script_that_the_node_does_not_see_is_named(nodes: Nodes) -> None:
    (nodes.bench.folder / "train.py").unlink()
    code, reason = refused(nodes)
    assert code == 1
    assert "train.py" in reason


#: Asks the node runner to end before it runs anything.
EARLY_SIGNAL = """\
import signal, sys
if "radt.cluster.noderunner" in sys.orig_argv:
    from radt.cluster.node import NodeStop
    take_signals = NodeStop.take_signals
    def taken(stop):
        take_signals(stop)
        signal.raise_signal(signal.SIGTERM)
    NodeStop.take_signals = taken
"""


def test_a_job_that_is_asked_to_end_before_its_first_row_has_not_finished(nodes: Nodes) -> None:
    nodes.bench.script("early/sitecustomize.py", EARLY_SIGNAL)
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    nodes.run(spool, code=1, PYTHONPATH=str(nodes.bench.folder / "early"))
    assert texts(spool) == []
    assert view(spool).reason == PREEMPTED


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("FINISHED", "FINISHED 2/2"), 0),
        (("FINISHED",), 1),  # the second workload of a bundle never began
        (("FINISHED", "FINISHED 1/2"), 1),
        (("FINISHED", "KILLED: preempted"), 1),
        ((), 1),
    ],
)
def test_the_exit_code_is_0_if_all_rows_have_finished(statuses: tuple[str, ...], code: int) -> None:
    rows = {line: RowStatus(text) for line, text in enumerate(statuses, 2)}
    assert _exit_code(rows, [2, 3]) == code


@pytest.mark.long
def test_a_job_starts_so_often_and_no_more(nodes: Nodes) -> None:
    spool = nodes.submit(nodes.bench.experiment(WAITS), ["1"])
    for number in range(MOST_ATTEMPTS):
        attempt = spool.claim(JOB)
        attempt.begin(AttemptStart("node1", "1234_0", 1, "0"))
        attempt.put_statuses({2: RowStatus("RUNNING", f"run{number}")}, kept=["old"])
    assert NodeRunner(spool, JOB, NodeStop()).run() == 1
    assert texts(spool) == ["KILLED: started 5 times"]
    assert view(spool).ended
    assert view(spool).kept == {"old"}


def test_options_of_a_start_reach_the_nodes_through_the_folder() -> None:
    given = StartOptions(
        fail_fast=True, sync=SyncPoint.CONTEXT, busy=BusyPolicy.FAIL, wait=Wait.MUST, yes=True
    )
    written = json.dumps(replace(given, tracking_uri="http://me:secret@mlflow").for_nodes())
    assert "secret" not in written
    assert StartOptions.of_a_node(json.loads(written)) == given
