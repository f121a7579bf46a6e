"""Nothing of a run outlives it: process trees of every kind, ended in every way, then counted."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from radt.runner import trees
from radt.runner.process import Barrier, Exit, TrainingProcess
from tests.support.bench import alive, wait_until

TIMEOUT_S = 30.0

#: Makes one process of every kind, each with the marker as its last argument, and says so.
ZOO = """
import os, signal, subprocess, sys, time

KINDS = ("grouped", "session", "daemon", "stopped", "stubborn", "chain", "sessions")
kind, folder, marker = sys.argv[1:]
held = os.open(os.path.join(folder, "held"), os.O_WRONLY)  # so do all that are forked from here

def up(name):
    open(os.path.join(folder, name + ".up"), "w").close()

def wait():
    os.read(os.pipe()[0], 1)

def start(name, **options):
    subprocess.Popen([sys.executable, __file__, name, folder, marker], **options)

if kind == "main":
    for name in KINDS:
        start(name, start_new_session=name == "session", env={} if name == "daemon" else None)
    while not all(os.path.exists(os.path.join(folder, name + ".up")) for name in KINDS):
        time.sleep(0.01)
    up("zoo")
    open(os.path.join(folder, "end")).read()  # a pipe: the test says how to end
elif kind == "daemon":  # forked twice, in a session of its own, without an environment
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    up(kind)
    wait()
elif kind == "stopped":
    up(kind)
    os.kill(os.getpid(), signal.SIGSTOP)
    wait()
elif kind == "stubborn":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    up(kind)
    wait()
elif kind in ("chain", "sessions"):  # nobody can keep its number: it is always another process
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    up(kind)
    while True:
        if os.fork():
            os._exit(0)
        if kind == "sessions":
            os.setsid()
else:
    up(kind)
    wait()
"""


def marked(marker: str) -> list[int]:
    """Ids of live processes whose last argument is the marker; keepers do not have it."""
    found = []
    for pid in psutil.pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if command.endswith(f"\0{marker}\0".encode()) and alive(pid):
            found.append(pid)
    return found


class Zoo:
    """A run with processes of all kinds."""

    def __init__(self, folder: Path) -> None:
        self.marker = uuid.uuid4().hex
        self.folder = folder
        self.script = folder / "zoo.py"
        self.script.write_text(ZOO, encoding="ascii")
        os.mkfifo(folder / "end")
        os.mkfifo(folder / "held")
        self._held = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)
        self.command = [sys.executable, str(self.script), "main", str(folder), self.marker]

    def wait_up(self) -> None:
        wait_until((self.folder / "zoo.up").exists, "all kinds of processes are there", TIMEOUT_S)

    def end_main(self) -> None:
        (self.folder / "end").write_text("", encoding="ascii")

    def held(self) -> bool:
        """Whether any process of the zoo is left, also one whose number no list has yet."""
        poller = select.poll()
        poller.register(self._held, 0)
        return not poller.poll(0)

    def wait_gone(self) -> None:
        """Nobody is left."""
        wait_until(lambda: not self.held(), "nobody is left", TIMEOUT_S)
        assert marked(self.marker) == []

    def clear(self) -> None:
        """After a test that failed."""
        for _ in range(1000):
            for pid in marked(self.marker):
                trees.send_signal(pid, signal.SIGKILL)
        os.close(self._held)


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Zoo]:
    made = Zoo(tmp_path)
    yield made
    if made.held() and marked(made.marker):
        made.clear()


class Run:
    """A `TrainingProcess` of the test's own."""

    def __init__(self, command: list[str], folder: Path, **options: object) -> None:
        self.exits: list[Exit] = []
        self.ended = threading.Event()
        self.log = folder / "output.log"
        self.lines: list[str] = []
        run_id = uuid.uuid4().hex
        barrier = Barrier()
        self.process = TrainingProcess(
            command,
            run_id=run_id,
            cwd=folder,
            env=dict(os.environ, RADT_RUN_ID=run_id),
            barrier=barrier,
            output_log=self.log,
            show=self.lines.append,
            on_exit=self._on_exit,
            **options,  # type: ignore[arg-type]
        )
        try:
            self.process.wait_ready(TIMEOUT_S)
            barrier.release()
            self.process.wait_released(TIMEOUT_S)
        finally:
            barrier.close()

    def _on_exit(self, exit_: Exit) -> None:
        self.exits.append(exit_)
        self.ended.set()

    def result(self) -> Exit:
        assert self.ended.wait(TIMEOUT_S)
        (exit_,) = self.exits
        return exit_


def test_all_kinds_are_seen_while_they_run_and_ended_with_the_run(zoo: Zoo) -> None:
    run = Run(zoo.command, zoo.folder)
    zoo.wait_up()
    known = [pid for pid in marked(zoo.marker) if alive(pid)]
    assert len(known) >= 6
    seen = set(run.process.descendants())
    assert run.process.pid in seen
    assert len(seen) >= 6
    zoo.end_main()
    result = run.result()
    assert (result.code, result.immortal) == (0, 0)
    assert result.leftovers >= 6
    assert run.process.descendants() == []
    zoo.wait_gone()


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGKILL,),
        (signal.SIGTERM, signal.SIGKILL),
        (signal.SIGINT, signal.SIGTERM, signal.SIGKILL),
    ],
    ids=lambda numbers: "-".join(number.name for number in numbers),
)
def test_all_kinds_are_ended_by_signals(zoo: Zoo, numbers: tuple[signal.Signals, ...]) -> None:
    run = Run(zoo.command, zoo.folder)
    zoo.wait_up()
    for number in numbers:
        run.process.signal(number)
    assert run.result().code in {-number for number in numbers} | {1}
    zoo.wait_gone()


def test_all_kinds_are_ended_when_the_keeper_is_killed(zoo: Zoo) -> None:
    run = Run(zoo.command, zoo.folder)
    zoo.wait_up()
    os.kill(run.process.keeper_pids[1], signal.SIGKILL)
    result = run.result()
    assert (result.code, result.keeper_died) == (-signal.SIGKILL, True)
    zoo.wait_gone()


def test_a_run_goes_on_without_its_guard(zoo: Zoo) -> None:
    run = Run(zoo.command, zoo.folder)
    zoo.wait_up()
    os.kill(run.process.keeper_pids[0], signal.SIGKILL)
    wait_until(lambda: not alive(run.process.keeper_pids[0]), "the guard is gone")
    assert run.process.pid in run.process.descendants()
    assert zoo.held()
    zoo.end_main()
    assert (run.result().code, run.result().keeper_died) == (0, False)
    zoo.wait_gone()


#: Runs the command of its arguments as a runner does, and then does nothing more.
RUNNER = """
import os, sys, pathlib
from radt.runner.process import Barrier, TrainingProcess
stage, folder, *command = sys.argv[1:]
barrier = Barrier()
process = TrainingProcess(
    command, run_id=os.urandom(16).hex(), cwd=pathlib.Path(folder), env=dict(os.environ),
    barrier=barrier, output_log=pathlib.Path(folder) / "output.log", show=lambda line: None,
    on_exit=lambda exit_: None,
)
process.wait_ready(30)
if stage == "running":
    barrier.release()
    process.wait_released(30)
print(*process.keeper_pids, process.pid, flush=True)
os.read(os.pipe()[0], 1)
"""


def runner_of(zoo: Zoo, stage: str) -> tuple[subprocess.Popen[str], list[int]]:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, stage, str(zoo.folder), *zoo.command],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    return runner, [int(pid) for pid in runner.stdout.readline().split()]


def test_all_kinds_are_ended_when_the_runner_is_killed(zoo: Zoo) -> None:
    runner, pids = runner_of(zoo, "running")
    zoo.wait_up()
    runner.kill()
    runner.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids), "keeper and command are gone")
    zoo.wait_gone()


def test_nothing_starts_when_the_runner_is_killed_before_it_opened_the_barrier(zoo: Zoo) -> None:
    runner, pids = runner_of(zoo, "waiting")
    runner.kill()
    runner.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids), "keeper and command are gone")
    assert not list(zoo.folder.glob("*.up"))
