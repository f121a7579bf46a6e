"""Guardian, worker, runner and training process are killed; nothing written before is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from collector_kit import DEADLINE_S, Project, alive, holder, wait_for

import radt.collector.client as client_module
from radt.collector.client import CollectorClient
from radt.collector.protocol import socket_path
from radt.errors import CollectorError
from radt.model import MissingReason, RunStatus
from radt.store.records import RunRecord


def _kill(name: str) -> int:
    pid = wait_for(lambda: holder(name), name)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    return pid


def test_a_killed_worker_is_restarted_and_goes_on(project: Project) -> None:
    run = project.run()
    wait_for(lambda: run.has("system.load", 5))
    before_ns = run.times_ns("system.load")
    killed = _kill("worker")
    after = wait_for(lambda: run.has("system.load", len(before_ns) + 5))
    assert after
    assert holder("worker") != killed
    run.finish()

    times_ns = run.times_ns("system.load")
    assert times_ns[: len(before_ns)] == before_ns
    ledger = run.ledger["top"]
    assert ledger.received == len(times_ns)
    assert ledger.missed > 0
    assert ledger.expected == ledger.received + ledger.missed
    gaps = [gap for gap in project.reader.gaps([run.run_id]) if "restarted" in gap.detail]
    assert len(gaps) == 1
    (gap,) = gaps
    assert gap.reason is MissingReason.LOST
    assert not [time_ns for time_ns in times_ns if gap.start_ns < time_ns < gap.end_ns]
    assert gap.start_ns in times_ns, "it begins with the last sample before the death"
    names = [marker.name for marker in project.reader.markers([run.run_id])]
    assert names.count("collector restarted") == 1
    assert run.row.status is RunStatus.FINISHED


@pytest.mark.long
def test_a_run_that_ends_while_there_is_no_worker(project: Project) -> None:
    run = project.run()
    wait_for(lambda: run.has("system.load"))
    _kill("worker")
    run.finish(RunStatus.FAILED, exit_code=1)
    assert run.row.status is RunStatus.FAILED
    assert run.row.exit_code == 1


def test_a_killed_guardian_is_replaced_and_restarts_the_worker_again(project: Project) -> None:
    run = project.run()
    wait_for(lambda: run.has("system.load"))
    worker = holder("worker")
    _kill("guardian")
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 3), "the worker to go on")
    assert project.client.status().guardian_pid is None
    CollectorClient(timeout_s=DEADLINE_S).reach().close()
    wait_for(lambda: project.client.status().guardian_pid)
    assert holder("worker") == worker, "adopted, not replaced"
    _kill("worker")
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 3), "the adopted worker's successor")
    run.finish()


@pytest.mark.long
def test_both_killed(project: Project) -> None:
    run = project.run()
    wait_for(lambda: run.has("system.load"))
    _kill("guardian")
    _kill("worker")
    count = run.counts["system.load"]
    assert project.client.live([run.run_id]), "the next request starts both"
    wait_for(lambda: run.has("system.load", count + 3))
    run.finish()
    assert run.row.status is RunStatus.FINISHED


def test_starters_at_once_start_one() -> None:
    code = (
        "import sys; from radt.collector.client import CollectorClient as C\n"
        "sys.stdin.read(1); c = C(timeout_s=180).reach()\n"
        "print(c.status().pid, flush=True); sys.stdin.read()"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for starter in starters:
        starter.stdin.write("g")
        starter.stdin.flush()
    pids = {int(starter.stdout.readline()) for starter in starters}
    for starter in starters:
        starter.communicate()
    assert pids == {holder("worker")}


def test_without_start_a_missing_collector_is_an_error() -> None:
    with pytest.raises(CollectorError, match="no collector is running"):
        CollectorClient(start=False).reach()
    assert holder("guardian") is None


def test_an_idle_collector_goes_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RADT_COLLECTOR_IDLE_S", "0.2")
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    status = client.status()
    client.close()
    wait_for(lambda: not alive(status.pid) and not alive(status.guardian_pid))
    assert not socket_path().exists()
    project = Project(tmp_path / "radt-data", client)
    run = project.run()  # the client finds it gone, and starts another
    wait_for(lambda: run.has("system.load"))
    run.finish()
    project.close()
    client.close()


def test_without_guardian_an_idle_worker_goes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADT_COLLECTOR_IDLE_S", "0.5")
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    worker = client.status().pid
    _kill("guardian")
    client.close()
    wait_for(lambda: not alive(worker))


_RUNNER = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from radt.collector.client import CollectorClient
    from radt.collector.protocol import Registration
    from radt.model import ListenerChoice
    run_id, store, spool, daemon = sys.argv[1:]
    client = CollectorClient(timeout_s=180).reach()
    client.register(Registration(run_id, store, spool, listeners=(ListenerChoice("top", 0.05),)))
    training = subprocess.Popen(
        [sys.executable, "-c", daemon], env=os.environ | {"RADT_RUN_ID": run_id},
        start_new_session=True, stdout=subprocess.PIPE, text=True)
    pids = training.stdout.readline().split()
    client.started(run_id, training.pid, time.monotonic_ns())
    print(*pids, flush=True)
    sys.stdin.read()
    """
)
#: Ignores SIGTERM, has a child, and leaves a grandchild in a session of its own.
_STUBBORN = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(wait)
    stray = subprocess.Popen(["sh", "-c", "setsid " + " ".join(map(repr, wait)) + " & echo $!"],
        stdout=subprocess.PIPE, text=True).stdout.readline().strip()
    print(os.getpid(), child.pid, stray, flush=True)
    time.sleep(600)
    """
)


def _runner(project: Project, row: RunRecord, training: str) -> list[str]:
    arguments = [row.run_id, str(project.home.store_path), row.spool, training]
    return [sys.executable, "-c", _RUNNER, *arguments]


def test_a_dead_runners_processes_are_stopped_and_its_run_ended(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = project.row("b" * 32)
    project.writer.put_run(row)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    runner = subprocess.Popen(
        _runner(project, row, _STUBBORN),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(pid) for pid in runner.stdout.readline().split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    runner.kill()
    runner.communicate()
    wait_for(lambda: not any(alive(pid) for pid in pids), "the run's processes to end")
    wait_for(lambda: project.reader.run(row.run_id).status.ended)
    ended = project.reader.run(row.run_id)
    assert ended.status is RunStatus.KILLED
    assert "runner" in ended.end_reason
    assert bystander.poll() is None
    wait_for(lambda: project.client.status().runs == ())
    bystander.communicate()


@pytest.mark.long
def test_a_runner_that_dies_while_there_is_no_worker(project: Project) -> None:
    row = project.row("c" * 32)
    project.writer.put_run(row)
    runner = subprocess.Popen(
        _runner(project, row, "import os, time; print(os.getpid(), flush=True); time.sleep(600)"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    (pid,) = (int(text) for text in runner.stdout.readline().split())
    _kill("guardian")
    _kill("worker")
    runner.kill()
    runner.communicate()
    assert alive(pid)
    project.client.status()  # anybody's next call brings the collector back
    wait_for(lambda: project.reader.run(row.run_id).status is RunStatus.KILLED)
    assert not alive(pid)


def test_a_runner_that_closes_its_connection_and_lives_keeps_its_run(project: Project) -> None:
    run = project.run()
    project.client.close()
    count = run.counts.get("system.load", 0)
    wait_for(lambda: run.has("system.load", count + 5))
    assert run.process.poll() is None
    run.finish()
    assert run.row.status is RunStatus.FINISHED


def test_no_thread_or_descriptor_is_left_over(project: Project) -> None:
    pid = project.client.status().pid
    stays = project.run()  # keeps sampler and store in use

    def held() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    def one_run() -> None:
        run = project.run("top", interval_s=0.03)
        wait_for(lambda: project.client.live([run.run_id])[run.run_id].samples > 0)
        with CollectorClient(timeout_s=DEADLINE_S).reach() as other:
            other.status()
        run.finish()

    for _ in range(3):
        one_run()
    before = held()
    for _ in range(20):
        one_run()

    def given_back() -> bool:
        # Threads that have been told to end are ending; one that looks for runs comes and goes.
        return all(now < was + 10 for now, was in zip(held(), before, strict=True))

    wait_for(given_back, "what 20 runs took to be given back")
    stays.finish()


def test_a_collector_that_is_about_to_leave_is_waited_for(
    collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has closed its door, and its guardian still holds the lock: a new one leaves at once."""
    source = textwrap.dedent(
        """
        import sys
        from radt.collector.start import guardian_lock
        lock = guardian_lock()
        assert lock.acquire()
        print("held", flush=True)
        sys.stdin.read()
        """
    )
    leaving = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert leaving.stdin is not None
    assert leaving.stdout is not None
    assert leaving.stdout.readline() == b"held\n"
    starts = 0
    start_guardian = client_module.start_guardian

    def start(deadline_s: float) -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            leaving.communicate()
        start_guardian(deadline_s)

    monkeypatch.setattr(client_module, "start_guardian", start)
    client = CollectorClient(start=True, timeout_s=DEADLINE_S).reach()
    client.close()
    assert starts >= 2  # a busy machine takes longer than one attempt


def test_a_collector_that_leaves_as_it_is_greeted_is_none() -> None:
    with socket.socket(socket.AF_UNIX) as leaving:
        leaving.bind(str(socket_path()))
        leaving.listen()

        def hang_up() -> None:
            connection, _ = leaving.accept()
            leaving.close()
            socket_path().unlink()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(CollectorError, match="no collector is running"):
            CollectorClient(start=False).reach()
        thread.join()


def test_a_worker_takes_its_lock_only_once_it_can_answer_soon() -> None:
    """Meanwhile `radt doctor` would report a worker that runs and does not answer."""
    code = (
        "import sys\n"
        "from radt.collector import worker\n"
        "class Lock:\n"
        "    def holder(self): return None\n"
        "    def acquire(self): print('radt.collector.service' in sys.modules)\n"
        "worker.worker_lock = Lock\n"
        "worker.main()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "True\n"
