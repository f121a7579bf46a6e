"""What training processes log reaches the store, exactly once, whoever is killed."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from dataclasses import asdict
from pathlib import Path

from collector_kit import Project, alive, holder, wait_for

from radt.collector.protocol import Registration, RunRequest, socket_path
from radt.home import runtime_dir
from radt.model import ListenerChoice, MarkerKind, RunStatus

#: Logs a number for every line it gets, and says so.
_TRAINING = textwrap.dedent(
    """
    import sys, radt
    with radt.Run() as run:
        run.log_param("rate", 0.1)
        run.set_tag("kind", "test")
        print("up", flush=True)
        for epoch in run.epochs(1000):
            line = sys.stdin.readline()
            if not line:
                break
            run.log_metric("loss", epoch / 2, step=epoch)
            print(epoch, flush=True)
    """
)


def _log(run, count: int) -> None:
    for _ in range(count):
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        assert run.process.stdout.readline()


def _losses(project: Project, run_id: str) -> list[tuple[int, float]]:
    for series in project.reader.series([run_id]):
        if series.metric == "loss":
            samples = project.reader.samples(run_id, series.series_no)
            assert samples.steps is not None
            return list(zip(samples.steps.tolist(), samples.values.tolist(), strict=True))
    return []


def test_all_that_a_killed_process_logged_is_there(project: Project) -> None:
    run, _ = project.register("top")
    run.start(_TRAINING)
    _log(run, 50)

    def live() -> tuple[int | None, int | None, float | None]:
        view = project.client.live([run.run_id])[run.run_id]
        return view.epoch, view.epochs_total, view.metrics.get("loss")

    wait_for(lambda: live() == (51, 1000, 25.0))
    run.process.kill()
    run.finish(RunStatus.KILLED, exit_code=-9)
    assert _losses(project, run.run_id) == [(epoch, epoch / 2) for epoch in range(1, 51)]
    assert project.reader.params(run.run_id)["rate"] == "0.1"
    assert project.reader.tags(run.run_id)["kind"] == "test"
    epochs = [one for one in project.reader.markers([run.run_id]) if one.kind is MarkerKind.EPOCH]
    assert [epoch.step for epoch in epochs] == list(range(1, 52))
    assert all(epoch.end_ns is not None for epoch in epochs), "the last ends with the run"


def test_the_workers_death_neither_loses_nor_doubles(project: Project) -> None:
    run, _ = project.register("top")
    run.start(_TRAINING)
    logged = 0
    for _ in range(3):
        _log(run, 20)
        logged += 20
        wait_for(lambda: _losses(project, run.run_id))
        os.kill(wait_for(lambda: holder("worker")), signal.SIGKILL)
        _log(run, 20)
        logged += 20
    wait_for(lambda: len(_losses(project, run.run_id)) == logged)
    run.finish()
    assert _losses(project, run.run_id) == [(epoch, epoch / 2) for epoch in range(1, logged + 1)]
    epochs = [one for one in project.reader.markers([run.run_id]) if one.kind is MarkerKind.EPOCH]
    assert [epoch.step for epoch in epochs] == list(range(1, logged + 2)), "each epoch once"
    assert all(epoch.end_ns is not None for epoch in epochs)


_OWNER = textwrap.dedent(
    """
    import json, sys
    from radt.collector.client import CollectorClient
    from radt.collector.protocol import RunRequest, from_json
    client = CollectorClient(timeout_s=180).reach()
    run = from_json(RunRequest, json.loads(sys.argv[1]))
    import dataclasses, os, time
    run = dataclasses.replace(run, pid=os.getpid(), started_monotonic_ns=time.monotonic_ns())
    print(sum("join later" not in text for text in client.begin(run).warnings), flush=True)
    if sys.stdin.readline() == "finish\\n":
        client.finish(run.registration.run_id)
        print("finished", flush=True)
    sys.stdin.readline()
    """
)


def _standalone(project: Project) -> tuple[RunRequest, subprocess.Popen[str]]:
    run_id = uuid.uuid4().hex
    run = RunRequest(
        registration=Registration(
            run_id=run_id,
            store_path=str(project.home.store_path),
            spool=str(project.home.run_dir(run_id).create().path),
            listeners=(ListenerChoice("top", 0.05),),
        ),
        workload_id=uuid.uuid4().hex,
        experiment="alone",
        name="tr\u00e4in",
        pid=0,
        started_monotonic_ns=0,
        params={"a": "1"},
        tags={"b": "2"},
    )
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER, json.dumps(asdict(run))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "RADT_RUN_ID"},
    )
    assert process.stdout.readline() == "0\n"
    return run, process


def test_a_run_without_runner_gets_its_rows_and_its_end(project: Project) -> None:
    run, process = _standalone(project)
    run_id = run.registration.run_id
    row = project.reader.run(run_id)
    assert (row.status, row.pid, row.name) == (RunStatus.RUNNING, process.pid, "tr\u00e4in")
    assert project.reader.workload(run.workload_id).status is RunStatus.RUNNING
    assert project.reader.params(run_id) == {"a": "1"}
    assert project.reader.tags(run_id) == {"b": "2", "radt.listeners": "top@0.05s"}
    wait_for(lambda: project.reader.summary([run_id]))
    process.stdin.write("finish\n")
    process.stdin.flush()
    assert process.stdout.readline() == "finished\n"
    assert project.reader.run(run_id).status is RunStatus.FINISHED
    assert project.reader.workload(run.workload_id).status is RunStatus.FINISHED
    process.communicate()
    assert process.returncode == 0


def test_a_run_without_runner_that_is_killed(project: Project) -> None:
    run, process = _standalone(project)
    process.kill()
    process.communicate()
    run_id = run.registration.run_id
    wait_for(lambda: project.reader.run(run_id).status.ended)
    assert project.reader.run(run_id).status is RunStatus.KILLED
    assert project.reader.workload(run.workload_id).ended_ns is not None


def test_the_collector_is_no_child_of_who_starts_it(project: Project) -> None:
    """A run's process tree must not contain the collector, nor end with it."""
    run, process = _standalone(project)
    worker, guardian = holder("worker"), holder("guardian")
    for pid in (worker, guardian):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) not in (process.pid, os.getpid())
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert "RADT_RUN_ID" not in environment
    process.kill()
    process.communicate()
    assert alive(worker)
    wait_for(lambda: project.reader.run(run.registration.run_id).status.ended)


def test_a_collector_without_a_free_descriptor_keeps_its_runs(project: Project) -> None:
    run, _ = project.register("top")
    run.start(_TRAINING)
    alone, process = _standalone(project)
    _log(run, 10)
    worker = holder("worker")
    assert worker is not None
    before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    used = [int(entry.name) for entry in Path(f"/proc/{worker}/fd").iterdir()]
    least = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (least, before[1]))
    try:
        wait_for(lambda: "Too many open files" in " ".join(project.client.status().problems))
        _log(run, 10)
        with socket.socket(socket.AF_UNIX) as other:  # nobody can be looked at
            other.connect(str(socket_path()))
            log = runtime_dir() / "collector.log"
            wait_for(lambda: "accepting a client" in log.read_text())
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
    wait_for(lambda: not project.client.status().problems)
    _log(run, 10)
    wait_for(lambda: len(_losses(project, run.run_id)) == 30)
    assert run.row.status is RunStatus.RUNNING
    assert project.reader.run(alone.registration.run_id).status is RunStatus.RUNNING
    assert holder("worker") == worker
    process.stdin.write("finish\n")
    process.stdin.flush()
    assert process.stdout.readline() == "finished\n"
    process.communicate()
    run.finish()
    assert _losses(project, run.run_id) == [(step, step / 2) for step in range(1, 31)]
