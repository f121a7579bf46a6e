"""Processes of which is known what they use, to hold against what listeners say of them.

Each says ``ready``, does its work when told to, says ``done`` with what it measured itself as
JSON, and stays until its input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from radt.listeners.api import Listener, Occurrence, Reading, Target
from radt.model import MissingReason

MB = 10**6

_COMMON = """
import json, os, resource, sys, threading, time
def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
def name_thread(name):
    import ctypes
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
def ready():
    print("ready", flush=True)
    if not sys.stdin.readline(): sys.exit()
def done(**facts):
    print("done", json.dumps(facts), flush=True)
    if not sys.stdin.readline(): sys.exit()
"""

IDLE = "ready(); done()"

#: Uses one core for argument seconds.
BURN = """
ready()
before = cpu_s()
burn(float(sys.argv[1]))
done(cpu_s=cpu_s() - before)
"""

#: Writes argument 2 megabytes into file argument 1 and on to the disk; then reads it back from it.
FILE = """
path, megabytes = sys.argv[1], int(sys.argv[2])
ready()
block = b"x" * 10**6
fd = os.open(path, os.O_CREAT | os.O_RDWR)
for _ in range(megabytes): os.write(fd, block)
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
done()
os.lseek(fd, 0, os.SEEK_SET)
while os.read(fd, 10**6): pass
done()
"""

#: Uses argument megabytes of memory, every page of it.
ALLOCATE = """
ready()
memory = bytearray(b"x") * (int(sys.argv[1]) * 10**6)
done()
"""

#: Shares argument 2 megabytes with argument 1 children.
FAMILY = """
memory = bytearray(b"x") * (int(sys.argv[2]) * 10**6)
ready()
there, here = os.pipe()
children = []
for _ in range(int(sys.argv[1])):
    if not (child := os.fork()):
        sum(memory[::4096])  # maps the pages, shared, into the child
        os.write(here, b".")
        while True: time.sleep(60)
    children.append(child)
for _ in children: os.read(there, 1)
try:
    done(children=children)
finally:
    for child in children: os.kill(child, 9)
"""

#: Has a busy thread and a waiting one, in turn two busy ones of one name, on one core.
THREADS = """
core = sorted(os.sched_getaffinity(0))[-1]
os.sched_setaffinity(0, {core})
stop = threading.Event()
def busy(facts):
    name_thread("crunch (1) x")
    begun = time.thread_time()
    burn(0.25)
    facts["cpu_s"] = time.thread_time() - begun
    facts["up"].set()
    facts["end"].wait()
def waiting():
    name_thread("waits")
    stop.wait()
threading.Thread(target=waiting, daemon=True).start()
ready()
for _ in range(2):
    facts = {"up": threading.Event(), "end": threading.Event()}
    thread = threading.Thread(target=busy, args=(facts,))
    thread.start()
    facts["up"].wait()
    done(core=core, cpu_s=facts["cpu_s"])
    facts["end"].set()
    thread.join()  # Python's end of it; the kernel's comes a moment later
    while len(os.listdir("/proc/self/task")) > 2: time.sleep(0.001)
    done()
"""

#: Sends argument megabytes to itself.
LOOPBACK = """
import socket
ready()
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
receiver, _ = server.accept()
block = bytes(10**5)
for _ in range(int(sys.argv[1]) * 10):
    sender.sendall(block)
    left = len(block)
    while left: left -= len(receiver.recv(left))
done()
"""

#: A child that writes file argument 1 in two parts of argument 2 megabytes, and is waited for.
CHILD = """
import subprocess
ready()
child = subprocess.Popen([sys.executable, "-c", '''
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(2):
        for _ in range(int(sys.argv[2])): file.write(b"x" * 10**6)
        print("half", flush=True)
        sys.stdin.readline()
''', *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
done(child=child.pid)
child.communicate("\\n\\n")
done()
"""


class Workload:
    """One of the scripts above, as a process."""

    def __init__(self, script: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMON + script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        """Have it do its work."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def done(self) -> dict[str, Any]:
        """Wait until it has; what it measured."""
        word, _, facts = self._line().partition(" ")
        assert word == "done"
        found: dict[str, Any] = json.loads(facts)
        return found

    def work(self) -> dict[str, Any]:
        self.go()
        return self.done()

    def end(self) -> None:
        """Let it end by itself, and see it gone."""
        self.process.communicate(timeout=180)


class Bench:
    """Starts workloads and ends them."""

    def __init__(self) -> None:
        self._started: list[Workload] = []

    def start(self, script: str, *arguments: object) -> Workload:
        self._started.append(Workload(script, *arguments))
        return self._started[-1]

    def close(self) -> None:
        for workload in self._started:
            children = []
            if workload.process.poll() is None:
                children = psutil.Process(workload.pid).children(recursive=True)
            for process in (workload.process, *children):
                process.kill()
            workload.process.communicate()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def targets(*workloads: Workload) -> list[Target]:
    """Each workload as a run named 0, 1, ..."""
    return [Target(str(number), pids=(one.pid,)) for number, one in enumerate(workloads)]


class Sampled:
    """What a listener said at one instant."""

    def __init__(self, readings: Iterable[Reading | Occurrence]) -> None:
        self.readings = [reading for reading in readings if isinstance(reading, Reading)]

    def __call__(self, metric: str, run_id: str | None = None, entity: str = "") -> float:
        """The value; fails if there is none."""
        value = self.raw(metric, run_id, entity)
        assert isinstance(value, float), f"{metric} is {value}"
        return value

    def raw(
        self, metric: str, run_id: str | None = None, entity: str = ""
    ) -> float | MissingReason | None:
        """The value, why there is none, or None if nothing was said."""
        found = [
            reading.value
            for reading in self.readings
            if (reading.metric, reading.run_id, reading.entity) == (metric, run_id, entity)
        ]
        assert len(found) <= 1, f"{metric} was read twice"
        return found[0] if found else None

    def entities(self, metric: str, run_id: str | None = None) -> set[str]:
        return {
            reading.entity
            for reading in self.readings
            if (reading.metric, reading.run_id) == (metric, run_id)
        }

    def metrics(self, run_id: str | None = None) -> set[str]:
        return {reading.metric for reading in self.readings if reading.run_id == run_id}


def sample(listener: Listener, *trees: Target) -> Sampled:
    """Read once; all that is read has been declared."""
    sampled = Sampled(listener.sample(trees))
    declared = {metric.name for metric in listener.metrics()}
    assert {reading.metric for reading in sampled.readings} <= declared
    return sampled


def opened(listener: Listener, **options: str | None) -> Listener:
    listener.options = options
    listener.open()
    return listener


class Timed:
    """A listener and the shortest and longest time that may lie between its samples."""

    def __init__(self, listener: Listener, ticks_s: float) -> None:
        self._listener, self._ticks_s = listener, ticks_s
        self._before_s = self._after_s = 0.0
        self.shortest_s = self.longest_s = 0.0

    def sample(self, *trees: Target) -> Sampled:
        before_s = time.monotonic()
        sampled = sample(self._listener, *trees)
        after_s = time.monotonic()
        self.shortest_s, self.longest_s = before_s - self._after_s, after_s - self._before_s
        self._before_s, self._after_s = before_s, after_s
        return sampled

    def used_s(self, cores: float) -> tuple[float, float]:
        """CPU time that so many cores were, at least and at most: the kernel counts in ticks."""
        return cores * self.shortest_s - self._ticks_s, cores * self.longest_s + self._ticks_s

    def assert_used(self, cores: float, used_s: float) -> None:
        least_s, most_s = self.used_s(cores)
        assert least_s <= used_s <= most_s


def all_and_each(sampled: Sampled, metric: str) -> tuple[float, dict[str, float]]:
    """The value of the machine, and that of each device."""
    names = sampled.entities(metric) - {""}
    return sampled(metric), {name: sampled(metric, entity=name) for name in names}


def probed(listener: str, environment: Mapping[str, str], before: str = "") -> str:
    """What a listener's probe says in a process with this environment."""
    module, _, name = listener.partition(":")
    code = f"from radt.listeners import {module}\n{before}\nprint({module}.{name}.probe())"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


@contextmanager
def process_of_another(mine: Workload) -> Iterator[int]:
    """A process that this one may not look into: as root, by being somebody else for a while."""
    if os.geteuid() != 0:
        if psutil.Process(1).uids().real == os.getuid():
            pytest.skip("all processes are of one user here")
        yield 1
        return
    os.seteuid(65534)
    try:
        yield mine.pid
    finally:
        os.seteuid(0)


def on_disk(folder: Path) -> bool:
    """Whether files of a folder go to a disk, and not into memory."""
    mounts = sorted(
        (part for part in psutil.disk_partitions(all=True)),
        key=lambda part: len(part.mountpoint),
        reverse=True,
    )
    path = folder.resolve()
    kind = next(part.fstype for part in mounts if path.is_relative_to(part.mountpoint))
    return kind not in ("tmpfs", "ramfs", "nfs", "nfs4", "9p", "virtiofs")
