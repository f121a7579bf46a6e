"""Processes that are started, ended and started again (`radt.processes`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from uuid import uuid4

import pytest

from radt.home import RUN_ID_VARIABLE
from radt.processes import (
    Backoff,
    command,
    processes_of,
    reap,
    stop,
    stop_child,
    stop_run,
)
from radt.procfs import ProcessId, process_stat
from tests.support.waiting import wait_until

#: A grace that no test may need in full.
LONG_S = 600.0
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
SLEEP = "import signal, sys; print('up', flush=True); signal.pause()"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python with a program and returns when it has printed a line."""
    started = []

    def start(code: str, run_id: str = "", *, group: bool = False) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({RUN_ID_VARIABLE: run_id} if run_id else {}),
            start_new_session=group,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def of(process: subprocess.Popen[str]) -> ProcessId:
    found = ProcessId.of(process.pid)
    assert found is not None
    return found


def test_delays_double_up_to_the_longest_with_jitter() -> None:
    backoff = Backoff(first_s=1.0, longest_s=4.0)
    for most_s in (1.0, 2.0, 4.0, 4.0):
        assert 0.75 * most_s <= backoff.next_s() <= most_s
    assert len({backoff.next_s() for _ in range(50)}) > 40
    backoff.reset()
    assert backoff.next_s() <= 1.0


def test_who_worked_longer_than_the_longest_delay_begins_anew() -> None:
    backoff = Backoff(first_s=1.0, longest_s=4.0)
    delays = [backoff.next_s(worked_s=worked_s) for worked_s in (0.0, 3.9, 4.1)]
    assert delays[1] > 1.0 >= delays[2]


@pytest.mark.parametrize(
    ("ignores", "code"), [("", -15), (DEAF, -9)], ids=["asked", "killed when it does not listen"]
)
def test_a_child_is_stopped(start: Start, ignores: str, code: int) -> None:
    process = start(ignores + SLEEP)
    stop_child(process, 0.2 if ignores else LONG_S)
    assert process.returncode == code
    stop_child(process, LONG_S)  # harmless


def test_nobody_waits_for_ever_for_a_child_that_no_signal_ends() -> None:
    """Its file server is away."""
    waits: list[float | None] = []

    def wait(timeout_s: float | None) -> None:
        waits.append(timeout_s)
        raise subprocess.TimeoutExpired("it", timeout_s or 0.0)

    process = SimpleNamespace(pid=0, send_signal=lambda _: None, wait=wait)
    stop_child(process, 1.0)  # type: ignore[arg-type]
    assert len(waits) == 2
    assert None not in waits


def test_a_child_is_stopped_with_its_group(start: Start) -> None:
    code = (
        "import subprocess, sys, signal; child = subprocess.Popen(['sleep', '600']); "
        "print(child.pid, flush=True); signal.pause()"
    )
    process = start(code, group=True)
    grandchildren = [stat for stat in map(process_stat, _children(process.pid)) if stat]
    assert len(grandchildren) == 1
    stop_child(process, LONG_S, group=True)
    wait_until(lambda: not (stat := process_stat(grandchildren[0].pid)) or not stat.alive)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


@pytest.mark.parametrize("ignores", ["", DEAF])
def test_a_process_is_stopped(start: Start, ignores: str) -> None:
    process = start(ignores + SLEEP)
    identity = of(process)
    assert stop(ProcessId(identity.pid, identity.started_ticks - 1), LONG_S, LONG_S)
    assert identity.alive  # an earlier process of its id was meant
    assert stop(identity, 0.2 if ignores else LONG_S, LONG_S)
    assert not identity.alive
    process.wait()
    assert stop(identity, LONG_S, LONG_S)


def test_all_processes_of_a_run_are_stopped_and_no_others(start: Start) -> None:
    run_id, other = uuid4().hex, uuid4().hex
    mine = [start(code + SLEEP, run_id) for code in ("", DEAF)]
    another = start(SLEEP, other)
    for process in mine:
        reap(process)  # else they stay in /proc with their variables until they are waited for
    assert processes_of(run_id) == {process.pid for process in mine}

    assert stop_run(run_id, terminate_s=0.5, kill_s=LONG_S) == 2

    assert not processes_of(run_id)
    assert processes_of(other) == {another.pid}
    assert stop_run(run_id, terminate_s=LONG_S, kill_s=LONG_S) == 0


def test_a_process_ends_with_its_parent(start: Start) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "code = 'from radt.processes import die_with_parent; import signal, sys; '\n"
        "code += 'die_with_parent(int(sys.argv[1])); print(1, flush=True); signal.pause()'\n"
        "command = [sys.executable, '-c', code]\n"
        "process = subprocess.Popen([*command, str(os.getpid())], stdout=subprocess.PIPE)\n"
        "process.stdout.readline()\n"
        "orphan = subprocess.run([*command, '1']).returncode\n"
        "print(process.pid, orphan, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, orphan = map(int, parent.stdout.readline().split())
    child = ProcessId.of(pid)
    assert child is not None
    assert orphan == 0  # one whose parent was gone already ends at once
    parent.kill()
    parent.communicate()
    wait_until(lambda: not child.alive)


def test_a_module_is_run_whatever_lies_in_the_current_folder(tmp_path) -> None:
    (tmp_path / "radt.py").write_text("raise SystemExit('the wrong one')")
    done = subprocess.run(command("radt", "--version"), cwd=tmp_path, check=False)
    assert done.returncode == 0
