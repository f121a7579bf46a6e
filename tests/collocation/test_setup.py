"""A workload's devices from set-up to clean-up, with a driver and an MPS that hold state."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from radt.collocation.ledger import CreatedLedger
from radt.collocation.mig import destroy_instance
from radt.collocation.planner import DeviceRequest, plan_devices, plan_here, warnings
from radt.collocation.setup import DeviceSetup
from radt.collocation.spec import Collocation
from radt.collocation.topology import Inventory
from radt.devices.gpus import Gpus
from radt.errors import DeviceError
from tests.support.fake_mps import FakeMps
from tests.support.nvml import FakeNvml, mig_gpu, plain_gpu

Row = tuple[str, tuple[int, ...], str]
CREATE_GI = "nvmlDeviceCreateGpuInstanceWithPlacement"


def never() -> bool:
    return False


def prepare(*rows: Row) -> DeviceSetup:
    requests = [DeviceRequest(key, gpus, Collocation.parse(text)) for key, gpus, text in rows]
    plan = plan_here(requests, Gpus.read())
    run_ids = {key: f"run-{key}" for key, _, _ in rows}
    return DeviceSetup(plan, run_ids=run_ids, workload_id="workload", verify_interval_s=0.0)


def set_up(*rows: Row) -> DeviceSetup:
    devices = prepare(*rows)
    devices.set_up(lambda _: None, never)
    return devices


def nothing_is_left(nvml: FakeNvml, mps: FakeMps) -> None:
    assert nvml.gpu_instances() == nvml.compute_instances() == []
    assert mps.daemons == []
    assert CreatedLedger().entries() == []


@pytest.fixture
def machine(nvml_here: FakeNvml) -> FakeNvml:
    """Two plain GPUs and a divided one."""
    nvml_here.configure("count 3", plain_gpu(0), plain_gpu(1), mig_gpu(2))
    return nvml_here


@pytest.fixture
def client() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


# What runs get -------------------------------------------------------------------------------


def test_naive_runs_get_their_gpus_by_uuid_and_no_daemon(machine: FakeNvml, mps: FakeMps) -> None:
    devices = set_up(("a", (1, 0), "-"), ("b", (), "-"))
    a = devices.environment("a")
    assert a["CUDA_VISIBLE_DEVICES"] == "GPU-fake-1,GPU-fake-0"
    assert a["CUDA_MPS_PIPE_DIRECTORY"].endswith("/mps/none"), "not at the usual place"
    assert devices.environment("b") == {"CUDA_VISIBLE_DEVICES": ""}
    assert devices.tags("a") == {
        "radt.gpu0.memory_free_bytes": "78500",
        "radt.gpu1.memory_free_bytes": "78500",
    }
    assert (devices.tags("b"), devices.devices("a"), devices.devices("b")) == ({}, ("1", "0"), ())
    assert devices.tear_down() == []
    assert mps.calls() == []


def test_naive_runs_cost_next_to_nothing(machine: FakeNvml) -> None:
    devices = prepare(("a", (0,), "-"), ("b", (0,), "-"))
    before = len(machine.calls())
    devices.set_up(lambda _: None, never)
    devices.environment("a"), devices.tags("b")
    assert devices.verify({"a": [1], "b": [2]}) == []
    devices.about_to_kill([1])
    devices.tear_down()
    asked = [call[0] for call in machine.calls()[before:]]
    assert set(asked) == {
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlShutdown",
    }
    assert asked.count("nvmlDeviceGetMemoryInfo_v2") == 1
    assert CreatedLedger().entries() == []


def test_runs_on_the_cpu_leave_the_driver_alone(machine: FakeNvml) -> None:
    rows = [DeviceRequest("a", (), Collocation())]
    devices = DeviceSetup(plan_devices(rows, Inventory.of(())), run_ids={})
    devices.set_up(lambda _: None, never)
    assert devices.environment("a") == {"CUDA_VISIBLE_DEVICES": ""}
    assert devices.verify({"a": [1]}) == []
    assert devices.tear_down() == []
    assert machine.calls() == []


def test_mig_runs_get_their_device(machine: FakeNvml, mps: FakeMps) -> None:
    devices = set_up(("a", (2,), "3g.20gb"), ("b", (2,), "1c.3g.20gb"), ("c", (0,), "-"))
    assert machine.gpu_instances() == [(2, 1, 9, 0, 4), (2, 2, 9, 4, 4)]
    assert devices.environment("a")["CUDA_VISIBLE_DEVICES"] == "MIG-fake-2-1-0"
    assert devices.environment("b")["CUDA_VISIBLE_DEVICES"] == "MIG-fake-2-2-0"
    tags = devices.tags("b")
    assert tags.pop("radt.mig.memory_free_bytes") == tags.pop("radt.gpu2.memory_free_bytes")
    assert tags == {
        "radt.mig.profile": "1c.3g.20gb",
        "radt.mig.uuid": "MIG-fake-2-2-0",
        "radt.mig.placement": "4:4",
        "radt.mig.sm_count": "14",
        "radt.mig.created": "true",
    }
    assert "radt.mig.uuid" not in devices.tags("c")
    assert {entry.run_id for entry in CreatedLedger().entries()} == {"run-a", "run-b"}
    assert {entry.workload_id for entry in CreatedLedger().entries()} == {"workload"}
    assert devices.tear_down() == []
    nothing_is_left(machine, mps)


def test_what_was_there_already_stays(machine: FakeNvml) -> None:
    machine.state.write_text("gi 2 5 9 4 4\nci 2 5 0 3 0\n")
    devices = set_up(("a", (2,), "3g.20gb"))
    assert devices.environment("a")["CUDA_VISIBLE_DEVICES"] == "MIG-fake-2-5-0"
    assert devices.tags("a")["radt.mig.created"] == "false"
    assert CreatedLedger().entries() == []
    assert devices.tear_down() == []
    assert machine.gpu_instances() == [(2, 5, 9, 4, 4)]
    assert not machine.calls("nvmlGpuInstanceDestroy")


def test_mps_runs_are_clients_of_their_gpus_daemon(machine: FakeNvml, mps: FakeMps) -> None:
    devices = set_up(("a", (0,), "MPS:40"), ("b", (0,), "MPS"), ("c", (1,), "MPS"))
    assert [call["env"]["CUDA_VISIBLE_DEVICES"] for call in mps.calls("daemon")] == [
        "GPU-fake-0",
        "GPU-fake-1",
    ]
    a, b, c = map(devices.environment, "abc")
    assert a["CUDA_MPS_PIPE_DIRECTORY"] == b["CUDA_MPS_PIPE_DIRECTORY"]
    assert a["CUDA_MPS_PIPE_DIRECTORY"] != c["CUDA_MPS_PIPE_DIRECTORY"]
    assert a["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in b
    assert a["CUDA_VISIBLE_DEVICES"] == "GPU-fake-0"
    tags = devices.tags("a")
    assert tags["radt.mps.clients"] == "2"
    assert tags["radt.mps.thread_percentage"] == "40"
    assert tags["radt.mps.daemon_pid"] == str(mps.daemons[0])
    assert devices.tear_down() == []
    nothing_is_left(machine, mps)


def test_a_cap_of_the_users_shell_does_not_reach_a_row_without_one(
    machine: FakeNvml, mps: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    devices = set_up(("a", (0,), "MPS"))
    assert devices.environment("a")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    devices.tear_down()


def test_mps_inside_a_mig_device(machine: FakeNvml, mps: FakeMps) -> None:
    devices = set_up(("a", (2,), "3g.20gb+MPS"), ("b", (2,), "3g.20gb+MPS:50"))
    (daemon,) = mps.calls("daemon")
    assert daemon["env"]["CUDA_VISIBLE_DEVICES"] == "MIG-fake-2-1-0"
    for key in "ab":
        environment = devices.environment(key)
        assert environment["CUDA_VISIBLE_DEVICES"] == "MIG-fake-2-1-0"
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == daemon["env"]["CUDA_MPS_PIPE_DIRECTORY"]
    assert devices.tear_down() == []
    nothing_is_left(machine, mps)


# What goes wrong -----------------------------------------------------------------------------


def test_what_was_made_before_a_failure_is_taken_down(machine: FakeNvml, mps: FakeMps) -> None:
    mps.be("fail -d")
    devices = prepare(("a", (2,), "3g.20gb"), ("b", (2,), "2g.10gb"), ("c", (0,), "MPS"))
    with pytest.raises(DeviceError):
        devices.set_up(lambda _: None, never)
    assert len(machine.calls(CREATE_GI)) == 2, "instances come first"
    nothing_is_left(machine, mps)


def test_a_refused_instance_takes_the_others_along(machine: FakeNvml, mps: FakeMps) -> None:
    devices = prepare(("a", (2,), "3g.20gb"), ("b", (2,), "1g.5gb"))
    machine.state.write_text("gi 2 5 19 4 1\n")  # somebody else's, meanwhile
    with pytest.raises(DeviceError, match="no room"):
        devices.set_up(lambda _: None, never)
    assert len(machine.calls(CREATE_GI)) == 2
    assert machine.gpu_instances() == [(2, 5, 19, 4, 1)]
    assert CreatedLedger().entries() == []


@pytest.mark.parametrize("steps", range(3))
def test_a_cancelled_set_up_leaves_nothing(machine: FakeNvml, mps: FakeMps, steps: int) -> None:
    devices = prepare(("a", (2,), "3g.20gb"), ("b", (2,), "3g.20gb"), ("c", (0,), "MPS"))
    said: list[str] = []
    asked = iter([False] * steps + [True] * 9)
    devices.set_up(said.append, lambda: next(asked))
    assert len(said) == steps
    nothing_is_left(machine, mps)


def test_what_is_made_is_said(machine: FakeNvml, mps: FakeMps) -> None:
    devices = prepare(("a", (2,), "3g.20gb+MPS"), ("b", (0,), "MPS"))
    said: list[str] = []
    devices.set_up(said.append, never)
    assert said == [
        "GPU 2: creating 3g.20gb at 0-3",
        "GPU 0: starting an MPS daemon",
        "GPU 2, 3g.20gb: starting an MPS daemon",
    ]
    devices.tear_down()


@pytest.mark.parametrize(
    ("mode", "devices", "told"),
    [
        (3, "GPU-fake-0", True),
        (3, "0", True),
        (3, "", True),
        (3, "GPU-fake-1", False),
        (0, "GPU-fake-0", False),
    ],
)
def test_a_systems_mps_daemon_on_an_exclusive_gpu_is_a_warning(
    machine: FakeNvml, mps: FakeMps, tmp_path: Path, mode: int, devices: str, *, told: bool
) -> None:
    machine.add(f"compute_mode 0 {mode}")
    pid = mps.start_daemon(tmp_path / "p", tmp_path / "l", devices)
    found = [text for text in warnings({0}, Gpus.read().every) if f"(pid {pid})" in text]
    assert len(found) == told
    if told:
        assert found[0].startswith("GPU 0 is in compute mode exclusive process, and the MPS daemon")
    assert [*warnings({1}, Gpus.read().every)] == []


# Taking down ---------------------------------------------------------------------------------


def test_what_is_still_used_is_reported_and_tried_again(
    machine: FakeNvml, mps: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = set_up(("a", (2,), "3g.20gb"), ("b", (2,), "2g.10gb"))
    number = next(gi for _, gi, profile, *_ in machine.gpu_instances() if profile == 9)
    line = f"process 2 99 10 {number} 0"
    machine.add(line)
    monkeypatch.setattr(
        "radt.collocation.setup.destroy_instance", partial(destroy_instance, timeout_s=0)
    )
    (problem,) = devices.tear_down()
    assert "3g.20gb" in problem and "a process still uses" in problem
    assert [profile for _, _, profile, *_ in machine.gpu_instances()] == [9], "the other is gone"
    assert len(CreatedLedger().entries()) == 1
    machine.remove(line)
    assert devices.tear_down() == []
    nothing_is_left(machine, mps)


def test_taking_down_never_raises(
    machine: FakeNvml, mps: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = set_up(("a", (2,), "3g.20gb"))
    with monkeypatch.context() as broken:
        broken.setattr("radt.collocation.setup.destroy_instance", lambda _: [][0])
        (problem,) = devices.tear_down()
    assert "IndexError" in problem
    assert devices.tear_down() == []
    nothing_is_left(machine, mps)


def test_taking_down_from_several_threads_at_once(machine: FakeNvml, mps: FakeMps) -> None:
    devices = set_up(("a", (2,), "3g.20gb"), ("b", (2,), "3g.20gb"), ("c", (0,), "MPS"))
    barrier = threading.Barrier(4)
    problems: list[str] = []

    def take_down() -> None:
        barrier.wait()
        problems.extend(devices.tear_down())

    threads = [threading.Thread(target=take_down) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(machine.calls("nvmlGpuInstanceDestroy")) == 2
    nothing_is_left(machine, mps)


def test_what_is_recorded_can_still_be_asked_for_after_the_end(
    machine: FakeNvml, mps: FakeMps
) -> None:
    devices = set_up(("a", (2,), "3g.20gb+MPS"))
    devices.tear_down()
    assert devices.tags("a")["radt.mig.uuid"] == "MIG-fake-2-1-0"
    assert devices.tags("a")["radt.mps.clients"] == "1"
    before = len(mps.calls())
    assert devices.about_to_kill([1]) == []
    assert devices.tear_down() == []
    assert len(mps.calls()) == before, "a daemon that is gone is not asked"


def test_taking_down_before_set_up_is_harmless(machine: FakeNvml) -> None:
    assert prepare(("a", (2,), "3g.20gb")).tear_down() == []


# While runs run ------------------------------------------------------------------------------


def test_an_mps_client_is_taken_off_before_it_is_killed(
    machine: FakeNvml, mps: FakeMps, client: subprocess.Popen[bytes]
) -> None:
    devices = set_up(("a", (0,), "MPS"), ("b", (1,), "MPS"))
    server = mps.connect(devices.environment("a"), client.pid)
    assert devices.about_to_kill([client.pid, 1]) == []
    (call,) = mps.calls("terminate_client")
    assert call["command"].split()[1:] == [str(server), str(client.pid)]
    devices.tear_down()


def test_a_daemon_that_does_not_answer_is_no_reason_not_to_kill(
    machine: FakeNvml, mps: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = set_up(("a", (0,), "MPS"))
    mps.stop()
    (problem,) = devices.about_to_kill([1])
    assert "undefined" in problem
    devices.tear_down()


def test_a_run_that_is_no_client_is_found(
    machine: FakeNvml, mps: FakeMps, client: subprocess.Popen[bytes]
) -> None:
    devices = set_up(("a", (0,), "MPS"), ("b", (1,), "-"))
    assert devices.verify({"a": [client.pid]}) == []
    machine.add(f"process 0 {client.pid} 5")
    found = [devices.verify({"a": [client.pid]}) for _ in range(3)]
    (mismatch,) = [one for look in found for one in look]
    assert mismatch.key == "a"
    assert "MPS" in mismatch.reason
    assert devices.final_tags("a")["radt.verified"] == "mismatch"
    assert devices.verified("b") != "", "it was never seen"
    devices.tear_down()


def test_once_all_are_verified_the_driver_is_left_alone(
    machine: FakeNvml, mps: FakeMps, client: subprocess.Popen[bytes]
) -> None:
    devices = set_up(("a", (2,), "3g.20gb"))
    machine.add(f"process 2 {client.pid} 5 1 0")
    assert devices.verify({"a": [client.pid]}) == []
    assert devices.verified("a") == ""
    assert devices.final_tags("a") == {"radt.verified": "yes"}
    devices.verify({"a": [client.pid]})
    before = len(machine.calls())
    devices.verify({"a": [client.pid]})
    assert len(machine.calls()) == before
    assert len(machine.calls("nvmlInitWithFlags")) == len(machine.calls("nvmlShutdown"))
    machine.remove(f"process 2 {client.pid} 5 1 0")
    assert devices.tear_down() == []


def test_a_driver_that_fails_between_two_workloads_is_named(machine: FakeNvml) -> None:
    machine.add("fail nvmlInitWithFlags 18")
    with pytest.raises(DeviceError, match="the NVIDIA driver does not answer") as caught:
        plan_here([DeviceRequest("a", (0,), Collocation())], Gpus.read())
    assert "nvidia-smi" in str(caught.value.remedy)


def test_the_driver_is_asked_once_an_interval(machine: FakeNvml, mps: FakeMps) -> None:
    requests = [DeviceRequest("a", (0,), Collocation.parse("MPS"))]
    plan = plan_here(requests, Gpus.read())
    devices = DeviceSetup(plan, run_ids={}, verify_interval_s=3600.0)
    devices.set_up(lambda _: None, never)
    devices.verify({})
    before = len(machine.calls())
    devices.verify({})
    assert len(machine.calls()) == before
    devices.tear_down()


def test_the_driver_is_let_go_in_the_end(machine: FakeNvml, mps: FakeMps) -> None:
    devices = set_up(("a", (2,), "3g.20gb+MPS"))
    devices.verify({"a": [1]})
    devices.tear_down()
    assert len(machine.calls("nvmlInitWithFlags")) == len(machine.calls("nvmlShutdown"))
