"""What is read from the driver, with privileges and without, from new drivers and old ones."""

from __future__ import annotations

import pytest

from radt.collocation.inventory import read_inventory
from radt.collocation.ledger import CreatedLedger, MigInstance
from radt.collocation.packing import PlacementError
from radt.collocation.planner import DeviceRequest, plan_devices
from radt.collocation.spec import Collocation
from radt.collocation.topology import MigState
from radt.devices.gpus import Gpus
from radt.errors import DeviceError
from tests.support.cards import profiles_of
from tests.support.nvml import PROFILES, FakeNvml, mig_gpu, plain_gpu


def mig_of(index: int = 0) -> MigState:
    gpu = read_inventory().gpu(index)
    assert gpu is not None and gpu.mig is not None
    return gpu.mig


def test_gpus_with_and_without_mig(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 2", plain_gpu(0, "Fake GPU", 80_000), mig_gpu(1))
    inventory = read_inventory()
    plain, divided = inventory.gpus
    assert (plain.index, plain.uuid, plain.name) == (0, "GPU-fake-0", "Fake GPU")
    assert (plain.memory_bytes, plain.free_bytes, plain.mig) == (80_000, 78_500, None)
    assert divided.name == "NVIDIA A100-SXM4-40GB"
    assert inventory.driver == "570.00"
    assert inventory.is_complete


@pytest.mark.parametrize("card", sorted(PROFILES))
def test_profiles_and_places_are_the_drivers(nvml_here: FakeNvml, card: str) -> None:
    nvml_here.configure("count 1", mig_gpu(0, card))
    mig = mig_of()
    by_id = {one.profile_id: one for one in mig.profiles}
    assert mig.may_create
    for wanted in profiles_of(card):
        found = by_id.pop(wanted.profile_id)
        assert found.remaining == wanted.max_count, "the GPU is empty"
        assert (found.name, found.slices, found.memory_mb, found.max_count, found.sm_count) == (
            wanted.name,
            wanted.slices,
            wanted.memory_mb,
            wanted.max_count,
            wanted.sm_count,
        )
        assert (found.placements, found.ofas) == (wanted.placements, wanted.ofas)
    assert not by_id


@pytest.mark.parametrize("card", sorted(PROFILES))
def test_published_places_are_those_of_the_driver(nvml_here: FakeNvml, card: str) -> None:
    nvml_here.configure("count 1", mig_gpu(0, card), "unprivileged")
    mig = mig_of()
    assert not mig.may_create
    assert {one.name: one.placements for one in mig.profiles} == {
        one.name: one.placements for one in profiles_of(card)
    }
    assert all(one.remaining is None for one in mig.profiles)


@pytest.mark.parametrize(
    ("card", "privileges"),
    [
        ("A100-40", ""),
        ("A30", ""),
        ("H200", ""),
        ("A100-40", "unprivileged"),
        ("A30", "unprivileged"),
    ],
)
def test_an_old_driver_does_not_tell_names(nvml_here: FakeNvml, card: str, privileges: str) -> None:
    nvml_here.configure(
        "count 1", mig_gpu(0, card), "fail nvmlDeviceGetGpuInstanceProfileInfoV 13", privileges
    )
    assert {one.profile_id: one.name for one in mig_of().profiles} == {
        one.profile_id: one.name for one in profiles_of(card)
    }


def test_instances_with_their_processes(nvml_here: FakeNvml) -> None:
    nvml_here.configure(
        "count 1",
        mig_gpu(0),
        "existing 0 9 4 2 1",
        "existing 0 19 0",
        "process 0 71 5 1 0",
        "mps 0 72 5 1 0",
    )
    divided, bare = mig_of().instances
    assert (divided.profile, str(divided.placement)) == ("3g.20gb", "4-7")
    large, small = divided.computes
    assert (large.slices, large.uuid, large.sm_count) == (2, "MIG-fake-0-1-0", 28)
    assert (large.pids, small.pids) == ((71, 72), ())
    assert divided.is_busy
    assert (bare.profile, bare.computes, bare.is_busy) == ("1g.5gb", (), False)


def test_without_privileges_instances_are_known_by_their_devices(nvml_here: FakeNvml) -> None:
    nvml_here.configure(
        "count 1",
        mig_gpu(0),
        "existing 0 9 4 2 1",
        "existing 0 20 0 1",
        "existing 0 19 1",
        "process 0 71 5 1 1",
        f"mig_memory 1 {2**20}",
        "unprivileged",
    )
    gpu = read_inventory().gpu(0)
    assert gpu is not None and gpu.mig is not None
    assert gpu.memory_bytes is None, "only an administrator may read it"
    first, second = gpu.mig.instances
    assert (first.profile, first.placement) == ("3g.20gb", None)
    assert [one.slices for one in first.computes] == [2, 1]
    assert {one.memory_bytes for one in first.computes} == {19_968 * 2**20}, "its own"
    assert {one.free_bytes for one in first.computes} == {19_967 * 2**20}
    assert first.is_busy
    assert second.profile == "1g.5gb+me"


@pytest.mark.parametrize("privileges", ["", "unprivileged"])
def test_instances_can_be_used_where_profiles_may_not_be_read(
    nvml_here: FakeNvml, privileges: str
) -> None:
    nvml_here.configure(
        *("count 1", mig_gpu(0), "existing 0 9 4 3", "existing 0 19 1 1", privileges),
        "fail nvmlDeviceGetGpuInstanceProfileInfoV 4",
    )
    rows = [DeviceRequest("a", (0,), Collocation.parse("3g.20gb"))]
    plan = plan_devices(rows, read_inventory())
    assert plan.instances[0].computes[0].uuid == "MIG-fake-0-1-0"
    rows += [DeviceRequest("b", (0,), Collocation.parse("3g.20gb"))]
    with pytest.raises(PlacementError, match="no idle MIG instance for b"):
        plan_devices(rows, read_inventory())


def test_a_gpu_with_mig_off_says_what_it_could_do(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0, mode=0, pending=1))
    mig = mig_of()
    assert (mig.enabled, mig.pending, mig.instances) == (False, True, ())
    assert len(mig.profiles) == 7


def test_what_radt_has_made_is_claimed(nvml_here: FakeNvml) -> None:
    nvml_here.configure(
        "count 1", mig_gpu(0), "existing 0 19 0 1", "existing 0 19 1 1", "existing 0 19 2 1"
    )
    ledger = CreatedLedger()
    ledger.intend(MigInstance("GPU-fake-0", "1g.5gb", 0, 1)).confirm(gpu_instance=1)
    ledger.intend(MigInstance("GPU-fake-0", "1g.5gb", 1, 1, existing=(1,)))
    ledger.intend(MigInstance("GPU-fake-7", "1g.5gb", 2, 1)).confirm(gpu_instance=3)
    (gpu,) = read_inventory().gpus
    assert gpu.mig is not None
    assert [one.claimed for one in gpu.mig.instances] == [True, True, False]


def test_a_machine_without_driver_has_no_gpus(nvml_here: FakeNvml) -> None:
    nvml_here.configure("fail nvmlInitWithFlags 9")
    inventory = read_inventory()
    assert (inventory.gpus, inventory.reason) == ((), "the NVIDIA driver is not loaded")


def test_a_driver_that_fails_is_an_error(nvml_here: FakeNvml) -> None:
    nvml_here.configure("fail nvmlDeviceGetCount_v2 999")
    with pytest.raises(DeviceError, match="does not answer"):
        read_inventory()


def test_a_gpu_that_is_lost_leaves_the_list_usable(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", plain_gpu(0), "fail nvmlDeviceGetUUID 15")
    (gpu,) = read_inventory().gpus
    assert gpu.problem == "GPU is lost"


def test_the_driver_is_let_go(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0))
    read_inventory()
    assert len(nvml_here.calls("nvmlInitWithFlags")) == len(nvml_here.calls("nvmlShutdown")) == 1


def test_the_plain_list_knows_the_mode_also_without_privileges(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 2", plain_gpu(0), mig_gpu(1), "unprivileged")
    plain, divided = Gpus.read().working
    assert (plain.mig_enabled, divided.mig_enabled) == (False, True)
    assert (plain.memory_bytes, divided.memory_bytes) == (80_000, None)


@pytest.mark.parametrize(
    ("lines", "most"),
    [
        (["capability 0 6"], 16),
        (["capability 0 7", "cuda 0 13000"], 48),
        (["cuda 0 13010"], 60),
        (["fail nvmlSystemGetCudaDriverVersion_v2 13"], None),
    ],
)
def test_how_many_mps_clients_a_gpu_can_hold(
    nvml_here: FakeNvml, lines: list[str], most: int | None
) -> None:
    """NVIDIA's documentation of MPS, "Client-Server Connection Limits"."""
    nvml_here.configure("count 1", plain_gpu(0), *lines)
    assert Gpus.read().every[0].most_mps_clients == most
    assert read_inventory().gpus[0].most_mps_clients == most
