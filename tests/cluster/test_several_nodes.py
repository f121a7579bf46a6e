"""Runs that are spread over several nodes: real node runners, each with a folder as its disk."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from radt.cluster.engine import Shape
from radt.cluster.spool import Spool
from radt.model import SOFTWARE, MarkerKind, RunStatus, Scope
from radt.parts import from_tag
from radt.store.check import check
from radt.tags import CLUSTER_NODES, CLUSTER_PARTS
from tests.cluster.node_kit import JOB, Nodes, collect, nodes_in, texts, view
from tests.support.bench import bench_in
from tests.support.waiting import TIMEOUT_S, wait_until

HEADER = "Experiment,Workload,Name,Status,Run,Nodes,Devices,Listeners,File,Params\n"
ROW = "study,1,wide,,,2,cpu,top@100ms,train.py,{Node} {Nodes} {Master}\n"
#: Says which part it is and when its marker was set, and does what it is told by files.
TRAIN = """\
import json, os, sys, time
from pathlib import Path
import radt

node = os.environ["RADT_NODE"]
here = Path(__file__).parent
names = ("MASTER_ADDR", "MASTER_PORT", "RADT_NODE", "RADT_NODES", "RADT_RUN_ID")
with radt.Run() as run:
    for epoch in run.epochs(2):
        run.log_metric("loss", float(node) + epoch)
    before_ns = time.monotonic_ns()
    with run.span("mark"):
        pass
    marked_ns = [before_ns, time.monotonic_ns()]
    run.log_text(f"of {node}", "note.txt")
    print("part", node, flush=True)
    said = {"args": sys.argv[1:], "marked_ns": marked_ns}
    said |= {name: os.environ[name] for name in names}
    new = here / f"said.{node}.{said['RADT_RUN_ID']}"  # rows that run together have their own
    new.write_text(json.dumps(said))
    new.rename(here / f"said.{node}")
    while not (here / "go").exists():
        if (here / f"fail.{node}").exists():
            sys.exit(5)
        time.sleep(0.02)
"""
#: A wall clock that is 1,000 s ahead on the second node; the script's own reading is the truth.
SKEW = """\
import os, time
if os.environ.get("SLURM_NODEID") == "1":
    def ahead(real=time.time_ns):
        return real() + 1_000_000_000_000
    time.time_ns = ahead
"""
#: The second node's first process cannot be started.
NO_PROCESS = """\
import errno, os, sys
if os.environ.get("SLURM_NODEID") == "1" and "radt.cluster.noderunner" in sys.orig_argv:
    from radt.runner import process
    start = process._start_keeper
    def cannot(*_):
        process._start_keeper = start
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    process._start_keeper = cannot
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with bench_in(tmp_path, columns=100, with_mlflow=False) as bench:
        bench.script("train.py", TRAIN)
        bench.script("skew/sitecustomize.py", SKEW)
        with nodes_in(bench, tmp_path) as made:
            yield made


def submitted(nodes: Nodes, rows: str = ROW, *labels: str, **options: object) -> Spool:
    file = nodes.bench.experiment(HEADER + rows)
    return nodes.submit(file, list(labels or ("1",)), shape=Shape(nodes=2), **options)


def started(nodes: Nodes, spool: Spool, **env: str) -> list[subprocess.Popen[bytes]]:
    """Start the runners of both nodes, the second one first."""
    skew = {"PYTHONPATH": str(nodes.bench.folder / "skew")}
    return [
        nodes.start(spool, JOB, f"node{number + 1}", SLURM_NODEID=str(number), **skew, **env)
        for number in (1, 0)
    ][::-1]


def trains(nodes: Nodes) -> bool:
    return all((nodes.bench.folder / f"said.{number}").exists() for number in (0, 1))


def let_go(nodes: Nodes) -> None:
    (nodes.bench.folder / "go").touch()


def said(nodes: Nodes, number: int) -> dict[str, Any]:
    return dict(json.loads((nodes.bench.folder / f"said.{number}").read_text()))


def losses_here(nodes: Nodes, spool: Spool) -> set[str]:
    """Whose losses the submit host has."""
    collect(spool, nodes.home)
    if not nodes.home.store_path.exists():
        return set()
    with nodes.reader as reader:
        series = [one for run in reader.runs() for one in reader.series([run.run_id])]
    return {one.entity for one in series if one.metric == "loss"}


def codes(runners: list[subprocess.Popen[bytes]]) -> list[int]:
    return [runner.wait(TIMEOUT_S) for runner in runners]


def test_two_nodes_make_one_run(nodes: Nodes) -> None:
    spool = submitted(nodes)
    runners = started(nodes, spool)
    wait_until(lambda: trains(nodes), "both parts")
    assert not (spool.attempts(JOB)[0].path / "meeting.json").exists()
    wait_until(lambda: losses_here(nodes, spool) == {"", "node2"}, "values of both, while it runs")
    let_go(nodes)
    assert codes(runners) == [0, 0], nodes.log(spool)
    assert texts(spool) == ["FINISHED"]
    first, other = said(nodes, 0), said(nodes, 1)
    master = f"{first['MASTER_ADDR']}:{first['MASTER_PORT']}"
    assert first["args"] == ["0", "2", master]
    assert other["args"] == ["1", "2", master]
    assert (other["RADT_NODE"], other["RADT_NODES"]) == ("1", "2")
    assert first["RADT_RUN_ID"] == other["RADT_RUN_ID"]

    collected = collect(spool, nodes.home)
    assert not collected.problems
    with nodes.reader as reader:
        (run,) = reader.runs()
        assert run.run_id == first["RADT_RUN_ID"]
        assert run.status is RunStatus.FINISHED
        series = reader.series([run.run_id])
        logged = {one.entity: one for one in series if one.metric == "loss"}
        assert set(logged) == {"", "node2"}
        for entity, values in (("", [1.0, 2.0]), ("node2", [2.0, 3.0])):
            points = reader.points_after(run.run_id, logged[entity].series_no, 0, 10)
            assert points.values.tolist() == values
        assert {one.node for one in series if one.scope is Scope.HOST} == {"", "node2"}
        assert {"top", "node2/top"} <= {one.listener for one in reader.ledger([run.run_id])}
        tags = reader.tags(run.run_id)
        assert tags[CLUSTER_NODES] == "2"
        (part,) = from_tag(tags[CLUSTER_PARTS])
        assert (part.number, part.node) == (1, "node2")
        assert part.drift_ns is not None
        marks = [m for m in reader.markers([run.run_id]) if m.name == "mark"]
        assert {mark.process for mark in marks} == {"", "node2"}
        epochs = [m for m in reader.markers([run.run_id]) if m.kind is MarkerKind.EPOCH]
        assert len(epochs) == 4
        (workload,) = reader.workloads()
        assert workload.start_skew_ns is not None
    # Both clocks are the first one's: here both are the same, so what is added must be, too.
    starts_ns = {mark.process: mark.start_ns for mark in marks}
    offsets = {
        process: [starts_ns[process] - at_ns for at_ns in said(nodes, number)["marked_ns"]]
        for number, process in ((0, ""), (1, "node2"))
    }
    (late, early), (other_late, other_early) = offsets[""], offsets["node2"]
    assert other_early - late <= part.error_ns
    assert early - other_late <= part.error_ns
    folder = nodes.home.run_dir(run.run_id)
    assert "part 0" in folder.output_log.read_text()
    assert "part 1" in (folder.artifacts / "node-1" / "output.log").read_text()
    assert (folder.artifacts / "note.txt").read_text() == "of 0"
    assert (folder.artifacts / "node-1" / "note.txt").read_text() == "of 1"
    report = nodes.bench.shown("report", "study")
    assert "ran on 2 nodes, whose clocks agree within" in " ".join(report.split())
    with nodes.reader as reader:
        assert list(check(reader)) == []  # what each node counted is what is there of it
    nodes.wait_gone()


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("failing", [0, 1])
def test_a_part_that_fails_ends_the_others(nodes: Nodes, failing: int) -> None:
    spool = submitted(nodes)
    runners = started(nodes, spool)
    wait_until(lambda: trains(nodes), "both parts")
    (nodes.bench.folder / f"fail.{failing}").touch()
    assert codes(runners) == [1, 1], nodes.log(spool)
    where = " (on node2)" if failing else ""
    assert texts(spool) == [f"FAILED: exit code 5{where}"]
    assert not collect(spool, nodes.home).problems
    with nodes.reader as reader:
        (run,) = reader.runs()
        assert run.status is RunStatus.FAILED
        assert {one.entity for one in reader.series([run.run_id]) if one.metric == "loss"} == {
            "",
            "node2",
        }
    nodes.wait_gone()


def test_a_row_that_cannot_start_on_one_node_ends_the_others_with_its_name(nodes: Nodes) -> None:
    nodes.bench.script("skew/sitecustomize.py", NO_PROCESS)
    spool = submitted(nodes, ROW * 2)
    assert codes(started(nodes, spool)) == [1, 1], nodes.log(spool)
    first, other = texts(spool)
    assert first.startswith("FAILED: ") and "could not be started in" in first
    assert first.endswith("(on node2)")
    assert other.removesuffix(" (on node2)") == "KILLED: row a did not start"
    nodes.wait_gone()


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_node_ends_the_run_and_the_next_attempt_runs_it(nodes: Nodes, killed: int) -> None:
    spool = submitted(nodes)
    runners = started(nodes, spool)
    wait_until(lambda: trains(nodes), "both parts")
    runners[killed].kill()
    wait_until(lambda: runners[1 - killed].poll() is not None, "the end of the other runner")
    assert runners[1 - killed].returncode == 1
    if killed:
        assert texts(spool) == ["KILLED: node2 was lost"]
    for number in (0, 1):
        (nodes.bench.folder / f"said.{number}").unlink()
    nodes.wait_gone()
    again = started(nodes, spool, SLURM_RESTART_COUNT="1")
    wait_until(lambda: trains(nodes), "both parts of the next attempt")
    let_go(nodes)
    assert codes(again) == [0, 0], nodes.log(spool)
    assert texts(spool) == ["FINISHED"]
    assert view(spool).number == 2
    assert not collect(spool, nodes.home).problems
    with nodes.reader as reader:
        finished = [run for run in reader.runs() if run.status is RunStatus.FINISHED]
        assert [run.run_id for run in finished] == [said(nodes, 0)["RADT_RUN_ID"]]


@pytest.mark.long
def test_workloads_of_a_job_and_their_repeats_run_one_after_the_other(nodes: Nodes) -> None:
    rows = ROW.replace("study,1", "study,2") + ROW.replace("wide", "right")
    spool = submitted(nodes, ROW + rows, "1", "2", repeat=2)
    let_go(nodes)
    assert codes(started(nodes, spool)) == [0, 0], nodes.log(spool)
    assert texts(spool) == ["FINISHED 2/2"] * 3
    assert not collect(spool, nodes.home).problems
    with nodes.reader as reader:
        runs = reader.runs()
        assert len(runs) == 6
        for run in runs:
            series = reader.series([run.run_id])
            entities = {one.entity for one in series if one.listener == SOFTWARE}
            assert {"", "node2"} <= entities
            assert len(from_tag(reader.tags(run.run_id)[CLUSTER_PARTS])) == 1


@pytest.mark.long
def test_a_signal_to_both_ends_the_run_once(nodes: Nodes) -> None:
    spool = submitted(nodes)
    runners = started(nodes, spool)
    wait_until(lambda: trains(nodes), "both parts")
    for runner in runners:
        runner.send_signal(signal.SIGTERM)
    assert codes(runners) == [1, 1]
    (status,) = texts(spool)
    assert status.startswith("KILLED: preempted")
    assert view(spool).ended


def test_on_ones_own_machine_a_run_has_one_node(nodes: Nodes) -> None:
    nodes.bench.script("show.py", "import sys; print('args', *sys.argv[1:])")
    file = nodes.bench.experiment(
        "Status,Run,Nodes,Devices,Listeners,File,Params\n"
        ",,2,cpu,,show.py,{Node} {nodes} --master={Master} {{Node}}\n"
    )
    nodes.bench.radt(file.name)
    with nodes.reader as reader:
        (run,) = reader.runs()
    log = nodes.home.run_dir(run.run_id).output_log.read_text()
    assert re.search(r"args 0 1 --master=127\.0\.0\.1:\d+ \{Node\}$", log, re.MULTILINE), log


#: What anybody in the network may send to the first node's port.
STRANGERS = (
    b'{"challenge":"\\ud800"}\n',
    b"[" * 200_000 + b"\n",
    b'{"challenge":' + b"9" * 100_000 + b"}\n",
    b'{"challenge":NaN}\n' * 10_000,
    b'{"challenge":"half of a line',
    b"\0" * 64,
    b"",
)


def test_strangers_do_not_keep_nodes_apart(nodes: Nodes) -> None:
    spool = submitted(nodes)
    let_go(nodes)
    first = nodes.start(spool, JOB, "node1", SLURM_NODEID="0")
    wait_until(lambda: list(nodes.folder.rglob("meeting.json")), "the first node's address")
    port = json.loads(next(nodes.folder.rglob("meeting.json")).read_text())["port"]
    with ExitStack() as strangers:
        for sent in (*STRANGERS, *[b""] * 80):  # the last ones stay, and say nothing
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(ConnectionError):  # it was closed in the middle
                stranger.sendall(sent)
        other = nodes.start(spool, JOB, "node2", SLURM_NODEID="1")
        assert codes([first, other]) == [0, 0], nodes.log(spool)
    assert texts(spool) == ["FINISHED"]
    nodes.wait_gone()
