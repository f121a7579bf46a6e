"""The top listener against processes whose load is known."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import psutil
import pytest

from radt.listeners.api import Target
from radt.listeners.host_files import CpuTimes
from radt.listeners.host_trees import Deferred
from radt.listeners.top import TopListener
from radt.model import MissingReason
from radt.procfs import process_stat
from tests.listeners.workloads import (
    ALLOCATE,
    BURN,
    FAMILY,
    IDLE,
    MB,
    Bench,
    Sampled,
    Timed,
    bench,
    opened,
    process_of_another,
    sample,
    targets,
)
from tests.support.bench import wait_until

__all__ = ["bench"]

#: Parent of a child that works for a while, stays until there is a line, and is waited for.
_PARENT = """
import subprocess
ready()
subprocess.run([sys.executable, "-c", "import time\\n"
    "end = time.process_time() + 0.5\\nwhile time.process_time() < end: pass\\ninput()"])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
done(cpu_s=used.ru_utime + used.ru_stime)
"""
#: A thread that waits 300 times, one after the other, beside the first.
_SWITCHES = """
ready()
def wait():
    for _ in range(300): time.sleep(0.0005)
    time.sleep(600)
threading.Thread(target=wait, daemon=True).start()
while True:
    with open(f"/proc/self/task/{max(map(int, os.listdir('/proc/self/task')))}/status") as file:
        count = int(file.read().split("voluntary_ctxt_switches:")[1].split()[0])
    if count >= 300: break
    time.sleep(0.01)
done()
"""
#: Rounding to ticks, at both ends of an interval, of user and system time.
_TICKS_S = 0.04


def _cores(sampled: Sampled) -> float:
    return sampled("process.cpu.utilization", "0")


def test_cpu_time_of_a_busy_and_an_idle_process(bench: Bench) -> None:
    busy, idle = bench.start(BURN, 0.6), bench.start(IDLE)
    both = targets(busy, idle)
    timed = Timed(TopListener(), _TICKS_S)
    first = timed.sample(*both)
    assert first.raw("process.cpu.utilization", "0") is None, "there is nothing to compare"
    assert first.raw("system.cpu.utilization") is None
    used_s = busy.work()["cpu_s"]
    second = timed.sample(*both)
    least_s, most_s = timed.used_s(_cores(second))
    # The time it used is known; so the bounds hold however loaded the machine is.
    assert least_s <= used_s <= most_s
    assert second("process.cpu.utilization", "1") <= 0.05
    assert second("system.cpu.utilization") * os.cpu_count() * timed.longest_s >= used_s - _TICKS_S
    shares = [second(f"system.cpu.{name}") for name in ("utilization", "iowait", "steal")]
    assert min(shares) >= 0
    assert sum(shares) <= 1.000001


def test_each_core_on_request(bench: Bench) -> None:
    core = max(os.sched_getaffinity(0))
    busy = bench.start(f"os.sched_setaffinity(0, {{{core}}})\n" + BURN, 0.4)
    listener = opened(TopListener(), cores=None)
    metric = "system.cpu.core.utilization"
    begun_s = time.monotonic()
    assert sample(listener).entities(metric) == set()
    busy.work()
    sampled = sample(listener)
    took_s = time.monotonic() - begun_s  # at least what lies between the samples
    assert sampled.entities(metric) == {f"core {number}" for number in range(os.cpu_count())}
    assert sampled(metric, entity=f"core {core}") * took_s >= 0.3
    assert metric not in sample(opened(TopListener())).metrics()


def test_idle_time_that_steps_back_is_no_time() -> None:
    before = CpuTimes(100, 0, 100, 1000, 500, 0, 0, 0)
    shares = CpuTimes(140, 10, 130, 1010, 498, 10, 10, 5).shares_since(before)
    assert shares is not None
    assert shares.busy == pytest.approx(100 / 115)
    assert shares.iowait == 0
    assert shares.steal == pytest.approx(5 / 115)
    assert before.shares_since(before) is None


def test_time_of_a_child_that_came_and_went_counts_once(bench: Bench) -> None:
    parent = bench.start(_PARENT)
    timed = Timed(TopListener(), _TICKS_S)
    timed.sample(*targets(parent))
    parent.go()
    wait_until(lambda: psutil.Process(parent.pid).children(), "the child")
    # Seen alive once, so that its time is counted twice if done wrongly.
    (child,) = psutil.Process(parent.pid).children()

    def has_worked() -> bool:
        times = process_stat(child.pid)
        assert times is not None
        return times.own_cpu_ticks >= 20

    wait_until(has_worked, "some of its work")
    first = timed.used_s(_cores(timed.sample(Target("0", pids=(parent.pid, child.pid)))))
    parent.go()
    used_s = parent.done()["cpu_s"]
    second = timed.used_s(_cores(timed.sample(*targets(parent))))
    own_s = 0.1  # of the parent, to start it
    assert first[0] + second[0] - own_s <= used_s <= first[1] + second[1]


def test_memory_of_a_process_that_uses_500_mb(bench: Bench) -> None:
    big = bench.start(ALLOCATE, 500)
    listener = TopListener()
    before = sample(listener, *targets(big))("process.memory.rss", "0")
    big.work()
    sampled = sample(listener, *targets(big))
    rss = sampled("process.memory.rss", "0")
    assert 495 * MB <= rss - before <= 510 * MB, "the kernel lags behind by some pages a core"
    assert rss == pytest.approx(psutil.Process(big.pid).memory_info().rss, rel=0.01)
    fresh = TopListener()
    pss = _aside(fresh, *targets(big))("process.memory.pss", "0")
    assert 500 * MB <= pss <= 510 * MB + before
    assert pss == pytest.approx(psutil.Process(big.pid).memory_full_info().pss, rel=0.02)


def test_shared_memory_of_a_family_counts_once_in_pss_and_for_each_in_rss(bench: Bench) -> None:
    parent = bench.start(FAMILY, 4, 100)
    pids = (parent.pid, *parent.work()["children"])
    tree = Target("family", pids=(*pids, 4194304))  # the last is no process
    listener = TopListener()
    sampled = sample(listener, tree)
    assert sampled("process.count", "family") == 5
    assert sampled("process.threads", "family") == 5
    assert 500 * MB <= sampled("process.memory.rss", "family") <= 600 * MB
    pss = _aside(TopListener(), tree)("process.memory.pss", "family")
    assert 100 * MB <= pss <= 140 * MB
    expected = sum(psutil.Process(pid).memory_full_info().pss for pid in pids)
    assert pss == pytest.approx(expected, rel=0.02)


def _aside(listener: TopListener, *trees: Target) -> Sampled:
    """All readings of two samples, the dear ones included."""
    first = list(listener.sample(trees))
    listener.wait()
    seen = {(reading.metric, reading.run_id) for reading in first}
    more = [one for one in listener.sample(trees) if (one.metric, one.run_id) not in seen]
    return Sampled([*first, *more])


def test_pss_of_what_may_not_be_read_has_a_reason(bench: Bench) -> None:
    workload = bench.start(IDLE)
    with process_of_another(workload) as pid:
        sampled = _aside(TopListener(), Target("0", pids=(pid,)))
    assert sampled.raw("process.memory.pss", "0") is MissingReason.PERMISSION
    assert sampled("process.memory.rss", "0") > 0


def test_memory_of_the_machine() -> None:
    def agrees() -> bool:
        sampled = sample(TopListener())
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        used, available = sampled("system.memory.used"), sampled("system.memory.available")
        assert used + available == memory.total
        assert 0 <= sampled("system.load") < 1000
        return (
            available == pytest.approx(memory.available, rel=0.1)
            and sampled("system.swap.used") == swap.used
        )

    # Others use it as well: at a moment at which it is the same for both.
    wait_until(agrees, "what psutil says")


def test_context_switches_of_all_threads_outlive_their_process(bench: Bench) -> None:
    waits, idle = bench.start(_SWITCHES), bench.start(IDLE)
    metric = "process.context_switches.voluntary"
    tree = Target("0", pids=(waits.pid, idle.pid))
    listener = TopListener()
    listener._switching._min_ns, listener._switching._share = 0, 1e9  # whenever asked
    for pid in tree.pids:  # it has printed that it is ready, and will sleep once more
        waiting = psutil.Process(pid)
        wait_until(lambda: waiting.status() == psutil.STATUS_SLEEPING, "it waits for work")  # noqa: B023
    assert _switches(listener, tree) == 0
    waits.work()
    counted = _switches(listener, tree)
    assert counted >= 300
    waits.process.kill()
    waits.process.wait()
    assert _switches(listener, tree) >= counted
    assert metric in {declared.name for declared in listener.metrics()}


def _switches(listener: TopListener, tree: Target) -> float:
    """As counted from now on."""
    listener.wait()
    sample(listener, tree)
    listener.wait()
    return sample(listener, tree)("process.context_switches.voluntary", "0")


def test_dear_readings_keep_to_their_share() -> None:
    read: list[str] = []

    def spend(run_id: str, pids: Sequence[int]) -> int:
        read.append(run_id)
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return len(pids)

    deferred = Deferred(spend, min_s=1.0, share=0.0001)
    begun_ns = time.monotonic_ns()
    deferred.take({"a": [1], "b": [1, 2]})
    deferred.wait()
    deferred.take({"a": [1], "b": [1, 2]})
    deferred.wait()
    assert read == ["a", "b"]
    # 2 ms of each of two runs in at most 0.01 % of the time: not within the next 40 s.
    assert min(deferred._due_ns.values()) >= begun_ns + 40 * 10**9
    deferred.take({"a": [1], "b": [1, 2], "c": []})
    deferred.wait()
    assert read[2:] == ["c"], "a run that is new is read at once"


def test_a_dear_reading_does_not_hold_up_the_sample() -> None:
    go = threading.Event()
    deferred = Deferred(lambda run_id, pids: go.wait(), min_s=0, share=1)
    assert deferred.take({"a": [1]}) == {}
    assert deferred.take({"a": [1]}) == {}
    go.set()
    deferred.wait()
    assert deferred.take({"a": [1]})["a"].value is True


def test_what_a_dear_reading_raises_is_raised_by_the_sample() -> None:
    deferred = Deferred(lambda run_id, pids: 1 // 0, min_s=0, share=1)
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: deferred.take({"a": []}), "the error")


def test_a_name_that_looks_like_fields_is_read_right(tmp_path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    process = subprocess.Popen(
        [str(program), "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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
    assert sample(TopListener(), Target("a", pids=(process.pid,))).metrics("a") == set()


def test_a_process_on_its_way_out_has_no_memory_rather_than_none() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
    try:
        sampled = sample(TopListener(), Target("r", pids=(child,)))
    finally:
        os.waitpid(child, 0)
    assert sampled.metrics("r") == set()
