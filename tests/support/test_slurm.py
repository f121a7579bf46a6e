"""The clusters of the tests themselves: whoever starts one, however it ends, nothing stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from radt import procfs
from tests.support.privileges import needs_mounts
from tests.support.servers import ROOT, isolated_slurm_cluster, slurm_cluster
from tests.support.slurm import Slurm
from tests.support.waiting import alive, wait_until

_NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may")


@pytest.mark.long
def test_nodes_die_alone_and_nothing_is_left(tmp_path: Path) -> None:
    with slurm_cluster(2, 1) as slurm:
        stray = tmp_path / "stray"
        script = (
            f"#!/bin/sh\nsetsid sleep 1000 & echo $! >{stray}.new.$SLURMD_NODENAME\n"
            f"mv {stray}.new.$SLURMD_NODENAME {stray}.$SLURMD_NODENAME\nwait"
        )
        slurm.run("sbatch", "--nodelist=node1", "--output=/dev/null", script=script)
        slurm.run("sbatch", "--nodelist=node2", "--output=/dev/null", script=script)
        for node in slurm.nodes:
            wait_until(Path(f"{stray}.{node}").exists, f"the job of {node}")
        left = {node: int(Path(f"{stray}.{node}").read_text()) for node in slurm.nodes}
        assert all(pid in slurm.job_processes(node) for node, pid in left.items())
        slurm.kill_slurmd("node1")
        assert left["node1"] in slurm.job_processes("node1"), "slurmd alone"
        slurm.kill_node("node1")
        assert not slurm.processes("node1") and not alive(left["node1"])
        assert alive(left["node2"])
    assert not alive(left["node2"])
    assert not slurm.folder.exists() and not _mentioning(slurm.folder)


_OWNER = """\
import signal
from tests.support.privileges import needs_mounts
from tests.support.servers import slurm_cluster

with slurm_cluster(1, 1) as slurm:
    slurm.run("sbatch", "--output=/dev/null", script="#!/bin/sh\\nsleep 1000")
    print(slurm.folder, flush=True)
    signal.pause()
"""


@pytest.mark.long
def test_a_cluster_ends_with_whoever_started_it(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert _mentioning(folder)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not folder.exists() and not _mentioning(folder), "the cluster's end")


def _run_as_nobody(folder: Path, answer: Path) -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    os.chdir("/")
    slurm = Slurm(folder / "cluster", 2, 1)
    try:
        slurm.start()
        answer.write_text(slurm.run("srun", "--nodes=2", "id", "-u"))
    finally:
        slurm.stop()


@pytest.mark.long
@needs_root
def test_any_user_can_have_one() -> None:
    with tempfile.TemporaryDirectory(prefix="radt-") as name:
        folder = Path(name)
        os.chown(folder, _NOBODY, _NOBODY)
        answer = folder / "answer"
        process = multiprocessing.get_context("fork").Process(
            target=_run_as_nobody, args=(folder, answer)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        assert answer.read_text().split() == [str(_NOBODY)] * 2
        assert not _mentioning(folder)


@needs_mounts
def test_isolated_nodes_share_a_folder_and_nothing_else() -> None:
    with isolated_slurm_cluster(2, 1) as slurm:
        look = (
            "hostname; cat /proc/sys/kernel/random/boot_id; ls /root | wc -l; "
            "touch /tmp/here; ls /tmp | grep -c here; "
            f"{sys.executable} -c 'import time, radt.cluster; print(int(time.monotonic()))'; "
            f"cat {slurm.shared}/word"
        )
        (slurm.shared / "word").write_text("hello\n")
        answers = [
            slurm.run("srun", f"--nodelist={node}", "sh", "-c", look).split()
            for node in slurm.nodes
        ]
        hosts, boots, homes, temporary, clocks, words = zip(*answers, strict=True)
        assert hosts == slurm.nodes and len(set(boots)) == 2
        assert set(homes) == {"0"} and set(temporary) == {"1"}
        assert 900 < int(clocks[1]) - int(clocks[0]) < 1100
        assert set(words) == {"hello"}
        slurm.cut_off("node2")
        ping = "timeout 1 bash -c '</dev/tcp/10.77.0.12/6818'"
        assert subprocess.run([*slurm.entrance("head"), "sh", "-c", ping], check=False).returncode
        slurm.connect("node2")
        slurm.kill_node("node1")
        assert not slurm.processes("node1")
        slurm.declare_down("node1")
        slurm.start_node("node1")
        slurm.wait_idle()
    assert not slurm.folder.exists() and not _mentioning(slurm.folder)


def _mentioning(folder: Path) -> list[int]:
    """Live processes with a folder in their variables or arguments."""
    mark = str(folder).encode()
    return [
        pid
        for pid in procfs.all_pids()
        if alive(pid)
        and (
            any(mark in entry for entry in procfs.environment(pid))
            or mark in procfs.read(f"/proc/{pid}/cmdline")
        )
    ]
