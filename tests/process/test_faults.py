"""Kill anything, at any time: nothing written is lost, nobody is left behind, work goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

import radt
from radt.model import RunStatus
from tests.support.bench import RADT, TIMEOUT_S, Bench, alive, wait_until

#: Logs 1,000 values, says so, and waits for the test. Every child says its process id.
BLOCKING = """\
import os, sys, radt
name = sys.argv[1]
with radt.Run() as run:
    for step in range(1000):
        run.log_metric("loss", step / 2, step)
    with open(f"{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{name}.new", f"{name}.pid")
    if os.path.exists(f"{name}.fifo"):
        open(f"{name}.fifo").read()
    run.log_metric("loss", -1.0, 1000)
"""

THREE_ROWS = (
    "Experiment,Workload,Name,Devices,Listeners,File,Params\n"
    "faults,1,a,cpu,top@100ms,block.py,a\n"
    "faults,1,b,cpu,top@100ms,block.py,b\n"
    "faults,2,c,cpu,top@100ms,block.py,c\n"
)


@pytest.fixture
def blocked(bench: Bench) -> subprocess.Popen[str]:
    """A runner whose first workload has two rows that wait for the test."""
    bench.script("block.py", BLOCKING)
    bench.experiment(THREE_ROWS)
    for name in "ab":
        bench.signal_ready(f"{name}.fifo")
    process = bench.start("experiment.csv")
    wait_until(lambda: len(list(bench.folder.glob("*.pid"))) == 2, "both rows wait")
    return process


def pid_of(bench: Bench, name: str) -> int:
    return int((bench.folder / f"{name}.pid").read_text(encoding="ascii"))


def release(bench: Bench, name: str) -> None:
    fifo = bench.folder / f"{name}.fifo"
    fifo.write_text("go", encoding="ascii")
    fifo.unlink()


def steps(bench: Bench, name: str) -> list[int]:
    run = next(run for run in bench.reader.runs() if run.name == name)
    frame = radt.load(run.run_id, home=bench.home, metrics=["loss"])
    return [int(step) for step in frame["step"]]


@pytest.mark.mlflow
def test_killed_training_process_keeps_its_metrics_and_its_neighbours(
    bench: Bench, blocked: subprocess.Popen[str]
) -> None:
    os.kill(pid_of(bench, "a"), signal.SIGKILL)
    wait_until(lambda: "SIGKILL" in bench.rows(bench.folder / "experiment.csv")[0]["Status"], "row")
    release(bench, "b")
    assert blocked.wait(180) == 1
    rows = bench.rows(bench.folder / "experiment.csv")
    assert [row["Status"] for row in rows] == ["KILLED: killed by SIGKILL", "FINISHED", "FINISHED"]
    assert steps(bench, "a") == list(range(1000))
    assert steps(bench, "b") == list(range(1001))
    bench.wait_delivered()
    statuses = {name: run.info.status for name, run in bench.mlflow_runs("faults").items()}
    assert statuses["(1 a) a"] == "KILLED"
    assert statuses["(1 b) b"] == "FINISHED"


@pytest.mark.mlflow
def test_killed_runner_leaves_nobody_behind_and_is_resumed(
    bench: Bench, blocked: subprocess.Popen[str]
) -> None:
    pids = [pid_of(bench, name) for name in "ab"]
    blocked.kill()
    blocked.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), "training processes gone")
    wait_until(
        lambda: bench.reader.workloads()[0].status is RunStatus.KILLED, "the workload is ended too"
    )
    path = bench.folder / "experiment.csv"
    first_ids = [row["Run"] for row in bench.rows(path)][:2]
    assert [row["Status"] for row in bench.rows(path)] == ["RUNNING", "RUNNING", ""]
    for name in "ab":
        (bench.folder / f"{name}.fifo").unlink()
    bench.radt("experiment.csv")
    rows = bench.rows(path)
    assert [row["Status"] for row in rows] == ["FINISHED"] * 3
    assert not {row["Run"] for row in rows} & set(first_ids)
    bench.wait_delivered()
    for run_id in first_ids:
        record = bench.reader.find_run(run_id)
        assert record.status is RunStatus.KILLED
        assert bench.mlflow.get_run(run_id).info.status == "KILLED"
        frame = radt.load(record.run_id, home=bench.home, metrics=["loss"])
        assert len(frame) == 1000
    assert all(run.info.status != "RUNNING" for run in bench.mlflow_runs("faults").values())


def test_killed_collector_comes_back_with_a_gap_and_no_loss(
    bench: Bench, blocked: subprocess.Popen[str]
) -> None:
    from radt.collector.client import CollectorClient

    def received(name: str) -> int:
        run = next(run for run in bench.reader.runs() if run.name == name)
        return sum(row.received for row in bench.reader.ledger([run.run_id]))

    wait_until(lambda: received("a") > 3, "samples before the kill")
    client = CollectorClient(timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S).reach()
    before = client.status()
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: client.status().pid != before.pid, "a new collector")
    client.close()
    seen = received("a")
    wait_until(lambda: received("a") > seen + 3, "samples after the kill")
    for name in "ab":
        release(bench, name)
    assert blocked.wait(180) == 0
    for name in "ab":
        assert steps(bench, name) == list(range(1001))
        run = next(run for run in bench.reader.runs() if run.name == name)
        (ledger,) = bench.reader.ledger([run.run_id])
        assert ledger.missed > 0
        assert any(gap.end_ns > gap.start_ns for gap in bench.reader.gaps([run.run_id]))


@pytest.mark.long
@pytest.mark.mlflow
def test_cost_of_recording_counts_delivery_to_mlflow_also_when_it_has_ended(
    bench: Bench, blocked: subprocess.Popen[str]
) -> None:
    from radt.collector.client import CollectorClient

    def spent_s(process: psutil.Process) -> float:
        return process.cpu_times().user + process.cpu_times().system

    with CollectorClient(timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S).reach() as client:
        worker = psutil.Process(client.status().pid)
        tick_s = 2 / os.sysconf("SC_CLK_TCK")  # each of the two is rounded
        # The rows do not wait for it.
        wait_until(
            lambda: sum(spent_s(child) for child in worker.children()) > 10 * tick_s,
            "the deliverer has MLflow loaded",
        )
        (deliverer,) = worker.children()
        both_s = spent_s(worker) + spent_s(deliverer)
        assert client.status().cpu_s >= both_s - tick_s
        deliverer.kill()
        wait_until(lambda: not deliverer.is_running(), "the deliverer is reaped")
        assert client.status().cpu_s >= both_s - tick_s


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("times", [2, 1])
def test_ctrl_c_once_asks_and_twice_kills(bench: Bench, times: int) -> None:
    bench.script(
        "stubborn.py",
        "import os, sys, time\n"
        "try:\n"
        "    open('up', 'w').close()\n"
        "    os.read(os.pipe()[0], 1)\n"
        "except KeyboardInterrupt:\n"
        "    open('asked', 'w').close()\n"
        "    if sys.argv[1] == '2': os.read(os.pipe()[0], 1)\n"
        "    raise\n",
    )
    path = bench.experiment(
        "Experiment,Workload,File,Params,Listeners\n"
        f"stop,1,stubborn.py,{times},none\nstop,2,stubborn.py,{times},none\n"
    )
    process = bench.start("experiment.csv")
    wait_until((bench.folder / "up").exists, "the script is up")
    process.send_signal(signal.SIGINT)
    wait_until((bench.folder / "asked").exists, "the script was asked")
    if times == 2:
        process.send_signal(signal.SIGINT)
    assert process.wait(180) == 130
    rows = bench.rows(path)
    assert [row.get("Status", "") for row in rows] == ["KILLED: stopped by the user", ""]
    assert (bench.reader.runs()[0].exit_code == -signal.SIGKILL) == (times == 2)


#: radt, with something that happens as soon as the last row stands at the barrier.
AT_THE_BARRIER = """
import os, signal, sys
from radt.cli import main
from radt.runner.process import TrainingProcess
ready = TrainingProcess.wait_ready
def wait_ready(process, timeout_s):
    ready(process, timeout_s)
    if process.command[-1] == "last":
        {what}
TrainingProcess.wait_ready = wait_ready
main()
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("what", "code", "status", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "KILLED", "stopped by the user"),
        ("raise MemoryError('none left')", 1, "KILLED", "radt stopped on an error: none left"),
        ("raise OSError(24, 'Too many open files')", 1, "FAILED", "Too many open files"),
    ],
    ids=["stopped", "runner-fails", "no-descriptors"],
)
def test_what_happens_at_the_barrier_lets_nobody_through_who_should_not(
    bench: Bench, what: str, code: int, status: str, reason: str
) -> None:
    bench.script("radt-at-the-barrier.py", AT_THE_BARRIER.format(what=what))
    bench.script("touch.py", "import sys; open(sys.argv[1], 'w')")
    path = bench.experiment(
        "Workload,Listeners,File,Params\n1,none,touch.py,first\n1,none,touch.py,last\n"
    )
    done = subprocess.run(
        [sys.executable, "radt-at-the-barrier.py", path.name],
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    first, last = (row["Status"] for row in bench.rows(path))
    assert last.startswith(f"{status}: ")
    assert reason in last
    assert not (bench.folder / "last").exists()
    neighbour_goes_on = status == "FAILED"
    assert (bench.folder / "first").exists() == neighbour_goes_on
    assert first == ("FINISHED" if neighbour_goes_on else last)
    runs = {run.letter: run for run in bench.reader.runs()}
    assert (runs["b"].status, runs["b"].started_ns) == (RunStatus[status], None)
    assert (runs["a"].started_ns is not None) == neighbour_goes_on, "it passed the barrier"
    assert all(one.status.ended for one in bench.reader.workloads())


def test_second_runner_on_a_file_is_told_who_holds_it(
    bench: Bench, blocked: subprocess.Popen[str]
) -> None:
    before = (bench.folder / "experiment.csv").read_bytes()
    done = bench.radt("experiment.csv", code=3)
    assert str(blocked.pid) in done.stderr
    assert (bench.folder / "experiment.csv").read_bytes() == before
    for name in "ab":
        release(bench, name)
    assert blocked.wait(180) == 0


@pytest.mark.long
@pytest.mark.mlflow
def test_two_experiments_side_by_side_in_one_folder(bench: Bench) -> None:
    bench.script(
        "many.py",
        "import radt\nwith radt.Run() as run:\n"
        "    for step in range(4_000): run.log_metric('loss', step, step)\n",
    )
    header = "Experiment,Workload,File,Listeners\n"
    processes = []
    for name in ("one", "two"):
        rows = "".join(f"{name},{workload},many.py,top@50ms\n" for workload in (1, 1, 2))
        bench.experiment(header + rows, f"{name}.csv")
        processes.append(bench.start(f"{name}.csv"))
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert not any("locked" in output for output in outputs)
    for run in bench.reader.runs():
        assert run.status is RunStatus.FINISHED
        assert len(radt.load(run.run_id, home=bench.home, metrics=["loss"])) == 4_000
    bench.wait_delivered()
    for name in ("one", "two"):
        for run in bench.mlflow_runs(name).values():
            assert run.info.status == "FINISHED"


def test_output_that_cannot_be_shown_stops_nothing(bench: Bench) -> None:
    bench.script("say.py", "print('x' * 100)")
    path = bench.experiment("Experiment,Workload,Name,Listeners,File\ns,1,ünï🚀,none,say.py\n")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [RADT, "experiment.csv"],
        cwd=bench.folder,
        env=bench.env | ascii_only,
        stdout=subprocess.PIPE,
        timeout=180,
        check=True,
    )
    assert b"1 run FINISHED" in done.stdout
    bench.experiment(path.read_text(encoding="utf-8").replace("FINISHED", ""))
    with subprocess.Popen(
        [RADT, "experiment.csv"], cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()  # `radt experiment.csv | head`
        assert process.wait(180) == 0
    assert bench.rows(path)[0]["Status"] == "FINISHED"
    unread, head = os.pipe()
    os.close(unread)
    with open("/dev/full", "wb") as full, open(head, "wb") as closed:
        for output, complaint in ((full, b"radt: No space left on device\n"), (closed, b"")):
            for unbuffered in ("", "1"):
                told = subprocess.run(
                    [RADT, "validate", "experiment.csv"],
                    cwd=bench.folder,
                    env=bench.env | {"PYTHONUNBUFFERED": unbuffered},
                    stdout=output,
                    stderr=subprocess.PIPE,
                    timeout=180,
                    check=False,
                )
                assert (told.returncode, told.stderr) == (1, complaint)


def test_runtime_folder_that_cannot_be_made_is_an_error_with_a_remedy(bench: Bench) -> None:
    bench.script("say.py", "print('x' * 100)")
    bench.env["RADT_RUNTIME_DIR"] = "/proc/nope"
    done = bench.radt("say.py", code=2)
    assert "/proc/nope cannot be used" in done.stderr
    assert "Set RADT_RUNTIME_DIR" in done.stderr
