"""A device has one holder among threads and processes, whatever dies; nobody waits for ever."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkProcess
from multiprocessing.process import BaseProcess

import pytest

from radt.errors import TrainingError, UsageError
from radt.files import lock_byte
from radt.home import runtime_dir
from radt.loaders.randomness import RandomState
from radt.training import MultiTrainer, lease
from radt.training.lease import DeviceLease, Priority, _Lock
from tests.support.disk import SmallDisk
from tests.support.nvml import FakeNvml, nvml, nvml_here, nvml_library
from tests.training.preempted import LIMIT_S, is_waited_for, until

__all__ = ["nvml", "nvml_here", "nvml_library"]

#: Children are forked, as processes that import PyTorch take seconds.
_FORK = multiprocessing.get_context("fork")


@contextmanager
def _child(target: Callable[..., None], *args: object) -> Iterator[BaseProcess]:
    """Run a function in a process, which is killed at the end if it is still there."""
    process: ForkProcess = _FORK.Process(target=target, args=args)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(LIMIT_S)


class Watched:
    """Memory shared with children: who uses the device, turns taken, and whether two met."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    @property
    def met(self) -> int:
        return self._words[1]

    def turns(self, user: int) -> int:
        return self._words[1 + user]

    def use(self, user: int) -> None:
        if self._words[0] != 0:
            self._words[1] = user
        self._words[0] = user
        for _ in range(3):
            os.sched_yield()  # whoever may run, runs
            if self._words[0] != user:
                self._words[1] = user
        self._words[0] = 0
        self._words[1 + user] += 1

    def let_go(self) -> None:
        self._words[511] = 1

    @property
    def goes_on(self) -> bool:
        return not self._words[511]


def _user(watched: Watched, number: int, priority: Priority, boundaries: int) -> None:
    lease = DeviceLease("cpu", priority)
    while watched.goes_on:
        with lease:
            watched.use(number)
            for _ in range(boundaries):
                lease.boundary()
                watched.use(number)
    lease.close()


def _users(watched: Watched, first: int) -> None:
    """Two threads of one process, of low and of high priority."""
    low = threading.Thread(target=_user, args=(watched, first, Priority.LOW, 5))
    low.start()
    _user(watched, first + 1, Priority.HIGH, 2)
    low.join()


def test_threads_and_processes_never_hold_a_device_at_once_and_all_have_turns() -> None:
    watched = Watched()
    users = range(2, 8)
    with _child(_users, watched, 2) as one, _child(_users, watched, 4) as other:
        here = threading.Thread(target=_users, args=(watched, 6))
        here.start()
        try:
            until(lambda: all(watched.turns(user) >= 30 for user in users), "turns of all")
        finally:
            watched.let_go()
            for waited_for in (here, one, other):
                waited_for.join(LIMIT_S)
        assert one.exitcode == other.exitcode == 0
    assert watched.met == 0


def test_devices_do_not_wait_for_each_other() -> None:
    with DeviceLease("cpu"), DeviceLease("cpu:1"):
        pass


@pytest.mark.parametrize("priority", Priority)
def test_high_priority_gets_the_device_at_boundaries_of_a_block_without_end(
    priority: Priority,
) -> None:
    watched = Watched()
    held = DeviceLease("cpu", Priority.LOW if priority is Priority.HIGH else Priority.HIGH)
    with _child(_user, watched, 2, priority, 0), held:
        while watched.turns(2) < 10:
            held.boundary()
    held.close()


def test_low_priority_has_turns_beside_high_that_never_pauses() -> None:
    watched = Watched()
    with (
        _child(_user, watched, 2, Priority.HIGH, 0),
        _child(_user, watched, 3, Priority.HIGH, 0),
        DeviceLease("cpu") as lease,
    ):
        lease.release()
        until(lambda: watched.turns(2) > 100 and watched.turns(3) > 100, "high priority")
        for _ in range(10):
            with lease:
                pass
        assert watched.met == 0
        lease.close()


def _hold(ready: Callable[[bytes], int]) -> None:
    lease = DeviceLease("cpu", "high")
    lease.acquire()
    ready(b"x")
    signal.pause()


def _hold_with_child(ready: Callable[[bytes], int]) -> None:
    lease = DeviceLease("cpu")
    lease.acquire()
    if os.fork() == 0:
        ready(str(os.getpid()).encode())
        signal.pause()
    signal.pause()


@contextmanager
def _ready() -> Iterator[tuple[Callable[[], bytes], Callable[[bytes], int]]]:
    reading, writing = os.pipe()
    try:
        yield lambda: os.read(reading, 100), lambda data: os.write(writing, data)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_killed_holder_frees_the_device() -> None:
    with _ready() as (wait, ready), _child(_hold, ready) as holder:
        wait()
        assert holder.pid is not None
        killer = threading.Timer(0, os.kill, (holder.pid, signal.SIGKILL))
        lease = DeviceLease("cpu")
        killer.start()
        with lease:
            assert not is_waited_for(lease)
        killer.join()


def test_a_killed_holder_frees_the_device_although_its_child_lives() -> None:
    with _ready() as (wait, ready), _child(_hold_with_child, ready) as holder:
        child = int(wait())
        holder.kill()
        try:
            with DeviceLease("cpu"):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def _wait_for(lease_priority: Priority) -> None:
    DeviceLease("cpu", lease_priority).acquire()


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("priority", Priority)
def test_a_killed_waiter_is_forgotten(priority: Priority) -> None:
    held = DeviceLease("cpu", Priority.LOW if priority is Priority.HIGH else Priority.HIGH)
    with held, _child(_wait_for, priority) as waiter:
        until(lambda: is_waited_for(held), "the waiter")
        waiter.kill()
        waiter.join(LIMIT_S)
        while is_waited_for(held):  # for low, until its share is due
            held.boundary()
        assert held._handovers == 0
    with DeviceLease("cpu", priority):
        pass


def test_ctrl_c_while_waiting_leaves_nothing_locked() -> None:
    held, waiting = DeviceLease("cpu"), DeviceLease("cpu", "high")
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: is_waited_for(held), "the waiter")
        signal.pthread_kill(main, signal.SIGINT)

    with held:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            waiting.acquire()
        thread.join()
        held.boundary()
        assert held._handovers == 0
    with waiting:
        pass


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("priority", Priority)
def test_ctrl_c_just_after_a_lock_leaves_nothing_locked(
    priority: Priority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int, byte: int, *, wait: bool = False) -> bool:
        lock_byte(descriptor, byte, wait=wait)
        raise KeyboardInterrupt

    own, other = DeviceLease("cpu", priority), DeviceLease("cpu")
    monkeypatch.setattr(lease, "lock_byte", interrupted)
    with pytest.raises(KeyboardInterrupt):
        own.acquire()
    assert all(lock_byte(other._descriptor, lock) for lock in _Lock)
    other.close()


def test_a_forked_child_leaves_the_block_without_an_error() -> None:
    parent = os.getpid()
    with DeviceLease("cpu") as lease:
        try:
            child = os.fork()
            if child == 0:
                lease.release()
                os._exit(0)
        finally:
            if os.getpid() != parent:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not DeviceLease("cpu").try_acquire()


def test_random_states_of_the_interrupted_are_its_own() -> None:
    low, high = DeviceLease("cpu"), DeviceLease("cpu", "high")

    def draw() -> None:
        with high:
            random.random()

    RandomState.seeded(1).restore()
    expected = [random.random(), random.random()]
    RandomState.seeded(1).restore()
    with low:
        drawn = [random.random()]
        thread = threading.Thread(target=draw)
        thread.start()
        until(lambda: is_waited_for(low), "the other thread")
        low.boundary()
        assert low._handovers == 1
        assert [*drawn, random.random()] == expected
    thread.join()


def test_a_lease_is_of_one_thread_at_a_time() -> None:
    with DeviceLease("cpu") as lease, pytest.raises(UsageError, match="in use already"):
        lease.acquire()
    assert not lease.held


def test_a_lease_that_nobody_closed_leaves_no_file_open() -> None:
    DeviceLease("cpu").acquire()
    with pytest.raises(UsageError):
        MultiTrainer(policy="preemptive", devices=["cpu", "nowhere"])
    gc.collect()
    assert not _open_leases()


def _open_leases() -> list[str]:
    """Files of leases that this process has open in this test's runtime folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing, and what others close
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in found if link.startswith(f"{runtime_dir()}/lease-")]


def test_boundaries_need_the_lease() -> None:
    with pytest.raises(TrainingError, match="without its lease"):
        DeviceLease("cpu").boundary()


def test_a_full_disk_is_an_error_before_training(
    small_disk: SmallDisk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(small_disk.path / "runtime"))
    runtime_dir()
    small_disk.fill()
    with pytest.raises(TrainingError, match="No space left on device"):
        DeviceLease("cpu")


def test_a_closed_lease_is_free_and_cannot_be_used() -> None:
    lease = DeviceLease("cpu")
    lease.acquire()
    assert _open_leases()
    lease.close()
    lease.close()
    with DeviceLease("cpu"), pytest.raises(UsageError, match="closed"):
        lease.acquire()


PROCESS = """
import types, torch
from radt.home import runtime_dir
from radt.training.lease import DeviceLease

torch.cuda.is_initialized = lambda: True  # by the call that follows
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid="of-the-gpu")
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0
DeviceLease("cuda").close()
print(*sorted(file.name for file in runtime_dir().glob("lease-cuda-*")))
"""


def test_mig_devices_of_one_gpu_have_leases_of_their_own(nvml_here: FakeNvml) -> None:
    gpu, *own = (digit * 32 for digit in "0ab")
    nvml_here.offer(*(f"{gpu} {mig}" for mig in own))
    for device in "01":  # each process sees one of them
        command = [sys.executable, "-c", PROCESS]
        environment = nvml_here.environment() | {"CUDA_VISIBLE_DEVICES": device}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"lease-cuda-MIG-{uuid.UUID(mig)}" for mig in own]


@pytest.mark.parametrize(
    ("device", "priority", "share", "message"),
    [
        ("cpu", "urgent", 0.1, 'priority of a lease is "urgent", expected "low" or "high"'),
        ("cpu", "low", 0.0, "share of a lease is 0.0"),
        ("gpu0", "low", 0.1, '"gpu0" is not a device'),
        ("cuda:99", "low", 0.1, "no device cuda:99"),
    ],
)
def test_bad_arguments(device: str, priority: str, share: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DeviceLease(device, priority, share=share)
