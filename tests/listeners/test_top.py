"""The top listener against processes whose load is known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from radt.listeners.api import Reading, Target
from radt.listeners.top import TopListener
from radt.procfs import process_stat

_BUSY = """
import sys, time
print("up", flush=True)
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end: pass
print("done", flush=True)
input()
"""
_IDLE = "print('up', flush=True); input()"

#: Parent of a child that works for a while and is waited for.
_PARENT = """
import subprocess, sys
input()
subprocess.run([sys.executable, "-c",
    "import time\\nend = time.process_time() + 0.5\\nwhile time.process_time() < end: pass"])
print("done", flush=True)
input()
"""


class Script:
    """A process that says when it got somewhere."""

    def __init__(self, code: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def says(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    started: list[Script] = []
    yield started
    for script in started:
        script.kill()


def _values(readings: list[Reading], run_id: str | None = None) -> dict[str, float]:
    return {
        reading.metric: reading.value
        for reading in readings
        if reading.run_id == run_id and isinstance(reading.value, float)
    }


def test_cpu_time_of_a_busy_and_an_idle_process(scripts: list[Script]) -> None:
    busy, idle = Script(_BUSY, "0.6"), Script(_IDLE)
    scripts += [busy, idle]
    targets = [Target("busy", pids=(busy.pid,)), Target("idle", pids=(idle.pid,))]
    busy.says("up")
    idle.says("up")
    before = process_stat(busy.pid)
    assert before is not None
    listener = TopListener()
    first = list(listener.sample(targets))
    begun_s = time.monotonic()
    assert "process.cpu.utilization" not in _values(first, "busy"), "there is nothing to compare"
    assert "system.cpu.utilization" not in _values(first)
    busy.says("done")
    second = list(listener.sample(targets))
    took_s = time.monotonic() - begun_s
    cores = _values(second, "busy")["process.cpu.utilization"]
    # The time it used is known; so the bounds hold however loaded the machine is.
    assert 0.4 <= cores * took_s <= 0.75
    assert _values(second, "idle")["process.cpu.utilization"] <= 0.05
    assert 0 < _values(second)["system.cpu.utilization"] <= 1


def test_time_of_a_child_that_came_and_went_counts_once(scripts: list[Script]) -> None:
    parent = Script(_PARENT)
    scripts.append(parent)
    target = [Target("a", pids=(parent.pid,))]
    listener = TopListener()
    list(listener.sample(target))
    begun_s = time.monotonic()
    parent.go()
    used_s = 0.0
    child = None
    while child is None:  # seen alive once, so that its time is counted twice if done wrongly
        child = next(iter(psutil.Process(parent.pid).children()), None)
    while (times := process_stat(child.pid)) is not None and times.own_cpu_ticks < 20:
        pass
    pids = (parent.pid, child.pid)
    used_s += _cores(listener, [Target("a", pids=pids)]) * (time.monotonic() - begun_s)
    middle_s = time.monotonic()
    parent.says("done")
    used_s += _cores(listener, target) * (time.monotonic() - middle_s)
    assert 0.45 <= used_s <= 0.75


def _cores(listener: TopListener, targets: list[Target]) -> float:
    return _values(list(listener.sample(targets)), "a")["process.cpu.utilization"]


def test_memory_threads_and_count_of_a_tree(scripts: list[Script]) -> None:
    one, two = Script(_IDLE), Script(_IDLE)
    scripts += [one, two]
    one.says("up")
    two.says("up")
    readings = list(TopListener().sample([Target("a", pids=(one.pid, two.pid, 4194304))]))
    values = _values(readings, "a")
    assert values["process.count"] == 2
    assert values["process.threads"] == 2
    expected = sum(psutil.Process(script.pid).memory_info().rss for script in (one, two))
    assert values["process.memory.rss"] == pytest.approx(expected, rel=0.1)
    host = _values(readings)
    total = psutil.virtual_memory().total
    assert host["system.memory.used"] + host["system.memory.available"] == pytest.approx(total)


def test_a_name_that_looks_like_fields_is_read_right(tmp_path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    process = subprocess.Popen(
        [str(program), "-c", _IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    times = process_stat(process.pid)
    assert times is not None
    assert times.parent == os.getpid()
    process.communicate()


def test_a_process_that_is_gone_is_left_out() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert process_stat(process.pid) is None
    assert not _values(list(TopListener().sample([Target("a", pids=(process.pid,))])), "a")


def test_a_process_on_its_way_out_has_no_memory_rather_than_none() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
    try:
        readings = list(TopListener().sample([Target("r", pids=(child,))]))
    finally:
        os.waitpid(child, 0)
    assert [reading.metric for reading in readings if reading.run_id == "r"] == []
