"""What is read of /proc, held against psutil and against what processes say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from radt import procfs
from tests.support.waiting import wait_until


def test_what_this_process_is() -> None:
    me = os.getpid()
    known = psutil.Process()
    stat = procfs.process_stat(me)
    assert stat is not None
    assert (stat.parent, stat.group) == (os.getppid(), os.getpgrp())
    assert stat.alive
    used_s = sum(known.cpu_times()[:2])
    assert stat.own_cpu_ticks / procfs.TICKS_PER_S == pytest.approx(used_s, abs=0.1)
    assert procfs.own_start_ticks() == stat.started_ticks
    assert me in procfs.all_pids()

    def threads_agree() -> bool:
        """Some of earlier tests may end between the two looks."""
        stat = procfs.process_stat(me)
        return stat is not None and stat.threads == known.num_threads()

    wait_until(threads_agree, "both to count the same threads")


def test_what_was_written_and_read(tmp_path: Path) -> None:
    before = procfs.process_io(os.getpid())
    file = tmp_path / "file"
    file.write_bytes(b"x" * 123_456)
    file.read_bytes()
    after = procfs.process_io(os.getpid())
    assert before is not None
    assert after is not None
    # Other threads write and read, too; counted twice it would be more.
    assert 123_456 <= after.written_bytes - before.written_bytes < 2 * 123_456
    assert 123_456 <= after.read_bytes - before.read_bytes < 2 * 123_456
    assert after.disk_written_bytes >= before.disk_written_bytes


def test_what_goes_through_a_pipe_goes_to_no_disk() -> None:
    there, here = os.pipe()
    before = procfs.process_io(os.getpid())
    for _ in range(100):
        assert len(os.read(there, os.write(here, b"x" * 50_000))) == 50_000
    after = procfs.process_io(os.getpid())
    os.close(there)
    os.close(here)
    assert before is not None
    assert after is not None
    assert after.written_bytes - before.written_bytes >= 5_000_000
    assert after.read_bytes - before.read_bytes >= 5_000_000
    assert after.disk_written_bytes - before.disk_written_bytes < 1_000_000
    assert after.disk_read_bytes - before.disk_read_bytes < 1_000_000


def test_memory_and_its_parts() -> None:
    def all_agree() -> bool:
        """Processes that share pages with this one come and go between two looks."""
        memory, pss = procfs.process_memory(os.getpid()), procfs.process_pss(os.getpid())
        known = psutil.Process().memory_full_info()
        assert memory is not None
        total = memory.anon_bytes + memory.file_bytes + memory.shmem_bytes
        return (
            total == pytest.approx(known.rss, rel=0.02)
            and memory.swap_bytes == known.swap
            and pss == pytest.approx(known.pss, rel=0.02)
        )

    wait_until(all_agree, "both to say the same")


def test_threads_by_name_and_core() -> None:
    core = min(os.sched_getaffinity(0))
    up, end, tid = threading.Event(), threading.Event(), 0

    def work() -> None:
        nonlocal tid
        tid = threading.get_native_id()
        os.sched_setaffinity(0, {core})  # of this thread alone
        Path(f"/proc/self/task/{tid}/comm").write_text("a) R 1 \n\t(b")
        while time.thread_time() < 0.05:
            pass
        up.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    up.wait()
    try:
        stat = procfs.thread_stat(os.getpid(), tid)
        switches = procfs.thread_switches(os.getpid(), tid)
        assert tid in procfs.thread_ids(os.getpid())
    finally:
        end.set()
        thread.join()
    assert stat is not None
    assert (stat.tid, stat.core) == (tid, core)
    assert stat.name == "a) R 1 ??(b"
    assert stat.cpu_ticks >= 4
    assert switches is not None
    assert min(switches) >= 0


def test_switches_of_the_first_thread_are_as_psutil_says() -> None:
    before = psutil.Process().num_ctx_switches()
    found = procfs.thread_switches(os.getpid(), os.getpid())
    after = psutil.Process().num_ctx_switches()
    assert found is not None
    assert before.voluntary <= found[0] <= after.voluntary
    assert before.involuntary <= found[1] <= after.involuntary


def test_a_program_is_recognised_by_itself_and_as_a_script(tmp_path: Path) -> None:
    script = tmp_path / "a-program-with-a-long-name"
    script.write_text(f"#!{sys.executable}\nprint(flush=True)\ninput()\n")
    script.chmod(0o700)
    environment = {**os.environ, "RADT_RUN_ID": "a1"}
    with subprocess.Popen(
        [script, "an argument", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert procfs.executes(process.pid, script.name)
        assert procfs.executes(process.pid, Path(sys.executable).name)
        assert not procfs.executes(process.pid, "a-program-with")
        assert not procfs.executes(process.pid, "an argument")
        assert procfs.command_line(process.pid)[1:] == [str(script), "an argument", ""]
        assert procfs.variable(process.pid, "RADT_RUN_ID") == "a1"
        assert procfs.variable(process.pid, "RADT_RUN") == ""
        process.communicate()
    assert not procfs.executes(process.pid, script.name)


def test_signals_that_a_process_ignores() -> None:
    ready = "import signal; signal.signal(10, signal.SIG_IGN); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", ready], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ignored = procfs.status_mask(process.pid, "SigIgn")
        assert ignored is not None
        assert [ignored >> (number - 1) & 1 for number in (10, 12)] == [1, 0]
        assert procfs.status_mask(process.pid, "NoSuchField") is None
        process.communicate()


def test_of_a_process_that_is_not_there_nothing_is_known() -> None:
    none = 4194304  # the kernel's numbers end below
    assert procfs.process_stat(none) is None
    assert procfs.process_io(none) is None
    assert procfs.process_memory(none) is None
    assert procfs.process_pss(none) is None
    assert procfs.thread_ids(none) == []
    assert procfs.thread_stat(none, none) is None
    assert procfs.thread_switches(none, none) is None
    assert procfs.environment(none) == [b""]


@pytest.mark.parametrize("kernel", ["this", "older"])
def test_the_exit_code_of_a_process_that_is_waited_for_by_others(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "older":
        monkeypatch.setattr(procfs, "_PIDFD_GET_INFO", 0)
    child = subprocess.Popen(["sh", "-c", "read _; exit 3"], stdin=subprocess.PIPE)
    process = procfs.ProcessId.of(child.pid)
    assert process is not None
    watch, late = procfs.ExitWatch(process), procfs.ExitWatch(replace(process, started_ticks=1))
    assert watch.exit_code() is None
    child.stdin.close()  # type: ignore[union-attr]
    wait_until(lambda: not process.alive, "its end")
    assert watch.exit_code() == 3, "its parent has not waited for it yet"
    child.wait()
    since = (6, 15) if kernel == "this" else (1000, 0)
    is_said = tuple(map(int, os.uname().release.split(".")[:2])) >= since
    assert watch.exit_code() == (3 if is_said else None)
    assert late.exit_code() is None, "another process with its id"
    watch.close()
    assert watch.exit_code() is None


def test_kernel_threads_have_no_memory() -> None:
    """2 is kthreadd, unless in a container, where it is some process or none."""
    stat = procfs.process_stat(2)
    if stat is None or stat.rss_bytes:
        pytest.skip("no kernel threads are visible")
    assert procfs.process_memory(2) is None


def test_start_times_include_suspension() -> None:
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ticks = procfs.boot_ticks(time.monotonic_ns())
    assert ticks / procfs.TICKS_PER_S == pytest.approx(boot_ns / 1e9, abs=1)
