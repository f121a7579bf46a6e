"""The free listener against processes of which is known what memory they use."""

from __future__ import annotations

import os

import psutil
import pytest

from radt.listeners.api import Target
from radt.listeners.free import FreeListener
from radt.model import MissingReason
from tests.listeners.workloads import (
    ALLOCATE,
    FAMILY,
    IDLE,
    MB,
    Bench,
    Sampled,
    bench,
    opened,
    sample,
    targets,
)
from tests.support.control_groups import memory_group
from tests.support.waiting import wait_until

__all__ = ["bench"]

#: Shares argument megabytes in the way data loaders do.
_SHARE = """
import mmap
ready()
memory = mmap.mmap(-1, int(sys.argv[1]) * 10**6)
memory[:] = bytes(len(memory))
done()
"""


def test_kinds_of_memory_of_processes(bench: Bench) -> None:
    big, sharing = bench.start(ALLOCATE, 200), bench.start(_SHARE, 100)
    listener = opened(FreeListener())
    both = targets(big, sharing)
    before = sample(listener, *both)
    big.work()
    sharing.work()
    after = sample(listener, *both)
    assert 198 * MB <= _more(before, after, "process.memory.anon", "0") <= 210 * MB
    assert 99 * MB <= _more(before, after, "process.memory.shmem", "1") <= 101 * MB
    assert _more(before, after, "process.memory.anon", "1") <= 10 * MB
    assert after("process.memory.shmem", "0") <= MB
    for number, one in enumerate((big, sharing)):
        rss = sum(
            after(f"process.memory.{kind}", str(number)) for kind in ("anon", "file", "shmem")
        )
        assert rss == pytest.approx(psutil.Process(one.pid).memory_info().rss, rel=0.01)
        assert (
            after("process.memory.swap", str(number))
            == psutil.Process(one.pid).memory_full_info().swap
        )
    # The machine's own, which others use as well: at least what these two use.
    assert after("system.memory.anon") >= 200 * MB
    assert after("system.memory.shared") >= 100 * MB


def _more(before: Sampled, after: Sampled, metric: str, run_id: str) -> float:
    return after(metric, run_id) - before(metric, run_id)


def test_a_family_is_summed_up(bench: Bench) -> None:
    parent = bench.start(FAMILY, 4, 20)
    pids = (parent.pid, *parent.work()["children"])
    sampled = sample(opened(FreeListener()), Target("0", pids=(*pids, 4194304)))
    assert 100 * MB <= sampled("process.memory.anon", "0") <= 160 * MB


def test_a_process_on_its_way_out_has_no_memory() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        sampled = sample(opened(FreeListener()), Target("0", pids=(child,)), Target("1"))
    finally:
        os.waitpid(child, 0)
    assert sampled.metrics("0") == sampled.metrics("1") == set()


def test_the_machine_is_as_psutil_says() -> None:
    def agrees() -> bool:
        sampled = sample(opened(FreeListener()))
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        assert sampled("system.memory.total") == memory.total
        assert sampled("system.memory.faults.major") > 0
        assert sampled("system.memory.dirty") >= 0
        near = {
            "system.memory.free": memory.free,
            "system.memory.available": memory.available,
            "system.memory.slab": memory.slab,
            "system.memory.shared": memory.shared,
        }
        return (
            all(
                sampled(metric) == pytest.approx(value, rel=0.1, abs=100 * MB)
                for metric, value in near.items()
            )
            and sampled("system.memory.buffers") <= memory.buffers + 100 * MB
            and (sampled("system.swap.in"), sampled("system.swap.out")) == (swap.sin, swap.sout)
            and sampled("system.swap.total") - sampled("system.swap.free") == swap.used
        )

    # Others use it as well: at a moment at which it is the same for both.
    wait_until(agrees, "what psutil says")


def test_lines_that_a_kernel_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radt.listeners.free.meminfo", lambda: {"MemTotal": 1})
    monkeypatch.setattr("radt.listeners.free.vmstat", lambda: {"pswpout": 3})
    sampled = sample(opened(FreeListener()))
    assert sampled("system.memory.total") == 1
    assert sampled.raw("system.memory.anon") is MissingReason.UNSUPPORTED
    assert sampled.raw("system.swap.in") is MissingReason.UNSUPPORTED
    assert sampled("system.swap.out") == 3 * os.sysconf("SC_PAGE_SIZE")


def test_the_limit_of_a_real_control_group(bench: Bench) -> None:
    with memory_group(300 * 2**20) as group:
        big, beside = bench.start(ALLOCATE, 100), bench.start(IDLE)
        group.take(big.pid)
        try:
            listener = opened(FreeListener())
            big.work()
            sampled = sample(listener, *targets(big, beside), Target("2", pids=(big.pid,)))
            name = group.name
            assert sampled("system.cgroup.memory.limit", entity=name) == 300 * 2**20
            assert 100 * MB <= sampled("system.cgroup.memory.used", entity=name) <= 300 * 2**20
            other = sample(listener, *targets(beside))
            assert name not in other.entities("system.cgroup.memory.used")
        finally:
            bench.close()
