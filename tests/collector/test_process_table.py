"""Which processes are a run's, and which are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector_kit import wait_for

from radt.collector import processes
from radt.collector.processes import ProcessTable
from radt.processes import stop_run
from radt.procfs import ProcessId

RUN = "d" * 32
#: Starts a child, and a grandchild whose parent ends at once; the latter in a session of its own.
_TREE = """
import subprocess, sys
wait = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(wait)
stray = subprocess.run(
    [sys.executable, "-c",
     "import subprocess, sys; print(subprocess.Popen(%r, start_new_session=True,"
     " stdout=subprocess.DEVNULL).pid)" % (wait,)],
    stdout=subprocess.PIPE, text=True).stdout.strip()
print(child.pid, stray, flush=True)
input()
"""


@pytest.fixture
def tree() -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A process like the runner's, and all the processes of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TREE],
        env=os.environ | {"RADT_RUN_ID": RUN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = {process.pid, *map(int, process.stdout.readline().split())}
    yield process, pids
    stop_run(RUN, kill_s=20)
    process.communicate()


@pytest.fixture
def bystander() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def _pids(table: ProcessTable, run_id: str = RUN) -> set[int]:
    table._read_ns = 0  # look again, however fresh the last look is
    return set(table.pids(run_id))


def test_children_and_strays_belong_to_the_run(tree, bystander: int) -> None:
    process, pids = tree
    table = ProcessTable()
    table.watch(RUN, process.pid, owns_group=True)
    assert _pids(table) == pids
    assert bystander not in _pids(table)


def test_the_client_of_a_container_is_none_of_its_processes(tree) -> None:
    _, pids = tree
    client = subprocess.Popen(["sleep", "600"], env={"RADT_RUN_ID": ""}, start_new_session=True)
    try:
        # For a moment, a process that has just begun a program has no variables.
        variables = Path(f"/proc/{client.pid}/environ")
        wait_for(lambda: variables.read_bytes() == b"RADT_RUN_ID=\0", "the client's variables")
        table = ProcessTable()
        table.watch(RUN, client.pid, owns_group=True)
        assert _pids(table) == pids
    finally:
        client.kill()
        client.wait()


def test_members_stay_and_dead_ones_go(tree) -> None:
    process, pids = tree
    table = ProcessTable()
    table.watch(RUN, process.pid, owns_group=True)
    assert _pids(table) == pids
    process.kill()
    process.wait()
    wait_for(lambda: _pids(table) == pids - {process.pid}, "the orphans to stay the run's")
    table.forget(RUN)
    assert _pids(table) == set()


def test_members_that_cannot_be_read_for_a_moment_stay(
    tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may be out of descriptors for milliseconds."""
    process, pids = tree
    table = ProcessTable()
    table.watch(RUN, process.pid, owns_group=True)
    assert _pids(table) == pids
    with monkeypatch.context() as patch:
        patch.setattr(processes, "process_stat", lambda _pid: None)
        assert _pids(table) == pids
        late = ProcessTable()
        late.watch(RUN, process.pid, owns_group=True)
        _pids(late)
    assert _pids(table) == _pids(late) == pids


def test_a_later_process_of_the_same_number_is_none_of_the_runs(bystander: int) -> None:
    table = ProcessTable()
    table.watch(RUN, None, owns_group=True)
    tree = table._trees[RUN]
    tree.members[bystander] = 1  # as if a process started at another time had had this number
    assert bystander not in _pids(table)


def test_a_journal_alone_makes_no_member(tree, bystander: int) -> None:
    process, _ = tree
    table = ProcessTable()
    table.watch("e" * 32, None, owns_group=True)
    table.add("e" * 32, [bystander, process.pid, 4194304])
    assert _pids(table, "e" * 32) == set()
    table.watch(RUN, None, owns_group=False)
    table.add(RUN, [process.pid])
    assert process.pid in _pids(table)


def test_an_ended_process_is_not_alive_before_it_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessId.of(process.pid)
    assert identity is not None
    assert identity.alive
    assert not ProcessId(process.pid, identity.started_ticks - 1).alive
    process.kill()
    wait_for(lambda: not identity.alive)
    process.communicate()


#: Says whether two processes are alive while it has no free descriptor.
WITHOUT_DESCRIPTORS = """
import os, resource, sys
from radt.procfs import ProcessId
owners = [ProcessId(int(pid), int(ticks)) for pid, ticks in zip(sys.argv[1::2], sys.argv[2::2])]
used = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
print(*(owner.alive for owner in owners))
"""


def test_a_process_is_not_gone_as_no_descriptor_is_free_to_look() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    assert gone.wait(180) == 0
    mine = ProcessId.of(os.getpid())
    assert mine is not None
    arguments = [mine.pid, mine.started_ticks, gone.pid, 1]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert done.stdout.split() == ["True", "False"]
