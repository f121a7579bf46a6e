"""Control groups of both versions, real and recorded, and who reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from radt.devices.cgroups import CgroupLimits, Controller
from tests.support.control_groups import RecordedGroups, memory_group, real_group


@pytest.fixture
def groups(tmp_path: Path) -> RecordedGroups:
    return RecordedGroups(tmp_path)


def test_the_lowest_limit_around_a_group_counts(groups: RecordedGroups) -> None:
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


def test_in_the_hybrid_layout_version_1_counts_memory(groups: RecordedGroups) -> None:
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


def test_the_group_of_a_process_that_is_out_of_sight(groups: RecordedGroups) -> None:
    groups.mount("memory", "cgroup", root="/docker/1", options="rw,memory")
    groups.process(1, "3:cpu:/docker/1", "2:memory:/docker/1/x:y", "0::/")
    groups.process(2, "2:memory:/docker/2")
    groups.process(3, "2:memory:/docker/1/../2")
    groups.process(4, "0::/docker/1")
    hierarchy = groups.hierarchy()
    found = {pid: hierarchy.group_of(pid) for pid in range(1, 6)}
    assert found == {1: PurePosixPath("/docker/1/x:y"), 2: None, 3: None, 4: None, 5: None}


def test_limits_of_version_1(groups: RecordedGroups) -> None:
    groups.mount("memory", "cgroup", options="rw,memory")
    groups.mount("cpu", "cgroup", options="rw,cpu,cpuacct")
    groups.mount("unified", "cgroup2")
    groups.process("self", "4:memory:/docker/1", "2:cpu,cpuacct:/docker/1", "0::/")
    groups.group("memory/docker", memory__limit_in_bytes=2**63 - 4096)
    groups.group("memory/docker/1", memory__limit_in_bytes=64 << 20)
    groups.group("cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    groups.group("cpu/docker", cpu__cfs_quota_us=250_000, cpu__cfs_period_us=100_000)
    groups.group("cpu/docker/1", cpu__cfs_quota_us=300_000, cpu__cfs_period_us=100_000)
    assert CgroupLimits.of(proc=groups.proc) == CgroupLimits(64 << 20, 2.5)


def test_limits_of_version_2(groups: RecordedGroups) -> None:
    groups.mount("v2", "cgroup2")
    groups.mount("elsewhere", "cgroup2", root="/other")
    groups.process("self", "0::/kubepods/pod1")
    groups.group("v2/kubepods", cpu__max="400000 100000", memory__max="max")
    groups.group("v2/kubepods/pod1", cpu__max="max 100000", memory__max=1 << 30)
    assert CgroupLimits.of(proc=groups.proc) == CgroupLimits(1 << 30, 4.0)


def test_without_control_groups(groups: RecordedGroups) -> None:
    assert groups.hierarchy() is None
    assert CgroupLimits.of(proc=groups.proc) == CgroupLimits()


#: Enters a control group, then says how `radt devices` and a run's inventory see the machine.
_INSIDE = """
import os, pathlib, sys
(pathlib.Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
from radt.devices.host import Host
from radt.devices.hardware import read_hardware
host, hardware = Host.detect(), read_hardware()
print(host.memory_limit_bytes, hardware.memory_limit_bytes)
print(host.cpu_limit, hardware.usable_cores)
"""


@pytest.mark.parametrize("controller", Controller)
def test_all_who_describe_the_machine_know_its_real_limits(controller: Controller) -> None:
    half_a_cpu = {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": 50_000}
    with (
        memory_group(1 << 30)
        if controller is Controller.MEMORY
        else real_group(controller, half_a_cpu, {"cpu.max": "50000 100000"})
    ) as group:
        command = [sys.executable, "-c", _INSIDE, group.folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    memory, cpus = done.stdout.splitlines()
    if controller is Controller.MEMORY:
        assert memory == f"{1 << 30} {1 << 30}"
    else:
        assert cpus == "0.5 1"
