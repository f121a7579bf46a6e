"""A run is verified when it is seen where its row says; elsewhere, its workload is mislabelled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from radt.collocation.verify import Expectation, Mismatch, Verifier
from radt.errors import DeviceError
from tests.support.fake_mps import FakeMps, running
from tests.support.nvml import FakeNvml, mig_gpu

GPU_0, GPU_1 = "GPU-fake-0", "GPU-fake-1"
#: The driver's numbers of processes in another namespace.
ELSEWHERE = 2**22 + 1


class Daemon:
    """An MPS daemon with these clients, if it answers."""

    def __init__(self, *clients: int, answers: bool = True) -> None:
        self.found = dict.fromkeys(clients, 1)
        self.answers = answers
        self.asked = 0

    def clients(self, within_s: float) -> dict[int, int]:
        self.asked += 1
        if not self.answers:
            raise DeviceError("the MPS daemon does not answer within 5 s")
        return self.found

    def log_tail(self) -> str:
        return "Server ready"


PLAIN = Expectation((GPU_0,), "GPU 0")
MPS = Expectation((GPU_0,), "GPU 0", Daemon())


@pytest.fixture
def pid() -> int:
    """A live process: the tests' own."""
    return os.getpid()


@contextmanager
def carrying(run_id: str) -> Iterator[int]:
    """A process outside the run's tree that has the run's id, as one in a container."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(); input()"],
        env=os.environ | {"RADT_RUN_ID": run_id},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def verifier(gpus: tuple[int, ...] = (0, 1), **expected: Expectation) -> Verifier:
    return Verifier(expected, gpus)


@pytest.mark.parametrize(("listed", "wish"), [("process", PLAIN), ("mps", MPS)])
def test_a_run_is_verified_once_it_is_seen_where_it_belongs(
    nvml_here: FakeNvml, pid: int, listed: str, wish: Expectation
) -> None:
    check = verifier(a=wish)
    assert check.check({"a": [pid]}) == []
    assert check.open_keys == {"a"}
    nvml_here.add(f"{listed} 0 {pid} 1000")
    assert check.check({"a": [pid]}) == []
    assert check.open_keys == set()
    assert check.ended("a") == ""
    assert check.tags("a") == {"radt.verified": "yes"}
    check.close()


@pytest.mark.parametrize(
    ("line", "wish", "reason"),
    [
        (
            "process 0 {pid} 1000",
            MPS,
            "asked for MPS, but runs without: pid {pid} is not a client of the daemon on GPU 0 "
            "(its log: Server ready)",
        ),
        (
            "mps 0 {pid} 1000",
            PLAIN,
            "did not ask for MPS, but runs with it: pid {pid} is a client of an MPS daemon "
            "on GPU 0",
        ),
        ("process 1 {pid} 1000", PLAIN, "belongs on GPU 0, but pid {pid} is on GPU-fake-1"),
        ("mps 1 {pid} 1000", MPS, "belongs on GPU 0, but pid {pid} is on GPU-fake-1"),
    ],
)
def test_a_run_on_the_wrong_side_is_a_mismatch_at_the_second_look(
    nvml_here: FakeNvml, pid: int, line: str, wish: Expectation, reason: str
) -> None:
    nvml_here.add(line.format(pid=pid))
    check = verifier(a=wish)
    assert check.check({"a": [pid]}) == []
    found = check.check({"a": [pid]})
    assert found == [Mismatch("a", reason.format(pid=pid))]
    assert check.check({"a": [pid]}) == []
    assert check.open_keys == set()
    assert check.tags("a") == {
        "radt.verified": "mismatch",
        "radt.verified.reason": reason.format(pid=pid),
    }
    check.close()


@pytest.mark.parametrize(
    "listed",
    [
        ["process 0 {pid} 1000"],
        ["process 0 {pid} 1000", "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 3"],
        ["process 0 {server} 1000"],
        [f"process 0 {ELSEWHERE} 1000"],
        ["fail nvmlDeviceGetComputeRunningProcesses_v3 3"],
    ],
    ids=["plain process", "no list of clients", "server alone", "other namespace", "no list"],
)
def test_a_client_in_the_daemons_own_list_is_verified(
    nvml_here: FakeNvml, mps: FakeMps, pid: int, listed: list[str]
) -> None:
    """Drivers differ in how they list clients."""
    with running([GPU_0]) as daemon:
        check = verifier(a=Expectation((GPU_0,), "GPU 0", daemon))
        server = mps.connect(daemon.client_environment(), pid)
        nvml_here.add(*(line.format(pid=pid, server=server) for line in listed))
        for _ in range(3):
            assert check.check({"a": [pid]}) == []
        assert check.tags("a") == {"radt.verified": "yes"}


def test_a_daemon_is_asked_once_for_all_its_clients(
    nvml_here: FakeNvml, mps: FakeMps, pid: int
) -> None:
    other = os.getppid()
    nvml_here.add(f"process 0 {pid} 1000", f"process 0 {other} 1000")
    with running([GPU_0]) as daemon:
        check = verifier(**{key: Expectation((GPU_0,), "GPU 0", daemon) for key in "ab"})
        for client in (pid, other):
            mps.connect(daemon.client_environment(), client)
        assert check.check({"a": [pid], "b": [other]}) == []
        assert check.open_keys == set()
        assert len(mps.calls("get_client_list")) == 1


@pytest.mark.parametrize(("answers", "verdict"), [(False, "no"), (True, "yes")])
def test_a_daemon_that_does_not_answer_is_no_evidence(
    nvml_here: FakeNvml, pid: int, *, answers: bool, verdict: str
) -> None:
    """Neither against a run that NVML lists as a plain process, which is asked about again."""
    daemon = Daemon(pid, answers=False)
    check = verifier(a=Expectation((GPU_0,), "GPU 0", daemon), b=PLAIN)
    nvml_here.add(f"process 0 {pid} 1000")
    for _ in range(2):
        assert check.check({"a": [pid]}) == []
        assert "a" in check.open_keys
    daemon.answers = answers
    for _ in range(4):
        assert check.check({"a": [pid]}) == []
    assert check.tags("a")["radt.verified"] == verdict
    assert answers or "does not answer" in check.tags("a")["radt.verified.reason"]
    assert answers or daemon.asked == 3, "the runner waits for an answer"


def test_a_list_that_lags_is_no_mismatch(nvml_here: FakeNvml, pid: int) -> None:
    """The driver may list a client as a plain process for a moment."""
    check = verifier(a=MPS)
    for _ in range(2):
        nvml_here.add(f"process 0 {pid} 1000")
        assert check.check({"a": [pid]}) == []
        nvml_here.remove(f"process 0 {pid} 1000")
        assert check.check({"a": [pid]}) == []
    nvml_here.add(f"mps 0 {pid} 1000")
    assert check.check({"a": [pid]}) == []
    assert check.tags("a") == {"radt.verified": "yes"}


def test_a_client_may_stand_in_both_lists(nvml_here: FakeNvml, pid: int) -> None:
    nvml_here.add(f"process 0 {pid} 1000", f"mps 0 {pid} 1000")
    check = verifier(a=MPS)
    check.check({"a": [pid]})
    assert check.open_keys == set()


def test_runs_are_told_apart(nvml_here: FakeNvml, pid: int) -> None:
    other = os.getppid()
    nvml_here.add(f"mps 0 {pid} 1000", f"process 0 {other} 1000")
    check = verifier(a=MPS, b=MPS, c=PLAIN, cpu=Expectation((), "cpu"))
    pids = {"a": [1, pid], "b": [other], "c": []}
    assert check.open_keys == {"a", "b", "c"}
    check.check(pids)
    assert [mismatch.key for mismatch in check.check(pids)] == ["b"]
    assert check.open_keys == {"c"}
    assert check.tags("cpu") == {}
    assert check.ended("cpu") == ""


def test_a_mig_run_belongs_on_its_own_device_and_nowhere_else(
    nvml_here: FakeNvml, pid: int
) -> None:
    nvml_here.configure(
        "count 1", mig_gpu(0), "existing 0 9 0 3", "existing 0 9 4 3", "unprivileged"
    )
    other = os.getppid()
    nvml_here.add(f"process 0 {pid} 1000 1 0", f"process 0 {other} 1000 1 0")
    check = verifier(
        (0,),
        a=Expectation(("MIG-fake-0-1-0",), "3g.20gb on GPU 0"),
        b=Expectation(("MIG-fake-0-2-0",), "3g.20gb on GPU 0"),
    )
    pids = {"a": [pid], "b": [other]}
    check.check(pids)
    (mismatch,) = check.check(pids)
    assert mismatch == Mismatch(
        "b", f"belongs on 3g.20gb on GPU 0, but pid {other} is on MIG-fake-0-1-0"
    )
    assert check.tags("a") == {"radt.verified": "yes"}


def test_one_of_several_gpus_is_enough(nvml_here: FakeNvml, pid: int) -> None:
    nvml_here.add(f"process 1 {pid} 1000")
    check = verifier(a=Expectation((GPU_0, GPU_1), "GPU 0+1"))
    check.check({"a": [pid]})
    assert check.tags("a") == {"radt.verified": "yes"}


def test_a_verified_run_that_strays_later_is_a_mismatch(nvml_here: FakeNvml, pid: int) -> None:
    nvml_here.add(f"process 0 {pid} 1000")
    check = verifier(a=PLAIN)
    check.check({"a": [pid]})
    nvml_here.add(f"process 1 {pid} 1000")
    check.check({"a": [pid]})
    assert [mismatch.key for mismatch in check.check({"a": [pid]})] == ["a"]


def test_a_process_in_a_container_is_known_by_its_run_id(nvml_here: FakeNvml) -> None:
    with carrying("run-of-a") as inside, carrying("run-of-another") as strangers:
        nvml_here.add(f"process 0 {inside} 1000", f"process 0 {strangers} 1000")
        check = verifier(
            a=Expectation((GPU_0,), "GPU 0", run_id="run-of-a"),
            b=Expectation((GPU_0,), "GPU 0", run_id="run-of-b"),
        )
        check.check({"a": [], "b": []})
        assert check.open_keys == {"b"}


def test_a_run_that_never_used_its_gpu_is_not_verified(nvml_here: FakeNvml, pid: int) -> None:
    check = verifier(a=PLAIN)
    check.check({"a": [pid]})
    assert check.ended("a") == "no process was seen on GPU 0"
    assert check.open_keys == set()
    assert check.tags("a") == {
        "radt.verified": "no",
        "radt.verified.reason": "no process was seen on GPU 0",
    }


def test_numbers_of_another_namespace_verify_nothing_and_accuse_nobody(
    nvml_here: FakeNvml, pid: int
) -> None:
    nvml_here.add(f"process 0 {ELSEWHERE} 1000")
    check = verifier(a=MPS)
    for _ in range(3):
        assert check.check({"a": [pid]}) == []
    assert "another namespace" in check.ended("a")
    assert check.tags("a")["radt.verified"] == "no"


def test_a_driver_that_does_not_tell_clients_apart_accuses_nobody(
    nvml_here: FakeNvml, pid: int
) -> None:
    other = os.getppid()
    nvml_here.add(
        "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 3",
        f"process 0 {pid} 1000",
        f"process 0 {other} 1000",
    )
    check = verifier(a=MPS, b=PLAIN)
    for _ in range(3):
        assert check.check({"a": [pid], "b": [other]}) == []
    assert check.ended("a") == "this driver does not list MPS clients"
    assert check.tags("b") == {"radt.verified": "yes"}


@pytest.mark.parametrize(
    "failure",
    [
        "fail nvmlDeviceGetComputeRunningProcesses_v3 3",
        "fail nvmlDeviceGetHandleByIndex_v2 15",
        "fail nvmlInitWithFlags 9",
    ],
)
def test_a_driver_that_fails_leaves_the_run_unverified(
    nvml_here: FakeNvml, pid: int, failure: str
) -> None:
    nvml_here.add(failure, f"process 0 {pid} 1000")
    check = verifier(a=PLAIN)
    for _ in range(3):
        assert check.check({"a": [pid]}) == []
    assert check.ended("a").startswith("the driver does not list processes: ")
    check.close()


def test_a_run_that_ended_before_the_first_look_is_not_verified(nvml_here: FakeNvml) -> None:
    check = verifier(a=PLAIN)
    assert check.tags("a")["radt.verified"] == "no"
    check.close()


def test_the_driver_is_opened_once(nvml_here: FakeNvml, pid: int) -> None:
    check = verifier(a=PLAIN)
    for _ in range(3):
        check.check({"a": [pid]})
    check.close()
    check.close()
    assert len(nvml_here.calls("nvmlInitWithFlags")) == 1
    assert len(nvml_here.calls("nvmlShutdown")) == 1
