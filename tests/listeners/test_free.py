"""The free listener against processes of which is known what memory they use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil
import pytest

from radt.listeners.api import Target
from radt.listeners.free import FreeListener
from radt.listeners.host_files import Hierarchy, memory_hierarchy
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


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A real control group with a memory limit: its folder and name."""
    hierarchy = memory_hierarchy()
    own = None if hierarchy is None else hierarchy.group_of("self")
    if hierarchy is None or own is None:
        pytest.skip("no control groups here")
    parent = hierarchy.folder / own.relative_to(hierarchy.root)
    folder = parent / f"radt-test-{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
        (folder / limit).write_text(str(300 * 2**20), encoding="ascii")
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    yield folder, f"{own}/{folder.name}".replace("//", "/")
    folder.rmdir()


def test_the_limit_of_a_real_control_group(bench: Bench, group: tuple[Path, str]) -> None:
    folder, name = group
    big, beside = bench.start(ALLOCATE, 100), bench.start(IDLE)
    (folder / "cgroup.procs").write_text(str(big.pid), encoding="ascii")
    try:
        listener = opened(FreeListener())
        big.work()
        sampled = sample(listener, *targets(big, beside), Target("2", pids=(big.pid,)))
        assert sampled("system.cgroup.memory.limit", entity=name) == 300 * 2**20
        assert 100 * MB <= sampled("system.cgroup.memory.used", entity=name) <= 300 * 2**20
        other = sample(listener, *targets(beside))
        assert name not in other.entities("system.cgroup.memory.used")
    finally:
        bench.close()


class _Groups:
    """Control groups as a container or another distribution has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.mounts: list[str] = []

    def mount(self, folder: str, kind: str, root: str = "/", options: str = "rw") -> None:
        path = self._folder / folder
        self.mounts.append(f"30 20 0:26 {root} {path} rw shared:4 - {kind} {kind} {options}")

    def group(self, folder: str, **files: int | str) -> None:
        path = self._folder / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, number in files.items():
            (path / name.replace("__", ".")).write_text(f"{number}\n", encoding="ascii")

    def hierarchy(self) -> Hierarchy | None:
        path = self._folder / "mountinfo"
        path.write_text("\n".join([*self.mounts, "1 1 8:1 / / rw - ext4 /dev/a rw"]) + "\n")
        return memory_hierarchy(str(path))


@pytest.fixture
def groups(tmp_path: Path) -> _Groups:
    return _Groups(tmp_path)


def test_the_lowest_limit_around_a_group_counts(groups: _Groups) -> None:
    groups.mount("v2", "cgroup2")
    groups.group("v2/a", memory__max=500, memory__current=70)
    groups.group("v2/a/b", memory__max=900, memory__current=60)
    groups.group("v2/a/b/c", memory__max="max", memory__current=50)
    hierarchy = groups.hierarchy()
    limited = hierarchy.limiting(PurePosixPath("/a/b/c"))
    assert (limited.group, limited.limit_bytes, limited.used_bytes()) == ("/a", 500, 70)
    groups.group("v2/free", memory__max="max", memory__current=50)
    assert hierarchy.limiting(PurePosixPath("/free")) is None
    assert hierarchy.limiting(PurePosixPath("/gone")) is None


def test_in_the_hybrid_layout_version_1_counts_memory(groups: _Groups) -> None:
    groups.mount("unified", "cgroup2")
    groups.mount("cpu", "cgroup", options="rw,cpu,cpuacct")
    groups.mount("memory", "cgroup", root="/docker/1", options="rw,memory")
    groups.group("memory", memory__limit_in_bytes=800, memory__usage_in_bytes=10)
    groups.group("memory/x", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=9)
    hierarchy = groups.hierarchy()
    assert hierarchy.version == 1
    limited = hierarchy.limiting(PurePosixPath("/docker/1/x"))
    assert (limited.group, limited.limit_bytes, limited.used_bytes()) == ("/docker/1", 800, 10)
    groups.group("memory", memory__limit_in_bytes=2**63 - 4096)
    assert hierarchy.limiting(PurePosixPath("/docker/1/x")) is None


def test_the_group_of_a_process_that_is_out_of_sight(
    groups: _Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.mount("memory", "cgroup", root="/docker/1", options="rw,memory")
    hierarchy = groups.hierarchy()
    lines = {1: b"3:cpu:/docker/1\n2:memory:/docker/1/x:y\n0::/\n", 2: b"2:memory:/docker/2\n"}
    lines |= {3: b"2:memory:/docker/1/../2\n", 4: b"0::/docker/1\n", 5: b""}
    files = {f"/proc/{pid}/cgroup": text for pid, text in lines.items()}
    monkeypatch.setattr("radt.listeners.host_files.read", files.__getitem__)
    found = {pid: hierarchy.group_of(pid) for pid in lines}
    assert found == {1: PurePosixPath("/docker/1/x:y"), 2: None, 3: None, 4: None, 5: None}


def test_without_control_groups(groups: _Groups) -> None:
    assert groups.hierarchy() is None
