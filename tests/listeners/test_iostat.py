"""The iostat listener against processes of which is known what they read and write."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from radt.listeners import iostat
from radt.listeners.api import Target
from radt.listeners.host_files import DiskCounts, DiskKind, Disks
from radt.listeners.host_trees import Growing, Lineage
from radt.listeners.iostat import IostatListener
from radt.model import MissingReason
from radt.procfs import ProcessStat, boot_ticks, process_stat
from tests.listeners.workloads import (
    CHILD,
    FILE,
    IDLE,
    MB,
    Bench,
    Sampled,
    all_and_each,
    bench,
    on_disk,
    opened,
    process_of_another,
    sample,
    targets,
)

__all__ = ["bench"]

_TREE = {"process.disk.read", "process.disk.written", "process.io.read", "process.io.written"}


def test_100_mb_written_and_read_back(bench: Bench, tmp_path: Path) -> None:
    writer, idle = bench.start(FILE, tmp_path / "file", 100), bench.start(IDLE)
    both = targets(writer, idle)
    listener = opened(IostatListener())
    begun = sample(listener, *both)
    assert begun.metrics("0") == _TREE
    writer.work()
    written = sample(listener, *both)
    writer.work()
    read = sample(listener, *both)
    assert 100 * MB <= written("process.io.written", "0") <= 101 * MB
    assert 100 * MB <= _more(written, read, "process.io.read") <= 101 * MB
    assert _more(written, read, "process.io.written") <= MB
    assert all(read(metric, "1") <= MB for metric in _TREE)
    io = psutil.Process(writer.pid).io_counters()
    counted = read("process.io.written", "0"), read("process.disk.written", "0")
    assert counted == pytest.approx((io.write_chars, io.write_bytes), abs=MB)
    if on_disk(tmp_path):
        assert 100 * MB <= written("process.disk.written", "0") <= 105 * MB
        assert 95 * MB <= _more(written, read, "process.disk.read") <= 110 * MB
        assert written("system.disk.written") - begun("system.disk.written") >= 95 * MB


def _more(before: Sampled, after: Sampled, metric: str, run_id: str | None = "0") -> float:
    return after(metric, run_id) - before(metric, run_id)


def test_disks_are_as_psutil_says() -> None:
    listener = opened(IostatListener())
    before = psutil.disk_io_counters(perdisk=True, nowrap=False)
    sampled = sample(listener)
    after = psutil.disk_io_counters(perdisk=True, nowrap=False)
    disks = sampled.entities("system.disk.read") - {""}
    assert disks or not before, "no disk at all"
    for disk in disks:
        for metric, name in (
            ("system.disk.read", "read_bytes"),
            ("system.disk.written", "write_bytes"),
            ("system.disk.operations.read", "read_count"),
            ("system.disk.operations.write", "write_count"),
        ):
            value = sampled(metric, entity=disk)
            assert getattr(before[disk], name) <= value <= getattr(after[disk], name)
        busy_s = sampled("system.disk.busy_time", entity=disk)
        assert before[disk].busy_time <= busy_s * 1000 + 1e-6
        assert busy_s * 1000 <= after[disk].busy_time + 1e-6
        assert sampled("system.disk.queue", entity=disk) >= 0
    assert not any(disk.startswith(("loop", "ram", "zram")) for disk in disks)


def test_a_child_that_was_waited_for_counts_once_and_to_its_end(
    bench: Bench, tmp_path: Path
) -> None:
    parent = bench.start(CHILD, tmp_path / "file", 20)
    listener = opened(IostatListener())
    metric = "process.io.written"
    sample(listener, *targets(parent))
    pids = (parent.pid, parent.work()["child"])
    half = sample(listener, Target("0", pids=pids))(metric, "0")
    assert 20 * MB <= half <= 21 * MB
    parent.work()
    # Half of it was never seen of the child itself; its parent has inherited all of it.
    whole = sample(listener, *targets(parent))(metric, "0")
    assert 40 * MB <= whole <= 41 * MB
    assert sample(listener, *targets(parent))(metric, "0") - whole <= MB


def test_what_a_process_did_stays_counted_when_nobody_of_the_run_waited_for_it(
    bench: Bench, tmp_path: Path
) -> None:
    one, idle = bench.start(FILE, tmp_path / "file", 5), bench.start(IDLE)
    listener = opened(IostatListener())
    tree = Target("0", pids=(one.pid, idle.pid))
    sample(listener, tree)
    one.work()
    before = sample(listener, tree)("process.io.written", "0")
    assert before >= 5 * MB
    one.process.kill()
    one.process.wait()
    assert sample(listener, tree)("process.io.written", "0") >= before
    assert sample(listener, *targets(idle))("process.io.written", "0") >= before
    assert sample(listener, Target("0")).metrics("0") == set(), "nobody is there"
    assert sample(listener, *targets(idle))("process.io.written", "0") >= before


def test_a_zombie_still_counts_and_one_that_is_gone_does_not() -> None:
    listener = opened(IostatListener())
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    tree = Target("0", pids=(child,))
    try:
        assert sample(listener, tree).metrics("0") == _TREE
    finally:
        os.waitpid(child, 0)
    assert sample(listener, tree).metrics("0") == set()


def test_a_process_that_ends_between_its_two_files_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = bench.start(IDLE)

    def stat_then_kill(pid: int) -> ProcessStat | None:
        stat = process_stat(pid)
        os.kill(pid, signal.SIGKILL)
        workload.process.wait()
        return stat

    monkeypatch.setattr(iostat, "process_stat", stat_then_kill)
    assert sample(opened(IostatListener()), *targets(workload)).metrics("0") == set()


def test_what_may_not_be_read_has_a_reason(bench: Bench) -> None:
    listener = opened(IostatListener())
    workload = bench.start(IDLE)
    with process_of_another(workload) as pid:
        sampled = sample(listener, Target("0", pids=(pid, os.getpid())))
    assert {sampled.raw(metric, "0") for metric in _TREE} == {MissingReason.PERMISSION}


def test_a_kernel_that_does_not_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without the files, as in some sandboxes."""
    monkeypatch.setattr(iostat, "process_io", lambda pid: None)
    monkeypatch.setattr(iostat, "diskstats", dict)
    assert not IostatListener.probe().available
    sampled = sample(opened(IostatListener()), *targets(bench.start(IDLE)))
    assert {sampled.raw(metric, "0") for metric in _TREE} == {MissingReason.UNSUPPORTED}
    assert sampled.raw("system.disk.read") is MissingReason.UNSUPPORTED


class _Machine:
    """Block devices of a machine that is not here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, DiskCounts] = {}
        self._folder = folder
        monkeypatch.setattr(iostat, "Disks", lambda: Disks(folder))
        monkeypatch.setattr(iostat, "diskstats", lambda: self.counts)
        self.listener = opened(IostatListener())

    def device(self, name: str, read_bytes: int, *, below: str = "", **files: str) -> None:
        folder = self._folder / name.replace("/", "!")
        (folder / "slaves").mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="ascii")
        if below:
            (folder / "slaves" / below).symlink_to(self._folder / below)
        self.counts[name] = DiskCounts(1, read_bytes, 1, 2, 3, 4)

    def read(self) -> tuple[float, dict[str, float]]:
        """Bytes of all disks, and of each."""
        return all_and_each(sample(self.listener), "system.disk.read")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    return _Machine(tmp_path, monkeypatch)


def test_devices_made_of_disks_are_not_in_the_sum(machine: _Machine) -> None:
    machine.device("nvme0n1", 1)
    machine.device("nvme0n1p1", 2, partition="1\n")
    machine.device("nvme0c0n1", 4, hidden="1\n")
    machine.device("cciss/c0d0", 8, hidden="0\n")
    machine.device("dm-0", 16, below="nvme0n1")
    machine.device("md127", 32, below="cciss!c0d0")
    machine.device("loop3", 64)
    machine.device("zram0", 128)
    machine.device("nbd0", 0)
    machine.counts["nbd0"] = DiskCounts(0, 0, 0, 0, 0, 0)
    total, disks = machine.read()
    assert total == 9
    assert disks == {"nvme0n1": 1, "cciss/c0d0": 8, "dm-0": 16, "md127": 32}


def test_without_sysfs_names_must_do(tmp_path: Path) -> None:
    kinds = Disks(tmp_path / "none").look(["sda", "dm-0", "md1", "ram0"])
    assert kinds == {
        "sda": DiskKind.WHOLE,
        "dm-0": DiskKind.STACKED,
        "md1": DiskKind.STACKED,
        "ram0": DiskKind.NONE,
    }


def test_a_disk_that_is_taken_out_and_put_back_leaves_the_sum_growing(machine: _Machine) -> None:
    machine.device("sda", 1000)
    machine.device("sdb", 500)
    assert machine.read()[0] == 1500
    machine.counts["sda"] = replace(machine.counts["sda"], read_bytes=1100)
    unplugged = machine.counts.pop("sdb")
    assert machine.read()[0] == 1600
    machine.counts["sdb"] = replace(unplugged, read_bytes=7)  # counts from 0 again
    assert machine.read() == (1607, {"sda": 1100, "sdb": 7})


def test_a_sum_that_grows() -> None:
    growing: Growing[str] = Growing(1)
    look: Callable[..., tuple[int, ...]] = growing.update
    assert look({"a": [100]}, {"a"}) == (0,), "it counts from the first look on"
    assert look({"a": [110], "b": [5]}, {"b"}) == (15,), "new, it counts in full"
    assert look({"a": [110], "b": [5], "c": [900]}, ()) == (15,), "it was elsewhere before"
    assert look({"a": [110], "c": [901]}, ()) == (16,), "what b did stays"
    assert look({"c": [1011]}, (), {"a"}) == (16,), "a's 110 were passed on to c"
    assert look({"c": [1020]}, (), {"c"}) == (16,), "never down"
    assert look({"c": [3]}, ()) == (19,), "another c"


def _stat(pid: int, parent: int, started_ticks: int = 0) -> ProcessStat:
    return ProcessStat(pid, "S", parent, 1, 0, 0, 1, started_ticks, 1)


def test_who_inherits() -> None:
    lineage = Lineage()
    lineage.look({pid: _stat(pid, parent) for pid, parent in ((2, 1), (3, 2), (4, 3), (9, 1))})
    lineage.look({2: _stat(2, 1)})
    assert lineage.passed_on == {3, 4}, "4's parent has ended, too, and left it to 2"
    lineage.look({})
    assert lineage.passed_on == set()


def test_who_is_new() -> None:
    lineage = Lineage()
    lineage.look({2: _stat(2, 1, started_ticks=5)})
    now = boot_ticks(time.monotonic_ns())
    lineage.look({2: _stat(2, 1, 5), 3: _stat(3, 2, now), 4: _stat(4, 1, 5)})
    assert lineage.fresh == {3}, "4 is older than the last look"
    now = boot_ticks(time.monotonic_ns())  # not of before the last look, which may be long ago
    lineage.look({2: _stat(2, 1, started_ticks=now + 1)})
    assert lineage.fresh == {2}, "another one of the same number"


def test_real_start_times_are_on_the_clock_that_new_ones_are_told_by() -> None:
    lineage = Lineage()
    lineage.look({})
    before = boot_ticks(time.monotonic_ns())
    process = subprocess.Popen(["sleep", "60"])
    try:
        stat = process_stat(process.pid)
        assert stat is not None
        lineage.look({process.pid: stat})
        assert lineage.fresh == {process.pid}
        assert before - 1 <= stat.started_ticks <= boot_ticks(time.monotonic_ns())
    finally:
        process.kill()
        process.wait()
