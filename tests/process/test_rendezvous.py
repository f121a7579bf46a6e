"""Rows that wait for each other at the entrance of their blocks: ``--sync context``."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radt.errors import LaunchError
from radt.home import RunDir, runtime_dir
from radt.runner.barrier import ContextBarrier
from tests.support.bench import Bench, wait_until

TIMEOUT_S = 180.0
#: Says when it stands before the block and when it is inside.
SCRIPT = """\
import radt, sys, time
print("before", flush=True)
with radt.Run() as run:
    print(time.monotonic_ns(), flush=True)
"""
#: The same twice in a process, and once in a process that it starts.
AGAIN = """\
import radt, subprocess, sys
with radt.Run() as run: pass
child = "import radt\\nwith radt.Run(): pass"
with radt.Run() as run: subprocess.run([sys.executable, "-c", child])
print("done")
"""


class Rows:
    """Training processes as a runner starts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, run_id: str, barrier: ContextBarrier | None, source: str = SCRIPT, **env: str
    ) -> subprocess.Popen[str]:
        run_dir = RunDir(self._folder / run_id).create()
        variables = {} if barrier is None else barrier.variables(run_id)
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            env=os.environ
            | {"RADT_RUN_ID": run_id, "RADT_RUN_DIR": str(run_dir.path)}
            | variables
            | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, out + err
        return out, err


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    made = Rows(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def barrier_of() -> Iterator[Callable[..., ContextBarrier]]:
    made: list[ContextBarrier] = []

    def make(*run_ids: str, **arguments: Callable[[], None]) -> ContextBarrier:
        made.append(ContextBarrier(run_ids, **arguments))
        return made[-1]

    yield make
    for barrier in made:
        barrier.close()


Make = Callable[..., ContextBarrier]


def inside_ns(rows: Rows, process: subprocess.Popen[str]) -> int:
    out, err = rows.end(process)
    assert err == ""
    before, inside = out.split()
    assert before == "before"
    return int(inside)


def test_rows_go_on_together_when_the_last_has_come(rows: Rows, barrier_of: Make) -> None:
    opened: list[frozenset[str]] = []
    barrier = barrier_of("a", "b", "c", on_release=lambda: opened.append(barrier.arrived))
    early = [rows.start("a", barrier), rows.start("b", barrier)]
    wait_until(lambda: barrier.arrived == {"a", "b"}, "two have come")
    assert barrier.awaited == {"c"}
    assert barrier.awaited
    assert opened == []
    assert [process.poll() for process in early] == [None, None]
    alone_ns = time.monotonic_ns()
    last = rows.start("c", barrier)
    stamps_ns = {"c": inside_ns(rows, last)}
    for run_id, process in zip(("a", "b"), early, strict=True):
        stamps_ns[run_id] = inside_ns(rows, process)
    assert not barrier.awaited
    wait_until(lambda: opened, "the barrier's thread has said so")  # which it does after it
    assert opened == [{"a", "b", "c"}]
    wait_until(lambda: len(barrier.released_ns) == 3, "all have said when")
    for run_id, inside in stamps_ns.items():
        assert alone_ns < barrier.released_ns[run_id] < inside


def test_row_that_ended_before_its_block_is_not_waited_for(rows: Rows, barrier_of: Make) -> None:
    opened: list[bool] = []
    barrier = barrier_of("a", "b", on_release=lambda: opened.append(True))
    waiting = rows.start("a", barrier)
    wait_until(lambda: barrier.arrived == {"a"}, "one has come")
    barrier.gone("b")
    barrier.gone("b")
    rows.end(waiting)
    wait_until(lambda: opened, "whoever has opened it has said so")
    assert opened == [True]
    assert barrier.arrived == {"a"}


def test_row_that_came_and_was_killed_has_come(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a", "b")
    killed = rows.start("a", barrier)
    wait_until(lambda: barrier.arrived == {"a"}, "one has come")
    killed.kill()
    rows.end(killed, -signal.SIGKILL)
    assert barrier.awaited
    rows.end(rows.start("b", barrier))
    wait_until(lambda: set(barrier.released_ns) == {"b"}, "the other has said when")


def test_all_processes_of_a_row_wait_and_count_once(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a", "b")
    ranks = [rows.start("a", barrier, RANK=str(rank)) for rank in range(2)]
    for process in ranks:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
    wait_until(lambda: barrier.arrived == {"a"}, "one row has come")
    assert barrier.awaited
    other = rows.start("b", barrier)
    for process in (*ranks, other):
        rows.end(process)
    wait_until(lambda: set(barrier.released_ns) == {"a", "b"}, "both have said when")


def test_who_comes_after_the_release_passes_at_once(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a")
    assert rows.end(rows.start("a", barrier, AGAIN)) == ("done\n", "")
    wait_until(lambda: set(barrier.released_ns) == {"a"}, "it has said when")
    first = dict(barrier.released_ns)
    rows.end(rows.start("a", barrier))
    assert barrier.released_ns == first


def test_switched_off_row_keeps_nobody_waiting(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a", "b")
    rows.start("a", barrier, RADT_MODE="off")
    wait_until(lambda: barrier.arrived == {"a"}, "it has come")


def test_interrupt_reaches_a_row_that_waits(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a", "b")
    waiting = rows.start(
        "a",
        barrier,
        "import radt, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs\n"
        "try:\n"
        "    with radt.Run(): pass\n"
        "except KeyboardInterrupt:\n"
        "    with radt.Run() as run: print(run.log_metric('a', 1), radt.active_run() is run)\n",
    )
    wait_until(lambda: barrier.arrived == {"a"}, "it has come")
    waiting.send_signal(signal.SIGINT)
    assert rows.end(waiting) == ("None True\n", "")


def test_without_its_socket_training_goes_on(rows: Rows, tmp_path: Path) -> None:
    out, err = rows.end(rows.start("a", None, SCRIPT + SCRIPT, RADT_BARRIER=str(tmp_path / "gone")))
    assert len(out.split()) == 4
    assert err == (
        "radt: the run starts without the other rows of its workload: their barrier does not "
        "answer (No such file or directory)\n"
    )


def test_run_that_the_barrier_does_not_know_goes_on(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a")
    assert barrier.variables("other") == {}
    _, err = rows.end(rows.start("other", None, RADT_BARRIER=str(barrier.path)))
    assert "it does not know this run" in err
    assert barrier.awaited


def test_runner_that_dies_lets_all_go(rows: Rows) -> None:
    runner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from radt.runner.barrier import ContextBarrier\n"
            "import signal\n"
            "barrier = ContextBarrier(['a', 'b'])\n"
            "print(barrier.path, flush=True)\n"
            "while barrier.awaited != {'b'}: signal.sigtimedwait([], 0.02)\n"
            "print('come', flush=True)\n"
            "signal.pause()\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    rows.started.append(runner)
    assert runner.stdout is not None
    path = Path(runner.stdout.readline().strip())
    waiting = rows.start("a", None, RADT_BARRIER=str(path))
    assert runner.stdout.readline() == "come\n"
    runner.kill()
    assert rows.end(waiting)[1] == ""
    runner.wait()
    assert path.exists()  # nobody was left to take it away
    ContextBarrier(["a"]).close()
    assert not path.parent.exists()


def test_strangers_and_their_noise_change_nothing(rows: Rows, barrier_of: Make) -> None:
    barrier = barrier_of("a")
    for noise in (b"", b"a\n", b"a x\n", b"\xff 1\n", b"b 1\n", b"x" * 5000):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(TIMEOUT_S)
            stranger.connect(str(barrier.path))
            stranger.sendall(noise)
            if len(noise) < 5000:  # of one that never ends a line the barrier itself gets rid
                stranger.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not stranger.recv(100):
                        break
                except ConnectionResetError:
                    break
    assert barrier.arrived == set()
    with socket.socket(socket.AF_UNIX) as liar:
        liar.connect(str(barrier.path))
        liar.sendall(b"a 1\n" + b"9" * 60 + b"\n")  # went on later than now
        while liar.recv(100):
            pass
    assert barrier.arrived == {"a"}
    assert not barrier.released_ns
    rows.end(rows.start("a", barrier))


def test_socket_is_private_and_goes_with_the_barrier(barrier_of: Make) -> None:
    barrier = barrier_of("a")
    assert stat.S_IMODE(barrier.path.parent.stat().st_mode) == 0o700
    assert barrier.path.parent.parent == runtime_dir()
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        another = barrier_of("a")
        assert barrier.path.exists()  # the new one took away only what belongs to nobody
        another.close()
        another.close()
    # Others in this process may open and close some meanwhile.
    assert len(os.listdir("/proc/self/fd")) < open_files + 50
    assert not another.path.parent.exists()
    another.gone("a")


def test_closing_lets_those_go_who_wait(rows: Rows, barrier_of: Make) -> None:
    opened: list[bool] = []
    barrier = barrier_of("a", "b", on_release=lambda: opened.append(True))
    waiting = rows.start("a", barrier)
    wait_until(lambda: barrier.arrived == {"a"}, "one has come")
    barrier.close()
    rows.end(waiting)
    assert opened == []


def test_socket_that_cannot_be_made_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(folder))
    with pytest.raises(LaunchError, match="RADT_RUNTIME_DIR"):
        ContextBarrier(["a"])
    assert list(folder.iterdir()) == []


# Whole experiments -------------------------------------------------------------------------------

WHOLE = """\
import pathlib, radt, sys, time
name = sys.argv[1]
if name == "slow": open("gate").read()
with radt.Run() as run:
    pathlib.Path(name).write_text(str(time.monotonic_ns()))
    for epoch in run.epochs(9): run.log_metric("loss", 1, epoch)
"""


def test_workload_starts_where_its_rows_enter_their_blocks(bench: Bench) -> None:
    bench.script("train.py", WHOLE)
    gate = bench.signal_ready("gate")
    bench.experiment(
        "Workload,Status,Run,Devices,Listeners,File,Params\n"
        "1,,,cpu,none,train.py,quick\n"
        "1,,,cpu,none,train.py,slow\n"
    )
    runner = bench.start("experiment.csv", "--sync", "context", "--max-epoch", "2")
    # A process opens its journal at the entrance of its block, before it waits for the others.
    wait_until(lambda: list(bench.home.glob("runs/*/journal/*")), "one stands at its block")
    opened_ns = time.monotonic_ns()
    gate.write_text("go")
    out, _ = runner.communicate(timeout=TIMEOUT_S)
    assert runner.returncode == 0, out
    stamps_ns = [int((bench.folder / name).read_text()) for name in ("quick", "slow")]
    assert min(stamps_ns) > opened_ns
    (workload,) = bench.reader.workloads()
    assert workload.start_skew_ns is not None
    runs = bench.reader.runs()
    tags = bench.reader.tags_of([run.run_id for run in runs])
    assert [tags[run.run_id]["radt.limit"] for run in runs] == ["2 epochs"] * 2
    assert {run.status for run in runs} == {"FINISHED"}
