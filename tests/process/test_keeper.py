"""Nothing of a run outlives it: process trees of every kind, ended in every way, then counted."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from radt.errors import LaunchError
from radt.processes import send_signal
from radt.runner.process import Barrier, Exit, TrainingProcess, descendants_of_each
from tests.support.bench import alive, wait_until

TIMEOUT_S = 180.0

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
                send_signal(pid, signal.SIGKILL)
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
    assert result.leftovers >= 5  # of those that fork all the time, a look may miss some
    assert run.process.descendants() == []
    zoo.wait_gone()


@pytest.mark.quick_variants(1)
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
    for pid in run.process.keeper_pids:
        os.kill(pid, signal.SIGSTOP)
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


def test_without_guard_and_keeper_what_carries_the_runs_id_is_ended(tmp_path: Path) -> None:
    source = (
        "import os, subprocess, sys\n"
        "if sys.argv[1:]: subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
        " start_new_session=True)\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "os.read(os.pipe()[0], 1)\n"
    )
    run = Run([sys.executable, "-c", source, source], tmp_path)
    wait_until(lambda: len(run.lines) == 2, "both are up")
    pids = [int(line) for line in run.lines]
    for pid in run.process.keeper_pids:
        os.kill(pid, signal.SIGSTOP)  # so that none can do anything about the other's death
    for pid in run.process.keeper_pids:
        os.kill(pid, signal.SIGKILL)
    result = run.result()
    assert (result.code, result.keeper_died) == (-signal.SIGKILL, True)
    # One that is about to be a zombie has no environment any more by which it could be found.
    wait_until(lambda: not any(alive(pid) for pid in pids), "both are gone")


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
import json, os, sys, pathlib
from radt.runner.process import Barrier, TrainingProcess
stage, folder, kill, *command = sys.argv[1:]
barrier = Barrier()
process = TrainingProcess(
    command, run_id=os.urandom(16).hex(), cwd=pathlib.Path(folder), env=dict(os.environ),
    barrier=barrier, output_log=pathlib.Path(folder) / "output.log", show=lambda line: None,
    on_exit=lambda exit_: None, kill_command=json.loads(kill),
)
process.wait_ready(180)
if stage == "running":
    barrier.release()
    process.wait_released(180)
print(*process.keeper_pids, process.pid, flush=True)
os.read(os.pipe()[0], 1)
"""


def runner_of(
    zoo: Zoo, stage: str, kill_command: Sequence[str] = ()
) -> tuple[subprocess.Popen[str], list[int]]:
    arguments = [stage, str(zoo.folder), json.dumps(list(kill_command)), *zoo.command]
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    return runner, [int(pid) for pid in runner.stdout.readline().split()]


def test_the_kernel_ends_the_command_when_all_that_watch_over_it_are_killed(zoo: Zoo) -> None:
    zoo.command = ["sleep", "1000"]
    runner, pids = runner_of(zoo, "running")
    for pid in (runner.pid, *pids[:2]):
        os.kill(pid, signal.SIGSTOP)  # so that none can do anything about another's death
    for pid in (runner.pid, *pids[:2]):
        os.kill(pid, signal.SIGKILL)
    runner.communicate()
    wait_until(lambda: not alive(pids[2]), "the command is gone")


def test_nothing_starts_when_the_runner_is_killed_before_it_opened_the_barrier(zoo: Zoo) -> None:
    zoo.command = ["touch", str(zoo.folder / "ran")]
    runner, pids = runner_of(zoo, "waiting")
    runner.kill()
    runner.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids), "keeper and command are gone")
    assert not (zoo.folder / "ran").exists()


def test_nothing_starts_when_the_barrier_ends_without_having_been_opened(tmp_path: Path) -> None:
    """As the kernel closes it, before all else, when the runner is killed."""
    barrier, ended = Barrier(), threading.Event()
    process = TrainingProcess(
        ["touch", "ran"],
        run_id=uuid.uuid4().hex,
        cwd=tmp_path,
        env=dict(os.environ),
        barrier=barrier,
        output_log=tmp_path / "output.log",
        show=print,
        on_exit=lambda exit_: ended.set(),
    )
    process.wait_ready(TIMEOUT_S)
    os.close(barrier._write_fd)
    barrier._write_fd = -1
    with pytest.raises(LaunchError, match="ended at the start barrier"):
        process.wait_released(TIMEOUT_S)
    barrier.close()
    assert ended.wait(TIMEOUT_S)
    assert not (tmp_path / "ran").exists()


def test_trees_of_several_runs_are_told_apart_by_one_look(tmp_path: Path) -> None:
    source = (
        "import os\n"
        "child = os.fork() and os.fork()\n"
        "os.write(1, b'up\\n')\n"
        "os.read(os.pipe()[0], 1)\n"
    )
    runs = [Run([sys.executable, "-c", source], tmp_path) for _ in range(2)]
    wait_until(lambda: all(run.lines == ["up"] * 3 for run in runs), "all are up")
    trees_ = descendants_of_each([run.process for run in runs])
    assert [len(tree) for tree in trees_] == [3, 3]
    assert [tree[0] for tree in trees_] == [run.process.pid for run in runs]
    assert not set(trees_[0]) & set(trees_[1])
    for run in runs:
        run.process.signal(signal.SIGKILL)
        run.result()
    assert descendants_of_each([run.process for run in runs]) == [[], []]


#: A launcher as torchrun is one: its worker has a session, and hears of SIGINT from it. All go when
#: the worker does, which waits for the test: until then, everybody has had the time to hear.
LAUNCHER = """
import os, signal, subprocess, sys, time
def say(text): os.write(1, (text + "\\n").encode())
role = sys.argv[1]
if role == "launcher":
    children = [
        subprocess.Popen([sys.executable, __file__, name], start_new_session=name == "worker")
        for name in ("worker", "member", "orphan")
    ]
    def forward(number, frame):
        say("launcher")
        time.sleep(0.2)  # so that two signals cannot become one
        children[0].send_signal(number)
    signal.signal(signal.SIGINT, forward)
    children[0].wait()
    os._exit(5)
if role == "orphan" and (os.fork() or os.setsid() or os.fork()):
    os._exit(0)
def handle(number, frame):
    say(role)
    if role == "worker":
        signal.signal(signal.SIGALRM, lambda *_: (open("end").read(), os._exit(0)))
        signal.setitimer(signal.ITIMER_REAL, 0.7)  # a second SIGINT would be heard meanwhile
signal.signal(signal.SIGINT, handle)
say("up")
while True:
    signal.pause()
"""


def test_ctrl_c_reaches_everybody_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER, encoding="ascii")
    run = Run([sys.executable, "-u", str(script), "launcher"], tmp_path)
    wait_until(lambda: run.lines.count("up") == 3, "all are up")
    run.process.signal(signal.SIGINT)
    wait_until(lambda: len(set(run.lines)) == 5, "all have heard of it")
    (tmp_path / "end").write_text("", encoding="ascii")
    assert run.result().code == 5
    heard = [line for line in run.log.read_text(encoding="ascii").split() if line != "up"]
    assert sorted(heard) == ["launcher", "member", "orphan", "worker"]


def test_a_stopped_process_hears_of_a_signal(tmp_path: Path) -> None:
    source = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    signal.pause()\n"
        "os.waitpid(child, os.WUNTRACED)\n"
        "print('stopped', flush=True)\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    run = Run([sys.executable, "-c", source], tmp_path)
    wait_until(lambda: run.lines == ["stopped"], "the child is stopped")
    run.process.signal(signal.SIGTERM)
    assert run.result().code == 3


def test_processes_have_no_descriptors_signals_or_variables_of_radts(tmp_path: Path) -> None:
    source = (
        "import os, signal\n"
        "mine = os.open('/proc/self/fd', os.O_RDONLY)\n"
        "print(sorted(set(map(int, os.listdir('/proc/self/fd'))) - {mine, mine + 1}))\n"
        "print([n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(os.getpid() == os.getpgrp() == os.getsid(0))\n"
    )
    # Python itself ignores SIGPIPE and SIGXFSZ, and a shell blocks some for a moment.
    run = Run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"], tmp_path)
    assert run.result().code == 0
    # Of the two signals that libc keeps to itself, a program before us may have ignored one.
    of_libc = 1 << 31 | 1 << 32
    words = run.log.read_text(encoding="ascii").split()
    assert words[::2] == ["SigBlk:", "SigIgn:"]
    assert [int(mask, 16) & ~of_libc for mask in words[1::2]] == [0, 0]
    python = Run([sys.executable, "-c", source], tmp_path)
    assert python.result().code == 0
    assert python.lines[0] == "[0, 1, 2]"
    assert python.lines[3] == "True"


def test_the_runner_keeps_no_descriptors_zombies_or_threads_of_runs(tmp_path: Path) -> None:
    def held() -> tuple[int, int, list[int]]:
        return (
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            [child.pid for child in psutil.Process().children()],
        )

    Run(["true"], tmp_path).result()
    before = held()
    runs = [Run(["true"], tmp_path) for _ in range(100)]
    assert [run.result().code for run in runs] == [0] * 100
    assert all(run.process.join(TIMEOUT_S) for run in runs)

    def as_before() -> bool:
        fds, threads, children = held()
        return max(fds - before[0], threads - before[1], len(set(children) - set(before[2]))) < 50

    # A thread of ours may be about to end just now, and others in this process come and go.
    wait_until(as_before, "no more is held than before")


def test_dead_orphans_do_not_stay_as_zombies_while_the_run_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    source = (
        "import os\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.fork()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "print('up', flush=True)\n"
        "open('end').read()\n"
    )
    run = Run([sys.executable, "-c", source], tmp_path)
    wait_until(lambda: run.lines == ["up"], "the orphans are dead")
    keeper = psutil.Process(run.process.keeper_pids[1])
    wait_until(lambda: [p.pid for p in keeper.children()] == [run.process.pid], "they are gone")
    (tmp_path / "end").write_text("", encoding="ascii")
    assert (run.result().code, run.result().leftovers) == (0, 0)


def test_cpus_bind_the_process_and_what_it_starts(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    source = (
        "import os, subprocess, sys\n"
        "print(sorted(os.sched_getaffinity(0)), flush=True)\n"
        "if sys.argv[1:]: subprocess.run([sys.executable, '-c', sys.argv[1]])\n"
    )
    run = Run([sys.executable, "-c", source, source], tmp_path, cpus=frozenset({cpu}))
    assert run.result().code == 0
    assert run.lines == [f"[{cpu}]"] * 2


def test_cpus_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot run on CPUs 4095: .*may use CPUs 0"):
        Run(["true"], tmp_path, cpus=frozenset({4095}))


def test_nul_in_a_parameter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="NUL character"):
        Run(["true", "a\0b"], tmp_path)


def test_parameters_larger_than_the_kernel_takes_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"Argument list too long\. Shorten"):
        Run(["true", "x" * 300_000], tmp_path)


#: Stands for a container: signals to its client do not reach it, the kill command does.
CONTAINER = "import os; print('up', flush=True); os.read(os.pipe()[0], 1)"


@pytest.fixture
def container() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CONTAINER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


KILL = "import os, sys; assert 'RADT_RUN_ID' not in os.environ; os.kill(int(sys.argv[1]), 9)"


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("how", ["SIGKILL", "failed", "keeper killed"])
def test_the_kill_command_ends_what_signals_do_not_reach(
    tmp_path: Path, container: subprocess.Popen[str], how: str
) -> None:
    os.mkfifo(tmp_path / "end")
    run = Run(
        [sys.executable, "-c", "open('end').read(); raise SystemExit(3)"],
        tmp_path,
        kill_command=[sys.executable, "-c", KILL, str(container.pid)],
    )
    assert container.poll() is None
    if how == "SIGKILL":
        run.process.signal(signal.SIGKILL)
    elif how == "failed":
        (tmp_path / "end").write_text("", encoding="ascii")
    else:
        os.kill(run.process.keeper_pids[1], signal.SIGKILL)
    run.result()
    assert container.wait(TIMEOUT_S) == -signal.SIGKILL


def test_the_kill_command_is_not_needed_by_a_run_that_succeeded(
    tmp_path: Path, container: subprocess.Popen[str]
) -> None:
    run = Run(["true"], tmp_path, kill_command=[sys.executable, "-c", KILL, str(container.pid)])
    assert run.result().code == 0
    assert container.poll() is None


def test_a_kill_command_that_is_missing_does_not_keep_the_run_alive(tmp_path: Path) -> None:
    run = Run(["sleep", "1000"], tmp_path, kill_command=["./no-such-command"])
    run.process.signal(signal.SIGKILL)
    assert run.result().code == -signal.SIGKILL


def test_all_kinds_and_containers_are_ended_when_the_runner_is_killed(
    zoo: Zoo, container: subprocess.Popen[str]
) -> None:
    kill = [sys.executable, "-c", KILL, str(container.pid)]
    runner, pids = runner_of(zoo, "running", kill)
    zoo.wait_up()
    runner.kill()
    runner.communicate()
    assert container.wait(TIMEOUT_S) == -signal.SIGKILL
    wait_until(lambda: not any(alive(pid) for pid in pids), "keeper and command are gone")
    zoo.wait_gone()
