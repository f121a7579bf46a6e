"""Other people's processes on a GPU are seen, waited for, refused or accepted."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from radt.collocation.busy import BusyPolicy, wait_until_free
from radt.collocation.processes import Occupant, ProcessIdentity
from radt.errors import DeviceError
from tests.support.nvml import FakeNvml, mig_gpu

GB = 1_000_000_000
#: No process has it, as the kernel stops counting before.
NOBODY = 2**22 + 1


@contextmanager
def process(run_id: str = "") -> Iterator[subprocess.Popen[str]]:
    """Somebody who does something."""
    environment = os.environ | ({"RADT_RUN_ID": run_id} if run_id else {})
    with subprocess.Popen(
        [sys.executable, "-c", "print(); input()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def never(_seconds: float) -> bool:
    return False


def silent(text: str) -> None:
    raise AssertionError(text)


def foreign_processes(gpus: Sequence[int | str]) -> list[Occupant]:
    return wait_until_free(gpus, BusyPolicy.IGNORE, lambda _: None, never)


@pytest.fixture
def python() -> str:
    return Path(sys.executable).name


def test_a_foreign_process_is_told_with_owner_command_and_memory(
    nvml_here: FakeNvml, python: str
) -> None:
    with process() as other:
        nvml_here.add(f"process 1 {other.pid} {3 * GB}")
        assert foreign_processes([0]) == []
        (found,) = foreign_processes([0, 1])
    assert found == Occupant(
        other.pid, "1", False, 3 * GB, ProcessIdentity(getpass.getuser(), python)
    )
    assert str(found) == f"{python} (pid {other.pid}, {getpass.getuser()}, 3.00 GB)"


def test_gpus_are_found_by_uuid_too(nvml_here: FakeNvml) -> None:
    with process() as other:
        nvml_here.add(f"process 1 {other.pid} n/a")
        (found,) = foreign_processes(["GPU-fake-0", "GPU-fake-1"])
    assert (found.device, found.memory_bytes) == ("GPU-fake-1", None)


def test_clients_of_somebodys_mps_count(nvml_here: FakeNvml) -> None:
    with process() as other:
        nvml_here.add(f"mps 0 {other.pid} 1000")
        assert [found.pid for found in foreign_processes([0])] == [other.pid]


def test_the_own_process_does_not_count(nvml_here: FakeNvml) -> None:
    with process("r2") as another_runners:
        for pid in (os.getpid(), another_runners.pid):
            nvml_here.add(f"process 0 {pid} 1000")
        (found,) = foreign_processes([0])
    assert (found.pid, found.who.run_id) == (another_runners.pid, "r2")
    assert "of run r2" in str(found)


def test_of_a_process_that_cannot_be_seen_nothing_is_made_up(nvml_here: FakeNvml) -> None:
    nvml_here.add(f"process 0 {NOBODY} {GB}")
    (found,) = foreign_processes([0])
    assert (found.who.user, found.who.command) == (None, None)
    ended = "ended, memory not yet freed"
    assert str(found) in (
        f"a process (pid {NOBODY}, {why}, 1.00 GB)"
        for why in (ended, "of another container or namespace")
    )


def test_only_the_instances_that_are_used_matter_under_mig(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0), "existing 0 9 0 3", "existing 0 9 4 3")
    with process() as other:
        nvml_here.add(f"process 0 {other.pid} 1000 1 0")
        assert [found.device for found in foreign_processes(["MIG-fake-0-1-0"])] == [
            "MIG-fake-0-1-0"
        ]
        assert foreign_processes(["MIG-fake-0-2-0"]) == []
        assert [found.pid for found in foreign_processes([0])] == [other.pid]


def test_unprivileged_users_see_the_processes_of_a_divided_gpu(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0), "existing 0 9 4 3", "unprivileged")
    with process() as other:
        nvml_here.add(f"process 0 {other.pid} 1000 1 0")
        assert [found.pid for found in foreign_processes([0])] == [other.pid]


def test_waiting_says_who_is_there_once_and_again_when_that_changes(
    nvml_here: FakeNvml, python: str
) -> None:
    user = getpass.getuser()
    with process() as first, process() as second:
        lines = [f"process 0 {first.pid} {GB}", f"process 0 {second.pid} {2 * GB}"]
        nvml_here.add(lines[0])
        said: list[str] = []
        looks = 0

        def wait(_seconds: float) -> bool:
            """Called at each look; time goes on."""
            nonlocal looks
            looks += 1
            if looks == 3:
                nvml_here.add(lines[1])
            elif looks == 6:
                nvml_here.remove(lines[0])
                nvml_here.remove(lines[1])
            return False

        left = wait_until_free([0, 1], BusyPolicy.WAIT, said.append, wait)
    waiting = ": waiting; --busy ignore starts anyway"
    one = f"{python} (pid {first.pid}, {user}, 1.00 GB)"
    two = f"{python} (pid {second.pid}, {user}, 2.00 GB)"
    assert said == [
        f"GPU 0 is used by {one}{waiting}",
        f"GPU 0 is used by {one} and {two}{waiting}",
        "GPU 0, GPU 1: free",
    ]
    assert (left, looks) == ([], 6)


def test_a_gpu_in_use_is_not_free_because_its_processes_cannot_be_listed_for_a_moment(
    nvml_here: FakeNvml,
) -> None:
    failure = "fail nvmlDeviceGetComputeRunningProcesses_v3 3"
    with process() as other:
        line = f"process 0 {other.pid} 1000"
        nvml_here.add(line)
        changes = iter(
            [
                lambda: nvml_here.add(failure),
                lambda: None,
                lambda: nvml_here.remove(failure),
                lambda: nvml_here.remove(line),
            ]
        )
        said: list[str] = []
        left = wait_until_free([0], BusyPolicy.WAIT, said.append, lambda _: bool(next(changes)()))
    assert left == []
    assert next(changes, None) is None
    assert [text.rpartition(": ")[2] for text in said] == [
        "waiting; --busy ignore starts anyway",
        "free",
    ]


def test_waiting_ends_when_cancelled(nvml_here: FakeNvml) -> None:
    with process() as other:
        nvml_here.add(f"process 0 {other.pid} 1000")
        said: list[str] = []
        left = wait_until_free([0], BusyPolicy.WAIT, said.append, lambda _: True)
        assert [found.pid for found in left] == [other.pid]
        assert len(said) == 1


def test_refusing_names_everybody(nvml_here: FakeNvml, python: str) -> None:
    with process() as other:
        nvml_here.add(f"process 0 {other.pid} 1000", f"process 1 {other.pid} 1000")
        with pytest.raises(DeviceError) as caught:
            wait_until_free([0, 1], BusyPolicy.FAIL, silent, never)
    who = f"{python} (pid {other.pid}, {getpass.getuser()}, 1.00 KB)"
    assert caught.value.message == f"GPU 0 is used by {who}; GPU 1 is used by {who}"
    assert "--busy wait" in str(caught.value.remedy)


def test_ignoring_says_who_is_there_and_goes_on(nvml_here: FakeNvml) -> None:
    with process() as other:
        nvml_here.add(f"process 0 {other.pid} 1000")
        said: list[str] = []
        left = wait_until_free([0], BusyPolicy.IGNORE, said.append, never)
        assert [found.pid for found in left] == [other.pid]
    (text,) = said
    assert f"pid {other.pid}" in text
    assert text.endswith("starting anyway")


def test_many_are_counted_not_listed(nvml_here: FakeNvml) -> None:
    nvml_here.add(*(f"process 0 {NOBODY + number} 1000" for number in range(6)))
    with pytest.raises(DeviceError, match=r"pid 4194307, .* and 3 more") as caught:
        wait_until_free([0], BusyPolicy.FAIL, silent, never)
    assert caught.value.message.count("pid") == 3


@pytest.mark.parametrize("policy", BusyPolicy)
def test_a_free_gpu_is_not_talked_about(nvml_here: FakeNvml, policy: BusyPolicy) -> None:
    assert wait_until_free([0, 1], policy, silent, never) == []
    assert wait_until_free([], policy, silent, never) == []


@pytest.mark.parametrize("policy", BusyPolicy)
def test_a_driver_that_lists_no_processes_is_told_and_not_waited_for(
    nvml_here: FakeNvml, policy: BusyPolicy
) -> None:
    nvml_here.add("fail nvmlDeviceGetComputeRunningProcesses_v3 3")
    said: list[str] = []
    assert wait_until_free([0], policy, said.append, never) == []
    (text,) = said
    assert text.startswith("cannot list the processes on GPU 0 (")


def test_a_gpu_that_is_not_there_is_an_error(nvml_here: FakeNvml) -> None:
    with pytest.raises(DeviceError, match="GPU 7 not found"):
        foreign_processes([7])


def test_a_driver_that_does_not_answer_is_an_error(nvml_here: FakeNvml) -> None:
    nvml_here.add("fail nvmlInitWithFlags 9")
    with pytest.raises(DeviceError, match="driver does not answer: Driver Not Loaded"):
        foreign_processes([0])
