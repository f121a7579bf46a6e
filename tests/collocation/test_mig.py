"""MIG instances are made where planned, noted before they exist, and only those are taken away."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from radt import procfs
from radt.collocation.instances import PlannedInstance
from radt.collocation.inventory import read_inventory
from radt.collocation.ledger import CreatedLedger, MigInstance
from radt.collocation.mig import create_instance, destroy_instance
from radt.collocation.planner import DeviceRequest, plan_devices
from radt.collocation.setup import clean_up
from radt.collocation.spec import Collocation
from radt.errors import DeviceError
from tests.support.bench import wait_until
from tests.support.nvml import (
    SINCE_450,
    SINCE_470,
    FakeNvml,
    build_library,
    load,
    mig_gpu,
    plain_gpu,
)

CREATE_GI = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_CI = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"

#: Somebody else's: two 1g.5gb, of which the first is busy.
OTHERS = "gi 0 1 19 0 1\ngi 0 2 19 1 1\nci 0 1 0 1 0\nci 0 2 0 1 0\n"

_RUNNER = """
import sys
from radt.collocation.inventory import read_inventory
from radt.collocation.ledger import CreatedLedger
from radt.collocation.mig import create_instance
from radt.collocation.planner import DeviceRequest, plan_devices
from radt.collocation.spec import Collocation
rows = [DeviceRequest(text, (0,), Collocation.parse(text)) for text in sys.argv[1:]]
for planned in plan_devices(rows, read_inventory()).instances:
    if planned.existing_id is None:
        create_instance(planned)
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def card(nvml_here: FakeNvml) -> FakeNvml:
    nvml_here.configure("count 1", mig_gpu(0), "process 0 4711 100 1 0")
    nvml_here.state.write_text(OTHERS)
    return nvml_here


def planned(*texts: str) -> tuple[PlannedInstance, ...]:
    rows = [
        DeviceRequest(f"r{number}", (0,), Collocation.parse(text))
        for number, text in enumerate(texts)
    ]
    return plan_devices(rows, read_inventory()).instances


def others_are_there(card: FakeNvml) -> None:
    assert card.gpu_instances()[:2] == [(0, 1, 19, 0, 1), (0, 2, 19, 1, 1)]
    assert card.compute_instances()[:2] == [(0, 1, 0, 1, 0), (0, 2, 0, 1, 0)]


def nothing_is_left(card: FakeNvml) -> None:
    others_are_there(card)
    assert len(card.gpu_instances()) == len(card.compute_instances()) == 2
    assert CreatedLedger().entries() == []


# Making --------------------------------------------------------------------------------------


def test_an_instance_is_made_where_planned_and_noted(card: FakeNvml) -> None:
    (plan,) = planned("3g.20gb")
    made = create_instance(plan, run_id="run", workload_id="workload")
    (device,) = made.computes.values()
    assert card.gpu_instances()[2:] == [(0, 3, 9, 4, 4)]
    assert card.compute_instances()[2:] == [(0, 3, 0, 3, 0)]
    assert (device.uuid, device.sm_count) == ("MIG-fake-0-3-0", 42)
    (entry,) = CreatedLedger().entries()
    assert (entry.run_id, entry.workload_id) == ("run", "workload")
    assert entry.thing == MigInstance("GPU-fake-0", "3g.20gb", 4, 4, (1, 2), 3)


def test_compute_instances_lie_where_planned(card: FakeNvml) -> None:
    card.state.unlink()
    (plan,) = planned("3c.7g.40gb", "1c.7g.40gb", "3c.7g.40gb")
    made = create_instance(plan)
    assert sorted((slices, start) for *_, slices, start in card.compute_instances()) == [
        (1, 3),
        (3, 0),
        (3, 4),
    ]
    by_name = {one.name: one for one in plan.computes}
    assert {made.computes[name].sm_count for name in by_name} == {14, 42}
    assert len({device.uuid for device in made.computes.values()}) == 3


@pytest.mark.parametrize("without", [SINCE_470, SINCE_450], ids=["470", "450"])
def test_an_old_driver_makes_and_removes_instances_and_chooses_the_places_in_them(
    card: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: tuple[str, ...]
) -> None:
    load(build_library(tmp_path, without), monkeypatch)
    card.state.unlink()
    card.configure("count 1", mig_gpu(0))
    (plan,) = planned("1c.7g.40gb", "3c.7g.40gb", "3c.7g.40gb")
    created = create_instance(plan)
    assert sorted(made.sm_count or 0 for made in created.computes.values()) == [14, 42, 42]
    (gpu,) = read_inventory().gpus
    assert gpu.mig is not None
    (instance,) = gpu.mig.instances
    assert sorted(compute.slices for compute in instance.computes) == [1, 3, 3]
    assert isinstance(created.entry.thing, MigInstance)
    destroy_instance(created.entry.thing)
    assert card.gpu_instances() == card.compute_instances() == []


@pytest.mark.parametrize("function", [CREATE_CI, "nvmlDeviceGetAttributes_v2"])
def test_what_cannot_be_finished_is_taken_back(card: FakeNvml, function: str) -> None:
    (plan,) = planned("3g.20gb")
    card.add(f"fail {function} 999")
    with pytest.raises(DeviceError, match=r"3g\.20gb at 4-7 of GPU 0"):
        create_instance(plan)
    nothing_is_left(card)


def test_room_that_somebody_took_meanwhile(card: FakeNvml) -> None:
    (plan,) = planned("3g.20gb")
    card.state.write_text(OTHERS + "gi 0 3 19 5 1\n")
    with pytest.raises(DeviceError, match="no room") as caught:
        create_instance(plan)
    assert "-lgi" in str(caught.value.remedy)
    assert CreatedLedger().entries() == []
    assert card.calls(CREATE_GI)


#: Capabilities of an unconfined process, and those that Docker leaves to root.
_ALL, _CONTAINER = "000001ffffffffff", "00000000a80425fb"


@pytest.mark.parametrize(
    ("effective", "bounding", "needed", "remedy"),
    [
        ("0", _ALL, "an administrator", "; or start radt as root"),
        ("0", _CONTAINER, "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"),
        (_CONTAINER, _CONTAINER, "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"),
        (_ALL, _ALL, "an administrator of the host", "Run on the host: sudo nvidia-smi"),
    ],
    ids=["user", "user of a container", "root of a container", "root"],
)
def test_without_privileges_nothing_is_made_and_it_is_named_what_is_needed(
    card: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    effective: str,
    bounding: str,
    needed: str,
    remedy: str,
) -> None:
    (plan,) = planned("3g.20gb")
    card.add("unprivileged")
    status = f"Name:\tpython\nCapEff:\t{effective}\nCapBnd:\t{bounding}\n".encode()
    monkeypatch.setattr(procfs, "read", lambda _: status)
    with pytest.raises(DeviceError, match=f"changing MIG instances needs {needed}") as caught:
        create_instance(plan)
    assert remedy in str(caught.value.remedy)
    assert "sudo nvidia-smi mig -i 0 -cgi 3g.20gb:4 -C" in str(caught.value.remedy)
    assert not card.calls(CREATE_GI)
    assert CreatedLedger().entries() == []


@pytest.mark.parametrize("function", [CREATE_GI, CREATE_CI])
def test_a_gpu_that_another_client_holds_is_waited_for(card: FakeNvml, function: str) -> None:
    """DCGM's profiling holds a GPU for a moment, again and again."""
    (plan,) = planned("3g.20gb")
    card.add(f"fail {function} 19")

    def end() -> None:
        wait_until(lambda: len(card.calls(function)) >= 2, "a second try")
        card.remove(f"fail {function} 19")

    helper = threading.Thread(target=end)
    helper.start()
    create_instance(plan, timeout_s=180)
    helper.join()
    assert len(card.gpu_instances()) == len(card.compute_instances()) == 3


@pytest.mark.parametrize("function", [CREATE_GI, CREATE_CI])
def test_who_holds_a_gpu_is_named(
    card: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("radt.collocation.mig._DEVICE_FILE", f"{tmp_path}/nvidia{{minor}}")
    (plan,) = planned("3g.20gb")
    card.add(f"fail {function} 19")
    engine = ["nv-hostengine", "-c", "print(flush=True); input()"]
    with (
        (tmp_path / "nvidia0").open() as file,
        subprocess.Popen(
            engine,
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[file.fileno()],
        ) as holder,
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DeviceError, match="cannot be created while another") as caught:
            create_instance(plan, timeout_s=0)
        holder.kill()
    assert caught.value.message.endswith(f"the GPU: nv-hostengine (pid {holder.pid})")
    assert "dcgmi profile --pause" in str(caught.value.remedy)
    nothing_is_left(card)


def test_what_cannot_be_noted_is_not_made(card: FakeNvml) -> None:
    (plan,) = planned("3g.20gb")
    CreatedLedger().folder.write_text("in the way")
    with pytest.raises(DeviceError, match="cannot be written"):
        create_instance(plan)
    assert not card.calls(CREATE_GI)


# Taking away ---------------------------------------------------------------------------------


def made(card: FakeNvml) -> MigInstance:
    (plan,) = planned("3g.20gb")
    thing = create_instance(plan).entry.thing
    assert isinstance(thing, MigInstance)
    assert len(card.gpu_instances()) == 3
    return thing


@pytest.mark.parametrize("beside", [(), ("count 2", plain_gpu(1), "lost 1")])
def test_exactly_what_was_made_is_taken_away(card: FakeNvml, beside: tuple[str, ...]) -> None:
    card.add(*beside)
    thing = made(card)
    destroy_instance(thing)
    others_are_there(card)
    assert len(card.gpu_instances()) == 2
    assert [call[1:] for call in card.calls("nvmlGpuInstanceDestroy")] == [["0", "3"]]
    destroy_instance(thing)  # harmless
    assert len(card.calls("nvmlGpuInstanceDestroy")) == 1


@pytest.mark.parametrize("other", ["gi 0 3 19 4 1", "gi 0 3 5 0 4", "gi 0 4 9 4 4"])
def test_somebody_elses_that_came_after_it_is_left_alone(card: FakeNvml, other: str) -> None:
    """Ids and places are given out again."""
    thing = made(card)
    card.state.write_text(f"{other}\n")
    destroy_instance(thing)
    assert card.state.read_text() == f"{other}\n"


def test_what_was_there_before_the_intent_is_not_taken_for_ours(card: FakeNvml) -> None:
    """A runner that was killed before it made anything has noted no id."""
    destroy_instance(MigInstance("GPU-fake-0", "1g.5gb", 1, 1, existing=(1, 2)))
    others_are_there(card)


def test_a_process_that_lingers_is_waited_for(card: FakeNvml) -> None:
    thing = made(card)
    card.add("process 0 99 10 3 0")

    def end() -> None:
        wait_until(lambda: len(card.calls("nvmlComputeInstanceDestroy")) >= 2, "a second try")
        card.remove("process 0 99 10 3 0")

    helper = threading.Thread(target=end)
    helper.start()
    destroy_instance(thing, timeout_s=180)
    helper.join()
    assert len(card.gpu_instances()) == 2


def test_an_instance_in_use_is_left_with_what_to_do(card: FakeNvml) -> None:
    thing = made(card)
    card.add("process 0 99 10 3 0")
    with pytest.raises(DeviceError, match="a process still uses") as caught:
        destroy_instance(thing, timeout_s=0)
    assert "sudo nvidia-smi mig -i 0 -gi 3 -dci" in str(caught.value.remedy)
    assert len(card.gpu_instances()) == 3


def test_without_privileges_the_command_is_told(card: FakeNvml) -> None:
    thing = made(card)
    card.add("unprivileged")
    with pytest.raises(DeviceError, match="changing MIG instances needs") as caught:
        destroy_instance(thing)
    assert "-gi 3 -dgi" in str(caught.value.remedy)


def test_a_gpu_that_is_gone_or_whole_again_took_its_instances_along(card: FakeNvml) -> None:
    thing = made(card)
    card.configure("count 1", mig_gpu(0, mode=0))
    destroy_instance(thing)
    card.configure("count 0")
    destroy_instance(thing)
    assert not card.calls("nvmlGpuInstanceDestroy")


# A runner that is killed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("death", "left"),
    [
        (f"crash {CREATE_GI}", (2, 2)),
        (f"crash_after {CREATE_GI}", (3, 2)),
        (f"crash {CREATE_CI}", (3, 2)),
        (f"crash_after {CREATE_CI}", (3, 3)),
    ],
)
def test_what_a_killed_runner_left_is_taken_away(
    card: FakeNvml, death: str, left: tuple[int, int]
) -> None:
    card.add(death)
    runner = subprocess.run(
        [sys.executable, "-c", _RUNNER, "3g.20gb"], stdin=subprocess.DEVNULL, check=False
    )
    assert runner.returncode < 0
    assert (len(card.gpu_instances()), len(card.compute_instances())) == left
    card.remove(death)
    (entry,) = CreatedLedger().entries()
    assert entry.orphaned
    said: list[str] = []
    assert clean_up(CreatedLedger(), say=said.append) == []
    assert len(said) == 1 and "3g.20gb" in said[0]
    nothing_is_left(card)


def test_a_runner_killed_with_all_made_leaves_what_is_taken_away(card: FakeNvml) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER, "3g.20gb", "1g.5gb", "1g.10gb"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "made\n"
        assert len(card.gpu_instances()) == 4, "one of others' is idle, and used"
        assert clean_up(CreatedLedger(), say=lambda _: None) == []
        assert len(card.gpu_instances()) == 4, "its owner lives"
        runner.kill()
    assert clean_up(CreatedLedger(), say=lambda _: None) == []
    nothing_is_left(card)


def test_an_orphan_that_somebody_uses_stays_in_the_ledger(
    card: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.add(f"crash_after {CREATE_CI}")
    subprocess.run(
        [sys.executable, "-c", _RUNNER, "3g.20gb"], stdin=subprocess.DEVNULL, check=False
    )
    card.remove(f"crash_after {CREATE_CI}")
    card.add("process 0 99 10 3 0")
    monkeypatch.setattr(
        "radt.collocation.setup.destroy_instance", partial(destroy_instance, timeout_s=0)
    )
    (problem,) = clean_up(CreatedLedger(), say=lambda _: None)
    assert "a process still uses" in problem
    assert len(CreatedLedger().entries()) == 1
    assert len(card.gpu_instances()) == 3
